"""A FastAPI application with a language model inside: routes of its own, and OpenAI's API under /llm, over one engine.

pip install fastapi
uvicorn --factory --app-dir examples fastapi_app:create_app
curl 'http://127.0.0.1:8000/title?text=The+cat+sat+on+the+mat'
curl -N 'http://127.0.0.1:8000/story?about=the+sea'        server-sent events of this program's own
curl http://127.0.0.1:8000/llm/v1/models                   base_url of OpenAI's client: http://127.0.0.1:8000/llm/v1
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from limelight import Engine, LimelightError, SamplingParams


def create_app(engine: Engine | None = None) -> FastAPI:
    engine = engine or Engine()  # the default model, loaded when the application starts

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPI(lifespan=lifespan)
    app.mount("/llm", engine.app())  # type: ignore[arg-type]  # each framework has types of its own for ASGI

    @app.get("/title")
    async def title(text: str) -> dict[str, str]:
        messages = [{"role": "user", "content": f"Write a short title for this text: {text}"}]
        answer = await engine.chat(messages, SamplingParams(temperature=0, max_tokens=20))
        return {"title": answer.text.strip()}

    @app.get("/story")
    async def story(about: str) -> StreamingResponse:
        return StreamingResponse(events(engine, about), media_type="text/event-stream")

    @app.exception_handler(LimelightError)
    async def refused(_request: Request, error: LimelightError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=error.status)

    return app


async def events(engine: Engine, about: str) -> AsyncIterator[str]:
    """An event for each piece of text; a reader who leaves ends the request."""
    messages = [{"role": "user", "content": f"Tell me a story about {about}."}]
    try:
        async with engine.stream_chat(messages, SamplingParams(temperature=0.7, max_tokens=200)) as stream:
            async for delta in stream:
                yield f"data: {json.dumps({'text': delta.text})}\n\n"
    except LimelightError as error:  # the status line has gone out already
        yield f"event: error\ndata: {json.dumps({'detail': str(error)})}\n\n"
    else:
        yield "event: end\ndata: {}\n\n"
