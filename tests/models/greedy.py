"""A loaded model against the same weights in transformers: 64 greedy tokens of many prompts at once."""

from collections.abc import Sequence
from typing import Any

import torch

from limelight.models.loaded_model import LoadedModel
from tests.models.sequences import Batch

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "The three primary colours are",
    "Q: How many legs does a spider have?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8,",
    "Grüße aus Köln! Das Wetter ist",
    "La recette de la tarte aux pommes :",
    "SELECT name, age FROM",
    "The mitochondria is",
    "import numpy as np\n\nx = np.",
    "In 1969, humans first",
    "List of fruits:\n- apple\n- banana\n-",
    "Hello",
    "To be, or not to be, that is",
    "日本の首都は",
]
"""Texts that any model can go on with; tests add turns of a chat and a long one."""
NUM_TOKENS = 64
NEAR_TIE = 1e-4
"""Logits closer than this may change places by rounding alone."""


def assert_greedy_tokens(
    loaded: LoadedModel, model: Any, prompts: Sequence[str], *, near_tie: float = NEAR_TIE
) -> None:
    """One pass of transformers over prompt and output says of every token whether it is the most likely one."""
    batch = Batch(loaded.executor, loaded.capacity.page_size, range(loaded.capacity.num_pages))
    sequences = [
        batch.sit(seat, loaded.vocabulary.encode(prompt, add_special_tokens=True))
        for seat, prompt in enumerate(prompts)
    ]
    batch.step(*((sequence, sequence.num_prompt_tokens) for sequence in sequences))
    while len(sequences[0].output) < NUM_TOKENS:
        batch.step(*((sequence, 1) for sequence in sequences))

    near_ties = []
    for prompt, sequence in zip(prompts, sequences, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([sequence.tokens[:-1]]), logits_to_keep=NUM_TOKENS).logits[0]
        different = (logits.argmax(-1) != torch.tensor(sequence.output)).nonzero().flatten().tolist()
        if different:
            # What follows a different token cannot be compared. Two tokens that are equally likely may change places.
            first = logits[different[0]]
            gap = float(first.max() - first[sequence.output[different[0]]])
            assert gap < near_tie, f"{prompt!r} differs at token {different[0]}, {gap:.2e} below the best"
            near_ties.append(prompt)
    assert len(near_ties) <= 2, near_ties
