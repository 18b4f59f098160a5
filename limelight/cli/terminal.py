"""What the commands share in a terminal: interrupts of loading, text without tricks."""

import asyncio
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from limelight.config import EngineConfig

LAST_STEP_SECONDS = 10.0
"""For the step in hand when a server ends; its requests have been answered."""
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` without control characters, so that a model's answer cannot send commands to the terminal."""
    return text.translate(_CONTROLS)


_OPTIONS = {"kv_cache_bytes": "--kv-cache-memory"}
_CONFIG_FIELD = re.compile(rf"\b({'|'.join(name for name in EngineConfig.__struct_fields__ if '_' in name)})\b")


def say(line: str) -> None:
    """Tells the person something; standard output stays free for results. That nobody can hear it ends nothing."""
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def as_options(text: str) -> str:
    """`text` with the fields of `EngineConfig` called as on the command line: `kv_cache_bytes` is --kv-cache-memory."""
    return _CONFIG_FIELD.sub(lambda found: _OPTIONS.get(found[0]) or f"--{found[0].replace('_', '-')}", text)


@contextmanager
def interruptible_by_the_system() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once: loading runs in native code on a thread and cannot be cancelled."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def handled_signals(handle: Callable[[], None], at_once: Callable[[int], None] | None = None) -> Iterator[None]:
    """Calls, for each SIGINT or SIGTERM, `at_once` with how many there have been, and then `handle` on the loop."""
    loop = asyncio.get_running_loop()
    num_signals = 0

    def received(number: int, frame: FrameType | None) -> None:
        nonlocal num_signals
        num_signals += 1
        if at_once is not None:
            at_once(num_signals)
        loop.call_soon_threadsafe(handle)

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
