"""The program `limelight`, mostly as a process of its own over a scripted model: what it prints, and how it ends."""

import argparse
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import pytest

from limelight.cli import main
from limelight.cli.listening import bind
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.cli.settings import adapters, allowed_hosts, api_keys, engine_config, is_loopback, memory_bytes
from limelight.cli.terminal import as_options, printable
from limelight.config import EngineConfig
from limelight.engine import Report
from limelight.errors import ConfigError
from limelight.models.loaded_model import LoadedModel

ROOT = Path(__file__).resolve().parent.parent
SCRIPTED = """
import sys
import time
from limelight.cli import main
from limelight.errors import EngineFailed
from limelight.testing import babble, echo, scripted_model

def device_lost(step):
    raise EngineFailed("the device fell off the bus")

def hang(step):
    time.sleep(1000)

{changes}

raise SystemExit(main(sys.argv[1:], loader=scripted_model({model})))
"""
REAL = "from limelight.cli import main; raise SystemExit(main())"
QUICK = "echo"
SLOW = "babble, step_seconds=0.02"
"""Endless text, 50 tokens a second."""


def command(model: str, *arguments: str, changes: str = "") -> list[str]:
    imports = "from limelight.cli import serve, server" if changes else ""
    return [sys.executable, "-c", SCRIPTED.format(model=model, changes=f"{imports}\n{changes}"), *arguments]


def run(model: str, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one whole run."""
    done = subprocess.run(
        command(model, *arguments),
        input=stdin,
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


class Process:
    """A running `limelight serve`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        self.first_line = process.stdout.readline()
        self.url = self.first_line.rpartition(" ")[2].strip()
        self.port = int(self.url.rpartition(":")[2])

    def get(self, path: str, headers: Mapping[str, str] = {}) -> tuple[int, bytes]:
        request = urllib.request.Request(f"{self.url}{path}", headers=dict(headers))
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    @contextmanager
    def stream(self, **body: object) -> Iterator[http.client.HTTPResponse]:
        """A streamed completion whose headers have come."""
        whole = {"model": "scripted", "prompt": "abc", "stream": True, **body}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", json.dumps(whole), {"content-type": "application/json"})
            with connection.getresponse() as response:
                assert response.status == 200
                yield response

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def serving(
    model: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    changes: str = "",
    stderr: int | IO[str] = subprocess.PIPE,
) -> Iterator[Process]:
    with subprocess.Popen(
        command(model, "serve", "--port", "0", *arguments, changes=changes),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **(env or {})},
    ) as process:
        try:
            yield Process(process)
        finally:
            process.kill()


def options(*arguments: str, env: Mapping[str, str] | None = None) -> argparse.Namespace:
    return build_parser(env or {}).parse_args(arguments)


# ---- options


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("512MiB", 512 * 2**20),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("1.5g", 3 * 2**29),
        ("1k", 1024),
        ("2GB", 2 * 10**9),
        ("123456", 123456),
        ("64b", 64),
    ],
)
def test_an_amount_of_memory_is_read_with_its_unit(text: str, num_bytes: int) -> None:
    assert memory_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "lots", "2XiB", "-1", "0", "1e3", "GiB", "nan", "2 G iB"])
def test_no_amount_of_memory_is_refused_with_examples(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="512MiB"):
        memory_bytes(text)


def test_keys_have_the_names_given_or_their_number() -> None:
    assert api_keys(["alice=sk-1", "sk-2", "cGFk=="]) == {"alice": "sk-1", "key-2": "sk-2", "key-3": "cGFk=="}
    assert api_keys([]) == {}
    with pytest.raises(ConfigError, match="twice"):
        api_keys(["a=1", "a=2"])
    with pytest.raises(ConfigError, match="empty"):
        api_keys([""])


def test_the_key_of_the_environment_is_used_unless_one_is_given() -> None:
    assert options("serve", env={"LIMELIGHT_API_KEY": "k"}).api_key == ["k"]
    assert api_keys(options("serve", "--api-key", "mine", env={"LIMELIGHT_API_KEY": "k"}).api_key) == {
        "key-1": "k",
        "key-2": "mine",
    }
    assert options("serve").api_key == []


