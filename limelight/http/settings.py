"""How the HTTP side behaves: one small frozen struct, validated on construction."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from limelight.errors import ConfigError
from limelight.quoting import MAX_REASON_CHARACTERS, encodable, quoted

ReasoningField = Literal["reasoning", "reasoning_content"]
UnknownFields = Literal["suggest", "refuse", "ignore"]

MAX_BODY_BYTES = 10 * 1024 * 1024
"""Holds the longest prompt of a million-token context as text. Long bodies are decoded on threads, but each pass over
one keeps the interpreter's lock for milliseconds (what costs more is bounded in `protocol/sizes.py`); a larger default
would let one client stall all streams."""

MIN_RESUME_STREAM_BYTES = 128 * 1024
"""Room for the longest frame, and for one after it."""


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP application. The defaults suit a server on loopback.

    Attributes:
        api_keys: principal name -> key. Empty: everybody is `anonymous` and may use everything.
        admin_keys: the same for those who may also load and unload adapters. Empty: nobody may.
        key_file: path of a file with more keys, hashed, with scopes and limits (`limelight keys`); it is read anew when
            it changes.
        private_caches: principals share cached prefixes with themselves alone, so that nobody can find out by the time
            to the first token what another one has asked.
        share_header: name of a request header that says for whom a gateway asks: where requests compete, each of its
            values takes turns as a key of its own would. None: keys alone do.
        adapter_folders: folders below which an admin may name adapters by path. Hub ids need none.
        allowed_hosts: host names (without port) that a `Host` header may name; None allows any. A server bound to
            loopback lists the loopback names, so that a web page cannot reach it through a rebound DNS name.
        cors_origins: web origins (`"https://chat.example"`, or `"*"`) whose pages may call the API. Empty: none.
        max_body_bytes: a longer request body is answered with 413.
        body_timeout_seconds: a request body must have arrived so long after it is first waited for, but
            for what the next grants.
        min_body_bytes_per_second: each such number of bytes of a body is a second more for the rest of it.
        body_memory_bytes: what the bodies of all requests in hand may take together, of each what is above 64 KiB; one
            more is answered with 503.
        unknown_fields: what happens to a request field that no supported API has. "suggest" refuses a near miss of a
            known name and another engine's name, and ignores the rest; "refuse" refuses all; "ignore" ignores all.
            Ignored fields are named in the `x-limelight-ignored-fields` response header.
        trust_request_chat_template: requests may bring a chat template of their own. It runs in a sandbox, in the
            threads of the tokenizer, for five seconds of their time at the most.
        header_wait_seconds: a stream's status line waits this long for the first token, so that an early failure has
            an honest status.
        keep_alive_seconds: after this much silence a stream carries a comment line; None switches that off.
        resume_stream_bytes: what is kept of one resumable stream; of a longer one the oldest frames go.
        resume_memory_bytes: what is kept of all of them together; those that ended first go first.
        resume_keep_seconds: how long a resumable stream is kept after its end.
        max_grace_seconds: the longest time that a client may ask its stream to go on without a reader.
        max_stored_responses: how many responses of `/v1/responses` are kept, the newest; 0 keeps none.
        response_store_bytes: how much memory they may take.
        response_max_age_seconds: how long each is kept.
        reasoning_field: name under which chats send the model's reasoning: "reasoning" (as vLLM) or "reasoning_content"
            (as SGLang, llama.cpp and DeepSeek). Both are read.
        root_path: path prefix under which a proxy serves the application (`"/llm"`). Requests are understood with
            the prefix and without it, so it does not matter whether the proxy strips it.

    Raises:
        ConfigError: names the field, the value and the fix.
    """

    api_keys: Mapping[str, str] = {}
    admin_keys: Mapping[str, str] = {}
    key_file: str | None = None
    private_caches: bool = False
    share_header: str | None = None
    adapter_folders: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = MAX_BODY_BYTES
    body_timeout_seconds: float = 30.0
    min_body_bytes_per_second: int = 4 * 1024
    body_memory_bytes: int = 512 * 1024 * 1024
    unknown_fields: UnknownFields = "suggest"
    trust_request_chat_template: bool = False
    header_wait_seconds: float = 1.0
    keep_alive_seconds: float | None = 15.0
    resume_stream_bytes: int = 16 * 1024 * 1024
    resume_memory_bytes: int = 256 * 1024 * 1024
    resume_keep_seconds: float = 300.0
    max_grace_seconds: float = 300.0
    max_stored_responses: int = 10_000
    response_store_bytes: int = 256 * 1024 * 1024
    response_max_age_seconds: float = 24 * 3600.0
    reasoning_field: ReasoningField = "reasoning"
    root_path: str = ""

    def __post_init__(self) -> None:
        _check_keys(self.api_keys, self.admin_keys)
        _check_folders(self.adapter_folders)
        if self.max_body_bytes < 1:
            raise ConfigError(f"max_body_bytes is {self.max_body_bytes}; it must be at least 1")
        if not 0 < self.body_timeout_seconds < math.inf:
            raise ConfigError(f"body_timeout_seconds is {self.body_timeout_seconds}; it must be above 0")
        for name in ("min_body_bytes_per_second", "body_memory_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.unknown_fields not in ("suggest", "refuse", "ignore"):
            raise ConfigError(f"unknown_fields is {self.unknown_fields!r}; use suggest, refuse or ignore")
        if self.reasoning_field not in ("reasoning", "reasoning_content"):
            raise ConfigError(f"reasoning_field is {self.reasoning_field!r}; use reasoning or reasoning_content")
        if not self.header_wait_seconds >= 0:
            raise ConfigError(f"header_wait_seconds is {self.header_wait_seconds}; it must be 0 or more")
        if self.keep_alive_seconds is not None and not self.keep_alive_seconds > 0:
            raise ConfigError(f"keep_alive_seconds is {self.keep_alive_seconds}; it must be above 0, or None for off")
        _check_resuming(self)
        _check_store(self.max_stored_responses, self.response_store_bytes, self.response_max_age_seconds)
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path is {self.root_path!r}; it must look like '/llm'")

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        shown |= {"api_keys": sorted(self.api_keys), "admin_keys": sorted(self.admin_keys)}
        return f"HttpSettings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def _check_keys(api_keys: Mapping[str, str], admin_keys: Mapping[str, str]) -> None:
    for kind, keys in (("API", api_keys), ("admin", admin_keys)):
        for name, key in keys.items():
            if encodable(name) != name:
                raise ConfigError(
                    f"the name {quoted(name)} of an {kind} key is longer than {MAX_REASON_CHARACTERS} characters, or "
                    "UTF-8 cannot encode it; choose another, which logs, traces and metrics can show"
                )
            if not name or not key or key != key.strip() or not key.isascii():
                raise ConfigError(
                    f"the {kind} key of {name!r} is empty, has blanks around it or is not ASCII; no client could "
                    "send it"
                )
    if shared := sorted(name for name, key in admin_keys.items() if key in api_keys.values()):
        raise ConfigError(f"the admin key of {', '.join(shared)} is an API key, too; give each its own")


def _check_resuming(settings: HttpSettings) -> None:
    if settings.resume_stream_bytes < MIN_RESUME_STREAM_BYTES:
        raise ConfigError(
            f"resume_stream_bytes is {settings.resume_stream_bytes}; it must be at least {MIN_RESUME_STREAM_BYTES}"
        )
    if settings.resume_memory_bytes < settings.resume_stream_bytes:
        raise ConfigError(
            f"resume_memory_bytes is {settings.resume_memory_bytes}; it must be at least resume_stream_bytes, "
            f"{settings.resume_stream_bytes}"
        )
    if not 1 <= settings.resume_keep_seconds < math.inf:
        raise ConfigError(f"resume_keep_seconds is {settings.resume_keep_seconds}; it must be at least 1")
    if not 0 <= settings.max_grace_seconds < math.inf:
        raise ConfigError(f"max_grace_seconds is {settings.max_grace_seconds}; it must be 0 or more")


def _check_store(max_responses: int, max_bytes: int, max_age_seconds: float) -> None:
    if max_responses < 0:
        raise ConfigError(f"max_stored_responses is {max_responses}; it must be 0 or more, 0 for keeping none")
    if max_bytes < 1:
        raise ConfigError(f"response_store_bytes is {max_bytes}; it must be at least 1")
    if not max_age_seconds > 0:
        raise ConfigError(f"response_max_age_seconds is {max_age_seconds}; it must be above 0")


def _check_folders(adapter_folders: tuple[str, ...]) -> None:
    for folder in adapter_folders:
        if not Path(folder).is_absolute():
            raise ConfigError(f"adapter_folders holds {folder!r}; give absolute paths")
