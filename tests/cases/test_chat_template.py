"""Conversations over HTTP: the tokens that reach the model are those of `apply_chat_template`, or a client hears why.

The model is scripted and its folder is real: `tokenizer.json`, its settings and templates, read as for any model. The
script keeps the prompts that it was given, so every test sees the very ids.

Cases: B031, B032, B033, B035, B036, B038, B039.
"""

import json
import socket
from contextlib import asynccontextmanager

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from limelight.engine import Engine
from limelight.models.text.answer_format import find_answer_format
from limelight.models.text.chat_format import load_chat_format
from limelight.models.text.token_pieces import byte_level_alphabet
from limelight.models.text.vocabulary import load_vocabulary
from limelight.testing import BEGIN, END, scripted_model
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, serving
from tests.models.text.chat_conversations import FAMILIES, TOOLS

pytestmark = pytest.mark.anyio

TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
USER = {"role": "user", "content": "What time is it?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "12:00"}
THANKS = {"role": "user", "content": "thanks"}
CONTENTS = [{"content": None}, {}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}]
MESSAGE_SETS = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, {"role": "assistant", "content": " Noon. "}, THANKS],
    "unicode": [{"role": "user", "content": "你好 😀\r\n\t <|END|> e\u0301"}],
    "spaces": [{"role": "user", "content": "  two\n\n"}, {"role": "assistant", "content": ""}, THANKS],
}
ORDERED = """
{%- set ns = namespace(calling=false) %}
{%- for message in messages %}
    {%- if message.role == 'tool' and not ns.calling %}{{- raise_exception('a result without a call') }}{%- endif %}
    {%- set ns.calling = 'tool_calls' in message or (message.role == 'tool' and ns.calling) %}
    {{- '<' + message.role + '>' + message.content }}
    {%- for call in message.tool_calls or [] %}{{- call.function.name + call.function.arguments | tojson }}{%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}
"""


