"""Stop strings on the default model, whose greedy answers are known by asking once without any.

Where the exact output matters, the scripted engine gives it byte by byte. An empty stop string is refused by name.

Cases: B023, B024, B025, B026, B028.
"""

import anyio
import pytest

from limelight.testing import scripted_engine
from tests.cases.endpoints import ENDPOINTS, MESSAGES
from tests.cases.endpoints import both_ways as both_ways_at
from tests.cases.small_engines import completion, default_engine, model_client
from tests.http.wire import CHAT, COMPLETIONS, by_choice, chat_body, error_of, serving, streamed

pytestmark = pytest.mark.anyio


def default_model_test(function):
    return pytest.mark.model(pytest.mark.usefixtures("default_model")(function))


async def both_ways(client, body):
    """The text and how it ended, asserted to be the same whole and streamed."""
    [choice] = (await client.post(COMPLETIONS, json=body)).json()["choices"]
    choices = by_choice(streamed(await client.post(COMPLETIONS, json=body | {"stream": True})))[0]
    assert "".join(each["text"] for each in choices) == choice["text"]
    assert (choices[-1]["text"], choices[-1]["finish_reason"]) == ("", choice["finish_reason"])
    assert choices[-1]["stop_reason"] == choice["stop_reason"]
    assert all(each["finish_reason"] is None for each in choices[:-1])
    return choice["text"], choice["finish_reason"], choice["stop_reason"]


async def ask_all(client, body, stops):
    """Each list of stop strings, in parallel."""
    answers = {}

    async def ask(stop):
        answers[stop] = await both_ways(client, body | {"stop": list(stop)})

    async with anyio.create_task_group() as tasks:
        for stop in stops:
            tasks.start_soon(ask, stop)
    return answers


def cut(text, stop):
    """The rule: the match that starts first wins, of several there the shortest."""
    matches = sorted((text.index(each), len(each), each) for each in stop if each in text)
    return (text[: matches[0][0]], "stop", matches[0][2]) if matches else (text, "length", None)


@default_model_test
async def test_stop_strings_over_token_borders_and_in_mid_token_cut_at_the_first_match():
    body = completion("A B C D E F G\n" * 3 + "A B C", temperature=0, max_tokens=12, ignore_eos=True)
    async with default_engine(max_num_seqs=8) as engine, model_client(engine) as client:
        text, *_ = await both_ways(client, body)
        assert text.startswith(" D E F G\nA")
        stops = [
            ("E F G",),
            ("F G",),
            (" F",),
            ("D E F G\nA",),
            (text[:9],),
            (text[3:4],),
            ("G\nA", "E F"),
            ("G\nA", "F G\nA", "G"),
            ("F G X", "F X", "E F G\nA X"),
            ("not there",),
        ]
        answers = await ask_all(client, body, stops)
    for stop in stops:
        assert answers[stop] == cut(text, stop)
    assert answers["E F G",][0] == " D "


@default_model_test
async def test_text_held_back_for_a_stop_string_is_sent_once():
    body = completion("Alice: Hi, Bob!\nBob: Hi,", temperature=0, max_tokens=14, ignore_eos=True)
    async with default_engine(max_num_seqs=8) as engine, model_client(engine) as client:
        text, *_ = await both_ways(client, body)
        held = (text[:4] + "#", text[2:6] + "#", text[:-1] + "#", " #", "\n#")
        stops = [("\n", "Alice:"), held, (*held, "\n")]
        answers = await ask_all(client, body, stops)
    assert "\n" in text
    for stop in stops:
        assert answers[stop] == cut(text, stop)
    assert answers[held][0] == text


@default_model_test
async def test_a_tail_that_begins_a_stop_string_is_sent_at_the_end_unless_the_string_is_complete():
    prompt = "UNO DUE TRE\nUNO DUE TRE\nUNO DUE TRE\nUNO DUE"
    async with default_engine(max_num_seqs=8) as engine, model_client(engine) as client:
        body = completion(prompt, temperature=0, ignore_eos=True)
        one_token, *_ = await both_ways(client, body | {"max_tokens": 1})
        assert one_token == " T"
        ended = await ask_all(client, body | {"max_tokens": 2}, [("TRE\nAAAAAAAA",), ("TRE",), ("RE", "TREE")])
        assert ended["TRE\nAAAAAAAA",] == (" TRE", "length", None)
        assert ended["TRE",] == (" ", "stop", "TRE")
        assert ended["RE", "TREE"] == (" T", "stop", "RE")
        assert (await ask_all(client, body | {"max_tokens": 1}, [("TRE",)]))["TRE",] == (" T", "length", None)