def test_a_server_on_loopback_accepts_the_loopback_names_only() -> None:
    assert allowed_hosts("127.0.0.1", []) == ("localhost", "127.0.0.1", "::1")
    assert allowed_hosts("127.0.0.1", ["my.name"]) == ("localhost", "127.0.0.1", "::1", "my.name")
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("0.0.0.0", ["my.name"]) == ("my.name",)
    assert [is_loopback(host) for host in ("localhost", "127.8.0.1", "::1", "0.0.0.0", "::", "my.name")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


def test_every_option_reaches_its_setting() -> None:
    parsed = options(
        *("serve", "some/model", "--revision", "main", "--served-model-name", "name", "--device", "cpu"),
        *("--dtype", "float32", "--max-model-len", "100", "--max-num-seqs", "3", "--max-num-batched-tokens", "77"),
        *("--kv-cache-memory", "1MiB", "--no-prefix-caching", "--api-key", "a=k", "--root-path", "/llm"),
        *("--cors-origin", "https://chat.example", "--allowed-host", "h", "--unknown-fields", "refuse"),
        *("--header-wait", "0.5", "--keep-alive", "0", "--no-cuda-graph", "--stream-interval", "0"),
        *("--resume-stream-memory", "1MiB", "--resume-memory", "2MiB", "--resume-keep", "10", "--max-grace", "5"),
    )
    config = engine_config(parsed)
    assert (config.model, config.revision, config.served_model_name) == ("some/model", "main", "name")
    assert (config.device, config.dtype, config.max_model_len) == ("cpu", "float32", 100)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.kv_cache_bytes) == (3, 77, 2**20)
    assert (config.enable_prefix_caching, config.enable_cuda_graph, config.stream_interval) == (False, False, 0.0)
    settings = http_settings(parsed)
    assert (dict(settings.api_keys), settings.root_path, settings.cors_origins) == (
        {"a": "k"},
        "/llm",
        ("https://chat.example",),
    )
    assert settings.allowed_hosts is not None
    assert "h" in settings.allowed_hosts
    assert (settings.unknown_fields, settings.header_wait_seconds, settings.keep_alive_seconds) == ("refuse", 0.5, None)
    assert (settings.resume_stream_bytes, settings.resume_memory_bytes) == (2**20, 2**21)
    assert (settings.resume_keep_seconds, settings.max_grace_seconds) == (10, 5)


def test_left_out_options_leave_the_defaults_of_the_settings() -> None:
    config = engine_config(options("serve"))
    assert config == type(config)()
    settings = http_settings(options("serve"))
    assert settings == type(settings)(allowed_hosts=("localhost", "127.0.0.1", "::1"))


def test_options_are_written_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The beginning of one is not taken for it."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--max-model", "auto"], loader=unreachable)
    assert ended.value.code == 2
    assert "unrecognized arguments: --max-model; did you mean --max-model-len?" in capsys.readouterr().err


