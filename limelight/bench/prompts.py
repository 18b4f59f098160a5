"""Random prompts, drawn by a seed, so that no prefix is shared but the one that is asked for."""

import random
from collections.abc import Callable
from pathlib import Path

from limelight.errors import ConfigError

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
"""A token each, with the space before them, in the vocabularies of usual models."""

FIRST_TOKEN, LAST_TOKEN = 1000, 30000
"""Range of random token ids: above the special tokens and bytes, below the vocabularies of usual models."""

CORRECTIONS = 8

Tokens = list[int]
CountTokens = Callable[[str], int]


def token_prompts(
    num_prompts: int, input_len: int, *, prefix_len: int = 0, seed: int = 0, vocab_size: int = LAST_TOKEN
) -> list[Tokens]:
    """Prompts of exactly `prefix_len` equal and `input_len` own token ids."""
    draw = random.Random(seed)  # noqa: S311 (reproducible on purpose)
    last = min(LAST_TOKEN, vocab_size * 3 // 4) if vocab_size < LAST_TOKEN else LAST_TOKEN
    token_ids = range(min(FIRST_TOKEN, last // 3), last)
    prefix = draw.choices(token_ids, k=prefix_len)
    return [prefix + draw.choices(token_ids, k=input_len) for _ in range(num_prompts)]


def word_prompts(
    num_prompts: int, input_len: int, *, prefix_len: int = 0, seed: int = 0, count_tokens: CountTokens | None = None
) -> list[str]:
    """Prompts of so many words; with `count_tokens` of so many tokens, as near as whole words come to that."""
    draw = random.Random(seed)  # noqa: S311 (reproducible on purpose)
    prefix = draw.choices(WORDS, k=prefix_len)
    prompts = []
    for _ in range(num_prompts):
        words = prefix + draw.choices(WORDS, k=input_len)
        for _ in range(CORRECTIONS if count_tokens else 0):
            missing = prefix_len + input_len - count_tokens(" ".join(words)) if count_tokens else 0
            if missing == 0:
                break
            words = words + draw.choices(WORDS, k=missing) if missing > 0 else words[:missing]
        prompts.append(" ".join(words))
    return prompts


def token_counter(place: str) -> CountTokens:
    """Counts as the tokenizer in `place` does, a folder with `tokenizer.json` or such a file.

    Raises:
        ConfigError: there is none.
    """
    from tokenizers import Tokenizer

    path = Path(place)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"--tokenizer: there is no file {path}; give a tokenizer.json or the folder that holds one")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (the library raises nothing narrower)
        raise ConfigError(f"--tokenizer: {path} is no tokenizer.json: {error}") from None
    return lambda text: len(tokenizer.encode(text).ids)
