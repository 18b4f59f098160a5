"""What models write in each format: the whole text, the text that is for the reader, and the calls."""

SCHEMAS = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "wind": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
            "where": {"type": "object"},
        },
    },
    "now": {"type": "object", "properties": {}},
}

CALL_1 = '{"city": "Zürich \\"Süd\\" }", "days": 2}'
VALUE_1 = {"city": 'Zürich "Süd" }', "days": 2}

ANSWERS: dict[str, list[tuple[str, str, list[tuple[str, object]]]]] = {
    "hermes": [
        (
            'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": ' + CALL_1 + "}\n</tool_call>\n"
            '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
            "Let me see.",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        (
            '<tool_call>{"arguments": {"days": 1}, "name": "get_weather"}</tool_call>',
            "",
            [("get_weather", {"days": 1})],
        ),
        ('<tool_call>{"name": "now"}</tool_call> Done.', "Done.", [("now", {})]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", {})]),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", {"a": 1})]),
        ('<tool_call>{"name": "f", "arguments": {"a": {"b": 1}}}}\n</tool_call>', "", [("f", {"a": {"b": 1}})]),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
            "",
            [("f", {"a": "</tool_call>"})],
        ),
        (
            '<tool_call>{"id": "c1", "type": "function", "name": "f", "arguments": {}, "x": [1]}</tool_call>',
            "",
            [("f", {})],
        ),
        ('{"name": "now", "arguments": {}}', '{"name": "now", "arguments": {}}', []),
        ("a < b and a <tool and <tool_call> here", "a < b and a <tool and <tool_call> here", []),
    ],
    "llama3_json": [
        ('{"name": "get_weather", "parameters": ' + CALL_1 + "}", "", [("get_weather", VALUE_1)]),
        (
            '<|python_tag|>{"name": "get_weather", "parameters": ' + CALL_1 + '}; {"name": "now", "parameters": {}}',
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        ('Well. <|python_tag|>{"type": "function", "name": "now", "parameters": {}}', "Well.", [("now", {})]),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
        ('See {"name": "now", "parameters": {}}', 'See {"name": "now", "parameters": {}}', []),
        ('{"name": "now", "parameters": {}} That is it', " That is it", [("now", {})]),
    ],
    "mistral": [
        (
            '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + CALL_1 + '}, {"name": "now", "arguments": {}}]',
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        ('Hm.[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "abcdefghi"}]', "Hm.", [("now", {})]),
        (
            "[TOOL_CALLS]get_weather[ARGS]" + CALL_1 + "[TOOL_CALLS]now[ARGS]{}",
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        ("[TOOL_CALLS]now[CALL_ID]aBcD12345[ARGS]{}", "", [("now", {})]),
        ('[TOOL_CALLS]now{"a": 1}', "", [("now", {"a": 1})]),
        ("[TOOL_CALLS] are a mark, [1] is not", "[TOOL_CALLS] are a mark, [1] is not", []),
    ],
    "pythonic": [
        (
            "[get_weather(city='Zürich \"Süd\" }', days=2), now()]",
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        (
            '[f(a=[1, -2.5, None], b={"x": True, "y": (False,)}, c="""it\'s\n"so\\"""", d=1_000, e=word)]',
            "",
            [("f", {"a": [1, -2.5, None], "b": {"x": True, "y": [False]}, "c": 'it\'s\n"so"', "d": 1000, "e": "word"})],
        ),
        (r"[f(a='\x41\u00e9\U0001F600\n\'\d', b='')]", "", [("f", {"a": "Aé\U0001f600\n'\\d", "b": ""})]),
        ("<|python_start|>[now()]<|python_end|>", "", [("now", {})]),
        ("[now(), now()] Done", "Done", [("now", {}), ("now", {})]),
        ("[1](http://x) and [link](y)", "[1](http://x) and [link](y)", []),
        ("[f(1)]", "[f(1)]", []),
        ("Use [now()]", "Use [now()]", []),
    ],
    "deepseek_v3": [
        (
            "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            + CALL_1
            + "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "Ok.",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
            + CALL_1
            + "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        ("<｜tool▁calls▁begin｜> none", "<｜tool▁calls▁begin｜> none", []),
    ],
    "qwen3_coder": [
        (
            (
                'Sure.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich "Süd" }\n</parameter>\n'
                "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n"
                "<tool_call>\n<function=now>\n</function>\n</tool_call>"
            ),
            "Sure.",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        (
            (
                '<function=get_weather><parameter=wind>True</parameter><parameter=where>{"x": [1]}</parameter>'
                "<parameter=days>many</parameter><parameter=other>1</parameter></function>"
            ),
            "",
            [("get_weather", {"wind": True, "where": {"x": [1]}, "days": "many", "other": "1"})],
        ),
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\na\n\n</b>\n\n</parameter>\n</tool_call>",
            "",
            [("get_weather", {"city": "a\n\n</b>\n"})],
        ),
        ("<tool_call> or <function=", "<tool_call> or <function=", []),
    ],
    "openai": [
        (
            "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            + CALL_1
            + "<|call|>",
            "I look.",
            [("get_weather", VALUE_1)],
        ),
        ("<|channel|>final<|message|>Hello.<|return|>", "Hello.", []),
        ("<|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>", "", [("now", {})]),
        ("no channels <|chan", "no channels <|chan", []),
    ],
    "json_list": [
        (
            '[{"name": "get_weather", "parameters": ' + CALL_1 + '}, {"name": "now", "parameters": {}}]',
            "",
            [("get_weather", VALUE_1), ("now", {})],
        ),
        ('{"name": "now", "parameters": {}}', "", [("now", {})]),
        ("[1, 2]", "[1, 2]", []),
    ],
}
ANSWERS["llama4_pythonic"] = ANSWERS["pythonic"]
ANSWERS["deepseek_v31"] = ANSWERS["deepseek_v3"]
CASES = [(name, *answer) for name, answers in ANSWERS.items() for answer in answers]
