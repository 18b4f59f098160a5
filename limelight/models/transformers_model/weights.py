"""Reads a folder's safetensors into a model of transformers: every tensor must be there, and every one be used.

transformers would fill what is missing with random numbers and say so in its log; here it is an error that names it.
Its log and progress bars stay silent while it works for us, on the thread that loads.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from limelight.errors import CheckpointError
from limelight.models.checkpoint import HARMLESS, check_finite
from limelight.models.quantization.checkpoint import QuantizedTensors
from limelight.models.safetensors.checkpoint import SafetensorsFiles
from limelight.models.transformers_model.attention import set_desk
from limelight.models.transformers_model.config import TransformersConfig, understood
from limelight.models.wording import listed
from limelight.quoting import explanation

FAULTS = ("missing", "unexpected", "mismatched")
_one_at_a_time = threading.Lock()
"""While transformers builds a model it changes torch's default dtype for the whole process and puts it back, and so
does `silent_transformers` with the hook for bars: two loads that overlap would put back what the other one had set."""


def load_weights(
    described: TransformersConfig,
    files: SafetensorsFiles | QuantizedTensors,
    device: str,
    dtype: torch.dtype,
    on_progress: Callable[[float], None],
) -> Any:
    """The model of transformers with the weights of `files`, for evaluation only.

    Args:
        on_progress: called with the fraction of tensors that have been read.

    Raises:
        CheckpointError: tensors are missing, left over or of another shape.
        UnsupportedModel: transformers cannot build or fill the model.
    """
    progress = _Progress(len(files.names()), on_progress)
    tensors = {name: _Lazy(files, name, progress) for name in files.names() if not HARMLESS.search(name)}
    with understood(described.fields.source, "load the weights"), _one_at_a_time, silent_transformers():
        model, found = described.model_class.from_pretrained(
            None,
            config=described.config,
            state_dict=tensors,
            dtype=dtype,
            ignore_mismatched_sizes=True,  # so that they are reported, below, with all the rest
            output_loading_info=True,
        )
    faults = []
    for kind in FAULTS:
        names = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in found[f"{kind}_keys"])
        if names:
            faults.append(f"{len(names)} {kind}: {listed(names)}")
    if found["error_msgs"]:
        faults.append(explanation(found["error_msgs"][0]))
    if faults:
        folder = files.files[0].parent
        raise CheckpointError(f"the tensors of {folder} do not match {described.fields.source}: {'; '.join(faults)}")
    on_progress(1.0)
    # Until here, tensors that need no conversion are still those of the mapped files.
    model = model.to(device).eval().requires_grad_(False)
    set_desk(model)
    return model


@contextmanager
def silent_transformers() -> Iterator[None]:
    """Keep the calling thread's records out of transformers' own log handlers, and its progress bars off.

    Both are put back at the end; what other threads log is untouched.
    """
    from transformers.utils import logging as transformers_logging

    thread = threading.get_ident()

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != thread

    def without_bar(factory: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if threading.get_ident() == thread:
            options = {**options, "disable": True}
        return factory(*args, **options)

    handlers = list(transformers_logging.get_logger("transformers").handlers)
    previous = transformers_logging.set_tqdm_hook(without_bar)
    for handler in handlers:
        handler.addFilter(from_elsewhere)
    try:
        yield
    finally:
        transformers_logging.set_tqdm_hook(previous)
        for handler in handlers:
            handler.removeFilter(from_elsewhere)


class _Progress:
    """Counts tensors that several threads read."""

    def __init__(self, total: int, on_progress: Callable[[float], None]) -> None:
        self._total = total
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._done = 0

    def advance(self) -> None:
        with self._lock:
            self._done += 1
            if self._done < self._total:  # the end is told when everything is in its place
                self._on_progress(self._done / self._total)


class _Lazy:
    """A tensor that is read when transformers asks for all of it, as with a slice of a safetensors file."""

    def __init__(self, files: SafetensorsFiles | QuantizedTensors, name: str, progress: _Progress) -> None:
        self._files = files
        self._name = name
        self._progress = progress

    def __getitem__(self, whole: EllipsisType) -> Tensor:
        tensor = self._files.tensor(self._name)
        check_finite(tensor, self._name, str(self._files.files[0].parent))
        self._progress.advance()
        return tensor
