"""What is no HTTP/1.1 request gets a whole answer in JSON, and takes nobody's answer away."""

import json
import logging

import pytest

from limelight.http.uvicorn_protocol import MAX_HEADERS, NUM_FREE_CHUNKS
from limelight.testing import scripted_engine
from tests.http.hostile.raw import answer_to, bounded_server, get, head, post, refusal_of, responses
from tests.http.wire import CHAT

pytestmark = pytest.mark.anyio

CHUNKED = head(f"POST {CHAT} HTTP/1.1", "Content-Type: application/json", "Transfer-Encoding: chunked")
BROKEN = {
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/1.1, not HTTP/2"),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + b"x" * 190, 400, "--ssl-certfile"),
    "no HTTP": (b"\x00\x01\x02\r\n\r\n", 400, "no valid HTTP/1.1 request"),
    "no target": (b"GET\r\n\r\n", 400, "no valid HTTP/1.1 request"),
    "no colon": (get("/livez", "bad header"), 400, "no valid HTTP/1.1 request"),
    "version": (head("GET /livez HTTP/3.0"), 400, "no valid HTTP/1.1 request"),
    "both lengths": (post("Transfer-Encoding: chunked"), 400, "no valid HTTP/1.1 request"),
    "two lengths": (post("Content-Length: 3"), 400, "no valid HTTP/1.1 request"),
    "negative length": (head(f"POST {CHAT} HTTP/1.1", "Content-Length: -3"), 400, "no valid HTTP/1.1 request"),
    "endless length": (head(f"POST {CHAT} HTTP/1.1", "Content-Length: " + "9" * 30), 400, "no valid HTTP/1.1"),
    "two hosts": (get("/livez", "Host: y"), 400, "more than one Host"),
    "folded header": (get("/livez", "X: a\r\n b"), 400, "no valid HTTP/1.1 request"),
    "blank before colon": (get("/livez", "X : a"), 400, "no valid HTTP/1.1 request"),
    "line feeds": (b"GET /livez HTTP/1.1\nHost: x\n\n", 400, "no valid HTTP/1.1 request"),
    "NUL": (get("/li\0vez"), 400, "no valid HTTP/1.1 request"),
    "many headers": (get("/livez", *["a: b"] * MAX_HEADERS), 400, f"more than {MAX_HEADERS} headers"),
    "long header": (get("/livez", "x: " + "a" * 300_000), 400, "are over 65536 bytes"),
    "bad chunk": (CHUNKED + b"zz\r\n", 400, "no valid HTTP/1.1 request"),
    "endless chunk": (CHUNKED + b"f" * 20 + b"\r\n", 400, "no valid HTTP/1.1 request"),
    "tiny chunks": (CHUNKED + b"1\r\n \r\n" * (NUM_FREE_CHUNKS + 1), 400, "chunks of less than 64 bytes"),
    "CONNECT": (head("CONNECT x:80 HTTP/1.1"), 400, "no valid HTTP/1.1 request"),
}


@pytest.mark.parametrize("half_close", [False, True], ids=["open", "half-closed"])
@pytest.mark.parametrize(("sent", "status", "message"), BROKEN.values(), ids=BROKEN)
async def test_what_cannot_be_read_is_refused_in_json_and_not_logged(sent, status, message, half_close, caplog):
    with caplog.at_level(logging.WARNING):
        async with bounded_server(scripted_engine()) as port:
            error = refusal_of(await answer_to(port, sent, half_close=half_close), status)
    assert message in error["message"]
    assert not caplog.records


@pytest.mark.parametrize("chunk_bytes", [1, 63, 64, 5000])
async def test_a_body_in_chunks_is_taken_unless_it_is_many_tiny_ones(chunk_bytes):
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x" * 500}], "max_tokens": 1})
    parts = [body[start : start + chunk_bytes] for start in range(0, len(body), chunk_bytes)]
    chunks = "".join(f"{len(part):x};note\r\n{part}\r\n" for part in parts) + "0\r\nX-Trailer: a\r\n\r\n"
    async with bounded_server(scripted_engine()) as port:
        received = await answer_to(port, CHUNKED, chunks.encode(), half_close=True)
    assert [status for status, _, _ in responses(received)] == [200]


async def test_garbage_behind_a_request_is_refused_after_its_answer():
    async with bounded_server(scripted_engine("yes", step_seconds=0.001)) as port:
        received = await answer_to(port, post(max_tokens=3) + post(max_tokens=2) + b"\x00 garbage\r\n\r\n")
    assert [status for status, _, _ in responses(received)] == [200, 200, 400]


async def test_a_length_that_is_too_short_breaks_the_next_request_only():
    sent = post(max_tokens=1).replace(b"Content-Length: ", b"Content-Length: 1\r\nx: ")
    async with bounded_server(scripted_engine()) as port:
        received = await answer_to(port, sent)
    assert [status for status, _, _ in responses(received)] == [400, 400]


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_who_asks_for_another_protocol_is_answered_in_this_one(protocol):
    upgrade = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    async with bounded_server(scripted_engine("yes")) as port:
        sent = post(*upgrade, max_tokens=3)
        received = await answer_to(port, sent[:-5], sent[-5:], get("/livez", *upgrade), get("/livez"), half_close=True)
    found = responses(received)
    assert [status for status, _, _ in found] == [200, 200, 200]
    assert b'"content":"yes"' in found[0][2]


async def test_a_trailer_is_no_header():
    body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}).encode()
    sent = CHUNKED + b"%x\r\n%b\r\n0\r\nX-Request-Id: mine\r\n\r\n" % (len(body), body)
    async with bounded_server(scripted_engine()) as port:
        ((status, headers, _),) = responses(await answer_to(port, sent, half_close=True))
    assert status == 200
    assert headers[b"x-request-id"] != b"mine"


async def test_a_head_in_the_last_read_of_long_requests_is_no_long_head():
    long = post(max_tokens=1, stop=["x" * 1000], user="y" * 60_000)
    sent = long * 5 + get("/livez", "x: " + "a" * 1000)
    async with bounded_server(scripted_engine()) as port:
        received = await answer_to(port, sent[:-5], sent[-5:], half_close=True)
    assert [status for status, _, _ in responses(received)] == [200] * 6
