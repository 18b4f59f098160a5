"""The bytes of a response, cut wherever a network may cut them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limelight.bench.http_response import HttpResponse

BODY = b'data: {"a": 1}\n\ndata: \xc3\xa4\r\n\r\ndata: [DONE]\n\n'
LINES = [b'data: {"a": 1}', b"", b"data: \xc3\xa4", b"", b"data: [DONE]", b""]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


def fed(pieces: list[bytes]) -> tuple[HttpResponse, list[bytes]]:
    response = HttpResponse()
    return response, [line for piece in pieces for line in response.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({min(place, len(data)) for place in places})
    return [data[begin:end] for begin, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(st.lists(st.integers(0, 300)), st.lists(st.integers(1, 60)))
def test_chunks_may_end_anywhere(cuts: list[int], chunk_ends: list[int]) -> None:
    chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in cut(BODY, chunk_ends) if part)
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    response, lines = fed(cut(whole, cuts))
    assert (response.status, response.reason) == (200, "OK")
    assert lines == LINES


@given(st.lists(st.integers(0, 200)))
def test_a_body_without_chunks_is_read_too(cuts: list[int]) -> None:
    response, lines = fed(cut(HEAD + b"\r\n" + BODY + b"rest", cuts))
    assert lines == LINES
    assert response.rest() == b"rest"


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 70000, HEAD[:9] + b"OK\r\n\r\n"])
def test_what_is_no_http_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"HTTP|head"):
        HttpResponse().feed(data)
