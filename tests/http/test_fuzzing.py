"""Requests made from the OpenAPI document, valid and invalid, by Schemathesis: the server does what the document says.

Each answer has a documented status, media type and shape, none is a fault of the server's, and what the document calls
invalid is refused.
"""

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import anyio.from_thread
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from limelight.http import create_app
from limelight.http.openapi.document import openapi_document
from limelight.testing import scripted_engine
from tests.http.wire import running_server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
NUM_EXAMPLES = 12
ENDLESS = "GET /v1/requests/events"
"""Only the end of the engine ends its answer."""
USUALLY_ANSWERED = {"POST /v1/chat/completions", "POST /v1/completions", "POST /detokenize", "GET /v1/models"}

QUESTION = {
    "type": "object",
    "properties": {"role": {"type": "string", "enum": ["user"]}, "content": {"type": "string", "maxLength": 20}},
    "required": ["role", "content"],
    "additionalProperties": False,
}


def narrowed() -> dict[str, Any]:
    """The document with the one model that there is, simple messages and few fields, so that many are answered."""
    changed = deepcopy(openapi_document())
    for schema in changed["components"]["schemas"].values():
        if "x-refused-fields" in schema:
            schema |= {"additionalProperties": False, "maxProperties": len(schema.get("required", ())) + 1}
            if "model" in schema["properties"]:
                schema["properties"]["model"] = {"type": "string", "enum": ["scripted"]}
            if "messages" in schema["properties"]:
                schema["properties"]["messages"] = {"type": "array", "items": QUESTION, "minItems": 1, "maxItems": 2}
    return changed


def operations(document: dict[str, Any]) -> dict[str, Any]:
    """By method and path."""
    found = (result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations())
    return {operation.label: operation for operation in found}


VALID, INVALID = operations(narrowed()), operations(openapi_document())


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    """Of a server in a thread of its own, whose answers are short even if they go on after their end."""

    async def serve(task_status: anyio.abc.TaskStatus[int]) -> None:
        async with scripted_engine("ok", max_model_len=64) as engine, running_server(create_app(engine)) as port:
            task_status.started(port)
            await anyio.sleep_forever()

    with anyio.from_thread.start_blocking_portal() as portal:
        running, port = portal.start_task(serve)
        yield f"http://127.0.0.1:{port}"
        running.cancel()


def check(strategy: Any, base_url: str, checks: list[Any]) -> Counter[int]:
    """How often each status was answered."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=NUM_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def ask(case: schemathesis.Case) -> None:
        response = case.call_and_validate(base_url=base_url, checks=checks, timeout=60)
        statuses[response.status_code] += 1

    ask()
    return statuses


@pytest.mark.parametrize("label", [label for label in VALID if label != ENDLESS])
def test_valid_requests_are_answered_as_the_document_says(base_url: str, label: str) -> None:
    statuses = check(VALID[label].as_strategy(generation_mode=GenerationMode.POSITIVE), base_url, CHECKS)
    if label in USUALLY_ANSWERED:
        assert statuses[200] >= 1, "few requests get past the validation, so little is tested"


@pytest.mark.parametrize("label", [label for label, operation in INVALID.items() if operation.body])
def test_invalid_requests_are_refused(base_url: str, label: str) -> None:
    strategy = INVALID[label].as_strategy(generation_mode=GenerationMode.NEGATIVE)
    statuses = check(strategy, base_url, [*CHECKS, negative_data_rejection])
    assert set(statuses) <= {400, 403, 404}
