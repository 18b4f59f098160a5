"""Responses that go on without their client: made by a task of the engine, their events kept for whoever reads them."""

from functools import partial
from typing import Any

from limelight.errors import InvalidRequest, RequestCancelled
from limelight.generation import GenerationRequest
from limelight.http.exchange import exchange_of
from limelight.http.frame_log import FrameLog
from limelight.http.protocol.responses.items import Item
from limelight.http.recording import Recording
from limelight.http.responses.frames import ResponseFrames
from limelight.http.responses.run import ResponseRun
from limelight.http.responses.store import ResponseStore
from limelight.http.responses.stored import StoredResponse
from limelight.http.serving import Serving


async def start_in_background(
    serving: Serving,
    store: ResponseStore,
    scope: Any,
    generation: GenerationRequest,
    run: ResponseRun,
    items: tuple[Item, ...],
    parent: StoredResponse | None,
) -> StoredResponse:
    """The response, which is queued now.

    Args:
        scope: of the HTTP request.
        items: the input.

    Raises:
        LimelightError: the engine refused it.
    """
    stored = store.add(generation.owner, run.response, items, parent, run)
    log = FrameLog(serving.settings.resume_stream_bytes, partial(store.resize, stored))
    recording = Recording(log, scope, header_wait_seconds=0)
    try:
        writer = ResponseFrames(run, partial(store.end, stored))
        recording.start(serving.engine, [generation], writer, exchange_of(scope))
        stored.recording = recording
        await recording.begun()
    except BaseException:  # nobody knows its id, also where the host gives up waiting
        store.discard(stored)
        raise
    return stored


async def cancel_response(stored: StoredResponse) -> None:
    """End it; one that has ended stays as it is.

    Raises:
        InvalidRequest: it does not run in the background.
    """
    if stored.recording is None:
        raise InvalidRequest(
            f"the response {stored.id} was not created with background: true; close its connection to cancel it",
            param="response_id",
        )
    if stored.running:
        stored.recording.cancel(RequestCancelled("The response was cancelled"))
        await stored.recording.wait()
