"""The examples run as they stand."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_sse_client_reads_a_stream_to_its_end(scripted_server: str) -> None:
    assert run("examples/sse_client.py", "Hello", scripted_server) == "user: Hello\nassistant:\n"


@pytest.mark.parametrize("options", [[], ["--cut-after", "3"]])
def test_the_resuming_client_reads_a_stream_to_its_end(scripted_server: str, options: list[str]) -> None:
    shown = run("examples/resume_stream.py", "Hello", scripted_server, *options)
    assert shown == "user: Hello\nassistant:\n"


def test_the_sse_client_says_in_one_line_that_no_server_answers() -> None:
    with socket.socket() as bound:  # not listening
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "examples/sse_client.py", "Hello", address],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "limelight serve" in done.stderr


@pytest.mark.model
def test_the_embedding_example_answers_one_and_gives_one_up() -> None:
    shown = run("examples/embed.py")
    assert "Paris" in shown
    assert "Once upon a time" in shown
