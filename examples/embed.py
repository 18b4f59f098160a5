"""Limelight inside your own asyncio program: two streams at once, one of them given up half-way.

python examples/embed.py [MODEL]
"""

import asyncio
import sys

from limelight import Engine, SamplingParams


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else None  # None: the default model
    async with Engine(model) as engine, asyncio.TaskGroup() as group:
        group.create_task(ask(engine, "Name the capital of France."))
        group.create_task(look_at_the_beginning(engine, "Once upon a time"))


async def ask(engine: Engine, question: str) -> None:
    answer = await engine.chat([{"role": "user", "content": question}], SamplingParams(temperature=0, max_tokens=40))
    print(f"{question}\n  {answer.text.strip()}")


async def look_at_the_beginning(engine: Engine, prompt: str) -> None:
    text = prompt
    async with engine.stream(prompt, SamplingParams(temperature=0.7, seed=1, max_tokens=200)) as stream:
        async for delta in stream:
            text += delta.text
            if len(text) > 200:
                break  # leaving the block aborts the request: its memory is free for others at once
    print(f"{text} ...")


if __name__ == "__main__":
    asyncio.run(main())