@pytest.fixture
def folder(tmp_path):
    """A model folder whose tokenizer has a token per byte, and puts `<|begin|>` before a text."""
    tokenizer = Tokenizer(models.BPE(vocab={c: byte for byte, c in enumerate(byte_level_alphabet())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(content, normalized=False) for content in ("<|end|>", "<|begin|>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A $B", special_tokens=[("<|begin|>", BEGIN)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, {"tokenizer_config.json": TOKENS})
    return tmp_path


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def engine_of(folder, template=None):
    """An engine over the folder's texts, not started yet, and the prompts that its model gets."""
    prompts = []

    def script(turn):
        if turn.number == 0:
            prompts.append(list(turn.prompt))
        return ord("!") if turn.number == 0 else END

    def load(config, report):
        model = scripted_model(script)(config, report)
        vocabulary, chat_format = load_vocabulary(folder), load_chat_format(folder)
        answers = find_answer_format(config, chat_format.sources, chat_format.variables, vocabulary)
        return msgspec.structs.replace(model, vocabulary=vocabulary, chat_format=chat_format, answer_format=answers)

    if template is not None:
        write(folder, {"chat_template.jinja": template})
    return Engine("scripted", loader=load), prompts


@asynccontextmanager
async def served(folder, template=None):
    """A client of a server over the folder's texts, and the prompts that its model gets."""
    engine, prompts = engine_of(folder, template)
    async with serving(engine) as client:
        yield client, prompts


async def asked(folder, template, messages, **fields):
    """The prompt of one successful chat request, as ids."""
    async with served(folder, template) as (client, prompts):
        response = await client.post(CHAT, json=chat_body(messages=messages, **fields))
        assert response.status_code == 200, response.text
        message = response.json()["choices"][0]["message"]
        assert (message["content"] or message["reasoning"]) == "!"  # a template may open a reasoning
        (ids,) = prompts
        assert response.json()["usage"]["prompt_tokens"] == len(ids)
        return ids


async def asked_as_text(*arguments, **fields):
    return bytes(token_id for token_id in await asked(*arguments, **fields) if token_id < END).decode()


def expected_ids(folder, messages, **options):
    """What transformers makes of it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    return tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True, **options
    )


# ---- content that is null, missing or empty


@pytest.mark.parametrize("template", [ORDERED, FAMILIES["qwen"], FAMILIES["deepseek_r1"]])
async def test_null_missing_and_empty_content_beside_tool_calls_are_one_prompt(folder, template):
    rendered = [
        await asked_as_text(
            folder, template, [USER, {"role": "assistant", **content, "tool_calls": [CALL]}, RESULT, THANKS]
        )
        for content in CONTENTS
    ]

    assert len(set(rendered)) == 1
    assert "None" not in rendered[0]
    assert rendered[0].count("now") == 1


@pytest.mark.parametrize("said", [{"refusal": "no"}, {"function_call": {"name": "now", "arguments": "{}"}}])
async def test_null_missing_and_empty_content_are_one_prompt_beside_a_refusal_and_an_older_call(folder, said):
    rendered = [
        await asked_as_text(folder, ORDERED, [USER, {"role": "assistant", **content, **said}, THANKS])
        for content in CONTENTS[:-1]
    ]

    assert len(set(rendered)) == 1
    assert "None" not in rendered[0]
    assert ("now" if "function_call" in said else "<assistant>no") in rendered[0]


async def test_a_turn_with_null_content_is_kept_for_a_template_that_checks_the_order(folder):
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT, THANKS]

    assert "<assistant>now{}<tool>12:00" in await asked_as_text(folder, ORDERED, history)


@pytest.mark.parametrize("template", [ORDERED, FAMILIES["chatml"], FAMILIES["llama31"]])
async def test_an_empty_assistant_turn_is_accepted(folder, template):
    history = [{"role": "user", "content": "A"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "B"}]

    assert await asked(folder, template, history)


# ---- content parts

PARTS = [{"type": "text", "text": "The password is 7431."}, {"type": "text", "text": "Repeat the password."}]


@pytest.mark.parametrize("role", ["user", "system"])
async def test_all_text_parts_reach_the_prompt_joined_by_a_line_feed(folder, role):
    messages = [{"role": role, "content": PARTS}, THANKS]

    text = await asked_as_text(folder, FAMILIES["chatml"], messages)

    assert "The password is 7431.\nRepeat the password." in text
    assert "'type'" not in text


@pytest.mark.parametrize("family", ["chatml", "parts"])
async def test_a_single_part_is_the_same_prompt_as_its_text(folder, family):
    as_parts = await asked(folder, FAMILIES[family], [{"role": "user", "content": PARTS[:1]}])
    as_text = await asked(folder, FAMILIES[family], [{"role": "user", "content": PARTS[0]["text"]}])

    assert as_parts == as_text


@pytest.mark.parametrize("family", ["chatml", "parts"])
async def test_empty_texts_and_parts_are_one_prompt(folder, family):
    contents = [[{"type": "text", "text": ""}], ""]
    prompts = [await asked(folder, FAMILIES[family], [{"role": "user", "content": content}]) for content in contents]

    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("family", ["chatml", "parts"])
async def test_no_parts_at_all_are_empty_text_or_named(folder, family):
    async with served(folder, FAMILIES[family]) as (client, _prompts):
        response = await client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": []}]))

    assert response.status_code == 200 or (
        response.status_code == 400 and response.json()["error"]["param"].startswith("messages[0]")
    )


@pytest.mark.parametrize("family", ["chatml", "parts"])
async def test_an_image_is_refused_by_its_place_and_never_fetched(folder, family):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        for image in (url, "data:image/png;base64,iVBORw0KGgo="):
            content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "what is it?"}]
            async with served(folder, FAMILIES[family]) as (client, prompts):
                response = await client.post(CHAT, json=chat_body(messages=[{"role": "user", "content": content}]))
            error = response.json()["error"]
            assert (response.status_code, error["param"], prompts) == (400, "messages[0].content[0]", [])
            assert "image" in error["message"]
        with pytest.raises(BlockingIOError):
            listener.accept()


# ---- the beginning-of-text token


@pytest.mark.parametrize("family", ["llama31", "gemma", "chatml", "tekken"])
@pytest.mark.parametrize("messages", ["user", "turns", "unicode"])
async def test_a_chat_has_the_ids_of_transformers_and_one_bos_at_most(folder, family, messages):
    ids = await asked(folder, FAMILIES[family], MESSAGE_SETS[messages])

    assert ids == expected_ids(folder, MESSAGE_SETS[messages])
    assert ids.count(BEGIN) == ("bos_token" in FAMILIES[family])


async def test_a_completion_has_the_one_bos_that_the_tokenizer_adds(folder):
    async with served(folder) as (client, prompts):
        response = await client.post(COMPLETIONS, json=completion_body(prompt="Hello"))

    assert prompts == [[BEGIN, *b"Hello"]]
    assert response.json()["usage"]["prompt_tokens"] == 6


# ---- where templates are found, and what they are made of

NAMED = [
    {"name": "default", "template": "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"},
    {
        "name": "tool_use",
        "template": "{{ tools | tojson(indent=2) }}{% for m in messages %}({{ m.content }}){% endfor %}",
    },
]
LOOPING = """
{%- set ns = namespace(found=0) %}
{%- for message in messages %}
    {%- if message.role == 'stop' %}{%- break %}{%- endif %}
    {%- if message.role == 'system' %}{%- continue %}{%- endif %}
    {%- set ns.found = ns.found + 1 %}{{ message.content }}
{%- endfor %}
{{- strftime_now('%Y') | length }}{{ {'found': ns.found} | tojson(indent=1) }}
{%- if ns.found > 99 %}{{ raise_exception('too many') }}{%- endif %}
"""
PLACES = {
    "file": {"chat_template.jinja": FAMILIES["qwen"]},
    "configuration": {"tokenizer_config.json": {**TOKENS, "chat_template": FAMILIES["llama31"]}},
    "named": {"tokenizer_config.json": {**TOKENS, "chat_template": NAMED}},
    "folder": {
        "chat_template.jinja": NAMED[0]["template"],
        "additional_chat_templates/tool_use.jinja": NAMED[1]["template"],
    },
    "constructs": {"chat_template.jinja": LOOPING},
}


@pytest.mark.parametrize("place", PLACES)
async def test_a_template_is_found_wherever_transformers_finds_it(folder, place):
    write(folder, PLACES[place])
    async with served(folder) as (client, prompts):
        for messages in MESSAGE_SETS.values():
            response = await client.post(CHAT, json=chat_body(messages=messages))
            assert response.status_code == 200, response.text

    assert prompts == [expected_ids(folder, messages) for messages in MESSAGE_SETS.values()]


@pytest.mark.parametrize("place", PLACES)
async def test_tools_choose_the_template_that_transformers_chooses(folder, place):
    write(folder, PLACES[place])
    engine, prompts = engine_of(folder)
    async with engine:
        for messages in MESSAGE_SETS.values():
            await engine.chat(messages, tools=TOOLS)

    assert prompts == [expected_ids(folder, messages, tools=TOOLS) for messages in MESSAGE_SETS.values()]


@pytest.mark.parametrize("template", [None, "{% if %}", "{{ a"], ids=["none", "invalid", "unclosed"])
async def test_without_a_usable_template_completions_work_and_chats_are_told_why(folder, template):
    async with served(folder, template) as (client, _prompts):
        chat = await client.post(CHAT, json=chat_body())
        completion = await client.post(COMPLETIONS, json=completion_body())

    assert chat.status_code == 400
    assert "template" in chat.json()["error"]["message"]
    assert "/v1/completions" in chat.json()["error"]["message"]
    assert completion.json()["choices"][0]["text"] == "!"


async def test_the_refusal_of_a_template_is_told_in_its_own_words(folder):
    async with served(folder, ORDERED) as (client, prompts):
        response = await client.post(CHAT, json=chat_body(messages=[USER, RESULT]))

    assert (response.status_code, prompts) == (400, [])
    assert "a result without a call" in response.json()["error"]["message"]
