"""Fixtures of the cases: the default model's weights and vocabulary are read once for all engines of the folder."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cases.small_engines import LONGEST_CONTEXT, PAGE_BYTES, PAGE_TOKENS


@pytest.fixture(scope="session")
def default_model() -> Iterator[None]:
    """From here on, loading the default model takes its weights and its text side from memory.

    One thread computes: on cores that are shared with other programs the barriers of several cost more than they gain,
    and the order of sums is the same on every machine with the same instructions.
    """
    import torch

    from limelight.config import EngineConfig
    from limelight.models import loading

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_load_weights", "_text_side"):
            patch.setattr(loading, name, _once(getattr(loading, name)))
        pool = LONGEST_CONTEXT // PAGE_TOKENS * PAGE_BYTES
        loading.load_model(
            EngineConfig(max_model_len=LONGEST_CONTEXT, kv_cache_bytes=pool), lambda _what, _fraction: None
        ).executor.close()
        yield
    torch.set_num_threads(num_threads)


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    results: list[Any] = []

    def first(*arguments: Any) -> Any:
        if not results:
            results.append(function(*arguments))
        return results[0]

    return first
