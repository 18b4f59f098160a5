"""The loop of tools: the official client over a real socket, against a scripted model that calls."""

import json

import anyio
import httpx
import pytest
from openai import OpenAI

from examples import tool_loop
from limelight.models.text.chat_format import JinjaChatFormat
from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import END, scripted_engine
from tests.http.wire import serving

pytestmark = pytest.mark.anyio

HERMES = AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
)


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def looped(*answers):
    """Final answer, what was told of calls, and the prompts, of a model that answers so, one after the other."""
    prompts = []

    def script(turn):
        if turn.number == 0:
            prompts.append(bytes(turn.prompt).decode())
        answer = answers[min(len(prompts), len(answers)) - 1].encode()
        return answer[turn.number] if turn.number < len(answer) else END

    told = []
    engine = scripted_engine(script, answer_format=HERMES, chat_format=JinjaChatFormat(TEMPLATE))
    async with serving(engine) as client:

        def ask():
            http = httpx.Client(trust_env=False)
            with OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0, http_client=http) as openai:
                return tool_loop.answer(openai, "scripted", "What is 3.5 plus 4?", told.append)

        return await anyio.to_thread.run_sync(ask), told, prompts


async def test_calls_are_run_and_their_results_lead_to_the_answer():
    answer, told, prompts = await looped(call("add", a=3.5, b=4) + call("weather", city="Seoul"), "It is 7.5.")
    assert answer == "It is 7.5."
    assert [line.rpartition(" = ")[2] for line in told] == ["7.5", "sunny in Seoul, 21 degrees"]
    assert "tool: 7.5\ntool: sunny in Seoul, 21 degrees\n" in prompts[1]
    assert '"name": "add"' in prompts[0]
    assert "Add two numbers." in prompts[0]
    assert '"required": ["a", "b"]' in prompts[0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("add", a=3.5), "error: Object missing required field `b`"),
        (call("add", a="much", b=4), "error: Expected `float`, got `str` - at `$.a`"),
        (call("add", a=1, b=2, c=3), "error: Object contains unknown field `c`"),
        (call("subtract", a=1, b=2), "error: there is no tool subtract; there are add, weather"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_to_the_model(wrong, told):
    answer, seen, prompts = await looped(wrong, call("add", a=3.5, b=4), "It is 7.5.")
    assert answer == "It is 7.5."
    assert f"tool: {told}\n" in prompts[1]
    assert seen[0].endswith(f" = {told}")
    assert seen[1].endswith(" = 7.5")


async def test_a_model_that_never_stops_calling_is_stopped():
    with pytest.raises(SystemExit, match="5 rounds"):
        await looped(call("weather", city="Seoul"))
