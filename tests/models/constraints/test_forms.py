"""Each kind of `structured_outputs`: what it lets through, where it ends, what it refuses and in which words."""

import json
import random
import re

import pytest

from limelight.errors import InvalidRequest
from limelight.generation import SamplingParams
from limelight.models.constraints import json_schema, lark
from limelight.structured_outputs import StructuredOutputsParams
from tests.models.constraints.wordy_vocabulary import (
    COMPILER,
    END,
    OPEN,
    TOKENS,
    allowed,
    begin,
    encode,
    takes,
    text_of,
    walk,
)

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
}


def form(**params):
    return begin(structured_outputs=StructuredOutputsParams(**params))


def refusal(**params):
    with pytest.raises(InvalidRequest) as refused:
        form(**params)
    assert refused.value.param == "structured_outputs"
    assert len(refused.value.message) < 600
    return refused.value.message


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"json": PERSON}, '{"name": "é", "old":true}'),
        ({"json": json.dumps(PERSON)}, '{\n  "name": "",\n  "old": false\n}'),
        ({"json": True}, "[1, null]"),
        ({"json": {}}, '"x"'),
        ({"json": PERSON, "disable_any_whitespace": True}, '{"name":"a","old":true,"more":1}'),
        ({"json": PERSON, "whitespace_pattern": "~?"}, '{~"name":~"a",~"old":~true}'),
        ({"json_object": True}, '{"a": {"b": []}}'),
        ({"regex": "^[0-9]{2}/(ab|c)$"}, "12/ab"),
        ({"regex": r"\d+"}, "345"),
        ({"choice": ["yes", 'a "b"\n\\', "<call>", "😀"]}, 'a "b"\n\\'),
        ({"choice": ["yes", "😀"]}, "😀"),
        ({"choice": [""]}, ""),
        ({"grammar": 'start: "a" b+\nb: /[0-9]/'}, "a12"),
        ({"grammar": 'root ::= "a" digit+\ndigit ::= [0-9]'}, "a12"),
        ({"grammar": 'start: "x" <call> "y"'}, "x<call>y"),
        ({"grammar": 'start: "x" %json {"type": "boolean"}'}, "xtrue"),
    ],
)
def test_what_fits_is_let_through_to_its_end(params, text):
    constraint = form(**params)
    assert takes(constraint, text)
    assert END in allowed(constraint)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"json": PERSON}, '{"old"'),
        ({"json": PERSON, "disable_any_whitespace": True}, '{ "name"'),
        ({"json": PERSON, "disable_additional_properties": True}, '{"name":"a","old":true,'),
        ({"json": {"type": "string"}}, '"<|end|>'),
        ({"json": PERSON}, "{" + " " * 65),
        ({"json_object": True}, "["),
        ({"regex": "ab"}, "abc"),
        ({"regex": r"\d"}, "٣"),
        ({"regex": r"\w"}, "é"),
        ({"choice": ["yes", "no"]}, "yes!"),
        ({"grammar": 'start: "x" <call> "y"'}, "xy"),
    ],
)
def test_what_does_not_fit_is_not(params, text):
    assert not takes(form(**params), text)


def test_the_end_is_possible_where_the_form_is_whole_and_nowhere_else():
    constraint = form(regex="ab?")
    assert END not in allowed(constraint)
    assert takes(constraint, "a")
    assert END in allowed(constraint)
    assert takes(constraint, "b")
    assert allowed(constraint) == [END]


