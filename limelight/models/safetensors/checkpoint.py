"""A folder in Hugging Face layout: `config.json` and one or more memory-mapped safetensors files.

Pickled weights (`pytorch_model.bin`) are refused and never opened: unpickling runs code from the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from safetensors import SafetensorError

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.families.registry import family_of
from limelight.models.fields import read_json_object
from limelight.models.hf_config import read_sampling_defaults, read_spec
from limelight.models.safetensors.shard import open_shard
from limelight.models.spec import ModelSpec
from limelight.quoting import quoted, shorten

if TYPE_CHECKING:
    from torch import Tensor

MAX_FILE_NAME_BYTES = 255
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SHARD = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2}
"""Other types have elements of one byte."""
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class _Entry(NamedTuple):
    """Where a tensor lies."""

    shard: Any
    stored_name: str
    shape: tuple[int, ...]
    type: str


class SafetensorsFiles:
    """The tensors of a folder, whatever model they make. Files stay mapped while this object or any tensor lives."""

    def __init__(self, folder: Path) -> None:
        """Open every shard and check it against the index.

        Raises:
            CheckpointError: a file is missing, corrupt, or contradicts another.
        """
        shards = _open_shards(folder)
        self.files = tuple(shards)
        self._entries = {name: _entry(shard, name) for shard in shards.values() for name in shard.keys()}  # noqa: SIM118

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(math.prod(entry.shape) * ELEMENT_BYTES.get(entry.type, 1) for entry in self._entries.values())

    def names(self) -> Collection[str]:
        """Names of all tensors."""
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        return self._entries[name].shape

    def tensor(self, name: str) -> Tensor:
        """One tensor, sharing memory with the file.

        Raises:
            UnsupportedModel: it does not hold floating-point numbers of 16 or 32 bits.
        """
        if self.type(name) not in DTYPES:
            raise UnsupportedModel(f"{name} is stored as {self.type(name)}; Limelight reads {', '.join(DTYPES)} here")
        return self.packed(name)

    def stored_name(self, name: str) -> str:
        """What a tensor is called in its file, where a model is part of a larger one."""
        return self._entries[name].stored_name

    def type(self, name: str) -> str:
        """What a tensor is stored as, in safetensors' words ("BF16")."""
        return self._entries[name].type

    def dtype(self, name: str) -> str:
        """What `tensor` gives, without reading it."""
        return DTYPES.get(self.type(name), "float32")

    def blocks(self, name: str) -> None:
        """No tensor of a safetensors file has blocks of its own: formats made of several are views."""

    def packed(self, name: str) -> Tensor:
        """One tensor of any type, for formats that know what its numbers mean; shares memory with the file.

        Raises:
            CheckpointError: a type that torch does not have.
        """
        entry = self._entries[name]
        try:
            tensor: Tensor = entry.shard.get_tensor(entry.stored_name)
        except SafetensorError as error:
            raise CheckpointError(f"{name} is stored as {entry.type}, which cannot be read ({error})") from error
        return tensor


class SafetensorsCheckpoint(SafetensorsFiles):
    """See `Checkpoint`."""

    def __init__(self, folder: Path) -> None:
        """Open the files and read the settings beside them.

        Raises:
            CheckpointError: a file is missing, corrupt, or contradicts another.
            UnsupportedModel: `config.json` describes something that Limelight does not run.
        """
        super().__init__(folder)
        self.spec = read_spec(folder, _stored_dtype(self._entries))
        self._entries = _text_entries(self._entries, self.spec)
        self.sampling_defaults = read_sampling_defaults(folder)
        if self.spec.tie_word_embeddings and HEAD in self._entries:
            self._settle_tie(self._entries[HEAD])

    def _settle_tie(self, head: _Entry) -> None:
        """Some checkpoints call the head tied and still hold one. As in transformers, the tensors decide."""
        table = self._entries.setdefault(EMBEDDING, head)
        if table is head:
            return
        same = table.type == head.type and table.type in DTYPES and self.tensor(EMBEDDING).equal(self.tensor(HEAD))
        if same:
            note = f"{HEAD} is stored beside an equal {EMBEDDING}; one of them serves as both"
            self.spec = msgspec.structs.replace(self.spec, notes=(*self.spec.notes, note))
        else:
            self.spec = msgspec.structs.replace(self.spec, tie_word_embeddings=False)


