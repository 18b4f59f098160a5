"""Pages of a real server in a real browser, and what stands on the page of requests."""

from contextlib import asynccontextmanager, suppress

import anyio

from limelight.errors import RequestCancelled
from limelight.generation import SamplingParams
from tests.http.wire import serving

REQUESTS = "/ui/requests"


@asynccontextmanager
async def open_page(browser, engine, settings=None, path="/", **context_options):
    """A page of a server over `engine`."""
    async with (
        serving(engine, settings) as client,
        browsing(browser, str(client.base_url), path, **context_options) as page,
    ):
        yield page


@asynccontextmanager
async def browsing(browser, base_url, path="/", **context_options):
    """A page of the server at `base_url`. What it logs as an error, and any request to elsewhere, fails the test."""
    faults = []
    context = await browser.new_context(**context_options)
    page = await context.new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: None if request.url.startswith((base_url, "blob:")) else faults.append(request.url),
    )
    await page.goto(f"{base_url}{path}")
    try:
        yield page
    finally:
        await context.close()
    expected = ("Failed to load resource",)
    unexpected = [fault for fault in faults if not fault.startswith(expected)]
    assert not unexpected, unexpected


async def connected(page):
    """The page of requests has its feed."""
    await page.locator("#connection[data-state=connected]").wait_for()


@asynccontextmanager
async def endless(engine, *names):
    """Requests that run until the block is left, or somebody aborts them."""

    async def run(name):
        with suppress(RequestCancelled):
            await engine.generate("talk", SamplingParams(max_tokens=2000, ignore_eos=True), request_id=name)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(run, name)
        yield
        tasks.cancel_scope.cancel()


def row(page, name):
    """Of a running request."""
    return page.locator("#running tbody tr").filter(has=page.get_by_text(name, exact=True))


def lane(page, name):
    """The waterfall of a request, running or not."""
    return page.locator(f'#lanes li:has(button[title*="{name}"])')
