"""A client of streams that goes away when it is told to."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def read_stream(
    url: str,
    body: Mapping[str, Any],
    *,
    limit: int | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float = 30.0,
) -> list[str]:
    """Ask for a stream of server-sent events, and close the connection after `limit` of them.

    Args:
        url: such as `server.url + "/v1/chat/completions"`.
        body: the request, sent as JSON.
        limit: events to read; None: all of them, to the end of the stream.
        headers: beside the content type.
        seconds: the longest wait for the next bytes.

    Returns:
        the `data` of each event, `[DONE]` included.

    Raises:
        AssertionError: the answer is no stream; tells status and body.
        TimeoutError: nothing came for `seconds`.
    """
    target = urlsplit(url)
    assert target.hostname is not None, f"{url} names no host"
    connection = http.client.HTTPConnection(target.hostname, target.port, timeout=seconds)
    events: list[str] = []
    try:
        given = {"content-type": "application/json", **(headers or {})}
        connection.request("POST", target.path, json.dumps(body), given)
        answer = connection.getresponse()
        kind = answer.getheader("content-type") or ""
        if answer.status != 200 or not kind.startswith("text/event-stream"):
            raise AssertionError(f"{url} answers {answer.status} {kind}: {answer.read().decode(errors='replace')}")
        while len(events) != limit and (line := answer.readline()):
            if line.startswith(b"data:"):
                events.append(line.removeprefix(b"data:").strip().decode())
    finally:
        connection.close()
    return events
