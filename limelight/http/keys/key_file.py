"""The key file: who may do what, without the keys themselves.

Keys are 256 random bits, so that a plain SHA-256 of one cannot be guessed backwards; passwords, which people choose,
would need a slow hash. The file is JSON, is replaced as a whole, and only its owner can read it.
"""

import hashlib
import os
import secrets
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from limelight.errors import ConfigError
from limelight.generation import MAX_QUOTA_TOKENS
from limelight.quoting import MAX_REASON_CHARACTERS, encodable, quoted

PREFIX = "ll-"
"""How keys begin, so that scanners for leaked secrets can know them."""
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_WEIGHT = 1000
SCOPES = ("infer", "observe", "admin")

Scope = Literal["infer", "observe", "admin"]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key.

    Attributes:
        name: of its principal, which logs, metrics and traces show.
        sha256: of the key, in hexadecimal.
        scopes: "infer" uses the models, "observe" sees the numbers of everybody's requests, "admin" changes what is
            served and ends requests of others.
        models: names of the models and adapters that it may use; None: all.
        max_num_requests: live requests of this principal; one more is answered with 429. None: no limit of its own.
        best_priority: the lowest `priority` value that its requests may have; None: any.
        weight: of two busy keys, one of weight 3 gets three times what one of weight 1 gets.
        tokens_per_minute: its quota, in tokens of prompts that are not cached and of output; None: none.
        burst_tokens: what of it may be used at once after a rest; None: that of a minute.
        private_cache: its requests share cached prefixes with nobody else's.
    """

    name: str
    sha256: Digest
    scopes: tuple[Scope, ...] = ("infer",)
    models: tuple[str, ...] | None = None
    max_num_requests: Annotated[int, msgspec.Meta(ge=1)] | None = None
    best_priority: int | None = None
    weight: Annotated[float, msgspec.Meta(gt=0, le=MAX_WEIGHT)] = 1.0
    tokens_per_minute: Annotated[float, msgspec.Meta(ge=1, le=MAX_QUOTA_TOKENS)] | None = None
    burst_tokens: Annotated[float, msgspec.Meta(ge=1, le=MAX_QUOTA_TOKENS)] | None = None
    private_cache: bool = False


class KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    version: Literal[1] = 1
    keys: tuple[KeyEntry, ...] = ()


def new_key() -> str:
    """A key that nobody has."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> str:
    """What the file has of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: Path) -> KeyFile:
    """What a key file says.

    Raises:
        ConfigError: it is missing, too large, no JSON of this form, or names a key twice; says where.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"the key file {path} is longer than {MAX_FILE_BYTES} bytes")
    try:
        keys = msgspec.json.decode(raw, type=KeyFile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the key file {path} is no key file: {error}") from None
    check_entries(keys, path)
    return keys


def check_entries(keys: KeyFile, path: Path) -> None:
    """Raises ConfigError for names that could not be shown, and for keys or names that occur twice."""
    seen: set[str] = set()
    for entry in keys.keys:
        if not entry.name or encodable(entry.name) != entry.name:
            raise ConfigError(
                f"the key file {path} has the name {quoted(entry.name)}; a name has 1 to {MAX_REASON_CHARACTERS} "
                "characters that UTF-8 can encode"
            )
        if not entry.scopes:
            raise ConfigError(f"the key {quoted(entry.name)} in {path} has no scopes; give some of {', '.join(SCOPES)}")
        if entry.burst_tokens is not None and entry.tokens_per_minute is None:
            raise ConfigError(
                f"the key {quoted(entry.name)} in {path} has burst_tokens without tokens_per_minute; give both"
            )
        for what in (entry.name, entry.sha256):
            if what in seen:
                raise ConfigError(f"the key file {path} has {quoted(what)} twice; every key and every name is one")
            seen.add(what)


def write_keys(path: Path, keys: KeyFile) -> None:
    """Replace the file; nobody ever reads half of it, and nobody but its owner reads it at all.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(keys), indent=2) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"the key file {path} cannot be written: {error.strerror or error}") from None
