"""How peft's settings name modules: whole names, their last parts, or regular expressions.

The expressions come from a file and are untrusted: Python's `re` takes exponential time on some. Only those pass that
have few repetitions and none of a group, so that a match costs a bounded number of steps.
"""

import re
from collections.abc import Iterator

from limelight.errors import CheckpointError, UnsupportedModel

MAX_PATTERN_CHARACTERS = 4000
MAX_REPETITIONS = 6
_REPETITION = re.compile(r"(?:[*+?]|\{[\d,]*\})[?+]?")
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")


def safe_pattern(expression: str, where: str) -> re.Pattern[str]:
    """`expression` compiled, if matching it with a module's name takes a bounded time.

    Args:
        where: the file and field that it stands in, for the error.

    Raises:
        CheckpointError: it is no regular expression.
        UnsupportedModel: it is too long, repeats too often, repeats a group, or looks around or back.
    """
    if len(expression) > MAX_PATTERN_CHARACTERS:
        raise UnsupportedModel(f"{where} has {len(expression)} characters; at most {MAX_PATTERN_CHARACTERS} are read")
    plain = _CLASS.sub("c", _ESCAPED.sub(_letter, expression)).replace("(?:", "(")
    num_repetitions = len(_REPETITION.findall(plain))
    if num_repetitions > MAX_REPETITIONS:
        raise UnsupportedModel(
            f"{where} is a regular expression with {num_repetitions} repetitions; at most {MAX_REPETITIONS} are read: "
            "list the modules by name instead"
        )
    if re.search(r"\)[*+?{]|\(\?|\x00", plain):
        raise UnsupportedModel(
            f"{where} is a regular expression that repeats a group, refers back or looks around, which is not read: "
            "list the modules by name instead"
        )
    try:
        return re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{where} is no regular expression ({error})") from error


def endings(module: str) -> Iterator[str]:
    """`a.b.c`, `b.c` and `c` of `a.b.c`: what may stand for a module."""
    yield module
    while "." in module:
        module = module.partition(".")[2]
        yield module


def _letter(escaped: re.Match[str]) -> str:
    """What an escape counts as: a reference to a group is marked, anything else is one letter."""
    return "\x00" if escaped[0][1] in "123456789g" else "c"
