"""Limelight's engine in this process: `python -m benchmarks.peers.limelight_peer MODEL [KV_CACHE_BYTES]`."""

import asyncio
import sys

from benchmarks.peers.protocol import Arrived, Prompts, answer_tasks
from limelight import __version__
from limelight.engine import Engine, ModelLoader
from limelight.generation import SamplingParams


def main(model: str, kv_cache_bytes: int | None = None, loader: ModelLoader | None = None) -> None:
    """Answer tasks; `loader` as for `Engine`."""
    engine = Engine(model, loader=loader, kv_cache_bytes=kv_cache_bytes)
    with asyncio.Runner() as runner:
        runner.run(engine.start())

        def generate(prompts: Prompts, output_len: int, arrived: Arrived) -> None:
            sampling = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)

            async def one(number: int) -> None:
                async with engine.stream(prompts[number], sampling) as stream:
                    while deltas := await stream.next_deltas():
                        for _ in range(sum(len(delta.token_ids) for delta in deltas)):
                            arrived(number)

            async def together() -> None:
                async with asyncio.TaskGroup() as group:
                    for number in range(len(prompts)):
                        group.create_task(one(number))

            runner.run(together())

        try:
            answer_tasks(__version__, generate)
        finally:
            runner.run(engine.stop())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
