"""One Jinja chat template: compiled once, rendered in a sandbox. Knows Jinja; knows nothing of requests.

It renders what transformers 5 renders: same whitespace rules, extensions, filters and functions. Bounded: `range` ends
at 100,000 items, the result at `MAX_CHARACTERS`; templates change none of their arguments and reach no attribute that
starts with an underscore. Not bounded: nested loops, so a template is trusted as much as the model that it comes with.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from limelight.quoting import explanation

MAX_CHARACTERS = 64 * 1024 * 1024
"""No prompt comes near this; a template that runs away is stopped here."""


class TemplateSyntax(Exception):
    """The source is not valid Jinja; the message says where."""


class TemplateRefusal(Exception):
    """The template refuses its arguments, or fails on them. The message is the template's own."""


class ChatTemplate:
    """A compiled template. Thread-safe.

    Args:
        now: the local time, for the template's `strftime_now`.

    Attributes:
        loops_over_content: it takes message contents that are lists of parts.
        variables: names that it reads and does not define itself.

    Raises:
        TemplateSyntax: the source is not valid Jinja.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            parsed = environment.parse(source)
            self.loops_over_content = _loops_over_content(parsed)
            self.variables = frozenset(find_undeclared_variables(parsed))
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise TemplateSyntax(f"line {error.lineno}: {explanation(error.message)}") from error
        except RecursionError as error:
            raise TemplateSyntax("it nests too deeply to be compiled") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text.

        Raises:
            TemplateRefusal: the template raised, or stumbled over its arguments.
        """
        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in self._template.generate(variables):
                num_characters += len(piece)
                if num_characters > MAX_CHARACTERS:
                    raise TemplateRefusal(f"its output is longer than {MAX_CHARACTERS} characters")
                pieces.append(piece)
        except TemplateError as error:
            raise TemplateRefusal(error.message or type(error).__name__) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training: its content, unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own `tojson` is for HTML: it escapes `<` and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _loops_over_content(template: nodes.Template) -> bool:
    """Whether a `for` of the template walks over a message's `content`, directly or through a variable set to it."""
    names = {"content"}
    for assignment in template.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            names.add(assignment.target.name)
    return any(_is_content(loop.iter, names) for loop in template.find_all(nodes.For))


def _is_content(expression: nodes.Node, names: set[str]) -> bool:
    match expression:
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name(name=name):
            return name in names
        case nodes.Filter(node=nodes.Node() as inner):
            return _is_content(inner, names)
        case nodes.CondExpr(expr1=first, expr2=second):
            return _is_content(first, names) or (second is not None and _is_content(second, names))
    return False
