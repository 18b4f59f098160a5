"""What a folder says about embeddings, in the files of sentence-transformers. Without them: the last token's."""

from pathlib import Path
from typing import TypeVar

import msgspec

from limelight.embeddings import EmbeddingSettings
from limelight.errors import CheckpointError
from limelight.generation import Pooling

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
MAX_BYTES = 64 * 1024
_MODES = {"mean": Pooling.MEAN, "lasttoken": Pooling.LAST, "last": Pooling.LAST}
_MODE = "pooling_mode_"
_OWN_MODULES = ("Transformer", "Pooling", "Normalize")
Content = TypeVar("Content")


class _Module(msgspec.Struct):
    type: str


def embedding_settings(path: Path, num_dimensions: int) -> EmbeddingSettings:
    """Of the model at `path`, a folder or a GGUF file.

    Raises:
        CheckpointError: a file is damaged.
    """
    normalize, refusal = True, None
    modules = _read(path / MODULES, list[_Module])
    if modules is not None:
        kinds = [module.type.rpartition(".")[2] for module in modules]
        normalize = "Normalize" in kinds
        unknown = [kind for kind in kinds if kind not in _OWN_MODULES]
        if unknown:
            refusal = f"{MODULES} asks for the module {unknown[0]:.100}, which is not supported"
    pooling, mode = Pooling.LAST, _mode(path)
    if mode is not None and mode not in _MODES:
        refusal = refusal or f"{POOLING} asks for pooling by {mode:.100}; {', '.join(_MODES)} are supported"
    elif mode is not None:
        pooling = _MODES[mode]
    return EmbeddingSettings(num_dimensions=num_dimensions, pooling=pooling, normalize=normalize, refusal=refusal)


def _mode(path: Path) -> str | None:
    """How the folder says that tokens are pooled, in either of the two ways to write it."""
    config = _read(path / POOLING, dict[str, msgspec.Raw])
    if config is None:
        return None
    if "pooling_mode" in config:
        return bytes(config["pooling_mode"]).decode().strip('" ')
    chosen = [
        name.removeprefix(_MODE).removesuffix("_tokens").removesuffix("_token")
        for name, value in config.items()
        if name.startswith(_MODE) and bytes(value) == b"true"
    ]
    return " and ".join(chosen) or None


def _read(file: Path, content: type[Content]) -> Content | None:
    if not file.is_file():
        return None
    try:
        with file.open("rb") as opened:
            return msgspec.json.decode(opened.read(MAX_BYTES), type=content)
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
