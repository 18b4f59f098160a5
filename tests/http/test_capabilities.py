"""`GET /v1/capabilities` says what the table and the model say."""

import pytest

from limelight.engine import Engine
from limelight.generation import ReasoningFormat
from limelight.http.protocol.fields.endpoints import ENDPOINTS
from limelight.http.protocol.fields.other_engines import OTHER_ENGINES
from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import scripted_model

pytestmark = pytest.mark.anyio


async def test_every_field_of_every_endpoint_is_told_with_its_effect_and_advice(shared_client):
    told = (await shared_client.get("/v1/capabilities")).json()
    assert [entry["path"] for entry in told["endpoints"]] == [endpoint.path for endpoint in ENDPOINTS]
    tables = [(entry["fields"], endpoint.fields) for entry, endpoint in zip(told["endpoints"], ENDPOINTS, strict=True)]
    for fields, table in [*tables, (told["other_engines"], OTHER_ENGINES)]:
        assert {name: (row["effect"], row.get("note", "")) for name, row in fields.items()} == {
            name: (field.effect.value, field.note) for name, field in table.items()
        }


async def test_how_a_model_marks_its_reasoning_and_calls_tools_is_told(serve):
    answers = AnswerFormat(
        reasoning=ReasoningFormat("<think>", "</think>"),
        reasoning_switch="enable_thinking",
        tool_format="hermes",
        renders_tools=True,
    )
    engine = Engine("scripted", loader=scripted_model("ok", answer_format=answers))
    async with serve(engine) as client:
        model = (await client.get("/v1/capabilities")).json()["model"]
    assert model["reasoning"] == {"start": "<think>", "end": "</think>", "switch": "enable_thinking"}
    assert (model["tool_format"], model["renders_tools"]) == ("hermes", True)


async def test_the_model_and_its_limits_are_told(serve):
    async with serve() as client:
        told = (await client.get("/v1/capabilities")).json()
        assert told["model"] == {
            "id": "scripted",
            "max_model_len": 2048,
            "vocab_size": 258,
            "reasoning": None,
            "tool_format": None,
            "renders_tools": False,
            "embeddings": True,
            "adapters": [],
            "loads_adapters": True,
        }
        assert told["limits"]["max_logprobs"] == 20
        assert told["unknown_fields"] == "suggest"