def _stored_dtype(stored: dict[str, _Entry]) -> str:
    """What the embedding table (or else the head) is stored in, wherever in a larger model it stands."""
    for table in (".embed_tokens.weight", f".{HEAD}"):
        for name, entry in stored.items():
            if f".{name}".endswith(table):
                return DTYPES.get(entry.type, "float32")
    return "float32"


def _text_entries(stored: dict[str, _Entry], spec: ModelSpec) -> dict[str, _Entry]:
    """The tensors of the text model under its own names: what sees or hears is left out.

    Raises:
        CheckpointError: two stored tensors mean the same parameter.
    """
    text_name = family_of(spec.architecture).text_name
    if text_name is None:
        return stored
    entries: dict[str, _Entry] = {}
    for stored_name, entry in stored.items():
        name = text_name(stored_name)
        if name in entries:
            raise CheckpointError(
                f"{stored_name} and {entries[name].stored_name} are both {name} of {spec.source}; remove one of them"
            )
        if name is not None:
            entries[name] = entry
    return entries


def _entry(shard: Any, name: str) -> _Entry:
    stored = shard.get_slice(name)
    return _Entry(shard, name, tuple(stored.get_shape()), stored.get_dtype())


def _open_shards(folder: Path) -> dict[Path, Any]:
    """Every shard of the folder, opened and complete."""
    index = folder / INDEX
    if index.is_file():
        weight_map = read_weight_map(index)
        shards = {folder / name: None for name in sorted(set(weight_map.values()))}
    else:
        weight_map = None
        shards = dict.fromkeys(_files_without_index(folder))
    opened = {path: _open(path, folder, index if weight_map else None) for path in shards}
    owner: dict[str, Path] = {}
    for path, shard in opened.items():
        for name in shard.keys():  # noqa: SIM118
            if name in owner:
                raise CheckpointError(f"{name} is stored twice, in {owner[name]} and {path.name}; remove one of them")
            owner[name] = path
    for name, file_name in (weight_map or {}).items():
        if owner.get(name) != folder / file_name:
            raise CheckpointError(
                f"{index} places {shorten(name)} in {file_name}, which does not hold it; download them again"
            )
    return opened


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name of an index, all of them plain names of files beside it.

    Raises:
        CheckpointError: it is no such index.
    """
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; download it again")
    for name, file_name in weight_map.items():
        # A shard is a plain file name beside the index: nothing that leads out of the folder on any system.
        plain = isinstance(file_name, str) and file_name.endswith(".safetensors") and "\x00" not in file_name
        # Longer names are no system's, and asking for such a file raises.
        plain = plain and len(file_name.encode(errors="replace")) <= MAX_FILE_NAME_BYTES
        if not plain or PurePosixPath(file_name).name != file_name or PureWindowsPath(file_name).name != file_name:
            raise CheckpointError(
                f"{index} places {shorten(name)} in {quoted(file_name)}; a shard must be a .safetensors file in "
                "the same folder"
            )
    return weight_map


def _files_without_index(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    if any(SHARD.search(path.name) for path in found):
        raise CheckpointError(f"{folder} holds shards but no {INDEX}; download that file too")
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(path.name for path in found[:5])
        raise CheckpointError(f"{folder} holds several safetensors files ({names}) but no {INDEX}; keep one")
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pth"), *folder.glob("*.pt")])
    if pickled:
        raise CheckpointError(
            f"{folder} holds only pickled weights ({pickled[0].name}), which can run code when opened and are never "
            "loaded; convert them with transformers' save_pretrained, or use a revision with safetensors"
        )
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        raise CheckpointError(f"{folder} holds no safetensors but {gguf[0].name}; give the path of that file")
    raise CheckpointError(f"{folder} holds no *.safetensors file; a model folder needs them beside config.json")


def _open(path: Path, folder: Path, index: Path | None) -> Any:
    if not path.is_file():
        listed = f", which {index.name} lists," if index else ""
        raise CheckpointError(f"{path.name}{listed} is not in {folder}; the download is incomplete, run it again")
    return open_shard(path)
