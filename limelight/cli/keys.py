"""`limelight keys`: makes, lists and removes the API keys of a file."""

import argparse
from pathlib import Path

from limelight.errors import ConfigError
from limelight.generation import MAX_QUOTA_TOKENS
from limelight.http.keys.key_file import (
    MAX_WEIGHT,
    KeyEntry,
    KeyFile,
    check_entries,
    digest_of,
    new_key,
    read_keys,
    write_keys,
)


def keys(options: argparse.Namespace) -> int:
    """Does what is asked for; returns the exit code.

    Raises:
        ConfigError: the file, or a value, is wrong.
    """
    path: Path = options.file
    if options.action == "add":
        _add(path, options)
    elif options.action == "remove":
        _remove(path, options.name)
    else:
        _list(read_keys(path))
    return 0


def _add(path: Path, options: argparse.Namespace) -> None:
    known = read_keys(path) if path.exists() else KeyFile()
    if any(entry.name == options.name for entry in known.keys):
        raise ConfigError(f"{path} has a key named {options.name!r}; remove it first, or give another name")
    key = new_key()
    entry = KeyEntry(
        name=options.name,
        sha256=digest_of(key),
        scopes=tuple(dict.fromkeys(options.scope or ("infer",))),
        models=None if options.model is None else tuple(options.model),
        max_num_requests=options.max_num_requests,
        best_priority=options.best_priority,
        weight=options.weight,
        tokens_per_minute=options.tokens_per_minute,
        burst_tokens=options.burst_tokens,
        private_cache=options.private_cache,
    )
    if not 0 < entry.weight <= MAX_WEIGHT:
        raise ConfigError(f"--weight is {entry.weight}; it must be above 0 and at most {MAX_WEIGHT}")
    if entry.max_num_requests is not None and entry.max_num_requests < 1:
        raise ConfigError(f"--max-num-requests is {entry.max_num_requests}; it must be at least 1")
    for option, tokens in (("--tokens-per-minute", entry.tokens_per_minute), ("--burst-tokens", entry.burst_tokens)):
        if tokens is not None and not 1 <= tokens <= MAX_QUOTA_TOKENS:
            raise ConfigError(f"{option} is {tokens}; it must be from 1 to {MAX_QUOTA_TOKENS}")
    changed = KeyFile(keys=(*known.keys, entry))
    check_entries(changed, path)
    write_keys(path, changed)
    print(key)


def _remove(path: Path, name: str) -> None:
    known = read_keys(path)
    left = tuple(entry for entry in known.keys if entry.name != name)
    if len(left) == len(known.keys):
        names = ", ".join(entry.name for entry in known.keys) or "none at all"
        raise ConfigError(f"{path} has no key named {name!r}; it has {names}")
    write_keys(path, KeyFile(keys=left))


def _list(known: KeyFile) -> None:
    for entry in known.keys:
        limits = {"at most": entry.max_num_requests, "best priority": entry.best_priority}
        shown = [f"{name} {limit}" for name, limit in limits.items() if limit is not None]
        shown += [f"models {', '.join(entry.models)}"] if entry.models is not None else []
        shown += [f"weight {entry.weight:g}"] if entry.weight != 1 else []
        shown += [f"{entry.tokens_per_minute:g} tokens per minute"] if entry.tokens_per_minute is not None else []
        shown += [f"{entry.burst_tokens:g} at once"] if entry.burst_tokens is not None else []
        shown += ["private cache"] if entry.private_cache else []
        print(f"{entry.name}: {', '.join(entry.scopes)}{'; ' if shown else ''}{'; '.join(shown)}")
