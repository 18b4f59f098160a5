"""What a client writes, and its key, stand in no log, error, metric or span, whatever becomes of the request."""

import json
import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from limelight.http import HttpSettings, create_app
from limelight.testing import scripted_engine
from tests.http.wire import CHAT, COMPLETIONS, chat_body, client_of, completion_body

pytestmark = pytest.mark.anyio

SECRET = "marzipan"
ANSWER = "nougat"
KEY = "sk-pistachio"
RESPONSES, MESSAGES, TOKENIZE = "/v1/responses", "/v1/messages", "/tokenize"
TALK = [{"role": "user", "content": SECRET}]


def requests():
    """Requests of all kinds that hold the secret: served, refused, failing."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"pattern": f"({SECRET}"}}}
    return [
        (CHAT, chat_body(messages=TALK)),
        (CHAT, chat_body(messages=TALK, stream=True)),
        (CHAT, chat_body(messages=[{"role": "system", "content": SECRET}, *TALK], user=SECRET)),
        (CHAT, chat_body(messages=TALK, response_format=schema)),
        (CHAT, chat_body(messages=[{"role": "user", "content": SECRET * 2000}])),
        (CHAT, chat_body(messages=TALK, chat_template="{{ raise_exception(messages[0].content) }}")),
        (CHAT, chat_body(messages=TALK, stop=[SECRET], logit_bias={"1": 1000})),
        (COMPLETIONS, completion_body(prompt=SECRET, echo=True)),
        (COMPLETIONS, completion_body(prompt=SECRET, n=10**6)),
        (RESPONSES, {"model": "scripted", "input": SECRET, "instructions": SECRET}),
        (MESSAGES, chat_body(messages=TALK, max_tokens=5, system=SECRET)),
        (TOKENIZE, {"model": "scripted", "messages": TALK}),
    ]


def failing(step):
    if step.number % 3 == 1:
        raise ValueError("a fault")


def breaking_template(monkeypatch):
    from limelight.testing import PlainChatFormat

    render = PlainChatFormat.render

    def broken(self, prompt):
        raise RuntimeError(f"cannot render {render(self, prompt)}")

    monkeypatch.setattr(PlainChatFormat, "render", broken)


@pytest.mark.parametrize("fault", ["none", "steps", "template"])
async def test_no_content_and_no_key_comes_out_beside_the_answer(fault, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)  # of the client that asks
    if fault == "template":
        breaking_template(monkeypatch)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    engine = scripted_engine(ANSWER, before_step=failing if fault == "steps" else None)
    engine = type(engine)("scripted", loader=engine._load, tracer_provider=provider)
    settings = HttpSettings(api_keys={"one": KEY}, trust_request_chat_template=True)
    async with engine, client_of(create_app(engine, settings=settings)) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        statuses = []
        for path, body in requests():
            answer = await client.post(path, json=body)
            statuses.append(answer.status_code)
            if answer.status_code >= 400 and "chat_template" not in body and "response_format" not in body:
                assert SECRET not in answer.text, (path, body)
            assert KEY not in answer.text
            assert "Traceback" not in answer.text
            assert KEY not in json.dumps(dict(answer.headers))
        metrics = (await client.get("/metrics")).text
        listed = (await client.get("/v1/requests", params={"recent": 100})).text
    spans = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert 200 in statuses or fault != "none"
    assert any(status >= 400 for status in statuses)
    assert spans
    for where, text in (("log", caplog.text), ("metrics", metrics), ("list", listed), ("spans", spans)):
        for word in (SECRET, ANSWER, KEY):
            assert word not in text, (where, word, text[max(text.find(word) - 300, 0) : text.find(word) + 100])
