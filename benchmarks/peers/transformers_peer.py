"""transformers in this process, in float32: `python -m benchmarks.peers.transformers_peer MODEL`."""

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.peers.protocol import Arrived, Prompts, answer_tasks


class TellTokens(transformers.StoppingCriteria):
    """Never stops; is called after each token of the batch."""

    def __init__(self, num_prompts: int, arrived: Arrived) -> None:
        self._num_prompts = num_prompts
        self._arrived = arrived

    def __call__(self, input_ids: torch.Tensor, scores: Any, **others: Any) -> torch.Tensor:
        """No prompt is at its end."""
        for number in range(self._num_prompts):
            self._arrived(number)
        return torch.zeros(len(input_ids), dtype=torch.bool)


def main(model: str) -> None:
    path = Path(model)
    named = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if named else path
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **named)

    def generate(prompts: Prompts, output_len: int, arrived: Arrived) -> None:
        tell = transformers.StoppingCriteriaList([TellTokens(len(prompts), arrived)])
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            loaded.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=output_len,
                max_new_tokens=output_len,
                stopping_criteria=tell,
            )

    answer_tasks(transformers.__version__, generate)


if __name__ == "__main__":
    main(sys.argv[1])
