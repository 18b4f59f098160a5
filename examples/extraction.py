"""Structured extraction: text in, typed Python objects out. The schema of a class bounds what the model can write.

python examples/extraction.py "Ada Lovelace, born in London in 1815, wrote to Charles Babbage, who was 24 years older."
python examples/extraction.py TEXT MODEL

The output always parses; whether it is true depends on the model, and the small default one is often wrong.
"""

import asyncio
import sys
from typing import Annotated, Literal, TypeVar

import msgspec

from limelight import Engine, FinishReason, SamplingParams, StructuredOutputsParams

TEXT = "Ada Lovelace was born in London in 1815. She wrote to Charles Babbage, who was born in 1791."

T = TypeVar("T")


class Person(msgspec.Struct):
    """Somebody whom the text names."""

    name: Annotated[str, msgspec.Meta(max_length=60)]
    born: Annotated[int, msgspec.Meta(ge=0, le=2100)] | None
    role: Literal["writer", "scientist", "other"]


class People(msgspec.Struct):
    """Everybody whom the text names."""

    people: Annotated[list[Person], msgspec.Meta(max_length=5)]


async def extract(engine: Engine, text: str, into: type[T]) -> T:
    """What `text` says, as an object of the class `into`.

    Raises:
        ValueError: the model reached its limit of tokens before the end of the object.
    """
    schema = msgspec.json.schema(into)
    messages = [{"role": "user", "content": f"List the people in this text as JSON.\n\n{text}"}]
    answer = await engine.chat(
        messages,
        SamplingParams(
            temperature=0,
            max_tokens=400,
            structured_outputs=StructuredOutputsParams(json=schema, disable_any_whitespace=True),
        ),
    )
    if answer.outputs[0].finish_reason is FinishReason.LENGTH:
        raise ValueError(f"the object was not finished in 400 tokens: {answer.text}")
    return msgspec.json.decode(answer.text, type=into)


async def main() -> None:
    text = sys.argv[1] if len(sys.argv) > 1 else TEXT
    model = sys.argv[2] if len(sys.argv) > 2 else None  # None: the default model
    async with Engine(model) as engine:
        found = await extract(engine, text, People)
    for person in found.people:
        born = "unknown" if person.born is None else person.born
        print(f"{person.name:<30} born {born:<10} {person.role}")


if __name__ == "__main__":
    asyncio.run(main())
