"""The application alone under uvicorn, hypercorn and granian: streams, disconnects, and a stop with a stream open."""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
APP = "tests.embedding.served:make"
COMMANDS = {
    "uvicorn": ["--factory", APP, "--timeout-graceful-shutdown", "1", "--port", "{port}"],
    "hypercorn": [f"{APP}()", "--graceful-timeout", "1", "--bind", "127.0.0.1:{port}"],
    "granian": ["--interface", "asgi", "--factory", APP, "--workers-kill-timeout", "10", "--port", "{port}"],
}
CHAT = "/v1/chat/completions"
BODY = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 1500}


class Served:
    """A server in a process of its own."""

    def __init__(self, name: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", name, *(part.format(port=port) for part in COMMANDS[name])],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # granian has workers
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))},
        )

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, trust_env=False)

    def wait_until_ready(self) -> None:
        wait_until(self._is_ready)

    def live_requests(self) -> int:
        with self.client() as client:
            load: int = client.get("/load").json()["server_load"]
        return load

    def stop(self) -> str:
        """What it printed in its life, ended by SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        printed, complaints = self.process.communicate(timeout=60)
        assert "Traceback" not in complaints, complaints
        assert "never retrieved" not in complaints
        assert "was destroyed" not in complaints
        return printed

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        try:
            with self.client() as client:
                return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False


def wait_until(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "after a minute"
        time.sleep(0.02)


@pytest.fixture(params=COMMANDS)
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    pytest.importorskip(request.param)
    server = Served(request.param)
    try:
        server.wait_until_ready()
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()
        for pipe in (server.process.stdout, server.process.stderr):
            assert pipe is not None
            pipe.close()


def test_it_streams_ends_what_its_client_leaves_and_stops_with_a_stream_open(served: Served) -> None:
    with served.client() as client:
        with client.stream("POST", CHAT, json=BODY) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = (line for line in response.iter_lines() if line.startswith("data: {"))
            said = [json.loads(next(lines).removeprefix("data: ")) for _ in range(4)]
            assert said[1]["choices"][0]["delta"]["content"].startswith("w")
            assert served.live_requests() == 1, "the first tokens are here before the last ones are made"
        wait_until(lambda: served.live_requests() == 0)
        whole = client.post(CHAT, json=BODY | {"stream": False, "max_tokens": 4}).json()
        assert whole["choices"][0]["message"]["content"] == "word"
        with client.stream("POST", CHAT, json=BODY) as response:
            next(response.iter_lines())
            assert "model closed\n" in served.stop()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_commands_are_those_of_the_page(name: str) -> None:
    page = (ROOT / "docs" / "embedding.md").read_text()
    [line] = re.findall(rf"^\$ {name} (.*)$", page, re.MULTILINE)
    told = [word for word in shlex.split(line.replace("limelight.http.app:create_app", APP)) if not word.isdigit()]
    assert told == [word for word in COMMANDS[name] if not word.isdigit()][: len(told)]
