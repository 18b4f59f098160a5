"""Answers a file of prompts, one a line, without a server: many at a time, as fast as the machine can.

python examples/batch_job.py prompts.txt answers.jsonl
python examples/batch_job.py prompts.txt answers.jsonl --model MODEL --max-tokens 200

Each line of the output is an object with prompt, answer, finish_reason and tokens, in the order of the prompts. For
files in the form of OpenAI's Batch API, and for runs that go on where they stopped, there is `limelight run-batch`.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from limelight import LLM, Generation, SamplingParams

PROMPTS_AT_ONCE = 256
"""After so many, answers are written: enough to keep the engine busy, few enough to see the file grow."""


def main() -> None:
    parser = argparse.ArgumentParser(description="answers a file of prompts")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--max-tokens", type=int, default=100)
    options = parser.parse_args()
    prompts = [line for line in options.prompts.read_text().splitlines() if line.strip()]
    began_at = time.perf_counter()
    num_tokens = 0
    with LLM(options.model) as llm, options.answers.open("w") as file:
        for prompt, answer in answers(llm, prompts, options.max_tokens):
            num_tokens += answer.usage.completion_tokens
            file.write(json.dumps(as_row(prompt, answer), ensure_ascii=False) + "\n")
    seconds = time.perf_counter() - began_at
    print(f"{len(prompts)} answers of {num_tokens} tokens in {seconds:.1f} s, loading included", file=sys.stderr)


def answers(llm: LLM, prompts: Sequence[str], max_tokens: int) -> Iterator[tuple[str, Generation]]:
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    for start in range(0, len(prompts), PROMPTS_AT_ONCE):
        asked = prompts[start : start + PROMPTS_AT_ONCE]
        conversations = [[{"role": "user", "content": prompt}] for prompt in asked]
        yield from zip(asked, llm.chat(conversations, params), strict=True)  # with a progress bar on stderr


def as_row(prompt: str, answer: Generation) -> dict[str, object]:
    return {
        "prompt": prompt,
        "answer": answer.text.strip(),
        "finish_reason": answer.outputs[0].finish_reason,
        "tokens": answer.usage.completion_tokens,
    }


if __name__ == "__main__":
    main()
