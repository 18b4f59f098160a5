from pathlib import Path

import gguf
import numpy as np
import pytest

from limelight.errors import CheckpointError
from limelight.models.checkpoint import open_checkpoint
from limelight.models.gguf.parts import GgufParts
from tests.models.families.agreement import assert_same_logits_in_chunks
from tests.models.gguf.written_models import finish, write_model
from tests.models.tiny_models import tiny_llama


def write_part(
    path: Path,
    number: int | None,
    count: int | None,
    total: int | None,
    tensors: tuple[str, ...] = (),
    architecture: str = "llama",
) -> Path:
    """A part that says of itself what is given: tensors of two numbers each."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (("split.no", number), ("split.count", count)):
        if value is not None:
            writer.add_uint16(key, value)
    if total is not None:
        writer.add_int32("split.tensors.count", total)
    for name in tensors:
        writer.add_tensor(name, np.ones(2, np.float32))
    finish(writer)
    return path


def part(folder: Path, number: int, count: int = 3, name: str = "m") -> Path:
    return folder / f"{name}-{number:05}-of-{count:05}.gguf"


def write_three(folder: Path) -> list[Path]:
    return [write_part(part(folder, index + 1), index, 3, 3, (f"t{index}",)) for index in range(3)]


@pytest.mark.usefixtures("one_torch_thread")
@pytest.mark.parametrize("named", [1, 2, 3])
def test_a_split_model_is_the_same_whichever_part_is_named(tmp_path: Path, named: int) -> None:
    model = tiny_llama()
    write_model(model, tmp_path / "m.gguf", split_max_tensors=8)
    assert not (tmp_path / "m.gguf").exists()
    checkpoint = open_checkpoint(part(tmp_path, named))
    assert checkpoint.files == tuple(part(tmp_path, number) for number in (1, 2, 3))
    assert checkpoint.spec.source == str(part(tmp_path, 1))
    assert checkpoint.stored_bytes == sum(tensor.numel() * 4 for tensor in model.state_dict().values())
    assert_same_logits_in_chunks(model, checkpoint)


def test_tensors_come_from_the_part_that_holds_them(tmp_path: Path) -> None:
    paths = write_three(tmp_path)
    parts = GgufParts(paths[1])
    assert list(parts.tensors) == ["t0", "t1", "t2"]
    assert parts.paths == tuple(paths)
    assert parts.metadata["split.no"] == 0
    for name in parts.tensors:
        assert parts.stored(name).tolist() == np.ones(2, np.float32).view(np.uint8).tolist()


def test_one_file_is_its_only_part(tmp_path: Path) -> None:
    path = write_part(tmp_path / "whole.gguf", 0, 1, 1, ("t",))
    assert GgufParts(path).paths == (path,)
    assert GgufParts(write_part(tmp_path / "plain.gguf", None, None, None, ("t",))).tensors.keys() == {"t"}


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = write_three(tmp_path)
    paths[0].unlink()
    paths[1].unlink()
    with pytest.raises(
        CheckpointError, match=r"lacks m-00001-of-00003\.gguf, m-00002-of-00003\.gguf beside m-00003-of"
    ):
        GgufParts(paths[2])


def test_many_missing_parts_are_not_all_named(tmp_path: Path) -> None:
    path = write_part(part(tmp_path, 1, 2_000), 0, 2_000, 1, ("t",))
    with pytest.raises(CheckpointError, match=r"00011-of-02000\.gguf and 1989 more beside") as caught:
        GgufParts(path)
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_part_needs_its_name(tmp_path: Path) -> None:
    path = write_three(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(
        CheckpointError, match=r"renamed\.gguf is one part of 3, but is not called \.\.\.-00001-of-00003"
    ):
        GgufParts(path)


def test_name_and_metadata_must_agree(tmp_path: Path) -> None:
    paths = write_three(tmp_path)
    with pytest.raises(CheckpointError, match=r"00004-of-00003\.gguf is surplus: part 4 of 3"):
        GgufParts(write_part(part(tmp_path, 4), 3, 3, 3, ("t9",)))
    with pytest.raises(CheckpointError, match=r"one of 00005 parts by its name, of 3 by split\.count"):
        GgufParts(write_part(part(tmp_path, 1, 5), 0, 3, 3, ("t9",)))
    write_part(paths[1], 2, 3, 3, ("t1",))
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: split\.no makes 3 its number, its name 2"):
        GgufParts(paths[0])
    write_part(paths[1], 1, 4, 3, ("t1",))
    with pytest.raises(CheckpointError, match=r"m-00002-of-00003\.gguf: split\.count makes 4 parts in all, its name 3"):
        GgufParts(paths[0])


@pytest.mark.parametrize(
    ("number", "count", "total", "tensors", "architecture", "message"),
    [
        (1, 3, 3, ("t0",), "llama", r"both hold the tensor 't0'; they are parts of different"),
        (1, 3, 3, (), "llama", r"split\.tensors\.count is 3, but its 3 parts hold 2"),
        (1, 3, 9, ("t1",), "llama", r"00002-of-00003\.gguf: split\.tensors\.count is 9"),
        (1, 3, None, ("t1",), "llama", r"split\.tensors\.count is missing"),
        (1, 3, -1, ("t1",), "llama", r"split\.tensors\.count is -1"),
        (1, 3, 3, ("t1",), "qwen2", r"00002-of-00003\.gguf is part of a 'qwen2' model, m-00001.* of a 'llama'"),
        (None, 3, 3, ("t1",), "llama", r"00002-of-00003\.gguf: split\.no is missing"),
        (1, None, 3, ("t1",), "llama", r"00002-of-00003\.gguf: split\.count is missing"),
    ],
)
def test_a_foreign_part_is_refused(
    tmp_path: Path,
    number: int | None,
    count: int | None,
    total: int | None,
    tensors: tuple[str, ...],
    architecture: str,
    message: str,
) -> None:
    paths = write_three(tmp_path)
    write_part(paths[1], number, count, total, tensors, architecture)
    with pytest.raises(CheckpointError, match=message):
        GgufParts(paths[0])


def test_a_corrupt_part_is_named(tmp_path: Path) -> None:
    paths = write_three(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-30])
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf is cut short"):
        GgufParts(paths[0])
