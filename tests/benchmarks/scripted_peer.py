"""A peer of `compare.py` without a model: it counts from the last token of each prompt, and may break on the way."""

import sys
import time

from benchmarks.peers.protocol import Arrived, Prompts, answer_tasks

behaviour = sys.argv[1]


def generate(prompts: Prompts, output_len: int, arrived: Arrived) -> None:
    print("noise of a runtime")
    if behaviour == "breaks" and output_len > 1:
        raise SystemExit(3)
    for _ in range(output_len - (behaviour == "short" and output_len > 1)):
        time.sleep(0.001)
        for number in range(len(prompts)):
            arrived(number)


if behaviour == "fails":
    raise SystemExit(3)
answer_tasks("7.0", generate)
