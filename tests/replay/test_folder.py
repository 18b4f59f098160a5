"""The folder of replay bundles: whole files, for its owner alone, and not too many of them."""

import os
import stat
from pathlib import Path

import pytest

from limelight.errors import ConfigError, InvalidRequest
from limelight.replay.folder import RecordFolder, check_record_id


def folder(path: Path, max_records: int = 10, max_bytes: int = 1000) -> RecordFolder:
    made = RecordFolder(path, max_records, max_bytes)
    made.prepare()
    return made


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def aged(path: Path, record_id: str, seconds: int) -> None:
    os.utime(path / f"{record_id}.replay.json", (seconds, seconds))


def test_a_bundle_is_for_its_owner_alone(tmp_path):
    records = folder(tmp_path / "a" / "b")
    records.write("rec-1", b"content")
    assert records.read("rec-1") == b"content"
    assert stat.S_IMODE((tmp_path / "a" / "b" / "rec-1.replay.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    assert names(tmp_path / "a" / "b") == ["rec-1.replay.json"]


def test_the_oldest_go_when_there_are_too_many(tmp_path):
    records = folder(tmp_path, max_records=2)
    for number, name in enumerate(["a", "b", "c", "d"], start=1):
        records.write(name, b"x")
        aged(tmp_path, name, number)
    assert names(tmp_path) == ["c.replay.json", "d.replay.json"]


def test_the_oldest_go_when_they_are_too_large(tmp_path):
    records = folder(tmp_path, max_bytes=100)
    for number, name in enumerate(["a", "b", "c"], start=1):
        records.write(name, b"x" * 40)
        aged(tmp_path, name, number)
    assert names(tmp_path) == ["b.replay.json", "c.replay.json"]
    with pytest.raises(InvalidRequest, match="max_record_bytes is 100"):
        records.write("d", b"x" * 101)
    assert names(tmp_path) == ["b.replay.json", "c.replay.json"]


def test_a_disk_that_is_full_leaves_no_part_of_a_bundle(tmp_path, monkeypatch):
    records = folder(tmp_path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        records.write("a", b"x")
    assert names(tmp_path) == []


def test_what_an_earlier_process_could_not_finish_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".0a.unfinished").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    folder(tmp_path)
    assert names(tmp_path) == ["notes.txt"]


def test_a_folder_that_cannot_be_is_told_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"record_dir is .*choose another"):
        folder(tmp_path / "file")


@pytest.mark.parametrize("record_id", ["", "../a", "a/b", ".a", "a" * 65, "a\n", "ä", 3])
def test_no_name_leads_out_of_the_folder(tmp_path, record_id):
    (tmp_path.parent / "a.replay.json").write_bytes(b"secret")
    with pytest.raises(InvalidRequest, match="record_id is"):
        check_record_id(record_id)
    assert folder(tmp_path).read(str(record_id) if record_id != 3 else "../a") is None
