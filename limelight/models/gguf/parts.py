"""A model in one GGUF file, or split over several that `llama-gguf-split` made: one set of tensors either way.

Parts are called `name-00001-of-00003.gguf`. Each states its number, how many there are, and how many tensors all have
together; the first holds the metadata of the model.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from limelight.errors import CheckpointError
from limelight.models.fields import Fields
from limelight.models.gguf.file import MAX_ENTRIES, GgufFile, GgufTensor
from limelight.models.wording import listed
from limelight.quoting import quoted

PART_NAME = re.compile(r"(?P<name>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.ASCII | re.IGNORECASE)


class GgufParts:
    """All tensors of a model, whichever of its parts was named.

    Attributes:
        paths: of all parts, in order.
        metadata: of the first.
        tensors: of all, by name, in the order of the parts.
    """

    def __init__(self, path: Path) -> None:
        """Map the file at `path`, and those that belong to it.

        Raises:
            CheckpointError: a part is missing, foreign, corrupt, or contradicts another one.
            UnsupportedModel: another version, byte order or tensor format.
        """
        named = GgufFile(path)
        count = _fields(named).integer("split.count", 0, 99_999, 0)
        files = _open_all(named, count) if count > 1 else [named]
        self.paths = tuple(file.path for file in files)
        self.metadata: dict[str, Any] = files[0].metadata
        self.tensors: dict[str, GgufTensor] = {}
        self._file_of: dict[str, GgufFile] = {}
        for file in files:
            for name in file.tensors:
                if name in self._file_of:
                    raise CheckpointError(
                        f"{file.path} and {self._file_of[name].path} both hold the tensor {quoted(name)}; "
                        "they are parts of different files"
                    )
                self._file_of[name] = file
            self.tensors |= file.tensors
        if count > 1:
            _check_total(files, len(self.tensors))

    def stored(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a tensor, [num_bytes], shared with the file; not to be written."""
        return self._file_of[name].stored(name)


def _open_all(named: GgufFile, count: int) -> list[GgufFile]:
    """The parts of which `named` is one, which says that there are `count`."""
    match = PART_NAME.fullmatch(named.path.name)
    if match is None:
        raise CheckpointError(
            f"{named.path} is one part of {count}, but is not called ...-00001-of-{count:05}.gguf; "
            "give the parts their names back"
        )
    if int(match["count"]) != count:
        raise CheckpointError(f"{named.path} is one of {match['count']} parts by its name, of {count} by split.count")
    own_number = int(match["number"])
    if not 1 <= own_number <= count:
        raise CheckpointError(f"{named.path} is surplus: part {own_number} of {count}")
    paths = [named.path.with_name(_part_name(named.path.name, match, number)) for number in range(1, count + 1)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise CheckpointError(
            f"{named.path.parent} lacks {listed(missing)} beside {named.path.name}; download it again"
        )
    files = []
    for number, path in enumerate(paths, 1):
        file = named if number == own_number else GgufFile(path)
        _check_part(file, number, count)
        files.append(file)
    return files


def _part_name(name: str, match: re.Match[str], number: int) -> str:
    return f"{name[: match.start('number')]}{number:05}{name[match.end('number') :]}"


def _check_part(file: GgufFile, number: int, count: int) -> None:
    fields = _fields(file)
    for name, low, expected in (("split.count", 0, count), ("split.no", 1, number)):
        # Parts are counted from 1 in names and from 0 in the metadata.
        stated = fields.integer(name, 0, 99_999) + low
        if stated != expected:
            what = "parts in all" if name == "split.count" else "its number"
            raise CheckpointError(
                f"{file.path}: {name} makes {stated} {what}, its name {expected}; it is another file's"
            )


def _check_total(files: list[GgufFile], num_tensors: int) -> None:
    architectures = {file.path.name: file.metadata.get("general.architecture") for file in files}
    first = architectures[files[0].path.name]
    for name, architecture in architectures.items():
        if architecture not in (None, first):
            raise CheckpointError(
                f"{name} is part of a {quoted(architecture)} model, {files[0].path.name} of a {quoted(first)} one"
            )
    for file in files:
        total = _fields(file).integer("split.tensors.count", 0, MAX_ENTRIES)
        if total != num_tensors:
            raise CheckpointError(
                f"{file.path}: split.tensors.count is {total}, but its {len(files)} parts hold {num_tensors}; "
                "they do not belong together, or one is incomplete"
            )


def _fields(file: GgufFile) -> Fields:
    return Fields(file.metadata, str(file.path))
