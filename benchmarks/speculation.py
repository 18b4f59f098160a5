"""Speculative decoding by prompt lookup: tokens per second with and without, in one process, on the same prompts.

    python benchmarks/speculation.py [MODEL] [--num-speculative-tokens 5] [--rounds 3]

Two kinds of prompts: answers that repeat their prompt (where guessing should pay) and free text (where it should cost
little). Runs alternate between the two engines, so that a noisy machine disturbs both alike.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence

from limelight.engine import Engine, ModelLoader
from limelight.generation import Generation, SamplingParams

RECORDS = "\n".join(f'{{"id": {number}, "name": "item {number}", "price": {number * 3 + 1}.50}}' for number in range(8))
PROMPTS = {
    "repeating": f"Here is a list of records:\n{RECORDS}\n\nHere is the same list of records again:\n",
    "free text": "The history of lighthouses begins long before electric light. In the beginning,",
}


def main(arguments: Sequence[str] | None = None, loader: ModelLoader | None = None) -> None:
    """Measure and print one line per kind of prompt; `loader` as for `Engine`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", metavar="MODEL", help="default: the embedded model")
    parser.add_argument("--num-speculative-tokens", type=int, default=5, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=96, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    options = parser.parse_args(arguments)
    asyncio.run(compare(options, loader))


async def compare(options: argparse.Namespace, loader: ModelLoader | None = None) -> None:
    """Both engines over the same prompts, in turn."""
    sampling = SamplingParams(temperature=0, max_tokens=options.max_tokens, ignore_eos=True)
    guesses = options.num_speculative_tokens
    async with (
        Engine(options.model, loader=loader, kv_cache_bytes=2**28) as plain,
        Engine(options.model, loader=loader, kv_cache_bytes=2**28, num_speculative_tokens=guesses) as guessing,
    ):
        for kind, prompt in PROMPTS.items():
            seconds: dict[str, list[float]] = {"plain": [], "guessing": []}
            answers: dict[str, Generation] = {}
            for _ in range(options.rounds):
                for name, engine in (("plain", plain), ("guessing", guessing)):
                    started = time.perf_counter()
                    answers[name] = await engine.generate(prompt, sampling)
                    seconds[name].append(time.perf_counter() - started)
            if answers["plain"].text != answers["guessing"].text:
                raise SystemExit(f"{kind}: the texts differ")
            usage = answers["guessing"].usage
            guessed = usage.accepted_prediction_tokens + usage.rejected_prediction_tokens
            median = {name: statistics.median(values) for name, values in seconds.items()}
            rates = {name: usage.completion_tokens / value for name, value in median.items()}
            print(
                f"{kind:10} plain {rates['plain']:.1f} tokens/s, guessing {rates['guessing']:.1f} tokens/s, "
                f"ratio {median['plain'] / median['guessing']:.2f}; "
                f"{usage.accepted_prediction_tokens} of {guessed} guesses were right"
            )


if __name__ == "__main__":
    main()
