"""`/v1/embeddings` over the scripted model, whose hidden states count tokens, and by the official client."""

import base64
import math
import struct

import openai
import pytest

from limelight.http import create_app
from limelight.testing import scripted_engine
from limelight.testing.executor import HIDDEN_SIZE
from tests.http.wire import error_of, running_server

pytestmark = pytest.mark.anyio
EMBEDDINGS = "/v1/embeddings"


def body(**fields):
    return {"model": "scripted", "input": "hi", **fields}


def one_hot(token_id):
    return [float(token_id % HIDDEN_SIZE == index) for index in range(HIDDEN_SIZE)]


async def test_every_input_gets_the_vector_of_its_last_token(serve):
    async with serve() as client:
        answer = (await client.post(EMBEDDINGS, json=body(input=["a", "xyz"]))).json()
        tokens = (await client.post(EMBEDDINGS, json=body(input=[97, 98]))).json()
        lists = (await client.post(EMBEDDINGS, json=body(input=[[97], [98, 99]]))).json()
    assert answer["object"] == "list"
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert [entry["embedding"] for entry in answer["data"]] == [one_hot(ord("a")), one_hot(ord("z"))]
    assert answer["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
    assert [entry["embedding"] for entry in tokens["data"]] == [one_hot(98)]
    assert [entry["embedding"] for entry in lists["data"]] == [one_hot(97), one_hot(99)]


async def test_base64_is_little_endian_float32(serve):
    async with serve() as client:
        answer = (await client.post(EMBEDDINGS, json=body(input="a", encoding_format="base64"))).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN_SIZE}f", raw)) == one_hot(97)


async def test_dimensions_are_cut_and_scaled_again(serve):
    async with serve() as client:
        answer = (await client.post(EMBEDDINGS, json=body(input=[97], dimensions=2))).json()
        empty = (await client.post(EMBEDDINGS, json=body(input=[99], dimensions=2))).json()
        for dimensions in (0, -1, HIDDEN_SIZE + 1):
            error = error_of(await client.post(EMBEDDINGS, json=body(dimensions=dimensions)), 400)
            assert error["param"] == "dimensions"
            assert str(HIDDEN_SIZE) in error["message"]
    (vector,) = [entry["embedding"] for entry in answer["data"]]
    assert math.isclose(math.hypot(*vector), 1.0)
    assert len(vector) == 2
    assert empty["data"][0]["embedding"] == [0.0, 0.0], "a vector without length stays as it is"


@pytest.mark.parametrize("given", ["", [], [""], [[]], ["a", ""], ["a", 1], [[1], "a"], None, [[1], [300]], "x" * 3000])
async def test_what_cannot_be_embedded_is_refused(serve, given):
    async with serve() as client:
        error = error_of(await client.post(EMBEDDINGS, json=body(input=given)), 400)
    assert error["param"] in ("input", "prompt", None)
    assert error["message"]


async def test_too_many_inputs_are_refused(serve):
    async with serve(scripted_engine(max_num_requests=2)) as client:
        error = error_of(await client.post(EMBEDDINGS, json=body(input=["a"] * 3)), 400)
        unknown = error_of(await client.post(EMBEDDINGS, json=body(model="other")), 404)
    assert (error["param"], unknown["param"]) == ("input", "model")


async def test_the_official_client_reads_them():
    async with (
        scripted_engine() as engine,
        running_server(create_app(engine)) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client,
    ):
        answer = await client.embeddings.create(model="scripted", input=["a", "b"])
        floats = await client.embeddings.create(model="scripted", input="b", encoding_format="float")
    assert [entry.embedding for entry in answer.data] == [one_hot(97), one_hot(98)]
    assert floats.data[0].embedding == one_hot(98)
    assert answer.usage.prompt_tokens == 4
