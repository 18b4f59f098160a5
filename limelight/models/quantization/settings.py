"""Which format a folder's weights are quantised in, from `config.json` or the file that older tools wrote beside it."""

from collections.abc import Callable
from pathlib import Path

from limelight.errors import UnsupportedModel
from limelight.models.fields import Fields, read_config, read_json_object
from limelight.models.quantization.awq import read_awq
from limelight.models.quantization.compressed_tensors import read_compressed_tensors
from limelight.models.quantization.fp8 import read_fp8, read_modelopt
from limelight.models.quantization.gptq import read_gptq
from limelight.models.quantization.scheme import QuantizationFormat
from limelight.quoting import quoted

SECTIONS = ("quantization_config", "compression_config")
FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq", "hf_quant_config.json": "modelopt"}
"""Files of AutoGPTQ, AutoAWQ and ModelOpt, and the method that one without `quant_method` means."""
METHODS: dict[str, Callable[[Fields], QuantizationFormat]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "modelopt": read_modelopt,
}
READ_BY_FAMILY = {"gpt_oss": "mxfp4"}
"""Methods that a family of models is always stored in and reads by itself."""


def read_quantization(folder: Path) -> QuantizationFormat | None:
    """The format of the quantised weights in `folder`; None if they are plain.

    Raises:
        CheckpointError: the settings are missing, corrupt or impossible.
        UnsupportedModel: they name a format that Limelight does not read.
    """
    config = read_config(folder)
    for name in SECTIONS:
        if (settings := config.group(name)) is not None:
            return _format(settings, None, config)
    for name, method in FILES.items():
        if (folder / name).is_file():
            return _format(Fields(read_json_object(folder / name), str(folder / name)), method, config)
    return None


def _format(settings: Fields, meant: str | None, config: Fields) -> QuantizationFormat | None:
    method = (settings.text("quant_method") or meant or "").lower()
    if method and READ_BY_FAMILY.get(str(config.values.get("model_type"))) == method:
        return None
    if method not in METHODS:
        named = f"quantised with {quoted(method)}" if method else "quantised, but quant_method is missing"
        raise UnsupportedModel(
            f"{settings.source}: the weights are {named}; Limelight reads {', '.join(METHODS)}: "
            "use a repository in one of these, the unquantised one, or a GGUF file"
        )
    return METHODS[method](settings)
