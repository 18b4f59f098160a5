"""Disks without space: logs, caches and results are lost, or said to be; requests go on."""

import errno
import logging
import signal
from pathlib import Path

import anyio
import pytest

from limelight.generation import SamplingParams
from limelight.kernels.cpu import build, loading
from limelight.testing import scripted_engine
from tests.test_cli import QUICK, serving

FULL = Path("/dev/full")
needs_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@needs_a_full_disk
@pytest.mark.anyio
async def test_a_log_that_cannot_be_written_keeps_no_request_from_its_answer():
    def before_step(step):
        if step.number == 1:
            raise ValueError("what is logged")

    handler = logging.FileHandler(FULL, delay=False)
    handler.setLevel(logging.DEBUG)
    logger = logging.getLogger("limelight")
    logger.addHandler(handler)
    try:
        async with scripted_engine(before_step=before_step) as engine:
            with anyio.fail_after(60), pytest.raises(Exception, match="forward pass"):
                await engine.generate("a", SamplingParams(max_tokens=4, seed=1))
            assert (await engine.generate("a", SamplingParams(max_tokens=4, seed=1))).usage.completion_tokens == 4
    finally:
        logger.removeHandler(handler)
        try:
            handler.close()
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 - what was buffered


@needs_a_full_disk
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_server_whose_log_is_full_serves_and_ends_as_ever(log_format: str) -> None:
    with (
        FULL.open("w") as full,
        serving(QUICK, "--log-format", log_format, "--log-level", "info", stderr=full) as server,
    ):
        with server.stream() as stream:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        server.signal(signal.SIGTERM)
        code, _ = server.end()
    assert code == 0


def test_without_space_for_compiled_kernels_models_run_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "COMPILED", tmp_path / "none")
    monkeypatch.setattr(build, "compile_library", full)
    assert loading.load_library() is None
    assert "No space left on device" in caplog.text
    assert list((tmp_path / "limelight" / "kernels").iterdir()) == []
