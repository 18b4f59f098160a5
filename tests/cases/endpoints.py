"""The four endpoints that generate text, asked and read alike, whatever each calls limits and stop strings."""

import json
from typing import Any, NamedTuple

import httpx

from tests.http.responses.wire import RESPONSES
from tests.http.wire import CHAT, COMPLETIONS, HI, by_choice, frames

MESSAGES = "/v1/messages"
STREAM = {"stream": True}


class Answer(NamedTuple):
    """What a client reads."""

    text: str
    reason: Any
    num_tokens: int


class Endpoint(NamedTuple):
    """How one endpoint is asked."""

    path: str
    body: dict[str, Any]
    limit: str
    stop: str
    prompt: str

    @property
    def id(self) -> str:
        """For pytest."""
        return self.path


ENDPOINTS = [
    Endpoint(CHAT, {"model": "scripted", "messages": HI}, "max_tokens", "stop", "messages"),
    Endpoint(COMPLETIONS, {"model": "scripted", "prompt": "hi"}, "max_tokens", "stop", "prompt"),
    Endpoint(
        MESSAGES, {"model": "scripted", "messages": HI, "max_tokens": 500}, "max_tokens", "stop_sequences", "messages"
    ),
    Endpoint(RESPONSES, {"model": "scripted", "input": "hi"}, "max_output_tokens", "stop", "input"),
]


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The data of every frame."""
    assert response.status_code == 200, response.text
    found = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data: ")]
    return [json.loads(data) for data in found if data != "[DONE]"]


async def both_ways(client: httpx.AsyncClient, endpoint: Endpoint, **fields: Any) -> Answer:
    """The answer, asserted to be the same whole and streamed."""
    body = endpoint.body | fields
    whole = await client.post(endpoint.path, json=body)
    assert whole.status_code == 200, whole.text
    streamed = await client.post(endpoint.path, json=body | _with_usage(endpoint))
    assert streamed.status_code == 200, streamed.text
    answer = _READ[endpoint.path][0](whole.json())
    assert _READ[endpoint.path][1](streamed) == answer
    return answer


def _with_usage(endpoint: Endpoint) -> dict[str, Any]:
    asked = {"stream_options": {"include_usage": True}} if endpoint.path in (CHAT, COMPLETIONS) else {}
    return STREAM | asked


def _text_of(choice: dict[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return (choice["delta"] if "delta" in choice else choice["message"]).get("content") or ""


def _choice(answer: dict[str, Any]) -> Answer:
    [choice] = answer["choices"]
    return Answer(_text_of(choice), choice["finish_reason"], answer["usage"]["completion_tokens"])


def _choice_in_pieces(response: httpx.Response) -> Answer:
    *chunks, last = frames(response.content)
    choices = by_choice(chunks)[0]
    text = "".join(map(_text_of, choices))
    return Answer(text, choices[-1]["finish_reason"], last["usage"]["completion_tokens"])


def _message(answer: dict[str, Any]) -> Answer:
    text = "".join(block.get("text", "") for block in answer["content"])
    return Answer(text, (answer["stop_reason"], answer["stop_sequence"]), answer["usage"]["output_tokens"])


def _message_in_pieces(response: httpx.Response) -> Answer:
    found = events(response)
    [end] = [event for event in found if event["type"] == "message_delta"]
    text = "".join(event["delta"].get("text", "") for event in found if event["type"] == "content_block_delta")
    return Answer(text, (end["delta"]["stop_reason"], end["delta"]["stop_sequence"]), end["usage"]["output_tokens"])


def _response(answer: dict[str, Any]) -> Answer:
    parts = [part for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] for part in parts)
    return Answer(text, (answer["status"], answer["incomplete_details"]), answer["usage"]["output_tokens"])


def _response_in_pieces(response: httpx.Response) -> Answer:
    found = events(response)
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    answer = _response(found[-1]["response"])
    assert answer.text == text
    return answer


_READ = {
    CHAT: (_choice, _choice_in_pieces),
    COMPLETIONS: (_choice, _choice_in_pieces),
    MESSAGES: (_message, _message_in_pieces),
    RESPONSES: (_response, _response_in_pieces),
}
