"""The ASGI response for a request that is not streamed: generate everything, then send one JSON object."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from limelight.engine import Engine
from limelight.generation import Generation, GenerationRequest
from limelight.http.disconnect import run_until_disconnect
from limelight.http.exchange import exchange_of
from limelight.http.streams import collect, open_streams


class WholeAnswer:
    """Generates for all `requests`, then sends what `build` makes of the results. A disconnect aborts."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[GenerationRequest],
        build: Callable[[list[Generation]], msgspec.Struct],
        headers: Mapping[str, str],
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._build = build
        self._headers = dict(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request.

        Raises:
            LimelightError: one of the engine's requests was refused or failed.
        """
        await run_until_disconnect(receive, send, partial(self._answer, scope, receive))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with open_streams(self._engine, self._requests, exchange_of(scope)) as streams:
            generations = await collect(streams)
        body = msgspec.json.encode(self._build(generations))
        await ASGIResponse(body=body, headers=self._headers)(scope, receive, send)
