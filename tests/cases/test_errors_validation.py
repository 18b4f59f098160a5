"""What clients send by mistake or by habit: explicit nulls in every field, and one id for many requests.

Cases: B086, B088, B089, B090, B091.
"""

import anyio
import pytest

from limelight.http.openapi.shapes import SHAPES
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, HI, chat_body, completion_body, serving, streamed

pytestmark = pytest.mark.anyio

REQUIRED = {
    "/v1/chat/completions": {"model": "scripted", "messages": HI},
    "/v1/completions": {"model": "scripted", "prompt": "hi"},
    "/v1/messages": {"model": "scripted", "messages": HI, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "scripted", "messages": HI},
    "/v1/responses": {"model": "scripted", "input": "hi"},
    "/v1/embeddings": {"model": "scripted", "input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104, 105]},
}
"""What a request to each endpoint must have. Those that change adapters are left out: nobody may use them here."""
OF_THE_MOMENT = {"id", "created", "created_at", "completed_at"}


def lasting(answer):
    """An answer without ids and dates."""
    if isinstance(answer, dict):
        return {name: lasting(value) for name, value in answer.items() if name not in OF_THE_MOMENT}
    return [lasting(value) for value in answer] if isinstance(answer, list) else answer


def test_every_endpoint_is_asked_below():
    posts = {path for (method, path), shape in SHAPES.items() if method == "POST" and shape.body is not None}
    assert {path for path in posts if "lora" not in path} <= REQUIRED.keys()


@pytest.mark.parametrize("endpoint", [each for each in ENDPOINTS if each.path in REQUIRED], ids=lambda each: each.path)
async def test_null_is_the_same_as_leaving_a_field_out(endpoint):
    body = REQUIRED[endpoint.path]
    nulls = {name: None for name in endpoint.fields if name not in body}
    async with serving(scripted_engine("an answer")) as client:
        plain = await client.post(endpoint.path, json=body)
        assert plain.status_code == 200, plain.text
        for each in ({name: None} for name in nulls):
            answer = await client.post(endpoint.path, json=body | each)
            assert answer.status_code == 200, (each, answer.text)
        answer = await client.post(endpoint.path, json=body | nulls)
        assert lasting(answer.json()) == lasting((await client.post(endpoint.path, json=body)).json())


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat_body), (COMPLETIONS, completion_body)])
async def test_requests_under_one_id_do_not_meet(path, body):
    async with serving(scripted_engine()) as client:
        asks = [body(seed=seed, max_tokens=20, stream=True, request_id="same") for seed in range(8)]

        async def texts(ask):
            chunks = streamed(await client.post(path, json=ask, headers={"x-request-id": "same"}))
            return [lasting(chunk) for chunk in chunks], {chunk["id"] for chunk in chunks}

        alone = [await texts(ask) for ask in asks]
        together = [None] * len(asks)

        async def ask_beside_others(number):
            together[number] = await texts(asks[number])

        async def leave_early():
            async with client.stream("POST", path, json=body(max_tokens=500, stream=True, request_id="same")) as answer:
                assert answer.status_code == 200

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave_early)
            for number in range(len(asks)):
                tasks.start_soon(ask_beside_others, number)

        def joined(chunks):
            return "".join(
                choice.get("text", choice.get("delta", {}).get("content") or "")
                for chunk in chunks
                for choice in chunk["choices"]
            )

        assert [joined(chunks) for chunks, _ in together] == [joined(chunks) for chunks, _ in alone]
        assert all(len(ids) == 1 for _, ids in together)
        assert len(set.union(*(ids for _, ids in together))) == len(asks)
