"""The Jinja environment of chat templates: transformers' settings, and a meter on whatever a template can repeat.

Jinja's sandbox keeps a template from what it must not touch; this keeps it from what it must not cost. Parsed templates
are rewritten: each round of a loop counts, and slices, literals, comparisons and `~` pass through the functions here.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from types import CodeType
from typing import Any, NoReturn

from jinja2 import nodes
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from limelight.models.text.template_filters import bounded_filters, bounded_tests
from limelight.models.text.template_meter import Meter, TemplateLimit
from limelight.models.text.template_rewriting import Rewriting
from limelight.models.text.template_texts import added, call_method, joined, multiplied, remainder, to_the_power, worked

MAX_DATE_FORMAT_CHARACTERS = 256

_SCOPES = ("_loop_vars", "_block_vars")
"""Keywords that Jinja adds to every call within a loop or a block."""
_OPERATORS = {"+": added, "*": multiplied, "**": to_the_power, "%": remainder}


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs templates within limits. Thread-safe.

    Args:
        now: the local time, for the template's `strftime_now`.
        max_code_characters: of the Python program that a template becomes, None: any. Python's compiler keeps the
            interpreter's lock until it is done.
    """

    intercepted_binops = frozenset(_OPERATORS)

    def __init__(self, now: Callable[[], datetime], max_code_characters: int | None) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            autoescape=False,
            finalize=self.written,
        )
        self._running = threading.local()
        self._max_code_characters = max_code_characters
        self.filters.update(bounded_filters(self, self.meter))
        self.tests.update(bounded_tests(self.meter))
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: now().strftime(self._date_format(form))

    def meter(self) -> Meter:
        """Of the rendering, or the compilation, that the current thread is in."""
        meter: Meter = self._running.meter
        return meter

    @contextmanager
    def metered(self) -> Iterator[None]:
        """What is compiled or rendered within the block has one meter."""
        self._running.meter = Meter()
        try:
            yield
        finally:
            del self._running.meter

    def bounded(self, template: nodes.Template) -> nodes.Template:
        """A parsed template, rewritten.

        Raises:
            TemplateSyntaxError: it switches escaping on, which is for HTML.
        """
        escaping = template.find(nodes.EvalContextModifier)  # or its scoped form, which is one
        if escaping is not None:
            raise TemplateSyntaxError("autoescape is not supported", escaping.lineno)
        bounded: nodes.Template = Rewriting().visit(template)
        bounded.set_environment(self)
        return bounded

    def _date_format(self, form: Any) -> Any:
        return worked(self.meter(), form, MAX_DATE_FORMAT_CHARACTERS)

    # ---- what rewritten templates call

    def step(self) -> bool:
        """A round of a loop."""
        self.meter().step()
        return True

    def made(self, value: Any) -> Any:
        """A slice or a literal."""
        return self.meter().made(value)

    def compared(self, value: Any) -> Any:
        """An operand of a comparison, or a key."""
        return self.meter().compared(value)

    def written(self, value: Any) -> Any:
        """What the template prints."""
        return value if isinstance(value, str) else self.meter().written(value)

    def texts(self, *values: Any) -> str:
        """The values of `~`, written one after the other."""
        return joined(self.meter(), "", values)

    # ---- what Jinja calls

    def concat(self, pieces: Any) -> str:
        """The text of a macro or of a block."""
        return joined(self.meter(), "", pieces)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment`."""
        return _OPERATORS[operator](self.meter(), left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See `SandboxedEnvironment`."""
        if isinstance(argument, tuple):
            self.compared(argument)
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805, PYI063
        """See `SandboxedEnvironment`."""
        meter = __self.meter()
        meter.step()
        method = getattr(__obj, "__wrapped__", __obj)  # of a `str.format` that the sandbox has wrapped
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | bytes | int | float):
            meter.look()
            given = {name: value for name, value in kwargs.items() if name not in _SCOPES}
            return call_method(meter, __obj, owner, method.__name__, args, given)
        if isinstance(owner, dict | list | tuple) or __obj is dict:
            for value in (owner if method.__name__ in ("count", "index") else None, *args):
                meter.compared(value)
        return super().call(__context, __obj, *args, **kwargs)

    def _compile(self, source: str, filename: str) -> CodeType:
        if self._max_code_characters is not None and len(source) > self._max_code_characters:
            raise TemplateLimit(
                f"as a program it has {len(source):,} characters, {self._max_code_characters:,} are allowed; shorten it"
            )
        return compile(source, filename, "exec")


class _GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training: its content, unchanged."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(message)
