"""Grammars as text: Lark as llguidance reads it, GBNF, regular expressions, choices. Limits that llguidance lacks."""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest
from limelight.models.constraints.json_schema import checked_schema

MAX_GRAMMAR_CHARACTERS = 128 * 1024
MAX_GRAMMAR_LEVELS = 1000
"""Rules and brackets: compiling goes down through them, on a stack of a thread."""
MAX_GBNF_BRACKETS = 100
"""Read by recursion in Python."""
_BRACKETS = "([{"
_LARK_START = re.compile(r"start[ \t]{0,8}:(?!:=)")


def lark_grammar(text: str) -> str:
    """A grammar in Lark or GBNF in llguidance's notation.

    Raises:
        InvalidRequest: it is beyond a limit, or GBNF with an error. Names no field.
    """
    _check_length("the grammar", text)
    num_levels = text.count("\n") + sum(map(text.count, _BRACKETS)) + 1
    if num_levels > MAX_GRAMMAR_LEVELS:
        raise InvalidRequest(
            f"the grammar has {num_levels:,} lines and brackets; at most {MAX_GRAMMAR_LEVELS:,} are allowed"
        )
    lark = text if _is_lark(text) else _from_gbnf(text)
    return json.dumps({"grammars": [{"lark_grammar": _with_checked_schemas(lark)}]})


def regex_grammar(pattern: str) -> str:
    r"""Texts that match `pattern` as a whole; `\d`, `\w` and `\s` are ASCII, as in JSON schemas and in vLLM.

    Raises:
        InvalidRequest: it is too long. Names no field.
    """
    from llguidance import LLMatcher

    _check_length("the regular expression", pattern)
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise InvalidRequest("the regular expression ends with a backslash that escapes nothing")
    return LLMatcher.grammar_from_regex(slashed_regex(pattern))


def slashed_regex(pattern: str) -> str:
    r"""`pattern` as it stands between slashes in a grammar, `\d`, `\w` and `\s` as ASCII."""
    from llguidance import regex_to_lark

    return regex_to_lark(pattern, "dws")


def choice_grammar(choices: Sequence[str]) -> str:
    """One of these strings.

    Raises:
        InvalidRequest: one is no string, or they are too long together. Names no field.
    """
    for choice in choices:
        if not isinstance(choice, str):
            raise InvalidRequest(f"a choice is a string, not {choice!r:.80}")
    _check_length("all choices together", "".join(choices))
    alternatives = " | ".join(literal(choice) for choice in dict.fromkeys(choices))
    return json.dumps({"grammars": [{"lark_grammar": f"start: CHOICE\nCHOICE: {alternatives}"}]})


def literal(text: str) -> str:
    """A string of Lark."""
    return json.dumps(text, ensure_ascii=False)


def _check_length(what: str, text: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequest(f"{what} has {len(text):,} characters; at most {MAX_GRAMMAR_CHARACTERS:,} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{what} has a lone surrogate at character {error.start}; send valid Unicode") from error


def _is_lark(text: str) -> bool:
    lines = [line.lstrip() for line in text.splitlines()]
    return any(line.startswith("%llguidance") or _LARK_START.match(line) for line in lines)


def _from_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    if text.count("(") > MAX_GBNF_BRACKETS:
        raise InvalidRequest(f"the grammar has more than {MAX_GBNF_BRACKETS} brackets; write it in Lark")
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # the converter raises plain Exception for what it cannot read
        raise InvalidRequest(
            f"the grammar is neither Lark (it has no rule `start:`) nor GBNF: {error!s:.200}"
        ) from error


def _with_checked_schemas(lark: str) -> str:
    """The grammar with each `%json` schema in it checked as any other, and strict."""
    parts, place = [], 0
    while (found := lark.find("%json", place)) >= 0:
        begin = lark.find("{", found)
        if begin < 0:
            break
        schema, end = _raw_json(lark, begin)
        document = checked_schema(schema)
        document["x-guidance"] = {**_options(document), "lenient": False, "coerce_one_of": False}
        parts += [lark[place:begin], msgspec.json.encode(document).decode()]
        place = end
    return "".join(parts) + lark[place:]


def _raw_json(text: str, begin: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the grammar has a %json that is not JSON: {error}") from error


def _options(document: dict[str, Any]) -> dict[str, Any]:
    options = document.get("x-guidance")
    return options if isinstance(options, dict) else {}
