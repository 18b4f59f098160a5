"""Pages of a real server in a real browser."""

import os
import shutil
from contextlib import asynccontextmanager

import pytest

from tests.http.wire import serving

playwright = pytest.importorskip("playwright.async_api")

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


def chromium():
    """Path of an installed Chromium, or None for the one that playwright brings."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    return None if found is None else str(found)


@asynccontextmanager
async def open_page(engine, settings=None, path="/", **context_options):
    """A page of a server over `engine`, in a browser of its own."""
    async with (
        serving(engine, settings) as client,
        browsing(str(client.base_url), path, **context_options) as page,
    ):
        yield page


@asynccontextmanager
async def browsing(base_url, path="/", **context_options):
    """A page of the server at `base_url`. What it logs as an error, and any request to elsewhere, fails the test."""
    faults = []
    async with playwright.async_playwright() as browsers:
        browser = await browsers.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        context = await browser.new_context(**context_options)
        page = await context.new_page()
        page.set_default_timeout(10_000)
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
            await browser.close()
    expected = ("Failed to load resource",)
    assert [fault for fault in faults if not fault.startswith(expected)] == []
