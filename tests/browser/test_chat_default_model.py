"""The chat page over the default model: its main path, as a newcomer meets it."""

import pytest

from limelight import Engine
from tests.browser.chat import answered, growing, idle, say, set_up
from tests.browser.pages import open_page

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio, pytest.mark.model]


async def test_it_answers_stops_and_goes_on_after_a_reload(browser):
    engine = Engine()
    async with open_page(browser, engine) as page:
        await playwright.expect(page.locator("#model")).to_have_value(engine.model_name)
        await say(page, "Name the capital of France.")
        assert "Paris" in await answered(page)
        figures = await page.locator(".figures").inner_text()
        assert "tokens/s" in figures
        await say(page, "Write a long story about a lighthouse.")
        await growing(page, 40)
        before = await page.locator(".answer .text").last.inner_text()
        await page.reload()
        await growing(page, len(before) + 40)
        after = await page.locator(".answer .text").last.inner_text()
        assert after.startswith(before[: len(before) // 2])
        await page.keyboard.press("Escape")
        await answered(page, 2)
        assert "stopped" in await page.locator(".figures").last.inner_text()
        await idle(engine)
        await page.get_by_role("button", name="Try again").first.click()
        await playwright.expect(page.locator(".answer")).to_have_count(1)
        assert "Paris" in await answered(page)
        assert "from the cache" in await page.locator(".figures").inner_text()


async def test_it_answers_as_a_schema_wants_it(browser):
    schema = '{"type": "object", "properties": {"capital": {"type": "string"}}, "required": ["capital"]}'
    async with open_page(browser, Engine()) as page:
        await page.wait_for_selector("#model:enabled")
        await set_up(page, schema=schema)
        await say(page, "What is the capital of France?")
        await answered(page)
        assert await page.locator(".verdict").inner_text() == "Valid JSON"
        assert "Paris" in await page.locator(".answer pre").inner_text()
