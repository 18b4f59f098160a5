"""The chat page in a real browser, against a real server over the scripted engine."""

import json
import random

import pytest

from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.browser.pages import open_page
from tests.http.test_sse import Barrier

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]


async def ready(page):
    await playwright.expect(page.locator("#model")).to_have_text("scripted")


async def say(page, text):
    await page.fill("#prompt", text)
    await page.keyboard.press("Enter")


async def answered(page, number=1):
    await playwright.expect(page.locator(".answer:not(.waiting)")).to_have_count(number, timeout=10_000)
    return await page.locator(".answer").nth(number - 1).locator(".text").inner_text()


async def test_text_is_seen_growing_and_figures_stand_under_the_answer(browser):
    barrier = Barrier(passing=5)
    async with open_page(browser, scripted_engine("Hello world", before_step=barrier)) as page:
        await ready(page)
        await say(page, "hi")
        await playwright.expect(page.locator(".answer .text")).to_have_text("Hello")
        assert await page.locator("#stop").is_visible()
        assert not await page.locator("#send").is_visible()
        barrier.open()
        assert await answered(page) == "Hello world"
        figures = await page.locator(".figures").inner_text()
        assert "tokens/s" in figures
        assert "first token after" in figures
        assert "12 tokens" in figures
        assert await page.locator("#send").is_visible()


async def test_stop_ends_the_answer_and_the_engine_forgets_it(browser):
    engine = scripted_engine(step_seconds=0.005)
    async with open_page(browser, engine) as page:
        await ready(page)
        await say(page, "talk for ever")
        await page.wait_for_function("() => document.querySelector('.answer .text').textContent.length > 10")
        await page.click("#stop")
        text = await answered(page)
        assert len(text) > 10
        assert "stopped" in await page.locator(".figures").inner_text()
        await playwright.expect(page.locator("#send")).to_be_visible()
        assert engine.statistics().num_requests == 0


async def test_markup_in_an_answer_stays_text_and_runs_nothing(browser):
    hostile = '<img src=x onerror="document.title=1"><script>document.title=2</script>\n```html\n<b>code</b>\n```\nend'
    async with open_page(browser, scripted_engine(hostile)) as page:
        await ready(page)
        title = await page.title()
        await say(page, "<i>me</i>")
        text = await answered(page)
        assert '<img src=x onerror="document.title=1"><script>document.title=2</script>' in text
        assert await page.locator("pre code").inner_text() == "<b>code</b>"
        assert await page.locator(".user").inner_text() == "<i>me</i>"
        assert (
            await page.locator(".conversation img, .conversation script, .conversation b, .conversation i").count() == 0
        )
        assert await page.title() == title


async def test_headings_bold_text_and_code_are_shown_as_such(browser):
    async with open_page(browser, scripted_engine("# Cities\n\n**Paris** is `one`, 2 ** 3 ** 4 is none.")) as page:
        await ready(page)
        await say(page, "hi")
        assert await answered(page) == "Cities\n\nParis is one, 2 ** 3 ** 4 is none."
        assert await page.locator(".text strong").all_inner_texts() == ["Cities", "Paris"]
        assert await page.locator(".text p code").inner_text() == "one"


async def test_the_whole_conversation_is_sent_back_with_the_system_prompt(browser):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        sent = []
        page.on("request", lambda request: sent.append(request.post_data) if request.method == "POST" else None)
        await page.click("#toggle-system")
        await page.fill("#system", "Be brief.")
        await say(page, "one")
        await answered(page, 1)
        await page.fill("#prompt", "two")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("lines")
        await page.keyboard.press("Enter")
        await answered(page, 2)
        await page.click("#new-chat")
        assert await page.locator(".answer").count() == 0
        await say(page, "three")
        await answered(page, 1)
    system = {"role": "system", "content": "Be brief."}
    turns = [json.loads(body)["messages"] for body in sent]
    assert turns == [
        [system, {"role": "user", "content": "one"}],
        [
            system,
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "fine"},
            {"role": "user", "content": "two\nlines"},
        ],
        [system, {"role": "user", "content": "three"}],
    ]


async def test_a_key_is_asked_for_and_kept_for_the_tab(browser):
    settings = HttpSettings(api_keys={"me": "right"})
    async with open_page(browser, scripted_engine("welcome"), settings) as page:
        for key in ("wrong", "right"):
            await page.wait_for_selector("#key-dialog[open]")
            await page.fill("#key", key)
            await page.keyboard.press("Enter")
        await ready(page)
        await say(page, "hi")
        assert await answered(page) == "welcome"
        await page.reload()
        await ready(page)
        assert await page.locator("#key-dialog").is_hidden()


async def test_an_error_is_shown_and_the_question_comes_back(browser):
    def fail(_step):
        raise RuntimeError

    async with open_page(browser, scripted_engine(before_step=fail)) as page:
        await ready(page)
        await say(page, "hi")
        await page.wait_for_selector(".error")
        shown = await page.locator(".error").inner_text()
        assert "failed" in shown
        assert "(req_" in shown
        assert await page.input_value("#prompt") == "hi"


async def test_it_works_under_a_root_path_and_on_a_phone(browser):
    size = {"width": 360, "height": 640}
    async with open_page(
        browser, scripted_engine("x" * 300), HttpSettings(root_path="/llm"), "/llm", viewport=size
    ) as page:
        await ready(page)
        await say(page, "hi")
        await answered(page)
        assert page.url.endswith("/llm/")
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360


async def test_events_are_the_same_however_the_bytes_are_cut(browser):
    lines = [": comment", "", "data: one", "", "event: x", "data:two", "data: 😀 lines", "id: 3", "", "data", ""]
    chance = random.Random(7)
    cases = []
    for ending in ("\n", "\r\n", "\r"):
        stream = ending.join([*lines, "data: end", "", ""])
        cuts = [sorted(chance.sample(range(1, len(stream)), chance.randrange(len(stream) - 1))) for _ in range(200)]
        cases.append([stream, [*cuts, list(range(1, len(stream))), []]])
    async with open_page(browser, scripted_engine()) as page:
        await ready(page)
        results = await page.evaluate(
            """async (cases) => {
                const { EventParser } = await import("./ui/sse.js");
                return cases.flatMap(([stream, cuts]) => cuts.map((borders) => {
                    const parser = new EventParser();
                    const text = Array.from(stream);
                    const edges = [0, ...borders, text.length];
                    return edges.slice(1).flatMap((end, at) => parser.push(text.slice(edges[at], end).join("")));
                }).map((found) => found.map(({ type, data }) => [type, data])));
            }""",
            cases,
        )
    assert len(results) == 606
    events = [["message", "one"], ["x", "two\n😀 lines"], ["message", ""], ["message", "end"]]
    assert all(result == events for result in results)
