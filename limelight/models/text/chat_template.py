"""One Jinja chat template: compiled once, rendered in a sandbox. Knows Jinja; knows nothing of requests.

It renders what transformers 5 renders: same whitespace rules, extensions, filters and functions. Templates change none
of their arguments and reach no attribute that starts with an underscore. What they cost is bounded: time, steps, the
texts and lists that they make, and what one call may go through (`template_meter.py`, `template_texts.py`), so a
template neither keeps its thread nor the interpreter's lock.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables

from limelight.models.text.template_environment import TemplateEnvironment
from limelight.models.text.template_meter import MAX_CHARACTERS
from limelight.quoting import explanation


class TemplateSyntax(Exception):
    """The source is not valid Jinja; the message says where."""


class TemplateRefusal(Exception):
    """The template refuses its arguments, or fails on them. The message is the template's own."""


class ChatTemplate:
    """A compiled template. Thread-safe.

    Args:
        now: the local time, for the template's `strftime_now`.
        max_code_characters: as in `TemplateEnvironment`, for templates that come while others are served.

    Attributes:
        loops_over_content: it takes message contents that are lists of parts.
        variables: names that it reads and does not define itself.

    Raises:
        TemplateSyntax: the source is not valid Jinja, or cannot be compiled within the limits.
    """

    def __init__(self, source: str, *, now: Callable[[], datetime], max_code_characters: int | None = None) -> None:
        self._environment = TemplateEnvironment(now, max_code_characters)
        try:
            with self._environment.metered():
                parsed = self._environment.parse(source)
                self.loops_over_content = _loops_over_content(parsed)
                self.variables = frozenset(find_undeclared_variables(parsed))
                self._template = self._environment.from_string(self._environment.bounded(parsed))
        except TemplateSyntaxError as error:
            raise TemplateSyntax(f"line {error.lineno}: {explanation(error.message)}") from error
        except RecursionError as error:
            raise TemplateSyntax("it nests too deeply to be compiled") from error
        except (TemplateError, SyntaxError, MemoryError, OverflowError, ValueError) as error:
            raise TemplateSyntax(f"it cannot be compiled: {explanation(error)}") from error

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text.

        Raises:
            TemplateRefusal: the template raised, stumbled over its arguments, or asked for more than a limit.
        """
        pieces: list[str] = []
        num_characters = 0
        try:
            with self._environment.metered():
                for piece in self._template.generate(variables):
                    num_characters += len(piece)
                    if num_characters > MAX_CHARACTERS:
                        raise TemplateRefusal(f"its output is longer than {MAX_CHARACTERS:,} characters")
                    pieces.append(piece)
        except TemplateError as error:
            raise TemplateRefusal(error.message or type(error).__name__) from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        return "".join(pieces)


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
