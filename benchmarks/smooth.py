"""How late tokens of running answers are while long prompts are read, with and without `--target-itl-ms`.

    python -m benchmarks.smooth --targets 0 60 120 --rounds 3

For each target (0 is none): the median and the 99th percentile of the time between two tokens of all streams while
prompts were read, and the tokens per second at which they were.
"""

import argparse
import asyncio
import random
import time
from statistics import median, quantiles

from limelight import Engine, SamplingParams

WARM_UP_TOKENS = 1000


async def measure(options: argparse.Namespace, target: float) -> tuple[list[float], float]:
    """Gaps between tokens in seconds, and prompt tokens per second."""
    chance = random.Random(options.seed)
    model = None if options.model == "default" else options.model
    gaps: list[float] = []
    reading = False
    async with Engine(
        model, target_itl_ms=target or None, stream_interval=0.0, kv_cache_bytes=options.kv_cache << 20
    ) as engine:
        vocabulary = engine.model.capacity.vocab_size

        def prompt(length: int) -> list[int]:
            return [chance.randrange(100, vocabulary - 100) for _ in range(length)]

        async def stream(tokens: list[int]) -> None:
            last = None
            async with engine.stream(tokens, SamplingParams(max_tokens=100_000, ignore_eos=True)) as running:
                async for _ in running:
                    now = time.perf_counter()
                    if last is not None and reading:
                        gaps.append(now - last)
                    last = now

        capacity = engine.model.capacity
        for _ in range(capacity.num_pages * capacity.page_size // WARM_UP_TOKENS + 1):  # first writes of pages are slow
            await engine.generate(prompt(WARM_UP_TOKENS), SamplingParams(max_tokens=4, ignore_eos=True))
        streams = [asyncio.create_task(stream(prompt(32))) for _ in range(options.streams)]
        await asyncio.sleep(options.settle)
        began, num_read = time.perf_counter(), 0
        reading = True
        for _ in range(options.rounds):
            await engine.generate(prompt(options.prompt_len), SamplingParams(max_tokens=1))
            num_read += options.prompt_len
        reading = False
        seconds = time.perf_counter() - began
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return gaps, num_read / seconds


def main() -> None:
    """Run every target and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="default", help="as for `limelight serve`")
    parser.add_argument("--targets", type=float, nargs="+", default=[0, 60, 120], metavar="MS")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=3000, help="tokens of each long prompt")
    parser.add_argument("--kv-cache", type=int, default=256, metavar="MIB", help="keys and values, all of them warmed")
    parser.add_argument("--rounds", type=int, default=3, help="long prompts, one after the other")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before the first long prompt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'target, ms':>10} {'p50, ms':>10} {'p99, ms':>10} {'p99 / target':>13} {'prompt tokens/s':>16}")
    for target in options.targets:
        gaps, rate = asyncio.run(measure(options, target))
        last = quantiles(gaps, n=100)[98] * 1000
        ratio = f"{last / target:.2f}" if target else "-"
        print(f"{target or '-':>10} {median(gaps) * 1000:10.1f} {last:10.1f} {ratio:>13} {rate:16.0f}", flush=True)


if __name__ == "__main__":
    main()
