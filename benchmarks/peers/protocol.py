"""How `compare.py` talks to a runtime in a process of its own: a JSON object a line, a task in and its result out.

Needs nothing but the standard library: a peer's Python need not know Limelight.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

Prompts = Sequence[Sequence[int]]
Arrived = Callable[[int], None]
"""Called with the number of a prompt for each of its tokens, when that is there."""

Generate = Callable[[Prompts, int, Arrived], None]
"""Continues all prompts together, greedily, by exactly so many tokens each, which are told as they come."""


def answer_tasks(version: str, generate: Generate) -> None:
    """Does what standard input asks for until it ends.

    A task is `{"prompts": [[ids]], "output_len": n}`, its result `{"first_seconds": [...], "last_seconds": [...],
    "num_tokens": [...]}`, one entry per prompt. The first line out is `{"version": ...}`: the model is loaded.
    """
    # Whatever a runtime prints goes to standard error; results have the pipe for themselves.
    with os.fdopen(os.dup(1), "w") as results:
        os.dup2(2, 1)
        print(json.dumps({"version": version}), file=results, flush=True)
        for line in sys.stdin:
            task = json.loads(line)
            print(json.dumps(_timed(task["prompts"], task["output_len"], generate)), file=results, flush=True)


def _timed(prompts: Prompts, output_len: int, generate: Generate) -> dict[str, list[float]]:
    first = [0.0] * len(prompts)
    last = [0.0] * len(prompts)
    count = [0] * len(prompts)
    started = time.perf_counter()

    def arrived(number: int) -> None:
        last[number] = time.perf_counter() - started
        first[number] = first[number] or last[number]
        count[number] += 1

    generate(prompts, output_len, arrived)
    return {"first_seconds": first, "last_seconds": last, "num_tokens": [float(number) for number in count]}
