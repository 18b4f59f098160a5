"""The page of requests with many requests, by keyboard, in the dark, on a phone and in Korean."""

import anyio
import pytest

from limelight.generation import SamplingParams
from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.browser.measures import CONTRASTS, FRAMES, busy_seconds, contrast, luminance, placeholders
from tests.browser.pages import REQUESTS, browsing, connected, endless, lane, open_page, row
from tests.http.wire import serving

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

SELECTORS = [
    *("h1", "h2", "#connection", "#figures", ".chart b", ".chart-title", ".hint", "button.link", "button.abort"),
    *(".cell-phase", "thead th", ".lane-state", ".lane-figures", "#legend"),
]


async def test_many_requests_leave_the_page_time_to_spare(browser):
    """Processor time of the page's thread, which another program on the machine does not lengthen."""
    engine = scripted_engine(num_pages=2048, step_seconds=0.05, max_num_seqs=64)
    async with serving(engine) as client:
        await many(engine, 300)
        async with (
            endless(engine, *(f"running {number}" for number in range(64))),
            browsing(browser, str(client.base_url), REQUESTS, viewport={"width": 1280, "height": 2000}) as page,
        ):
            await connected(page)
            await page.select_option("#lanes-shown", "all")
            await playwright.expect(page.locator("#running tbody tr")).to_have_count(64)
            await playwright.expect(page.locator("#lanes li")).to_have_count(364)
            session = await page.context.new_cdp_session(page)
            await session.send("Performance.enable", {"timeDomain": "threadTicks"})
            before = await busy_seconds(session)
            frames = await page.evaluate(FRAMES, 5000)
            busy = await busy_seconds(session) - before
    print(f"busy {busy:.2f} of 5 s; {len(frames)} frames, the longest {max(frames):.0f} ms")
    assert busy < 2.5


async def many(engine, number):
    async def one():
        await engine.generate("hi", SamplingParams(max_tokens=1))

    async with anyio.create_task_group() as tasks:
        for _ in range(number):
            tasks.start_soon(one)


async def test_it_is_used_by_keyboard_alone(browser):
    engine = scripted_engine("hello")
    async with open_page(browser, engine, path=REQUESTS) as page:
        await connected(page)
        for name in ("one", "two", "three"):
            await engine.generate("hi", request_id=name)
        await playwright.expect(page.locator("#lanes li")).to_have_count(3)
        await page.locator("#lanes-axis").focus()
        await page.keyboard.press("Tab")
        assert "three" in await focused(page)
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        assert "one" in await focused(page)
        await page.keyboard.press("Enter")
        await playwright.expect(page.locator("#detail-title")).to_have_text("one")
        await playwright.expect(page.locator("#spans details")).not_to_have_count(0)
        await page.keyboard.press("Escape")
        await playwright.expect(page.locator("#detail")).to_be_hidden()
        assert "one" in await focused(page)
        await page.keyboard.press("Tab")
        assert "two" not in await focused(page)
        chart = page.get_by_role("slider", name="Batch")
        await chart.focus()
        await playwright.expect(chart).to_have_attribute("aria-valuenow", "0")
        await page.wait_for_function("() => Number(document.querySelector('[role=slider]').ariaValueMin) <= -1")
        await page.keyboard.press("ArrowLeft")
        assert await chart.get_attribute("aria-valuenow") == "-1"
        assert "ago" in await chart.get_attribute("aria-valuetext")


async def focused(page):
    return await page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_stands_out_in_light_and_dark(browser, scheme):
    engine = scripted_engine(step_seconds=0.02, num_pages=64)
    async with open_page(browser, engine, path=REQUESTS, color_scheme=scheme) as page:
        await connected(page)
        async with endless(engine, "endless"):
            await engine.generate("hi", SamplingParams(max_tokens=40), request_id="one")
            await playwright.expect(lane(page, "one")).to_have_attribute("data-ending", "completed")
            light = await page.evaluate("getComputedStyle(document.body).backgroundColor")
            contrasts = await page.evaluate(CONTRASTS, SELECTORS)
    assert (luminance(light) > 0.5) == (scheme == "light")
    assert {name: pair for name, pair in contrasts.items() if contrast(*pair) < 4.5} == {}
    assert len(contrasts) > 8


async def test_it_works_under_a_root_path_on_a_phone_in_korean(browser):
    size = {"width": 360, "height": 640}
    engine = scripted_engine(step_seconds=0.01)
    settings = HttpSettings(root_path="/llm")
    async with open_page(browser, engine, settings, "/llm/ui/requests/", viewport=size, locale="ko-KR") as page:
        await connected(page)
        assert page.url.endswith("/llm/ui/requests")
        async with endless(engine, "endless"):
            await playwright.expect(row(page, "endless").locator(".cell-phase")).to_have_text("디코드")
            assert await page.locator("h1").inner_text() == "요청"
            assert await page.evaluate("document.documentElement.lang") == "ko"
            assert await page.evaluate("document.documentElement.scrollWidth") <= 360
            await row(page, "endless").locator("button.link").click()
            await playwright.expect(page.locator("#spans details")).not_to_have_count(0)
            assert await page.evaluate("document.querySelector('dialog').scrollWidth") <= 360
        tables = await page.evaluate("async () => (await import('./strings.js')).tables")
    english, korean = tables["en"], tables["ko"]
    assert english.keys() == korean.keys()
    for name, text in english.items():
        assert placeholders(text) == placeholders(korean[name]), name
