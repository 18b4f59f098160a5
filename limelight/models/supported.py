"""What can be run, as tables: collected from the code that runs it, for `limelight models --supported` and the docs."""

from collections.abc import Iterable

import msgspec

from limelight.models.families.registry import FAMILIES, family_of
from limelight.models.gguf.architectures import GGUF_ARCHITECTURES
from limelight.models.gguf.blocks import FORMATS, UNSUPPORTED
from limelight.models.gguf.pre_tokenizers import PRE_TOKENIZERS
from limelight.models.lora.adapter_config import REFUSED
from limelight.models.quantization.settings import METHODS, READ_BY_FAMILY


class Table(msgspec.Struct, frozen=True):
    """A table with a heading; names that files use are in backquotes. `rows` are as wide as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def supported_tables() -> tuple[Table, ...]:
    """Families, quantised safetensors, GGUF files, LoRA adapters."""
    return (
        Table("Families with layers of our own", ("family", "safetensors: `model_type`", "GGUF"), _families()),
        Table(
            "Quantised safetensors",
            ("`quant_method`", "how it is read"),
            (
                *((f"`{method}`", "in 4 or 16 bits by the kernels in C, expanded elsewhere") for method in METHODS),
                *((f"`{method}`", f"by {family_of(name).title}") for name, method in READ_BY_FAMILY.items()),
            ),
        ),
        Table(
            "GGUF files",
            ("what", "names"),
            (
                ("tensor formats", _names(known.name for known in FORMATS.values())),
                ("tensor formats refused by name", _names(UNSUPPORTED.values())),
                ("byte-level tokenizers (`tokenizer.ggml.pre`)", _names(sorted(PRE_TOKENIZERS))),
            ),
        ),
        Table(
            "LoRA adapters (peft)",
            ("setting of `adapter_config.json`", "what it asks for"),
            tuple((f"`{name}`", f"{title}: refused") for name, title in sorted(REFUSED.items())),
        ),
    )


def _families() -> tuple[tuple[str, ...], ...]:
    rows = []
    for family in FAMILIES:
        gguf = [name for name, known in GGUF_ARCHITECTURES.items() if known.family in family.architectures]
        rows.append((family.title, _names(family.architectures), _names(gguf) or "-"))
    return tuple(rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