@pytest.mark.parametrize("which", [[], ["serve"], ["chat"], ["generate"]])
def test_help_teaches_by_example_and_says_the_defaults(which: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*which, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    if which:
        assert "examples:" in text
        assert "(default: " in text or "Default: " in text
        assert "(default: None)" not in text
        assert not re.search(r"Default: \S+\s+\(default: ", text), "a default is said twice"
    else:
        assert all(command in text for command in ("serve", "chat", "generate"))


def unreachable(config: EngineConfig, report: Report) -> LoadedModel:
    raise AssertionError("a wrong option is told before the model is loaded")


# ---- wrong input: one line, an exit code, no traceback


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "COMMAND"),
        (["fly"], 2, "fly"),
        (["serve", "--port", "99999"], 2, "99999"),
        (["serve", "--port", "-1"], 2, "--port"),
        (["serve", "--drain-timeout", "soon"], 2, "soon"),
        (["serve", "--keep-alive", "nan"], 2, "nan"),
        (["serve", "--kv-cache-memory", "lots"], 2, "512MiB"),
        (["serve", "--device", "abacus"], 2, "abacus"),
        (["serve", "--max-num-seqs", "0"], 2, "--max-num-seqs is 0"),
        (["serve", "--max-model-len", "1"], 2, "--max-model-len is 1"),
        (["serve", "--root-path", "llm"], 2, "root_path is 'llm'"),
        (["serve", "--api-key", "a=1", "--api-key", "a=2"], 2, "twice"),
        (["serve", "--ssl-keyfile", "key.pem"], 2, "--ssl-certfile"),
        (["serve", "--ssl-certfile", "/no/such.pem"], 2, "/no/such.pem"),
        (["serve", "--ssl-certfile", "pyproject.toml"], 2, "pyproject.toml"),
        (["serve", "--host", "256.1.1.1"], 1, "--host 256.1.1.1"),
        (["generate", "x", "--temperature", "9"], 2, "temperature is 9"),
        (["generate", "x", "--max-tokens", "0"], 2, "max_tokens is 0"),
        (["generate"], 2, "prompt is empty"),
        (["generate", "x", "--system", "y"], 2, "--chat"),
        (["chat", "--top-p", "2"], 2, "top_p is 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line_on_stderr(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    try:
        returned: object = main(arguments, loader=unreachable)
    except SystemExit as end:
        returned = end.code
    output, errors = capsys.readouterr()
    assert (returned, output) == (code, "")
    assert errors.startswith("limelight")
    assert errors.count("\n") == 1
    assert says in errors


def test_a_missing_model_is_one_line_on_stderr() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REAL, "generate", "x", "--model", "/no/such/folder"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("limelight: ")
    assert "/no/such/folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_one_line_that_names_the_option() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, errors = run(QUICK, "serve", "--port", str(port))
    assert code == 1
    assert errors.count("\n") == 1
    assert str(port) in errors
    assert "--port" in errors


def test_while_the_model_loads_nobody_is_kept_waiting() -> None:
    with bind("127.0.0.1", 0) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(listener.getsockname(), timeout=60)


# ---- serve


def test_it_says_what_to_open_once_it_answers_there() -> None:
    with serving(QUICK) as server:
        assert server.first_line == f"Limelight serves scripted: open http://127.0.0.1:{server.port}\n"
        assert server.port != 0
        assert server.get("/health")[0] == 200
        assert server.get("/")[1].startswith(b"<!doctype html>")
        assert json.loads(server.get("/v1/models")[1])["data"][0]["id"] == "scripted"
        with server.stream(max_tokens=3) as stream:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        assert server.get("/health", {"host": "evil.example"})[0] == 403


MADE_MEANWHILE = """
import sys, time
from limelight.cli import main
from limelight.testing import echo, scripted_model

def load(config, report):
    assert "litestar" not in sys.modules
    report("importing", None)
    ends = time.monotonic() + 30
    while "limelight.cli.server" not in sys.modules:
        assert time.monotonic() < ends
        time.sleep(0.01)
    return scripted_model(echo)(config, report)

raise SystemExit(main(sys.argv[1:], loader=load))
"""


def test_the_server_is_imported_while_the_model_loads() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", MADE_MEANWHILE, "serve", "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Limelight serves scripted")
        process.terminate()
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_an_idle_server_ends_it_with_0(number: signal.Signals) -> None:
    with serving(QUICK) as server:
        server.signal(number)
        code, errors = server.end()
    assert code == 0
    assert "Traceback" not in errors


def test_a_signal_lets_running_streams_finish_and_accepts_nobody_else() -> None:
    with serving(SLOW) as server:
        with server.stream(max_tokens=60) as stream:
            assert stream.readline().startswith(b"data: ")
            server.signal(signal.SIGTERM)
            rest = stream.read()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), timeout=60)
        code, errors = server.end()
    assert rest.endswith(b"data: [DONE]\n\n")
    assert b'"length"' in rest
    assert code == 0
    assert "1 running" in errors
    assert "Traceback" not in errors


def test_a_stream_that_outlasts_the_drain_ends_with_an_error_frame() -> None:
    with serving(SLOW, "--drain-timeout", "1") as server:
        with server.stream(max_tokens=2000) as stream:
            assert stream.readline().startswith(b"data: ")
            server.signal(signal.SIGTERM)
            rest = stream.read()
        code, errors = server.end()
    assert b"engine_not_running" in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert code == 0
    assert "Traceback" not in errors


