"""Triton's kernels run in its interpreter, on tensors of the CPU (`tests/conftest.py`)."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as integers, and multiplies matrices of it as such: give it float32 instead."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder

    create_dot = InterpreterBuilder.create_dot

    def widened(builder: Any, handle: Any) -> Any:
        return builder.create_fp_ext(handle, tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle

    def exact_dot(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
        return create_dot(builder, widened(builder, left), widened(builder, right), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", exact_dot)


@pytest.fixture(autouse=True)
def _nearest_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter cuts float32 off to bfloat16; a GPU rounds to the nearest."""
    import torch
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    create_fp_trunc = InterpreterBuilder.create_fp_trunc

    def rounded(builder: Any, handle: Any, dtype: Any) -> Any:
        if handle.dtype.scalar != tl.float32 or dtype.scalar != tl.bfloat16:
            return create_fp_trunc(builder, handle, dtype)
        nearest = torch.from_numpy(handle.data.copy()).bfloat16()
        return TensorHandle(nearest.view(torch.int16).numpy().view("uint16"), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "create_fp_trunc", rounded)


@pytest.fixture(autouse=True)
def _numbers_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 counts to arrays of one number, which numpy 2.4 does not take for numbers any more."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(autouse=True)
def _no_warnings_about_ties() -> Iterator[None]:
    """What numpy says of NaN and infinities, which are in the tests on purpose."""
    import numpy as np

    with np.errstate(all="ignore"):
        yield
