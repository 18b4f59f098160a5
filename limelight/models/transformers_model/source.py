"""A model folder that runs through transformers: what serving must know of it, and then its weights."""

import math
from pathlib import Path

from limelight.kernels.cpu.step_buffers import StepLimits
from limelight.kernels.interface import DTYPE_BYTES, Kernels
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.hf_config import generation_fields, read_sampling_defaults, stated_dtype
from limelight.models.loaded_model import SamplingDefaults
from limelight.models.precision import Precision
from limelight.models.quantization.checkpoint import QuantizedTensors
from limelight.models.quantization.settings import read_quantization
from limelight.models.safetensors.checkpoint import DTYPES, SafetensorsFiles
from limelight.models.spec import ModelOutline
from limelight.models.transformers_model.config import TransformersConfig, read_transformers_config
from limelight.models.transformers_model.model import TransformersModel
from limelight.models.transformers_model.probe import check_rows, probe
from limelight.models.transformers_model.weights import load_weights, silent_transformers
from limelight.progress import Report


class TransformersSource:
    """See `Source`."""

    gguf_metadata = None
    is_native = False

    def __init__(self, folder: Path) -> None:
        """Read the configuration, try the model without weights, and open the files.

        Raises:
            CheckpointError: something is missing, corrupt, or contradicts something else.
            UnsupportedModel: the model cannot run over Limelight's pages; the message says why.
        """
        with silent_transformers():
            self._described = read_transformers_config(folder)
            quantization = read_quantization(folder)
            self._attendance = probe(self._described)
        files = SafetensorsFiles(folder)
        self._files = files if quantization is None else QuantizedTensors(files, quantization)
        self.outline = self._outline(folder)
        self.sampling_defaults: SamplingDefaults = read_sampling_defaults(folder)

    def weights_bytes(self, kernels: Kernels, precision: Precision) -> int:
        """Bytes of all parameters in memory."""
        return self._attendance.num_values * DTYPE_BYTES[precision.values]

    def working_bytes(self, kernels: Kernels, precision: Precision, limits: StepLimits, max_adapter_rank: int) -> int:
        """What torch will take is not known beforehand."""
        return 0

    def load(self, kernels: Kernels, precision: Precision, num_positions: int, report: Report) -> TransformersModel:
        """Read every tensor, and check that rows of a batch do not influence each other.

        Raises:
            CheckpointError: the tensors do not match the configuration.
            UnsupportedModel: the rows do.
        """
        dtype = TORCH_DTYPES[precision.values]
        module = load_weights(
            self._described, self._files, kernels.device, dtype, lambda part: report("loading weights", part)
        )
        with silent_transformers():
            check_rows(module, self._described, self.outline.vocab_size, num_positions)
        return TransformersModel(module, self._attendance, kernels, TORCH_DTYPES[precision.kv])

    def _outline(self, folder: Path) -> ModelOutline:
        attendance, described = self._attendance, self._described
        fields, generation = described.fields, generation_fields(folder)
        largest = max((math.prod(self._files.shape(name)), self._files.type(name)) for name in self._files.names())[1]
        return ModelOutline(
            architecture=described.config.model_type,
            source=fields.source,
            num_layers=len(attendance.layers),
            num_kv_heads=attendance.num_kv_heads,
            head_dim=attendance.head_dim,
            vocab_size=attendance.vocab_size,
            max_position_embeddings=described.max_position_embeddings,
            eos_token_ids=_eos_token_ids(described, attendance.vocab_size)
            | generation.token_ids("eos_token_id", attendance.vocab_size),
            notes=(f"{described.config.model_type} runs with the layers of transformers",),
            dtype=stated_dtype(fields) or DTYPES.get(largest, "float32"),
        )


def _eos_token_ids(described: TransformersConfig, vocab_size: int) -> frozenset[int]:
    """As `config.json` states them; else the default of transformers' class, if the vocabulary is that large."""
    if "eos_token_id" in described.fields.values:
        return described.fields.token_ids("eos_token_id", vocab_size)
    default = getattr(described.config, "eos_token_id", None)
    ids = default if isinstance(default, list) else [] if default is None else [default]
    return frozenset(token_id for token_id in ids if 0 <= token_id < vocab_size)
