"""Forms that are meant to hurt: recursive, huge, contradictory, ambiguous, remote, deep."""

import json

from limelight.structured_outputs import StructuredOutputsParams


def nested(depth, link):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = link(schema)
    return schema


def definitions(length, link):
    parts = {f"a{number}": link({"$ref": f"#/$defs/a{number + 1}"}, number) for number in range(length)}
    return {"$defs": {**parts, f"a{length}": {"type": "null"}}, "$ref": "#/$defs/a0"}


def properties(count, **more):
    return {
        "type": "object",
        "properties": {f"property_{number}": {"type": "integer"} for number in range(count)},
        **more,
    }


SCHEMAS = {
    "root is itself": {"$ref": "#"},
    "definition is itself": {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "two definitions are each other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "endless required": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "endless array": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "recursive tree": {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
    "recursive anyOf": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    "recursive allOf": {"allOf": [{"$ref": "#"}]},
    "mutual recursion": {
        "$defs": {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}},
        "$ref": "#/$defs/a",
    },
    "reference to nowhere": {"$ref": "#/$defs/missing"},
    "reference to a number": {"a": 3, "$ref": "#/a"},
    "remote reference": {"$ref": "https://example.com/schema.json"},
    "file reference": {"$ref": "file:///etc/passwd"},
    "remote id": {"$id": "https://example.com/", "$ref": "other.json"},
    "dynamic reference": {"$dynamicRef": "#node"},
    "anchors": {"$defs": {"a": {"$anchor": "here", "type": "null"}}, "$ref": "#here"},
    "reference beside keywords": {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "minimum": 5, "maximum": 4},
    "4,000 definitions in a chain": definitions(4000, lambda ref, number: {"items": ref}),
    "500 definitions in a chain": definitions(500, lambda ref, number: {"items": ref}),
    "300 anyOf in a chain": definitions(300, lambda ref, number: {"anyOf": [ref, {"const": number}]}),
    "doubling allOf": definitions(30, lambda ref, number: {"allOf": [ref, ref]}),
    "doubling anyOf": definitions(30, lambda ref, number: {"anyOf": [ref, ref]}),
    "doubling properties": definitions(
        30, lambda ref, number: {"properties": {"a": ref, "b": ref}, "required": ["a", "b"]}
    ),
    "10,000 words": {"enum": [f"word {number}" for number in range(10_000)]},
    "10,000 numbers": {"enum": list(range(10_000))},
    "10,000 objects": {"enum": [{"a": number} for number in range(10_000)]},
    "100,000 words": {"enum": [f"{number}" for number in range(100_000)]},
    "a long word": {"const": "x" * 100_000},
    "no words": {"enum": []},
    "1,000 types": {"anyOf": [{"const": number} for number in range(1000)]},
    "100 large alternatives": {"anyOf": [properties(100, required=[f"property_{number}"]) for number in range(100)]},
    "2,000 properties": properties(2000),
    "2,000 required": properties(2000, required=[f"property_{number}" for number in range(2000)]),
    "required but not there": {"type": "object", "required": ["a"], "additionalProperties": False},
    "a million required": {"type": "object", "minProperties": 1_000_000},
    "product of anyOf": {
        "allOf": [{"anyOf": [{"properties": {f"a{i}_{j}": {}}} for j in range(4)]} for i in range(10)]
    },
    "allOf of patterns": {"allOf": [{"type": "string", "pattern": f"a.{{{number}}}b"} for number in range(1, 12)]},
    "overlapping patternProperties": {"patternProperties": {f"a{{1,{number}}}b*": {} for number in range(1, 20)}},
    "many patternProperties": {
        "patternProperties": {f"^{chr(97 + number)}.*$": {"type": "null"} for number in range(26)}
    },
    "minimum above maximum": {"type": "integer", "minimum": 2, "maximum": 1},
    "minLength above maxLength": {"type": "string", "minLength": 2, "maxLength": 1},
    "minItems above maxItems": {"type": "array", "minItems": 2, "maxItems": 1},
    "pattern against length": {"type": "string", "pattern": "^a{3}$", "maxLength": 2},
    "pattern against format": {"type": "string", "pattern": "^a$", "format": "date"},
    "const against type": {"type": "string", "const": 3},
    "allOf of two types": {"allOf": [{"type": "string"}, {"type": "integer"}]},
    "not anything": {"not": {}},
    "if": {"if": {"type": "integer"}, "then": {"minimum": 3}},
    "unique": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {"type": "integer"}, "minContains": 100_000},
    "dependent": {"dependentRequired": {"a": ["b"]}},
    "property names": {"propertyNames": {"pattern": "("}},
    "unevaluated": {"unevaluatedProperties": False},
    "overlapping oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "minLength of 100,000": {"type": "string", "minLength": 100_000},
    "maxLength of 1e18": {"type": "string", "maxLength": 10**18},
    "negative length": {"type": "string", "maxLength": -1},
    "minItems of 100,000": {"type": "array", "minItems": 100_000, "items": {"type": "null"}},
    "minItems of 1e18": {"type": "array", "minItems": 10**18},
    "large prime multiple": {"type": "integer", "multipleOf": 999_983},
    "tiny multiple": {"type": "number", "multipleOf": 1e-300},
    "multiple of zero": {"type": "integer", "multipleOf": 0},
    "negative multiple": {"type": "integer", "multipleOf": -3},
    "coprime multiples": {"allOf": [{"multipleOf": number} for number in (9973, 9967, 9949)]},
    "wide range": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
    "wide integers": {"type": "integer", "minimum": -(10**18), "maximum": 10**18},
    "narrow range": {"type": "number", "minimum": 0.12345678901234, "maximum": 0.12345678901235},
    "65 levels": nested(65, lambda inner: {"items": inner}),
    "60 levels": nested(60, lambda inner: {"items": inner}),
    "60 levels of properties": nested(20, lambda inner: {"properties": {"a": inner, "b": {"type": "null"}}}),
    "keyword of the wrong type": {"type": "object", "properties": [1, 2]},
    "type of the wrong type": {"type": {"a": 1}},
    "unknown type": {"type": "integre"},
    "items of the wrong type": {"items": 3},
    "pattern that is none": {"pattern": "(?P<a>"},
    "options smuggled in": {"uniqueItems": True, "x-guidance": {"lenient": True}},
    "options of the wrong type": {"x-guidance": 3},
    "nested options": {"items": {"uniqueItems": True, "x-guidance": {"lenient": True}}},
    "surrogate": '{"const": "\\ud800"}',
    "null byte": {"const": "\0"},
    "names that need escapes": {"type": "object", "properties": {'"\\\n\0': {"type": "null"}}, "required": ['"\\\n\0']},
    "100,000 brackets": "[" * 100_000,
    "100,000 objects": '{"items":' * 100_000 + "{}" + "}" * 100_000,
    "no JSON": "{'type': 'object'}",
    "a number": "3",
    "duplicate keys": '{"type": "null", "type": "integer", "minimum": 2, "maximum": 1}',
    "numbers beyond bounds": '{"type": "integer", "minimum": 1e999}',
}
PATTERNS = {
    "nested stars": "(a*)*b",
    "nested plus": "((a+)+)+$",
    "ambiguous alternatives": "(a|aa|aaa)*b",
    "exponential automaton": "(a|b)*a(a|b){40}c",
    "exponential automaton over all": ".*a.{40}c.*",
    "100,000 repetitions": "a{1,100000}",
    "repetitions of repetitions": "((a{1,1000}){1,1000}){1,1000}",
    "a billion": "(((a{1000}){1000}){1000})",
    "too many": "a{1000000000000}",
    "all letters": r"(\w+\s?\p{L}{3,50}){1,50}",
    "look-ahead": "(?=a)a",
    "back reference": r"(a)\1",
    "100,000 groups": "(" * 100_000 + ")" * 100_000,
    "1,000 groups": "(" * 1000 + "a" + ")*" * 1000,
    "1,000 alternatives": "|".join(f"word{number}.*x{{{number}}}" for number in range(1000)),
    "nothing": "[^\\s\\S]",
    "empty": "",
    "flags": "(?i)(?s).",
    "slashes": "/+\\/*",
    "line feeds": "a\nb\n" * 100,
}
GRAMMARS = {
    "left recursion": 'start: start "a" | "a"',
    "right recursion": 'start: "a" start | "a"',
    "itself": "start: start",
    "ambiguous": 'start: e\ne: e e | "a" | e "a" e |',
    "a billion": "start: a{1000}\na: b{1000}\nb: c{1000}\nc: X\nX: /x/",
    "900 rules in a chain": "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(900)) + '\nr900: "a"',
    "20,000 rules in a chain": "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(20_000)) + '\nr20000: "a"',
    "terminals in a chain": "start: R0\n" + "\n".join(f'R{n}: "b" R{n + 1}' for n in range(900)) + '\nR900: "a"',
    "100,000 brackets": "start: " + "(" * 100_000,
    "missing rule": "start: missing",
    "hidden schema": 'start: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}',
    "deep hidden schema": "start: %json " + '{"items":' * 500 + "{}" + "}" * 500,
    "schema that never ends": "start: %json {",
    "blank lines": "\n" * 100_000,
    "spaces": " " * 100_000 + "start",
    "GBNF in brackets": "root ::= " + "(" * 990,
    "GBNF that is itself": "root ::= root",
    "GBNF without root": 'a ::= "b"',
    "GBNF of many rules": "\n".join(f"r{n} ::= r{n + 1}" for n in range(900)) + '\nr900 ::= "a"\nroot ::= r0',
    "files": "%import python.NAME\nstart: NAME",
    "other grammars": "start: @other",
    "not a grammar": "\0\0\0",
}
OTHERS = {
    "10,000 choices": StructuredOutputsParams(choice=[f"choice {number}" for number in range(10_000)]),
    "a long choice": StructuredOutputsParams(choice=["x" * 100_000]),
    "deep tags": StructuredOutputsParams(
        structural_tag=json.dumps({"format": nested(100, lambda inner: {"type": "sequence", "elements": [inner]})})
    ),
    "wide tags": StructuredOutputsParams(
        structural_tag=json.dumps(
            {"format": {"type": "or", "elements": [{"type": "const_string", "value": "a"}] * 2000}}
        )
    ),
    "white space": StructuredOutputsParams(json={}, whitespace_pattern="(.|\n)*"),
}

FORMS = {
    **{f"schema: {name}": StructuredOutputsParams(json=schema) for name, schema in SCHEMAS.items()},
    **{f"pattern: {name}": StructuredOutputsParams(regex=pattern) for name, pattern in PATTERNS.items()},
    **{f"pattern in schema: {name}": StructuredOutputsParams(json={"pattern": p}) for name, p in PATTERNS.items()},
    **{f"grammar: {name}": StructuredOutputsParams(grammar=grammar) for name, grammar in GRAMMARS.items()},
    **OTHERS,
}
