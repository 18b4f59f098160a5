"""Jinja's filters and tests for chat templates: the same, but each looks first at what it is to go through."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from types import GeneratorType
from typing import Any

from jinja2.filters import FILTERS, make_attrgetter
from jinja2.sandbox import SandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import _PassArg

from limelight.models.text.template_meter import Meter
from limelight.models.text.template_texts import (
    MAX_WORKED_CHARACTERS,
    added,
    check_format,
    check_numbers,
    joined,
    replaced,
    worked,
)

MAX_PARSED_CHARACTERS = 2048
"""Of a text that goes through regular expressions or is read as a number."""

_LAZY = frozenset({"map", "select", "reject", "selectattr", "rejectattr", "items"})
_BRIEF = frozenset({"abs", "attr", "count", "d", "default", "first", "last", "length", "safe"})
_SEQUENCES = frozenset({"batch", "list", "random", "reverse", "slice"})
_ORDERED = frozenset({"dictsort", "groupby", "max", "min", "sort", "unique"})
_LETTERS = frozenset({"capitalize", "center", "e", "escape", "forceescape", "indent", "lower", "truncate", "upper"})
_BRIEF_TESTS = frozenset(
    {"boolean", "callable", "defined", "escaped", "even", "false", "filter", "float", "integer", "iterable"}
    | {"mapping", "none", "number", "odd", "sameas", "sequence", "string", "test", "true", "undefined"}
)


def bounded_filters(environment: SandboxedEnvironment, meter: Callable[[], Meter]) -> dict[str, Callable[..., Any]]:
    """The filters by name.

    Args:
        environment: which finds the attributes that filters are given by name.
        meter: of the rendering that the current thread is in.
    """

    def attributes(value: Iterable[Any], attribute: str | int | None) -> Iterable[Any]:
        return value if attribute is None else map(make_attrgetter(environment, attribute), value)

    def total(meter: Meter, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:
        return _sum(meter, attributes(value, attribute), start)

    def join(meter: Meter, value: Iterable[Any], d: Any = "", attribute: str | int | None = None) -> str:
        return joined(meter, str(worked(meter, d)), attributes(value, attribute))

    own: dict[str, Callable[..., Any]] = {"tojson": _tojson, "sum": total, "join": join, "replace": _replace}
    checks = {name: _checked_filter(name, function, meter) for name, function in FILTERS.items() if name not in own}
    return checks | {name: _metered(function, meter) for name, function in own.items()}


def bounded_tests(meter: Callable[[], Meter]) -> dict[str, Callable[..., Any]]:
    """The tests by name."""
    tests: dict[str, Any] = dict(TESTS)
    return {
        name: function if name in _BRIEF_TESTS else _checked_test(name, function, meter)
        for name, function in tests.items()
    }


def _checked_filter(name: str, function: Callable[..., Any], meter: Callable[[], Meter]) -> Callable[..., Any]:
    begin = 0 if _PassArg.from_obj(function) is None else 1

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        current = meter()
        current.step()
        current.look()
        value = args[begin] if len(args) > begin else None
        if name in _ORDERED and isinstance(value, GeneratorType):
            value = current.made(list(value))
            args = (*args[:begin], value, *args[begin + 1 :])
        _look(current, name, value, (*args[begin + 1 :], *kwargs.values()))
        result = function(*args, **kwargs)
        if isinstance(result, GeneratorType):
            return _counted(current, result)
        return result if name in _BRIEF else current.made(result)

    return checked


def _look(meter: Meter, name: str, value: Any, options: Iterable[Any]) -> None:
    """Whether the filter may meet `value`; Jinja's own call follows."""
    if name in _BRIEF or name in _LAZY:
        return
    _look_at_options(meter, name, value, options)
    if name in _SEQUENCES:
        if isinstance(value, str):
            worked(meter, value)
    elif name in _ORDERED:
        worked(meter, value, 8 * MAX_WORKED_CHARACTERS)
    elif name in ("string", "trim", "pprint", "format"):
        meter.written(value)
    else:
        worked(meter, value, MAX_WORKED_CHARACTERS if name in _LETTERS else MAX_PARSED_CHARACTERS)


def _look_at_options(meter: Meter, name: str, value: Any, options: Iterable[Any]) -> None:
    if name == "format":
        check_format(meter, str(meter.written(value)), "%", options)
        return
    check_numbers(options)
    for option in options:
        if not isinstance(option, Mapping):
            worked(meter, option, MAX_PARSED_CHARACTERS)
    if name == "trim":
        for option in options:
            meter.room(len(str(meter.written(value))) * len(str(option)) // 4)
    if name == "indent":
        text = str(worked(meter, value))
        widths = [option if isinstance(option, int) else len(str(option)) for option in options]
        meter.room(len(text) + (text.count("\n") + 1) * max(widths, default=4))


def _counted(meter: Meter, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        meter.step()
        yield item


def _checked_test(name: str, function: Callable[..., Any], meter: Callable[[], Meter]) -> Callable[..., Any]:
    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        current = meter()
        current.step()
        for value in args:
            if name in ("lower", "upper"):
                worked(current, value)
            else:
                current.compared(value)
        return function(*args, **kwargs)

    return checked


def _metered(function: Callable[..., Any], meter: Callable[[], Meter]) -> Callable[..., Any]:
    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        current = meter()
        current.step()
        current.look()
        return current.made(function(current, *args, **kwargs))

    return metered


def _tojson(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` is for HTML: it escapes `<` and sorts keys."""
    if isinstance(value, str):
        worked(meter, value, 8 * MAX_WORKED_CHARACTERS)
    meter.written(value)
    for option in (indent, *(separators or ())):
        worked(meter, option, 64)
    if isinstance(indent, int):
        meter.room(meter.size(value).values * indent)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _sum(meter: Meter, values: Iterable[Any], start: Any) -> Any:
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings")
    total = start
    for value in values:
        meter.step()
        total = added(meter, total, value)
    return total


def _replace(meter: Meter, s: Any, old: Any, new: Any, count: int | None = None) -> str:
    text, old, new = (str(meter.written(value)) for value in (s, old, new))
    return replaced(meter, text, old, new, count)
