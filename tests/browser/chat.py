"""What the tests of the chat page do on it, and engines that answer what they are asked."""

import json
import re

import anyio
import pytest

from limelight.testing import END, scripted_engine

playwright = pytest.importorskip("playwright.async_api")


async def ready(page, model="scripted"):
    await playwright.expect(page.locator("#model")).to_have_value(model)


async def say(page, text):
    await page.fill("#prompt", text)
    await page.keyboard.press("Enter")


async def answered(page, number=1):
    """The text of answer `number`, once so many are complete and none is in progress."""
    await playwright.expect(page.locator(".answer")).to_have_count(number)
    await playwright.expect(page.locator(".answer.waiting")).to_have_count(0)
    return await page.locator(".answer").nth(number - 1).locator(".text").inner_text()


async def growing(page, characters=10):
    """Until an answer in progress has so many characters."""
    await page.wait_for_function(
        "(least) => (document.querySelector('.answer.waiting .text')?.textContent.length ?? 0) > least", arg=characters
    )


async def set_up(page, **settings):
    """Types into the settings dialog."""
    await page.click("#open-settings")
    for name, value in settings.items():
        control = page.locator(f"#setting-{name}")
        if await control.evaluate("(node) => node.tagName") == "SELECT":
            await control.select_option(value)
        else:
            await control.fill(value)
    await page.keyboard.press("Escape")
    await playwright.expect(page.locator("#settings")).to_have_count(0)


async def idle(engine):
    """Until no request lives: far sooner than a stream without a reader ends by itself."""
    with anyio.fail_after(20):
        while engine.statistics().num_requests:
            await anyio.sleep(0.01)


def sent(page):
    """A list that gets the body of every chat that the page asks for."""
    bodies = []
    page.on(
        "request",
        lambda request: (
            bodies.append(json.loads(request.post_data)) if request.url.endswith("/chat/completions") else None
        ),
    )
    return bodies


def replying(reply, **options):
    """An engine that answers `reply(prompt)`, the prompt as `PlainChatFormat` writes it."""

    def script(turn):
        prompt = bytes(token_id for token_id in turn.prompt if token_id < 256).decode()
        token_ids = [*reply(prompt).encode(), END]
        return token_ids[min(turn.number, len(token_ids) - 1)]

    return scripted_engine(script, **options)


def last_question(prompt):
    """The last message of the user in a prompt."""
    return re.findall(r"^user: (.*)$", prompt, re.MULTILINE)[-1]


def counting(**options):
    """An engine that answers "answer 1", "answer 2" and so on, one for each request."""
    seen = []

    def script(turn):
        if turn.number == 0:
            seen.append(turn.prompt)
        token_ids = [*f"answer {len(seen)}".encode(), END]
        return token_ids[min(turn.number, len(token_ids) - 1)]

    return scripted_engine(script, **options)
