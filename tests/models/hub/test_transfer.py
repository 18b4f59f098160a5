"""Large files go on where they stopped, over cut connections and killed processes. Bytes are counted on the hub."""

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock

from limelight.errors import EngineNotRunning, ModelError
from limelight.models.hub import resolve
from limelight.models.hub.transfer import LargeFile, TransferStopped, fetch_large
from limelight.progress import BytesDone
from tests.models.hub.hub_server import COMMIT, Hub, Reported

MIB = 2**20
CONTENT = bytes(range(256)) * (6 * 4096)  # 6 MiB
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()

DOWNLOAD = """
import sys
from pathlib import Path
from limelight.models.hub import resolve

def report(what, fraction):
    print(getattr(fraction, "done_bytes", 0), flush=True)

resolve("maker/model", None, report, endpoint=sys.argv[1], cache=Path(sys.argv[2]))
"""


@pytest.fixture(autouse=True)
def files(hub: Hub) -> None:
    hub.files = {"config.json": b"{}", "model.safetensors": CONTENT}


class Transfer:
    """One file on its way."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.file = LargeFile(
            "model.safetensors",
            f"{hub.endpoint}/maker/model/resolve/{COMMIT}/model.safetensors",
            len(CONTENT),
            CHECKSUM,
            folder / "blobs" / CHECKSUM,
        )
        self.lock = folder / "locks" / "one.lock"
        self.stop = threading.Event()
        self.counted = 0

    def count(self, num_bytes: int) -> None:
        self.counted += num_bytes

    def has(self, content: bytes) -> None:
        """That much was there before."""
        self.file.partial.parent.mkdir()
        self.file.partial.write_bytes(content)

    def run(self) -> bytes:
        fetch_large(self.file, {}, self.lock, self.count, self.stop, retry_seconds=0.0)
        return self.file.blob.read_bytes()


@pytest.fixture
def transfer(hub: Hub, tmp_path: Path) -> Transfer:
    return Transfer(hub, tmp_path)


def test_a_killed_download_does_not_fetch_again_what_had_arrived(hub: Hub, tmp_path: Path, reported: Reported) -> None:
    hub.hold_after = 4 * MIB
    with subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, hub.endpoint, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 3 * MIB:
                break
        process.kill()
    arrived = (tmp_path / "models--maker--model" / "blobs" / f"{CHECKSUM}.incomplete").stat().st_size
    assert arrived >= 3 * MIB
    hub.hold_after = None
    hub.release.set()
    sent_before = hub.sent_bytes
    folder = resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert hub.ranges == [None, f"bytes={arrived}-"]
    assert hub.sent_bytes - sent_before <= len(CONTENT) - arrived + MIB  # the first answer's rest may still be counted
    first = reported.calls[0][1]
    assert isinstance(first, BytesDone)
    assert (first.done_bytes, first.found_bytes, first.total_bytes) == (arrived, arrived, len(CONTENT) + 2)


def test_a_cut_connection_goes_on_where_it_stopped(hub: Hub, transfer: Transfer) -> None:
    hub.cuts = [MIB + 5, 2 * MIB]
    assert transfer.run() == CONTENT
    assert hub.sent_bytes == transfer.counted == len(CONTENT)
    assert len(hub.ranges) == 3
    assert not transfer.file.partial.exists()


def test_a_connection_that_never_brings_anything_is_given_up(hub: Hub, transfer: Transfer) -> None:
    hub.cuts = [0] * 20
    with pytest.raises(Exception, match=r"incomplete message body|peer closed"):
        transfer.run()
    assert len(hub.ranges) == 6


def test_a_hub_that_ignores_ranges_sends_all_of_it_again(hub: Hub, transfer: Transfer) -> None:
    hub.knows_ranges = False
    transfer.has(CONTENT[: 2 * MIB])
    assert transfer.run() == CONTENT
    assert transfer.counted == len(CONTENT) - 2 * MIB


def test_what_is_wrong_about_the_first_piece_is_found_and_fetched_afresh(hub: Hub, transfer: Transfer) -> None:
    transfer.has(bytes(2 * MIB))
    assert transfer.run() == CONTENT
    assert hub.ranges == [f"bytes={2 * MIB}-", None]
    assert transfer.counted == len(CONTENT) - 2 * MIB


def test_a_piece_that_is_too_long_is_thrown_away(hub: Hub, transfer: Transfer) -> None:
    transfer.has(CONTENT + b"more")
    assert transfer.run() == CONTENT
    assert hub.ranges == [None]


def test_a_whole_piece_needs_no_request(hub: Hub, transfer: Transfer) -> None:
    transfer.has(CONTENT)
    assert transfer.run() == CONTENT
    assert hub.asked == []


def test_a_wrong_checksum_is_refused_and_nothing_of_it_kept(hub: Hub, transfer: Transfer) -> None:
    hub.corrupt = True
    # The server finds the file by its checksum and then sends other bytes.
    with pytest.raises(ModelError, match=r"model\.safetensors arrives with the checksum \w{12}\.\.\. where the hub"):
        transfer.run()
    assert list(transfer.file.blob.parent.iterdir()) == []


def test_more_bytes_than_stated_are_not_written(hub: Hub, transfer: Transfer) -> None:
    hub.files["model.safetensors"] = CONTENT * 2
    with pytest.raises(OSError, match="is longer than the 6,291,456 bytes"):
        transfer.run()
    assert transfer.file.partial.stat().st_size <= len(CONTENT)


def test_a_refusal_is_not_repeated(hub: Hub, transfer: Transfer) -> None:
    hub.gated = True
    with pytest.raises(HfHubHTTPError):
        transfer.run()
    assert len(hub.asked) == 1


def test_a_passing_failure_of_the_hub_is_repeated_and_a_long_wait_is_not(hub: Hub, transfer: Transfer) -> None:
    hub.refusal = (503, "")
    with pytest.raises(HfHubHTTPError):
        transfer.run()
    assert len(hub.asked) == 6
    hub.asked.clear()
    hub.refusal, hub.refused_headers = (429, ""), {"Retry-After": "60"}
    with pytest.raises(HfHubHTTPError):
        transfer.run()
    assert len(hub.asked) == 1


def test_a_stopped_transfer_keeps_what_it_has(hub: Hub, transfer: Transfer) -> None:
    def stop_early(num_bytes: int) -> None:
        if num_bytes:
            transfer.stop.set()

    with pytest.raises(TransferStopped):
        fetch_large(transfer.file, {}, transfer.lock, stop_early, transfer.stop, retry_seconds=0.0)
    assert 0 < transfer.file.partial.stat().st_size < len(CONTENT)
    transfer.stop.clear()
    assert transfer.run() == CONTENT
    assert hub.ranges[1] is not None


def test_two_that_want_the_same_file_fetch_it_once(hub: Hub, transfer: Transfer) -> None:
    threads = [threading.Thread(target=transfer.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.ranges == [None]
    assert transfer.file.blob.read_bytes() == CONTENT


def test_a_wait_for_another_process_ends_when_it_is_told_to(transfer: Transfer) -> None:
    ended = threading.Event()

    def fetch() -> None:
        with pytest.raises(TransferStopped):
            transfer.run()
        ended.set()

    transfer.lock.parent.mkdir(parents=True)
    with WeakFileLock(transfer.lock):
        thread = threading.Thread(target=fetch)
        thread.start()
        transfer.stop.set()
        assert ended.wait(60)
        thread.join()
    transfer.stop.clear()
    assert transfer.run() == CONTENT


def test_a_hub_that_cuts_its_answers_and_refuses_the_rest_is_given_up(hub: Hub, transfer: Transfer) -> None:
    hub.refuses_ranges, hub.cuts = True, [MIB] * 40
    with pytest.raises(Exception, match=r"ends after 0 of|incomplete message body|peer closed"):
        transfer.run()
    assert len(hub.ranges) <= 12


def test_a_report_that_raises_ends_a_download_that_brings_nothing(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is being stopped raises in its report: that must not need another byte."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 1)
    hub.hold_after = MIB
    seen: list[float | None] = []

    def report(what: str, fraction: float | None) -> None:
        if seen and seen[-1] == fraction:
            raise EngineNotRunning("the engine is being stopped")
        seen.append(fraction)

    with pytest.raises(EngineNotRunning):
        resolve("maker/model", None, report, endpoint=hub.endpoint, cache=tmp_path)
    assert len(hub.ranges) == 1
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("limelight")]
