"""The examples run as they stand."""

import socket
import subprocess
import sys
import threading

import pytest

from benchmarks.otlp_receiver import CountingReceiver
from tests.examples.running import ROOT, run


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


PHASES = ["admission", "tokenize", "queue", "prefill", "decode"]


@pytest.mark.model
def test_the_tracing_example_prints_the_phases_of_its_request() -> None:
    answer, waterfall, spans = run("examples/tracing.py").strip().split("\n\n")
    assert "Paris" in answer
    shown = [line.split()[0] for line in waterfall.splitlines() if ". " not in line[:8]]
    assert shown == ["chat", *PHASES]
    assert [line.split(". ", 1)[1].split("  ")[0] for line in waterfall.splitlines() if ". " in line[:8]] == [
        "chunk", "first token", "last token",
    ]  # fmt: skip
    ids = {line.split()[0]: tuple(line.split()[-3::2]) for line in spans.splitlines()}
    assert ids["chat"][1] == ids["answer"][0]
    assert all(ids[phase][1] == ids["chat"][0] for phase in PHASES)
    assert ids["answer"][1] == "none"


@pytest.mark.model
def test_the_tracing_example_exports_to_a_collector() -> None:
    with CountingReceiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            shown = run("examples/tracing.py", OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.server_port}")
        finally:
            receiver.shutdown()
            thread.join()
    assert "Paris" in shown
    assert receiver.counts.pop("step") > 0  # the first, and any that was slow
    assert receiver.counts == dict.fromkeys(["answer", "chat", *PHASES], 1)
