"""Structural tags as xgrammar and vLLM write them: text that is free until it opens a tag, whose inside has a form.

Both notations are read: `{"structures": [...], "triggers": [...]}`, and `{"type": "structural_tag", "format": ...}`
with its formats. A special token written out in a tag is that token.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.models.constraints.json_schema import WHITESPACE_PATTERN, checked_schema
from limelight.models.constraints.lark import lark_grammar, literal, slashed_regex
from limelight.models.constraints.token_table import TokenTable

MAX_PARTS = 500
"""Formats in one structural tag."""
MAX_NESTING = 32
_ANY_TEXT = r"/(.|\n)*/"


def structural_tag_grammar(text: str, table: TokenTable) -> str:
    """A structural tag in llguidance's notation.

    Raises:
        InvalidRequest: it is no structural tag, or has a format that is not known. Names no field.
    """
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequest(f"the structural tag is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidRequest(f"a structural tag is an object, not {document!r:.80}")
    if "structures" in document:
        tags = [
            {
                **_object(structure, "structures"),
                "content": {"type": "json_schema", "json_schema": structure.get("schema")},
            }
            for structure in _list(document, "structures")
        ]
        layout: Any = {"type": "triggered_tags", "triggers": document.get("triggers"), "tags": tags}
    else:
        layout = document.get("format")
    return _Writer(table).grammar(layout)


class _Writer:
    """Writes a rule of Lark for each format."""

    def __init__(self, table: TokenTable) -> None:
        self._special = {table.tokens[id_]: id_ for id_ in table.special_token_ids if table.tokens[id_]}
        written = sorted((text.decode(errors="replace") for text in self._special), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, written)) + ")") if written else None
        self._rules: list[str] = []
        self._others: list[dict[str, str]] = []
        self._nesting = 0
        self._formats: dict[str, Callable[[dict[str, Any]], str]] = {
            "const_string": lambda layout: self._literals(_text(layout, "value")),
            "json_schema": self._json_schema,
            "any_text": lambda layout: self._terminal(_ANY_TEXT),
            "regex": lambda layout: self._terminal(f"/{slashed_regex(_text(layout, 'pattern'))}/"),
            "grammar": self._grammar,
            "sequence": lambda layout: " ".join(map(self._rule, _list(layout, "elements"))),
            "or": lambda layout: " | ".join(map(self._rule, _list(layout, "elements"))),
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def grammar(self, layout: Any) -> str:
        """The whole."""
        start = self._rule(layout)
        lark = "\n".join([f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"lark_grammar": lark}, *self._others]})

    def _rule(self, layout: Any) -> str:
        """Name of a rule for this format."""
        kind = _object(layout, "format").get("type")
        write = self._formats.get(kind) if isinstance(kind, str) else None
        if write is None:
            raise InvalidRequest(
                f"the structural tag has a format of the type {kind!r:.80}; known are {', '.join(self._formats)}"
            )
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise InvalidRequest(f"the formats are nested too deep; at most {MAX_NESTING} levels are allowed")
        body = write(layout)
        self._nesting -= 1
        return self._add("r", body)

    def _add(self, prefix: str, body: str, attributes: str = "") -> str:
        if len(self._rules) >= MAX_PARTS:
            raise InvalidRequest(f"the structural tag has too many formats; at most {MAX_PARTS} are allowed")
        name = f"{prefix}{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _terminal(self, body: str) -> str:
        return self._add("T", body)

    def _literals(self, text: str) -> str:
        pieces = self._split.split(text) if self._split is not None else [text]
        written = [
            f"<[{self._special[piece.encode()]}]>" if piece.encode() in self._special else literal(piece)
            for piece in pieces
            if piece
        ]
        return " ".join(written) or '""'

    def _json_schema(self, layout: dict[str, Any]) -> str:
        document = checked_schema(layout.get("json_schema"))
        options = {"lenient": False, "coerce_one_of": False, "whitespace_pattern": WHITESPACE_PATTERN}
        return f"%json {msgspec.json.encode({**document, 'x-guidance': options}).decode()}"

    def _grammar(self, layout: dict[str, Any]) -> str:
        name = f"g{len(self._others)}"
        lark = json.loads(lark_grammar(_text(layout, "grammar")))["grammars"][0]["lark_grammar"]
        self._others.append({"name": name, "lark_grammar": lark})
        return f"@{name}"

    def _tag(self, layout: dict[str, Any]) -> str:
        return f"{self._literals(_text(layout, 'begin'))} {self._inside(layout)}"

    def _inside(self, tag: dict[str, Any]) -> str:
        """Content and end of a tag. Any text as the content goes up to the first end."""
        end = _text(tag, "end")
        content = _object(tag.get("content"), "content")
        if content.get("type") != "any_text" or not end:
            return f"{self._rule(content)} {self._literals(end)}"
        return self._text_up_to(end)

    def _text_up_to(self, text: str) -> str:
        """Any text, and `text` where it occurs first."""
        if text.encode() in self._special:
            return f"{self._terminal(_ANY_TEXT)} {self._literals(text)}"
        any_text = self._terminal(_ANY_TEXT)
        return self._add("u", f"{any_text} {literal(text)}", "[lazy]")

    def _triggered_tags(self, layout: dict[str, Any]) -> str:
        triggers = _strings(layout, "triggers")
        opened = []
        for tag in _list(layout, "tags"):
            begin = _text(_object(tag, "tags"), "begin")
            trigger = next((trigger for trigger in triggers if trigger and begin.startswith(trigger)), None)
            if trigger is None:
                raise InvalidRequest(f"the tag {begin!r:.80} begins with none of the triggers {triggers!r:.200}")
            rest = begin[len(trigger) :]
            opened.append((trigger, f"{self._literals(rest) if rest else ''} {self._inside(tag)}"))
        if not opened:
            raise InvalidRequest("triggered_tags has no tags")
        alternatives = []
        for trigger in dict.fromkeys(trigger for trigger, _ in opened):
            inside = " | ".join(body for used, body in opened if used == trigger)
            alternatives.append(f"{self._text_up_to(trigger)} ({inside})")
        tag_rule = self._add("r", " | ".join(alternatives))
        repeated = _repeated(layout, tag_rule, "")
        return repeated if layout.get("stop_after_first") else f"{repeated} {self._terminal(_ANY_TEXT)}"

    def _tags_with_separator(self, layout: dict[str, Any]) -> str:
        tags = [{**_object(tag, "tags"), "type": "tag"} for tag in _list(layout, "tags")]
        if not tags:
            raise InvalidRequest("tags_with_separator has no tags")
        one = self._add("r", " | ".join([self._rule(tag) for tag in tags]))
        return _repeated(layout, one, self._literals(_text(layout, "separator")))


def _repeated(layout: dict[str, Any], one: str, separator: str) -> str:
    """How often a tag may come."""
    many = one if layout.get("stop_after_first") else f"{one} ({separator} {one})*"
    return many if layout.get("at_least_one") else f"({many})?"


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"the structural tag's {name} is {value!r:.80}; it must be an object")
    return value


def _list(layout: dict[str, Any], name: str) -> Sequence[Any]:
    value = layout.get(name)
    if not isinstance(value, list) or not value:
        raise InvalidRequest(f"the structural tag's {name} is {value!r:.80}; it must be a list of one or more")
    return value


def _strings(layout: dict[str, Any], name: str) -> Sequence[str]:
    for value in _list(layout, name):
        if not isinstance(value, str):
            raise InvalidRequest(f"the structural tag's {name} holds {value!r:.80}; each must be a string")
    return _list(layout, name)


def _text(layout: dict[str, Any], name: str) -> str:
    value = layout.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"the structural tag's {name} is {value!r:.80}; it must be a string")
    return value
