"""Where a model comes from and whose layers run it: what loading asks of either kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from limelight.errors import ConfigError, UnsupportedModel
from limelight.kernels.cpu.kernels import CpuKernels
from limelight.kernels.cpu.library import UnmadeLibrary
from limelight.kernels.cpu.step_buffers import StepLimits
from limelight.kernels.interface import Kernels
from limelight.models.checkpoint import Checkpoint, check_parameters, open_checkpoint
from limelight.models.decoder import Decoder, parameter_shapes, weights_bytes
from limelight.models.families.registry import ARCHITECTURES
from limelight.models.fields import read_json_object
from limelight.models.forward_batch import Model
from limelight.models.gguf.checkpoint import GgufCheckpoint
from limelight.models.layers import ProjectionShape
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.parameters import Parameters
from limelight.models.pass_outline import pass_bytes
from limelight.models.precision import Precision
from limelight.models.spec import ModelOutline
from limelight.progress import Report


class AdaptableModel(Model, Protocol):
    """A decoder, with its weights.

    Attributes:
        adaptable: the projections that adapters can change.
        hidden_size: numbers of a hidden state behind the final norm.
        unreadable: why its rows cannot be read behind the layers, for scores and hidden states; None: they can.
    """

    adaptable: tuple[ProjectionShape, ...]
    hidden_size: int
    unreadable: str | None


class Source(Protocol):
    """A model whose files are open and checked, and whose tensors have not been read.

    Attributes:
        is_native: it runs with layers of our own.
    """

    is_native: bool

    @property
    def outline(self) -> ModelOutline:
        """What serving needs to know of it."""
        ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Sampling settings that the model's authors recommend."""
        ...

    @property
    def gguf_metadata(self) -> Mapping[str, Any] | None:
        """Where tokenizer and chat template are, for a GGUF file; None: they lie in files of their own."""
        ...

    def weights_bytes(self, kernels: Kernels, precision: Precision) -> int:
        """Bytes of all parameters in memory."""
        ...

    def working_bytes(self, kernels: Kernels, precision: Precision, limits: StepLimits, max_adapter_rank: int) -> int:
        """Memory that the values of the largest step take, with adapters of this rank; 0 if unknown."""
        ...

    def load(self, kernels: Kernels, precision: Precision, num_positions: int, report: Report) -> AdaptableModel:
        """Read and pack the weights, for contexts of at most `num_positions` tokens.

        Raises:
            ModelError: the tensors are corrupt, do not fit, or are of a kind that is not supported.
        """
        ...


class NativeSource:
    """A model of a family that has layers of our own. See `Source`."""

    is_native = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Check the stored tensors against what the family needs.

        Raises:
            CheckpointError: they do not match.
        """
        check_parameters(checkpoint, parameter_shapes(checkpoint.spec))
        self._checkpoint = checkpoint
        self.outline: ModelOutline = checkpoint.spec
        self.sampling_defaults = checkpoint.sampling_defaults
        self.gguf_metadata = checkpoint.metadata if isinstance(checkpoint, GgufCheckpoint) else None

    def weights_bytes(self, kernels: Kernels, precision: Precision) -> int:
        """Bytes of all parameters in memory."""
        kept_as = Parameters(self._checkpoint, kernels, precision).kept_as
        return weights_bytes(self._checkpoint.spec, kernels, precision.values, kept_as)

    def working_bytes(self, kernels: Kernels, precision: Precision, limits: StepLimits, max_adapter_rank: int) -> int:
        """Memory that the values of the largest step take; 0 for kernels that do not record it, or not yet."""
        if not isinstance(kernels, CpuKernels) or isinstance(kernels.library, UnmadeLibrary):
            return 0
        kept_as = Parameters(self._checkpoint, kernels, precision).kept_as
        return pass_bytes(self._checkpoint, kernels, kept_as, limits, max_adapter_rank)

    def load(self, kernels: Kernels, precision: Precision, num_positions: int, report: Report) -> Decoder:
        """Read and pack every parameter."""
        parameters = Parameters(self._checkpoint, kernels, precision)
        return Decoder(
            self._checkpoint.spec, parameters, kernels, num_positions, lambda part: report("loading weights", part)
        )


def open_source(path: Path, model_impl: str) -> Source:
    """Open a model folder or a `.gguf` file with the layers that `EngineConfig.model_impl` asks for.

    "auto" takes our own layers wherever a family has them for this very model, and transformers' otherwise.

    Raises:
        ConfigError: `model_impl` is "transformers" for a GGUF file.
        CheckpointError: something is missing, corrupt, or contradicts something else.
        UnsupportedModel: the model does not run, neither way that was to be tried.
    """
    if not path.is_dir() and model_impl == "transformers":
        raise ConfigError(
            f'model_impl is "transformers", but {path} is no model folder, and a GGUF file runs with our own layers; '
            'use "auto" or "native"'
        )
    if not path.is_dir() or model_impl == "native":
        return NativeSource(open_checkpoint(path))
    if model_impl == "auto":
        try:
            return NativeSource(open_checkpoint(path))
        except UnsupportedModel as native:
            if _has_own_layers(path):
                # Ours lack something that the settings ask for. If transformers fails as well, ours is the better word.
                try:
                    return _through_transformers(path)
                except UnsupportedModel:
                    raise native from None
    return _through_transformers(path)


def _through_transformers(folder: Path) -> Source:
    from limelight.models.transformers_model.source import TransformersSource

    return TransformersSource(folder)


def _has_own_layers(folder: Path) -> bool:
    return read_json_object(folder / "config.json").get("model_type") in ARCHITECTURES
