"""The examples run as they stand."""

import os
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


@pytest.mark.model
def test_the_embedding_example_answers_one_and_gives_one_up() -> None:
    shown = run("examples/embed.py")
    assert "Paris" in shown
    assert "Once upon a time" in shown
