"""One browser for the tests of a module; each page has a context of its own."""

import os
import shutil

import pytest

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
async def browser(anyio_backend):
    playwright = pytest.importorskip("playwright.async_api")
    playwright.expect.set_options(timeout=20_000)
    async with playwright.async_playwright() as browsers:
        launched = await browsers.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        yield launched
        await launched.close()


def chromium():
    """Path of an installed Chromium, or None for the one that playwright brings."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    return None if found is None else str(found)