@pytest.mark.parametrize("limit", [None, *range(1, 12)])
async def test_held_text_at_the_end_of_the_sequence_and_at_any_length(limit):
    answer = "UNO DUE TRE"
    kept = answer[:limit]
    async with serving(scripted_engine(answer)) as client:

        async def ask(stop, *, stream):
            response = await client.post(CHAT, json=chat_body(max_tokens=limit, stop=stop, stream=stream))
            if not stream:
                [choice] = response.json()["choices"]
                return choice["message"]["content"], choice["finish_reason"]
            choices = by_choice(streamed(response))[0]
            return "".join(each["delta"].get("content", "") for each in choices), choices[-1]["finish_reason"]

        for stream in (False, True):
            ended = "stop" if limit is None else "length"
            assert await ask(["TRE\nAAAAAAAA"], stream=stream) == (kept, ended)
            matched = await ask(["DUE"], stream=stream)
            assert matched == (("UNO ", "stop") if "DUE" in kept else (kept, ended))


@pytest.mark.parametrize(
    ("answer", "stop", "text"),
    [
        ("xabcd", ["bc", "abcd"], "x"),
        ("xabcd", ["abcd", "bc"], "x"),
        ("xabce", ["bc", "abcd"], "xa"),
        ("one\n\ntwo\n\n", ["\n"], "one"),
        ("one\n\ntwo\n\n", ["\n\n"], "one"),
        ("aaa", ["aa"], ""),
        ("one two one two", ["two"], "one "),
        ("ababac", ["abac"], "ab"),
    ],
)
async def test_the_match_that_starts_first_wins(answer, stop, text):
    async with serving(scripted_engine(answer)) as client:
        for stream in (False, True):
            response = await client.post(CHAT, json=chat_body(stop=stop, stream=stream))
            if stream:
                choices = by_choice(streamed(response))[0]
                assert "".join(each["delta"].get("content", "") for each in choices) == text
            else:
                assert response.json()["choices"][0]["message"]["content"] == text


@default_model_test
async def test_a_token_that_holds_the_stop_string_twice_is_cut_before_the_first():
    async with default_engine(max_num_seqs=8) as engine, model_client(engine) as client:
        vocabulary = engine.model.vocabulary
        twice = next(token for token in range(vocabulary.size) if vocabulary.token_bytes(token) == b"\n\n")
        body = completion("two paragraphs", max_tokens=3, logit_bias={str(twice): 100})
        answers = await ask_all(client, body, [("\n",), ("\n\n",), ("\n\n\n",), ("\n" * 7,)])
    assert answers["\n",] == ("", "stop", "\n")
    assert answers["\n\n",] == ("", "stop", "\n\n")
    assert answers["\n\n\n",] == ("", "stop", "\n\n\n")
    assert answers["\n" * 7,] == ("\n" * 6, "length", None)


@default_model_test
async def test_empty_stop_strings_are_refused_and_no_stop_strings_are_none():
    async with default_engine() as engine, model_client(engine) as client:
        body = completion("hi", temperature=0, max_tokens=4, ignore_eos=True)
        for stream in (False, True):
            for stop in ("", [""], ["", "X"], ["X", ""]):
                error = error_of(await client.post(COMPLETIONS, json=body | {"stop": stop, "stream": stream}), 400)
                assert error["param"] == "stop"
        text, *end = await both_ways(client, body)
        assert end == ["length", None]
        for stop in ([], None):
            assert await both_ways(client, body | {"stop": stop}) == (text, "length", None)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
async def test_every_endpoint_cuts_at_the_first_match_and_holds_back_what_may_be_one(endpoint):
    answer = "UNO DUE TRE"
    async with serving(scripted_engine(answer)) as client:
        for limit in (9, 10, 11, 100):
            for stop in (["TRE\nAAAA"], ["DUE"], ["E T", "TRE"], ["TRE", "DUE TRE"], [answer], ["U", "UNO"]):
                told = await both_ways_at(client, endpoint, **{endpoint.limit: limit, endpoint.stop: stop})
                expected, reason, matched = cut(answer[:limit], stop)
                assert told.text == expected
                if endpoint.path == MESSAGES and reason == "stop":
                    assert told.reason == ("stop_sequence", matched)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.id)
async def test_every_endpoint_refuses_empty_stop_strings_and_takes_none_at_all(endpoint):
    async with serving(scripted_engine("an answer")) as client:
        for stop in ("", [""], ["", "X"], ["X", ""], [5], 5):
            for stream in (False, True):
                body = endpoint.body | {endpoint.stop: stop, "stream": stream}
                response = await client.post(endpoint.path, json=body)
                assert response.status_code == 400, response.text
                assert endpoint.stop in response.json()["error"]["message"]
        for stop in ([], None):
            assert (await both_ways_at(client, endpoint, **{endpoint.stop: stop})).text == "an answer"
