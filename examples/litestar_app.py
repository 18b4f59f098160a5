"""A Litestar application with a language model inside: routes of its own, and OpenAI's API under /llm, over one engine.

uvicorn --factory --app-dir examples litestar_app:create_app
curl 'http://127.0.0.1:8000/title?text=The+cat+sat+on+the+mat'
curl -N 'http://127.0.0.1:8000/story?about=the+sea'        server-sent events of this program's own
curl http://127.0.0.1:8000/llm/v1/models                   base_url of OpenAI's client: http://127.0.0.1:8000/llm/v1
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from litestar import Litestar, Request, Response, asgi, get
from litestar.params import FromQuery
from litestar.response import ServerSentEvent, ServerSentEventMessage

from limelight import Engine, LimelightError, SamplingParams


def create_app(engine: Engine | None = None) -> Litestar:
    engine = engine or Engine()  # the default model, loaded when the application starts

    @get("/title")
    async def title(text: FromQuery[str]) -> dict[str, str]:
        messages = [{"role": "user", "content": f"Write a short title for this text: {text}"}]
        answer = await engine.chat(messages, SamplingParams(temperature=0, max_tokens=20))
        return {"title": answer.text.strip()}

    @get("/story")
    async def story(about: FromQuery[str]) -> ServerSentEvent:
        return ServerSentEvent(events(engine, about))

    return Litestar(
        [title, story, asgi("/llm", is_mount=True, copy_scope=True)(engine.app())],
        lifespan=[lambda _app: engine],
        exception_handlers={LimelightError: refused},
    )


async def events(engine: Engine, about: str) -> AsyncIterator[ServerSentEventMessage]:
    """An event for each piece of text; a reader who leaves ends the request."""
    messages = [{"role": "user", "content": f"Tell me a story about {about}."}]
    try:
        async with engine.stream_chat(messages, SamplingParams(temperature=0.7, max_tokens=200)) as stream:
            async for delta in stream:
                yield ServerSentEventMessage(data=json.dumps({"text": delta.text}))
    except LimelightError as error:  # the status line has gone out already
        yield ServerSentEventMessage(event="error", data=json.dumps({"detail": str(error)}))
    else:
        yield ServerSentEventMessage(event="end", data="{}")


def refused(_request: Request[Any, Any, Any], error: LimelightError) -> Response[dict[str, str]]:
    return Response({"detail": str(error)}, status_code=error.status)
