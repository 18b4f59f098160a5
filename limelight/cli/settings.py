"""From what was given on the command line to the settings of the layers below. Reads no environment."""

import argparse
import ipaddress
import re
from collections.abc import Sequence

import msgspec

from limelight.config import DEVICE, EngineConfig
from limelight.errors import ConfigError
from limelight.generation import SamplingParams

_UNITS = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_UNITS |= {f"{unit}ib": size for unit, size in _UNITS.items() if unit in "kmgt" and unit}
_UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_KEY_NAMES = {"--api-key": "key", "--admin-key": "admin"}
_KEY_WITH_NAME = re.compile(r"([A-Za-z][\w.-]{0,63})=([^=].*)")


def memory_bytes(text: str) -> int:
    """Bytes of `512MiB`, `2GiB`, `1.5g`, `2GB` (powers of ten) or a plain number."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory; write 512MiB, 2GiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])


def device(text: str) -> str:
    """A device as `EngineConfig` takes it."""
    if DEVICE.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no device; use auto, cpu, cuda, or cuda:1 for the second GPU")
    return text


def api_keys(entries: Sequence[str], option: str = "--api-key") -> dict[str, str]:
    """Principal name -> key, of entries `name=key` or `key` (then named key-1, key-2 ..., or admin-1 ...).

    Raises:
        ConfigError: a name occurs twice, or an entry is empty.
    """
    keys: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        match = _KEY_WITH_NAME.fullmatch(entry)
        name, key = (match[1], match[2]) if match else (f"{_KEY_NAMES[option]}-{number}", entry)
        if not key:
            raise ConfigError(f"an {option} is empty; leave the option out to serve without")
        if name in keys:
            raise ConfigError(f"{option} names {name!r} twice; give each key its own name")
        keys[name] = key
    return keys


def adapters(entries: Sequence[str]) -> dict[str, str]:
    """Name -> folder or hub id, of entries `name=path`.

    Raises:
        ConfigError: an entry is no pair, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for entry in entries:
        name, _, path = entry.partition("=")
        if not name or not path:
            raise ConfigError(f"--lora is {entry!r}; write NAME=PATH, the path being a folder or a hub id")
        if name in found:
            raise ConfigError(f"--lora names {name!r} twice; give each adapter its own name")
        found[name] = path
    return found


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(host: str, extra: Sequence[str]) -> tuple[str, ...] | None:
    """Names that a `Host` header may carry: on loopback its names and `extra`; elsewhere `extra`, or any without it."""
    if is_loopback(host):
        return tuple(dict.fromkeys(["localhost", "127.0.0.1", "::1", host, *extra]))
    return tuple(extra) or None


def engine_config(options: argparse.Namespace) -> EngineConfig:
    """The engine's settings.

    Raises:
        ConfigError: a value is out of range.
    """
    given = {name: getattr(options, name, None) for name in EngineConfig.__struct_fields__}
    given["adapters"] = adapters(getattr(options, "lora", []))
    return EngineConfig(**{name: value for name, value in given.items() if value is not None})


def sampling_params(options: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    """`defaults` with what was given on the command line.

    Raises:
        InvalidRequest: a value is out of range.
    """
    given = {name: getattr(options, name, None) for name in SamplingParams.__struct_fields__}
    return msgspec.structs.replace(defaults, **{name: value for name, value in given.items() if value is not None})
