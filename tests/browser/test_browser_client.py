"""The example of a browser client: its page on one origin, the server on another, and connections that break."""

from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from limelight.http import HttpSettings, create_app
from limelight.telemetry.timeline import Ending
from limelight.testing import scripted_engine
from tests.http.wire import running_server

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "browser_client"
TYPES = {".html": b"text/html", ".js": b"text/javascript"}
ANSWER = "Grüße aus 東京 😀, and then some more text."


async def files(scope, receive, send):
    """The folder of the example, as any web server serves it."""
    if scope["type"] != "http":
        return
    file = FOLDER / (scope["path"].strip("/") or "index.html")
    known = file.suffix in TYPES and file.is_file()
    headers = [(b"content-type", TYPES[file.suffix])] if known else []
    await send({"type": "http.response.start", "status": 200 if known else 404, "headers": headers})
    await send({"type": "http.response.body", "body": file.read_bytes() if known else b""})


class Breaking:
    """Breaks the connection of each streamed answer after some writes, `breaks` times."""

    def __init__(self, app, breaks, after=4):
        self.app = app
        self.breaks = breaks
        self.after = after
        self.resumed = []

    async def __call__(self, scope, receive, send):
        num_writes = 0
        if scope["type"] == "http" and scope["method"] == "POST":
            self.resumed.append(b"last-event-id" in dict(scope["headers"]))

        async def sent(message):
            nonlocal num_writes
            if message["type"] == "http.response.body" and message.get("more_body"):
                num_writes += 1
                if num_writes > self.after and self.breaks:
                    self.breaks -= 1
                    raise ConnectionResetError("the example's network")
            await send(message)

        await self.app(scope, receive, sent)


@asynccontextmanager
async def opened(browser, engine, breaks=0, **settings):
    """The page, filled in for the server, and what stands before that server."""
    async with engine, running_server(files) as port:
        page_address = f"http://127.0.0.1:{port}"
        app = create_app(engine, settings=HttpSettings(cors_origins=(page_address,), **settings))
        breaking = Breaking(app, breaks)
        async with running_server(breaking) as api_port:
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(page_address)
            await page.fill("[name=address]", f"http://127.0.0.1:{api_port}")
            try:
                yield page, breaking
            finally:
                await context.close()


def status(page):
    return playwright.expect(page.locator("#status"))


@pytest.mark.parametrize("breaks", [0, 3])
async def test_the_whole_answer_comes_whatever_happens_to_the_connection(browser, breaks):
    engine = scripted_engine(ANSWER, step_seconds=0.02)
    async with opened(browser, engine, breaks) as (page, breaking):
        await page.click("text=Ask")
        await status(page).to_have_text(f"done, with {breaks} breaks")
        assert await page.locator("#answer").inner_text() == ANSWER
        assert breaking.resumed == [False] + [True] * breaks
        assert len(engine.requests(recent=10)) == 1


async def test_stop_ends_the_request_although_its_stream_could_be_resumed(browser):
    engine = scripted_engine(step_seconds=0.02)
    async with opened(browser, engine) as (page, _):
        await page.click("text=Ask")
        await playwright.expect(page.locator("#answer")).not_to_be_empty()
        await page.click("text=Stop")
        await status(page).to_have_text("stopped")
        with anyio.fail_after(20):
            while engine.requests():
                await anyio.sleep(0.01)
        assert engine.requests(recent=1)[0].ending is Ending.ABORTED


async def test_a_refusal_is_shown_and_not_tried_again(browser):
    async with opened(browser, scripted_engine(ANSWER), api_keys={"me": "secret"}) as (page, breaking):
        await page.click("text=Ask")
        await status(page).to_contain_text("key")
        await page.fill("[name=key]", "secret")
        await page.click("text=Ask")
        await status(page).to_have_text("done, with 0 breaks")
        assert breaking.resumed == [False]
