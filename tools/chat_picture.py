"""Writes docs/images/chat.png and chat-dark.png: the chat page with an answer of the default model, light and dark.

Needs Chromium and the package `playwright` (`make setup` installs it), and takes half a minute.
"""

import asyncio
import shutil

from playwright.async_api import Page, ViewportSize, async_playwright
from requests_picture import ROOT, server

IMAGES = ROOT / "docs" / "images"
SIZE = ViewportSize(width=1200, height=860)
QUESTIONS = ("Hello! What can you do?", "Write a short Python function that says whether a number is even.")


async def main() -> None:
    """Start a server, ask it, and take both pictures."""
    async with server() as address, async_playwright() as browsers:
        browser = await browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = await (await browser.new_context(viewport=SIZE, locale="en-GB")).new_page()
        await page.goto(address)
        await page.locator("#model:enabled").wait_for()
        for question in QUESTIONS:
            await page.click("#new-chat")
            await ask(page, question)
        for name, scheme in (("chat", "light"), ("chat-dark", "dark")):
            await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            path = IMAGES / f"{name}.png"
            await page.screenshot(path=path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
        await browser.close()


async def ask(page: Page, question: str) -> None:
    """Put a question and wait for its answer."""
    await page.fill("#prompt", question)
    await page.keyboard.press("Enter")
    await page.locator(".answer:not(.waiting) .figures").wait_for(timeout=120_000)


if __name__ == "__main__":
    asyncio.run(main())
