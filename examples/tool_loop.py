"""A model that uses tools: OpenAI's client runs what the model calls, and asks again with the results.

pip install openai
limelight serve Qwen/Qwen3-0.6B       (in another terminal; a model that has learned to call tools)
python examples/tool_loop.py "What is 3.5 plus 4, and what is the weather in Seoul?" [ADDRESS]

Arguments are decoded into typed objects. What does not fit is told to the model, which then may try again.
"""

import sys
from collections.abc import Callable, Iterable

import msgspec
from openai import OpenAI, OpenAIError
from openai.types.chat import (
    ChatCompletionMessageFunctionToolCall,
    ChatCompletionMessageFunctionToolCallParam,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)

MAX_ROUNDS = 5


class Add(msgspec.Struct, forbid_unknown_fields=True):
    """Add two numbers."""

    a: float
    b: float

    def run(self) -> str:
        """The sum."""
        return str(self.a + self.b)


class Weather(msgspec.Struct, forbid_unknown_fields=True):
    """Tell the weather in a city."""

    city: str

    def run(self) -> str:
        """A forecast; it would ask somebody, if this were not an example."""
        return f"sunny in {self.city}, 21 degrees"


TOOLS: dict[str, type[Add] | type[Weather]] = {"add": Add, "weather": Weather}


def described() -> Iterable[ChatCompletionToolParam]:
    """The tools as the API wants them; the schema of the arguments is that of the class."""
    for name, tool in TOOLS.items():
        _, schemas = msgspec.json.schema_components([tool])
        schema = schemas[tool.__name__]
        description = schema.pop("description")
        yield {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def result_of(call: ChatCompletionMessageFunctionToolCall) -> str:
    tool = TOOLS.get(call.function.name)
    if tool is None:
        return f"error: there is no tool {call.function.name}; there are {', '.join(TOOLS)}"
    try:
        return msgspec.json.decode(call.function.arguments, type=tool).run()
    except msgspec.MsgspecError as error:
        return f"error: {error}"


def answer(client: OpenAI, model: str, question: str, tell: Callable[[str], None]) -> str:
    """The final answer; every call and its result go to `tell`."""
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": question}]
    for _ in range(MAX_ROUNDS):
        completion = client.chat.completions.create(model=model, messages=messages, tools=list(described()))
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        calls = [call for call in message.tool_calls if call.type == "function"]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": [said(call) for call in calls]})
        for call in calls:
            result = result_of(call)
            tell(f"{call.function.name}({call.function.arguments}) = {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise SystemExit(f"no answer after {MAX_ROUNDS} rounds of calls")


def said(call: ChatCompletionMessageFunctionToolCall) -> ChatCompletionMessageFunctionToolCallParam:
    """A call of the model, as a part of the conversation."""
    function = call.function
    return {"id": call.id, "type": "function", "function": {"name": function.name, "arguments": function.arguments}}


def main() -> None:
    question = sys.argv[1] if len(sys.argv) > 1 else "What is 3.5 plus 4?"
    address = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8000"
    with OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        print(answer(client, model, question, print))


if __name__ == "__main__":
    try:
        main()
    except OpenAIError as error:
        raise SystemExit(f"{error} (is there a server? start one: limelight serve)") from None
