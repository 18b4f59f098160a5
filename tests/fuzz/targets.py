"""What fuzzers call: each target takes any bytes, and raises if they do anything but work or be refused.

The same for `test_targets.py`, which runs in every test run, and for `python -m tests.fuzz`, which is guided by the
coverage of the code.
"""

import asyncio
import contextlib
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from limelight.batch.in_process import Received
from limelight.errors import InvalidRequest, LimelightError, ModelError
from limelight.generation import ChatPrompt, SamplingParams
from limelight.http import HttpSettings, create_app
from limelight.models.checkpoint import open_checkpoint
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.gguf.file import GgufFile
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.text.chat_format import JinjaChatFormat, chat_format_from_gguf
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import ByteVocabulary, scripted_engine
from limelight.testing.vocabulary import END, VOCAB_SIZE

MAX_SECONDS = 20.0
"""Of a thread's processor time for one input: far above what any limit allows, far below a hang."""
MAX_LEFT = 8
"""Requests that may still end when their answer is there; responses in the background among them."""
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/v1/load_lora_adapter",
)
RESUME_PATHS = (
    "/v1/streams/{}",
    "/v1/responses/{}",
    "/v1/responses/{}/input_items",
    "/v1/requests/{}",
    "/v1/requests/{}/trace",
)
CONVERSATION = ChatPrompt(messages=({"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}))


class Finding(AssertionError):
    """An input that is neither served nor refused as it should be."""


def http_body(data: bytes) -> None:
    """A route by the first byte, and the rest as its body."""
    path = PATHS[data[0] % len(PATHS)] if data else PATHS[0]
    _check(_server().ask("POST", path, data[1:], {b"content-type": b"application/json"}))


def resume_id(data: bytes) -> None:
    """A route by the first byte, an id up to the first line feed, and a `Last-Event-ID` behind it."""
    path = RESUME_PATHS[data[0] % len(RESUME_PATHS)] if data else RESUME_PATHS[0]
    name, _, last = data[1:].partition(b"\n")
    headers = {b"last-event-id": last.replace(b"\r", b"").replace(b"\n", b"")} if last else {}
    _check(_server().ask("GET", path.format(name.decode("latin-1").replace("/", "%2F")), b"", headers))


def gguf_header(data: bytes) -> None:
    """A GGUF file: header, vocabulary and chat template."""
    with _file(data, "model.gguf") as path, contextlib.suppress(ModelError):
        file = GgufFile(path)
        for name in file.tensors:
            file.stored(name)
        vocabulary_from_gguf(file.metadata).encode("hello", add_special_tokens=True)
        chat_format_from_gguf(file.metadata)


def gguf_model(data: bytes) -> None:
    """The same, opened as a checkpoint."""
    with _file(data, "model.gguf") as path, contextlib.suppress(ModelError):
        checkpoint = open_checkpoint(path)
        list(checkpoint.names())


def safetensors_header(data: bytes) -> None:
    """A folder's only safetensors file."""
    with _file(data, "model.safetensors") as path, contextlib.suppress(ModelError):
        (path.parent / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
        checkpoint = open_checkpoint(path.parent)
        list(checkpoint.names())


def chat_template(data: bytes) -> None:
    """A template of a request."""
    with contextlib.suppress(InvalidRequest):
        JinjaChatFormat(None).render(
            ChatPrompt(messages=CONVERSATION.messages, template=data.decode("utf-8", "replace"))
        )


def schema(data: bytes) -> None:
    """By the first byte a JSON schema, an expression, a grammar or choices."""
    kind, text = (data[0] if data else 0) % 4, data[1:].decode("utf-8", "replace")
    wanted: dict[str, Any] = {}
    if kind == 0:
        try:
            wanted["json"] = json.loads(text)
        except (ValueError, RecursionError):
            return
    else:
        wanted = [{"regex": text}, {"grammar": text}, {"choice": text.split("\n")}][kind - 1]
    with contextlib.suppress(LimelightError):
        params = SamplingParams(seed=1, structured_outputs=StructuredOutputsParams(**wanted))
        constraint = _compiler().compile(params, None).begin()
        for _ in range(4):
            constraint.mask()


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (http_body, resume_id, gguf_header, gguf_model, safetensors_header, chat_template, schema)
}


def run(name: str, data: bytes) -> None:
    """One input.

    Raises:
        Finding: it took too long, or was answered as a fault of the server's.
        Exception: whatever the code let out that is no refusal.
    """
    began = time.process_time()
    TARGETS[name](data)
    seconds = time.process_time() - began
    if seconds > MAX_SECONDS:
        raise Finding(f"it took {seconds:.1f} s")


class _Server:
    """An application over a scripted model, in an event loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._engine = scripted_engine("yes", max_num_seqs=8)
        self._loop.run_until_complete(self._engine.start())
        self._app = create_app(self._engine, settings=HttpSettings(trust_request_chat_template=True))

    def ask(self, method: str, path: str, body: bytes, headers: Mapping[bytes, bytes]) -> Received:
        return self._loop.run_until_complete(asyncio.wait_for(self._ask(method, path, body, headers), 60))

    async def _ask(self, method: str, path: str, body: bytes, headers: Mapping[bytes, bytes]) -> Received:
        received = Received()
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        is_over = asyncio.Event()

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await is_over.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                received.status = message["status"]
                received.headers = {key.decode().lower(): value.decode() for key, value in message.get("headers", ())}
            else:
                received.body += message.get("body", b"")
                if not message.get("more_body", False) or len(received.body) > 2**20:
                    is_over.set()

        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("latin-1", "replace"),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-length", b"%d" % len(body)), *headers.items()],
            "client": None,
            "server": None,
        }
        await self._app(scope, receive, send)
        if self._engine.statistics().num_requests > MAX_LEFT:
            raise Finding(f"{self._engine.statistics().num_requests} requests are left")
        return received


def _check(received: Received) -> None:
    if received.status >= 500 and received.status not in (501, 503):
        raise Finding(f"{received.status}: {received.body[:500]!r}")
    if received.status >= 400:
        error = json.loads(received.body)
        if "error" not in error or b"Traceback" in received.body:
            raise Finding(f"{received.status}: {received.body[:500]!r}")


@functools.cache
def _server() -> _Server:
    return _Server()


@functools.cache
def _compiler() -> ConstraintCompiler:
    return ConstraintCompiler(ByteVocabulary(), VOCAB_SIZE, frozenset({END}))


@contextlib.contextmanager
def _file(data: bytes, name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        yield path
