"""Usage in a stream: only when it is asked for, then once, last, and in a chunk of its own.

Cases: B083 (with the tests of the prefix cache and of preemption), B084.
"""

import pytest

from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, chat_body, completion_body, error_of, serving, streamed

pytestmark = pytest.mark.anyio

BOTH = pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])


@BOTH
@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_without_being_asked_there_is_no_usage_and_no_chunk_without_choices(path, body, options):
    given = {} if options is ... else {"stream_options": options}
    async with serving(scripted_engine("ok")) as client:
        chunks = streamed(await client.post(path, json=body(stream=True, n=2, **given)))
    assert not any("usage" in chunk for chunk in chunks)
    assert all(chunk["choices"] for chunk in chunks)


@BOTH
async def test_usage_comes_once_and_last_and_is_that_of_the_whole_answer(path, body):
    async with serving(scripted_engine("ok")) as client:
        whole = (await client.post(path, json=body(n=2))).json()["usage"]
        asked = body(stream=True, n=2, stream_options={"include_usage": True})
        *chunks, last = streamed(await client.post(path, json=asked))
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [last["usage"][name] for name in counts] == [whole[name] for name in counts]


@BOTH
async def test_options_of_a_wrong_type_or_without_a_stream_are_refused_by_name(path, body):
    async with serving(scripted_engine("ok")) as client:
        for options in ({"include_usage": "yes"}, {"include_usage": 1}, [], "x"):
            error = error_of(await client.post(path, json=body(stream=True, stream_options=options)), 400)
            assert error["param"].startswith("stream_options")
        for stream in ({}, {"stream": False}, {"stream": None}):
            error = error_of(await client.post(path, json=body(stream_options={"include_usage": True}, **stream)), 400)
            assert error["param"] == "stream_options"
