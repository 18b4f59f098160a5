"""What a model on this machine is, whether it would run here, and what memory it needs: from headers, not weights.

The same checks in the same order as loading, stopping short of the first tensor.
"""

from pathlib import Path

import msgspec

from limelight.config import EngineConfig
from limelight.errors import ConfigError, ModelError
from limelight.kernels.cpu.loading import expected_library
from limelight.kernels.interface import Kernels
from limelight.kernels.select import select_kernels
from limelight.models.device_choice import choose_device
from limelight.models.families.registry import family_of
from limelight.models.fields import read_json_object
from limelight.models.gguf.parts import PART_NAME
from limelight.models.hub.gguf_choice import label_of
from limelight.models.kv_cache import kv_layout
from limelight.models.loading import divide_memory
from limelight.models.memory_plan import LENGTHS
from limelight.models.precision import Precision, choose_precision, weights_title
from limelight.models.source import NativeSource, Source, open_source


class LengthNeed(msgspec.Struct, frozen=True, kw_only=True):
    """What sequences of one length take.

    Attributes:
        kv_bytes: keys and values of one sequence.
        total_bytes: the same with the weights.
        num_at_once: sequences that run at once in the memory that is free now, 0 if not one does; None if the model
            does not run at all.
    """

    num_tokens: int
    kv_bytes: int
    total_bytes: int
    num_at_once: int | None


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model without its weights. What could not be found out is None.

    Attributes:
        problem: why it does not run here; None: it does.
        format: of the files ("GGUF Q4_K_M", "safetensors bfloat16").
        context_length: tokens, as the model states it.
        dtype: what it would be computed in here.
        stored_bytes: of its weight files.
        weights_bytes: of the weights in memory.
        weights_kept: in what, for people ("as stored", "in float32").
        kv_bytes_per_token: over all layers.
        lengths: needs by length; the last one is the whole context.
        notes: what loading would say of it.
        memory_plan: how the free memory would be divided, as lines; None if it does not fit.
    """

    problem: str | None
    format: str | None = None
    family: str | None = None
    architecture: str | None = None
    context_length: int | None = None
    dtype: str | None = None
    stored_bytes: int | None = None
    weights_bytes: int | None = None
    weights_kept: str | None = None
    kv_bytes_per_token: int | None = None
    lengths: tuple[LengthNeed, ...] = ()
    notes: tuple[str, ...] = ()
    memory_plan: str | None = None


def inspect_model(path: Path, config: EngineConfig) -> Inspection:
    """Inspect a model folder or a `.gguf` file, as it would be loaded with `config`.

    No kernels are compiled for it: what a step takes is told once there are some.

    Raises:
        ConfigError: the device is not there. What this model alone cannot honour is told as its problem.
    """
    device = choose_device(config.device)
    known = Inspection(problem=None, format=_format(path), stored_bytes=_stored_bytes(path))
    try:
        source = open_source(path, config.model_impl)
        outline = source.outline
        known = msgspec.structs.replace(
            known,
            architecture=outline.architecture,
            family=_family(source),
            context_length=outline.max_position_embeddings,
            notes=outline.notes,
        )
        kernels = select_kernels(config, device, native=source.is_native, find=expected_library)
        return _with_memory(known, config, source, kernels, choose_precision(config, outline.dtype, kernels))
    except (ConfigError, ModelError) as error:
        return msgspec.structs.replace(known, problem=str(error))


def _family(source: Source) -> str:
    architecture = source.outline.architecture
    if isinstance(source, NativeSource):
        return family_of(architecture).title
    return f"{architecture} (layers of transformers)"


def _with_memory(
    known: Inspection, config: EngineConfig, source: Source, kernels: Kernels, precision: Precision
) -> Inspection:
    outline, in_memory = source.outline, source.weights_bytes(kernels, precision)
    page_bytes = kernels.page_bytes(kv_layout(outline, 1, config.page_size, precision.kv))
    longest = config.max_model_len or outline.max_position_embeddings
    plan, problem = None, None
    try:
        plan = divide_memory(config, source, kernels, precision)
    except ModelError as error:
        problem = str(error)
    needs = []
    for num_tokens in sorted({length for length in LENGTHS if length < longest} | {longest}):
        kv_bytes = -(-num_tokens // config.page_size) * page_bytes
        needs.append(
            LengthNeed(
                num_tokens=num_tokens,
                kv_bytes=kv_bytes,
                total_bytes=in_memory + kv_bytes,
                num_at_once=None if plan is None else plan.concurrency(num_tokens),
            )
        )
    return msgspec.structs.replace(
        known,
        problem=problem,
        dtype=precision.values,
        weights_bytes=in_memory,
        weights_kept=weights_title(precision),
        kv_bytes_per_token=page_bytes // config.page_size,
        lengths=tuple(needs),
        memory_plan=None if plan is None else plan.table(),
    )


def _format(path: Path) -> str | None:
    """From the name and the configuration; nothing is checked here."""
    if path.suffix.lower() == ".gguf":
        return f"GGUF {label_of(path.name) or ''}".strip()
    if not any(path.glob("*.safetensors")):
        return None
    try:
        config = read_json_object(path / "config.json")
    except ModelError:
        return "safetensors"
    quantization = config.get("quantization_config")
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    stated = method or config.get("dtype") or config.get("torch_dtype") or ""
    return f"safetensors {stated}".strip()[:40]


def _stored_bytes(path: Path) -> int | None:
    if path.is_file():
        part = PART_NAME.fullmatch(path.name)
        parts = path.parent.glob(f"*-of-{part['count']}.gguf") if part else (path,)
        return sum(file.stat().st_size for file in parts if part is None or file.name.startswith(part["name"]))
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None
