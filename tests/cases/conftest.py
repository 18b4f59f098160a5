"""Fixtures of the cases: the default model's weights and vocabulary are read once for all engines of the folder."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cases.small_engines import LONGEST_CONTEXT, PAGE_BYTES, PAGE_TOKENS


@pytest.fixture(scope="session")
def default_model() -> Iterator[None]:
    """From here on, loading the default model takes its kernels, its weights and its text side from memory.

    Where torch computes, one thread does: on cores that are shared with other programs the barriers of several cost
    more than they gain, and the order of sums is the same on every machine with the same instructions.
    """
    import torch

    from limelight.config import EngineConfig
    from limelight.models import loading
    from limelight.models.source import NativeSource

    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "select_kernels", _first_kept(loading.select_kernels, _kernels_asked_for))
        patch.setattr(NativeSource, "load", _first_kept(NativeSource.load, _weights_asked_for))
        patch.setattr(loading, "_text_side", _first_kept(loading._text_side, lambda path, _gguf_metadata: path))
        pool = LONGEST_CONTEXT // PAGE_TOKENS * PAGE_BYTES
        loading.load_model(
            EngineConfig(max_model_len=LONGEST_CONTEXT, kv_cache_bytes=pool), lambda _what, _fraction: None
        ).executor.close()
        yield
    torch.set_num_threads(num_threads)


def _first_kept(function: Callable[..., Any], asked_for: Callable[..., Any]) -> Callable[..., Any]:
    """`function` that gives its first result to all who ask for the same; others, in later folders, get their own."""
    kept: list[tuple[Any, Any]] = []

    def call(*arguments: Any, **keywords: Any) -> Any:
        wanted = asked_for(*arguments, **keywords)
        if not kept:
            kept.append((wanted, function(*arguments, **keywords)))
        return kept[0][1] if kept[0][0] == wanted else function(*arguments, **keywords)

    return call


def _kernels_asked_for(config: Any, device: Any, *, native: bool, find: Any) -> Any:
    return config.cpu_kernels, device, native


def _weights_asked_for(source: Any, kernels: Any, precision: Any, num_positions: int, _report: Any) -> Any:
    """A table of more positions serves shorter contexts, too."""
    return source.outline, id(kernels), precision, num_positions <= LONGEST_CONTEXT