def test_a_second_signal_ends_at_once() -> None:
    with serving(SLOW, "--drain-timeout", "300") as server, server.stream(max_tokens=2000) as stream:
        assert stream.readline()
        server.signal(signal.SIGINT)
        assert server.process.stderr is not None
        assert any("1 running" in line for line in server.process.stderr)
        server.signal(signal.SIGINT)
        code, errors = server.end()
    assert code == 0
    assert "at once" in errors
    assert "Traceback" not in errors


def test_a_client_that_never_reads_does_not_hold_the_server_up() -> None:
    endless = "babble, max_model_len=100000, num_pages=20000"
    with serving(endless, "--drain-timeout", "1") as server, socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", server.port))
        body = json.dumps({"model": "scripted", "prompt": "a", "stream": True, "max_tokens": 90000}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        silent.sendall(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        assert silent.recv(100).startswith(b"HTTP/1.1 200")
        server.signal(signal.SIGTERM)
        code, errors = server.end()
    assert code == 0
    assert "Traceback" not in errors


def test_those_who_watch_the_requests_do_not_hold_the_server_up_whether_they_read_or_not() -> None:
    feed = "/v1/requests/events"
    with serving(QUICK, "--drain-timeout", "300") as server, socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        silent.connect(("127.0.0.1", server.port))
        silent.sendall(f"GET {feed} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        with urllib.request.urlopen(f"{server.url}{feed}", timeout=60) as watcher:
            assert watcher.readline() == b"event: history\n"
            server.signal(signal.SIGTERM)
            rest = watcher.read()
        code, errors = server.end()
    assert b"event: snapshot\n" in rest
    assert code == 0
    assert "Traceback" not in errors


def assert_engine_failed(server: Process) -> None:
    """Ask for a completion, which the engine does not survive."""
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps({"model": "scripted", "prompt": "a"}).encode(),
        {"content-type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as answer, urllib.request.urlopen(request, timeout=60):
        pass
    assert answer.value.code == 500
    assert b"engine_failed" in answer.value.read()


def test_a_server_whose_engine_has_failed_ends_with_1() -> None:
    with serving("echo, before_step=device_lost") as server:
        assert_engine_failed(server)
        code, errors = server.end()
    assert code == 1
    assert "the device fell off the bus" in errors


def test_a_server_whose_step_never_ends_ends_with_1_and_says_what_it_leaves_behind() -> None:
    with serving("echo, before_step=hang", "--step-timeout", "1") as server:
        assert_engine_failed(server)
        code, errors = server.end()
    assert code == 1
    assert "has not ended for" in errors
    assert "the model runner is still busy" in errors
    assert "in hang" in errors, "where it is stuck"


def test_after_a_signal_a_step_that_never_ends_holds_the_server_up_for_a_while_only() -> None:
    with serving(
        "echo, before_step=hang",
        "--drain-timeout",
        "0",
        changes="serve.LAST_STEP_SECONDS = server.LAST_STEP_SECONDS = 0.1",
    ) as server:
        body = json.dumps({"model": "scripted", "prompt": "a", "stream": True})
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            while "limelight_running_sequences 1" not in server.get("/metrics")[1].decode():
                pass
            server.signal(signal.SIGTERM)
            code, errors = server.end()
    assert code == 0
    assert "the model runner is still busy" in errors


def test_a_second_signal_waits_for_no_step() -> None:
    with serving("echo, before_step=hang", "--drain-timeout", "300") as server:
        body = json.dumps({"model": "scripted", "prompt": "a", "stream": True})
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            while "limelight_running_sequences 1" not in server.get("/metrics")[1].decode():
                pass
            server.signal(signal.SIGTERM)
            assert server.process.stderr is not None
            assert any("1 running" in line for line in server.process.stderr)
            server.signal(signal.SIGTERM)
            code, errors = server.end()  # long before the drain's limit
    assert code == 0
    assert "the model runner is still busy" in errors


def test_a_server_whose_event_loop_does_not_turn_ends_all_the_same() -> None:
    changes = """
server.SECONDS_BEYOND = 0.1
async def stand_still(self, counter):
    time.sleep(1000)
server.Server.on_tick = stand_still
"""
    with serving(QUICK, "--drain-timeout", "0", "--loop-stall", "0.2", changes=changes) as server:
        assert server.process.stderr is not None
        assert any("the event loop has stood still" in line for line in server.process.stderr)
        server.signal(signal.SIGTERM)
        code, errors = server.end()
    assert code == 1
    assert "this process ends all the same" in errors


def test_before_it_stops_it_serves_while_readyz_says_no() -> None:
    with serving(QUICK, "--drain-notice", "2") as server:
        assert server.get("/readyz")[0] == 200
        server.signal(signal.SIGTERM)
        while (answer := server.get("/readyz"))[0] == 200:
            pass
        with server.stream() as stream:
            assert stream.read().endswith(b"data: [DONE]\n\n")
        code, _ = server.end()
    assert answer[0] == 503
    assert b"about to stop" in answer[1]
    assert code == 0


def test_beyond_loopback_without_a_key_it_warns() -> None:
    with serving(QUICK, "--host", "0.0.0.0") as server:
        assert server.url == f"http://127.0.0.1:{server.port}"
        server.signal(signal.SIGTERM)
        _, errors = server.end()
    assert "warning" in errors
    assert "--api-key" in errors


def test_with_the_key_of_the_environment_it_asks_for_it_and_does_not_warn() -> None:
    with serving(QUICK, "--host", "0.0.0.0", env={"LIMELIGHT_API_KEY": "secret"}) as server:
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", {"authorization": "Bearer secret"})[0] == 200
        server.signal(signal.SIGTERM)
        _, errors = server.end()
    assert "warning" not in errors
    assert "secret" not in errors


# ---- generate and chat


def test_generate_continues_the_prompt_of_its_arguments_or_of_standard_input() -> None:
    assert run(QUICK, "generate", "two", "words")[:2] == (0, "two words\n")
    assert run(QUICK, "generate", "--max-tokens", "7", stdin="größer".encode())[1] == "größ\n"


def test_generate_with_chat_applies_the_template() -> None:
    assert run(QUICK, "generate", "--chat", "--system", "S", "Q")[1] == "system: S\nuser: Q\nassistant:\n"


def test_generate_passes_sampling_settings_on() -> None:
    first = run("babble", "generate", "x", "--seed", "5", "--max-tokens", "30")[1]
    assert len(first) == 31
    assert run("babble", "generate", "x", "--seed", "5", "--max-tokens", "30")[1] == first
    assert run("babble", "generate", "x", "--seed", "6", "--max-tokens", "30")[1] != first
    assert run(QUICK, "generate", "one two", "--stop", "two")[1] == "one \n"


def test_generate_refuses_input_that_is_no_text() -> None:
    code, _, errors = run(QUICK, "generate", stdin=b"\xff\xfe")
    assert code == 2
    assert "not UTF-8" in errors
    assert errors.count("\n") == 1


def test_generate_ends_quietly_when_its_reader_has_gone() -> None:
    with subprocess.Popen(
        command(SLOW, "generate", "x", "--max-tokens", "1500"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(3)
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(timeout=60) == 141
    assert errors == b"script\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("arguments", [("generate", "x"), ("models", "--supported")])
def test_output_to_a_full_disk_is_one_line_and_no_traceback(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command(QUICK, *arguments), cwd=ROOT, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert "no space left" in lines[-1].lower()
    assert not any("Traceback" in line for line in lines)


def test_an_interrupt_stops_generate_with_130_and_no_traceback() -> None:
    with subprocess.Popen(
        command(SLOW, "generate", "x", "--max-tokens", "1500"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_chat_answers_line_by_line_and_remembers() -> None:
    code, output, _ = run(QUICK, "chat", stdin=b"one\ntwo\n")
    assert code == 0
    assert output == "user: one\nassistant:\nuser: one\nassistant: user: one\nassistant:\nuser: two\nassistant:\n\n"


def test_chat_commands_change_the_conversation() -> None:
    output = run(
        QUICK,
        "chat",
        "--system",
        "S",
        stdin=b"a\n/reset\nb\n/system T\nc\n/system\nd\n/help\n/nonsense\n/exit\nunread\n",
    )[1]
    assert "(forgotten)\nsystem: S\nuser: b\nassistant:\n" in output
    assert "(new instructions)\nsystem: T\nuser: c\nassistant:\n" in output
    assert "(no instructions)\nuser: d\nassistant:\n" in output
    assert "/reset          forget" in output
    assert "there is no /nonsense" in output
    assert "unread" not in output


def test_an_interrupt_stops_the_answer_and_the_chat_goes_on() -> None:
    with subprocess.Popen(
        command(SLOW, "chat"),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdin.write(b"/help\n/exit\n")
        process.stdin.close()
        output = process.stdout.read()
        assert process.wait(timeout=60) == 0
    assert b" (stopped)\n" in output
    assert b"/reset" in output


def test_a_conversation_that_no_longer_fits_is_told_and_can_be_reset() -> None:
    output = run(QUICK, "chat", "--max-model-len", "64", stdin=b"x" * 80 + b"\n/reset\nok\n")[1]
    assert "/reset forgets" in output
    assert "user: ok" in output


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_waiting_threads_of_torch_spin_briefly_unless_told_otherwise(
    given: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["serve", "--ssl-certfile", "/no/such.pem"]) == 2
    assert os.environ.get("GOMP_SPINCOUNT") == expected
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


# ---- the terminal


def test_an_answer_cannot_send_commands_to_the_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\x9bc\r\n\td\x00é") == "a[2Jbc\n\tdé"


def test_without_a_terminal_each_stage_of_loading_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    progress = LoadingProgress()
    for fraction in (0.0, 0.5, 1.0):
        progress("weights", fraction)
    progress("warm-up", None)
    progress.close()
    assert capsys.readouterr().err == "weights\nwarm-up\n"


def test_threads_of_the_program_are_gone_when_main_returns(capsys: pytest.CaptureFixture[str]) -> None:
    from limelight.testing import echo, scripted_model

    before = set(threading.enumerate())
    assert main(["generate", "hello"], loader=scripted_model(echo)) == 0
    assert capsys.readouterr().out == "hello\n"
    assert set(threading.enumerate()) == before


def test_messages_name_the_options_of_the_command_line() -> None:
    assert as_options("raise kv_cache_bytes, or lower max_model_len (revision main)") == (
        "raise --kv-cache-memory, or lower --max-model-len (revision main)"
    )


def test_adapters_are_pairs_of_a_name_and_a_path():
    parsed = options(
        "serve", "--lora", "one=/a=b", "--lora", "two=org/name", "--max-loras", "3", "--max-lora-rank", "16"
    )
    config = engine_config(parsed)
    assert dict(config.adapters) == {"one": "/a=b", "two": "org/name"}
    assert (config.max_loras, config.max_lora_rank) == (3, 16)
    assert dict(engine_config(options("serve")).adapters) == {}
    assert engine_config(options("generate", "hi")).max_loras == EngineConfig().max_loras
    for wrong in (["plain"], ["=path"], ["name="], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--lora"):
            adapters(wrong)


def test_admin_keys_come_from_options_or_the_environment_and_never_show_in_the_help():
    environment = {"LIMELIGHT_ADMIN_KEY": "secret-admin", "LIMELIGHT_API_KEY": "secret-user"}
    settings = http_settings(options("serve", "--lora-folder", "loras", env=environment))
    assert dict(settings.admin_keys) == {"admin-1": "secret-admin"}
    assert settings.adapter_folders == (str(Path("loras").absolute()),)
    named = http_settings(options("serve", "--admin-key", "root=k"))
    assert dict(named.admin_keys) == {"root": "k"}
    assert http_settings(options("serve")).admin_keys == {}
    with pytest.raises(ConfigError, match="--admin-key"):
        http_settings(options("serve", "--admin-key", ""))
    serve = build_parser(environment)._subparsers._group_actions[0].choices["serve"]
    assert "secret" not in serve.format_help().replace("LIMELIGHT_API_KEY=secret", "")


def test_an_adapter_that_is_not_there_is_one_line_and_exit_code_1(tmp_path):
    code, out, err = run(QUICK, "serve", "--port", "0", "--lora", f"one={tmp_path}")
    assert (code, out) == (1, "")
    assert str(tmp_path) in err
    assert "Traceback" not in err
