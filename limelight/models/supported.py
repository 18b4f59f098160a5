"""What can be run, as tables: collected from the code that runs it, for `limelight models --supported` and the docs."""

import msgspec

from limelight.models.families.registry import FAMILIES
from limelight.models.gguf.architectures import GGUF_ARCHITECTURES
from limelight.models.gguf.blocks import FORMATS, UNSUPPORTED
from limelight.models.gguf.pre_tokenizers import PRE_TOKENIZERS
from limelight.models.quantization.settings import METHODS, READ_BY_FAMILY


class Table(msgspec.Struct, frozen=True):
    """A table with a heading. `rows` are as wide as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def supported_tables() -> tuple[Table, ...]:
    """Families, file formats, tokenizers."""
    return (
        Table(
            "Families with layers of their own",
            ("family", "model_type in config.json"),
            tuple((family.title, ", ".join(family.architectures)) for family in FAMILIES),
        ),
        Table(
            "Quantised safetensors",
            ("quant_method", "read"),
            (
                *((method, "yes, expanded when loaded") for method in METHODS),
                *((method, f"by the family {family}") for family, method in READ_BY_FAMILY.items()),
            ),
        ),
        Table(
            "GGUF files",
            ("what", "names"),
            (
                ("architectures (general.architecture)", ", ".join(GGUF_ARCHITECTURES)),
                ("tensor formats", ", ".join(known.name for known in FORMATS.values())),
                ("tensor formats refused by name", ", ".join(UNSUPPORTED.values())),
                ("byte-level tokenizers (tokenizer.ggml.pre)", ", ".join(sorted(PRE_TOKENIZERS))),
            ),
        ),
    )
