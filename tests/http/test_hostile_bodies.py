"""Bodies that are meant to hurt, at every endpoint: an answer or an error of its shape, never a fault of ours."""

import asyncio

import pytest

from limelight.testing import scripted_engine
from tests.http.hostile_bodies import MAIN, MESSAGES, all_bodies, body_for
from tests.http.wire import HI

pytestmark = pytest.mark.anyio

NUM_AT_ONCE = 8


@pytest.fixture
async def client(serve):
    async with serve(scripted_engine(lambda turn: 97, max_model_len=64)) as client:
        yield client


async def answers(client, path):
    """Names of the bodies and the responses to them, a few at a time."""
    named = list(all_bodies(path))
    responses = []
    for begin in range(0, len(named), NUM_AT_ONCE):
        posts = [client.post(path, content=body) for _, body in named[begin : begin + NUM_AT_ONCE]]
        responses += await asyncio.gather(*posts)
    return [(name, response) for (name, _), response in zip(named, responses, strict=True)]


@pytest.mark.parametrize("path", MAIN)
async def test_every_body_is_answered_or_refused_in_the_shape_of_its_endpoint(client, path):
    for name, response in await answers(client, path):
        assert response.status_code < 500, (name, response.text[:300])
        assert b"Traceback" not in response.content, name
        if response.status_code != 200:
            assert response.status_code >= 400, name
            assert len(response.content) < 2000, name
            error = response.json()["error"]
            assert error["message"], name
            assert error["type"], name
            assert ("code" in error) is (path != MESSAGES), name
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "a", "name": "f", "input": {"a": [[1]] * 300_000}},
        {"type": "text", "text": "x", "citations": [[1]] * 300_000},
        {"type": "document", "source": [[1]] * 300_000},
    ],
    ids=lambda block: block["type"],
)
async def test_values_within_blocks_are_counted_before_they_are_read(client, block):
    body = body_for(MESSAGES, messages=[*HI, {"role": "assistant", "content": [block]}])
    response = await client.post(MESSAGES, content=body)
    assert response.status_code == 400
    assert "more than" in response.json()["error"]["message"]