def test_logits_without_a_token_are_never_drawn():
    assert max(allowed(form(regex="(.|\n)*"))) < len(TOKENS)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"not": {}}}, '"not"'),
        ({"json": {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}}, "uniqueItems"),
        ({"json": {"type": "string", "format": "shoe-size"}}, "shoe-size"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "oneOf"),
        ({"json": {"type": "integer", "minimum": 3, "maximum": 2}}, "minimum"),
        ({"json": {"$ref": "https://example.com/schema"}}, "example.com"),
        ({"json": {"$ref": "#"}}, "no text has this form"),
        ({"json": {"enum": []}}, "empty"),
        ({"json": {"type": "integer", "minimum": "a"}}, "minimum"),
        ({"json": False}, "false"),
        ({"json": "[1]"}, "is an object"),
        ({"json": "{"}, "not JSON"),
        ({"json": {"a": {1, 2}, "b": object()}}, "not JSON"),
        ({"json": "[" * 100_000 + "]" * 100_000}, "nested"),
        ({"json": {"type": "integer", "multipleOf": 999_983}}, "999,983"),
        ({"json": {"allOf": [{"multipleOf": 997}, {"multipleOf": 99.1}]}}, "common multiple"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-ahead"),
        ({"json": PERSON, "whitespace_pattern": "("}, "unclosed"),
        ({"regex": "a("}, "unclosed group"),
        ({"regex": "a\\"}, "backslash"),
        ({"regex": "[^\\s\\S]"}, "no text has this form"),
        ({"regex": "\ud800"}, "surrogate"),
        ({"choice": ["a", 3]}, "3"),
        ({"choice": ["\ud800"]}, "surrogate"),
        ({"grammar": "start: ["}, "Expected"),
        ({"grammar": "nonsense"}, "neither Lark"),
        ({"grammar": 'start: <|never_heard_of|> "a"'}, "never_heard_of"),
        ({"grammar": 'start: %json {"type": "array", "uniqueItems": true}'}, "uniqueItems"),
        ({"grammar": 'start: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}'}, "uniqueItems"),
        ({"grammar": "start: %json {"}, "not JSON"),
        ({"grammar": "root ::= (" * 5}, "neither Lark"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(params, reason):
    assert reason in refusal(**params)


def nested(depth):
    schema = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def test_limits():
    form(json=nested(json_schema.MAX_NESTING))
    assert "65 levels" in refusal(json=nested(json_schema.MAX_NESTING + 1))
    assert "524,288" in refusal(json=json.dumps({"enum": ["x" * json_schema.MAX_SCHEMA_BYTES]}))
    assert f"{lark.MAX_GRAMMAR_CHARACTERS:,}" in refusal(regex="a" * (lark.MAX_GRAMMAR_CHARACTERS + 1))
    assert "1,000" in refusal(grammar="\n".join(f"r{number}: r{number + 1}" for number in range(1001)))


def chain(length, link):
    definitions = {f"a{number}": link({"$ref": f"#/$defs/a{number + 1}"}) for number in range(length)}
    return {"$defs": {**definitions, f"a{length}": {"type": "null"}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize("link", [lambda ref: {"items": ref}, lambda ref: {"prefixItems": [ref]}, lambda ref: ref])
def test_long_chains_of_references_are_refused_before_they_exhaust_the_stack(link):
    form(json=chain(100, link))
    assert "1,200" in refusal(json=chain(4000, link))


def test_properties_that_are_called_like_keywords_stay_properties():
    schema = {
        "properties": {"properties": {"type": "integer"}, "multipleOf": {"type": "null"}},
        "required": ["properties"],
    }
    constraint = form(json=schema, disable_additional_properties=True, disable_any_whitespace=True)
    assert takes(constraint, '{"properties":1,"multipleOf":null}')
    assert END in allowed(constraint)


TAGS = {
    "structures": [{"begin": "<think=a>", "schema": {"type": "boolean"}, "end": "</think>"}],
    "triggers": ["<think="],
}


def layout(**format_):
    return json.dumps({"type": "structural_tag", "format": format_})


CALL = {
    "type": "tag",
    "begin": "<call>",
    "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
    "end": "</call>",
}


@pytest.mark.parametrize(
    ("tag", "fits", "does_not"),
    [
        (json.dumps(TAGS), "free <think=a>true</think> free", "<think=a>12"),
        (layout(type="const_string", value="ab"), "ab", "b"),
        (layout(type="any_text"), "anything\nat all", "<call>"),
        (layout(type="regex", pattern="a/b*"), "a/bb", "c"),
        (layout(type="grammar", grammar='root ::= "a" [0-9]'), "a7", "ab"),
        (layout(**CALL), "<call>true</call>", "<call>12"),
        (
            layout(type="sequence", elements=[{"type": "regex", "pattern": "a*"}, CALL]),
            "aa<call>true</call>",
            "</call>",
        ),
        (layout(type="or", elements=[{"type": "const_string", "value": "no"}, CALL]), "<call>false</call>", "x"),
        (layout(type="triggered_tags", triggers=["<call>"], tags=[CALL]), "so: <call>true</call> and", "<call>12"),
        (
            layout(type="triggered_tags", triggers=["<call>"], tags=[CALL], at_least_one=True, stop_after_first=True),
            "x<call>true</call>",
            "<call>true</call>x",
        ),
        (
            layout(type="tags_with_separator", separator=", ", tags=[CALL], at_least_one=True),
            "<call>true</call>, <call>false</call>",
            "<call>true</call><call>",
        ),
        (layout(**{**CALL, "content": {"type": "any_text"}}), "<call>what ever</call>", "x"),
    ],
)
def test_structural_tags(tag, fits, does_not):
    constraint = form(structural_tag=tag)
    assert takes(constraint, fits)
    assert END in allowed(constraint)
    assert not takes(form(structural_tag=tag), does_not)


def test_a_special_token_in_a_tag_is_that_token():
    assert allowed(form(structural_tag=layout(**CALL))) == [OPEN]


@pytest.mark.parametrize(
    ("tag", "reason"),
    [
        ("[1]", "is an object"),
        ("{", "not JSON"),
        (layout(type="poem"), "poem"),
        (layout(type="sequence", elements=[]), "elements"),
        (layout(type="tag", begin="<a>", end="</a>"), "content"),
        (json.dumps({**TAGS, "triggers": ["<other"]}), "none of the triggers"),
        (json.dumps({"structures": [{"begin": "<a>", "schema": {"not": {}}, "end": ""}], "triggers": ["<a"]}), '"not"'),
        (json.dumps({"structures": [1], "triggers": ["<a"]}), "structures"),
    ],
)
def test_structural_tags_that_are_refused(tag, reason):
    assert reason in refusal(structural_tag=tag)


def test_walks_end_in_valid_json():
    for seed in range(20):
        drawn, ended = walk(form(json=PERSON, disable_additional_properties=True), random.Random(seed))
        assert ended
        person = json.loads(text_of(drawn))
        assert re.fullmatch("(?s).{0,4}", person["name"])
        assert isinstance(person["old"], bool)


def test_a_grammar_is_compiled_once_while_it_is_remembered():
    params = SamplingParams(structured_outputs=StructuredOutputsParams(regex="once+"))
    first, second = COMPILER.compile(params, None), COMPILER.compile(params, None)
    assert first.grammar is second.grammar
    one, other = first.begin(), second.begin()
    one.advance(encode("once"))
    assert allowed(other) != allowed(one)


def test_the_oldest_grammars_are_forgotten():
    for number in range(40):
        form(regex=f"a{{{number + 1}}}")
    assert len(COMPILER._grammars) == 32
