"""The chat page in a real browser, against a real server: asking, stopping, and what goes wrong."""

import random

import anyio
import pytest

from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.browser.chat import answered, growing, idle, ready, say, sent, set_up
from tests.browser.pages import open_page
from tests.http.test_sse import Barrier

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]


async def test_text_is_seen_growing_and_figures_stand_under_the_answer(browser):
    barrier = Barrier(passing=5)
    async with open_page(browser, scripted_engine("Hello world", before_step=barrier)) as page:
        await ready(page)
        await say(page, "hi")
        await playwright.expect(page.locator(".answer .text")).to_have_text("Hello")
        assert await page.locator("#stop").is_visible()
        assert not await page.locator("#send").is_visible()
        assert not await page.locator(".figures").is_visible()
        barrier.open()
        assert await answered(page) == "Hello world"
        figures = await page.locator(".figures").inner_text()
        assert "tokens/s" in figures
        assert "first token after" in figures
        assert "12 tokens" in figures
        assert await page.locator(".figures").get_attribute("title") == "Measured by the server"
        assert await page.locator("#send").is_visible()


async def test_figures_tell_of_the_cache_and_lead_to_the_waterfall(browser):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        await say(page, "a question that is longer than one page of keys and values, " * 3)
        await answered(page)
        assert "from the cache" not in await page.locator(".figures").inner_text()
        await page.get_by_role("button", name="Try again").click()
        await playwright.expect(page.locator(".figures")).to_contain_text("prompt tokens from the cache")
        await page.get_by_role("link", name="where the time went").click()
        await playwright.expect(page.locator("#detail[open] #detail-title")).to_contain_text("chatcmpl-")
        await playwright.expect(page.locator("#spans details")).not_to_have_count(0)


async def test_stop_ends_the_answer_here_and_at_the_server(browser):
    engine = scripted_engine(step_seconds=0.005)
    async with open_page(browser, engine) as page:
        await ready(page)
        await say(page, "talk for ever")
        await growing(page)
        async with page.expect_request(lambda request: request.method == "DELETE") as deleted:
            await page.click("#stop")
        assert "/v1/streams/" in (await deleted.value).url
        text = await answered(page)
        assert len(text) > 10
        assert "stopped" in await page.locator(".figures").inner_text()
        await playwright.expect(page.locator("#send")).to_be_visible()
        await idle(engine)
        await say(page, "again")
        await growing(page)
        await page.keyboard.press("Escape")
        await answered(page, 2)
        await idle(engine)


async def test_stop_before_the_stream_has_begun_ends_the_request(browser):
    barrier = Barrier()
    engine = scripted_engine("late", before_step=barrier)
    settings = HttpSettings(header_wait_seconds=60)
    async with open_page(browser, engine, settings) as page:
        await ready(page)
        await say(page, "hi")
        with anyio.fail_after(20):
            while not engine.statistics().num_requests:
                await anyio.sleep(0.01)
        await page.click("#stop")
        await playwright.expect(page.locator(".figures")).to_have_text("stopped")
        barrier.open()
        await idle(engine)


async def test_an_answer_that_somebody_else_ends_is_stopped(browser):
    engine = scripted_engine(step_seconds=0.005)
    async with open_page(browser, engine) as page:
        await ready(page)
        await say(page, "talk for ever")
        await growing(page)
        engine.abort(engine.requests()[0].request_id)
        await answered(page)
        assert "stopped" in await page.locator(".figures").inner_text()


HOSTILE = (
    '<img src=x onerror="document.title=1"><script>document.title=2</script>\n\n'
    "[a](javascript:document.title=3) <javascript:document.title=4> [b](data:text/html,<script>1</script>)\n\n"
    "```html\n<b>code</b>\n```\nend"
)


async def test_markup_in_an_answer_stays_text_and_runs_nothing(browser):
    async with open_page(browser, scripted_engine(HOSTILE)) as page:
        await ready(page)
        await say(page, "<i>me</i>")
        text = await answered(page)
        title = await page.title()
        assert '<img src=x onerror="document.title=1"><script>document.title=2</script>' in text
        assert await page.locator("pre code").inner_text() == "<b>code</b>"
        assert await page.locator(".user .said").inner_text() == "<i>me</i>"
        assert await page.locator("#conversations .open").inner_text() == "<i>me</i>"
        assert title == "<i>me</i> · Limelight"
        made = "img, script, b, i, iframe, object, embed, style, a[href^='javascript:' i], a[href^='data:' i]"
        assert await page.locator("main").locator(made).count() == 0
        assert await page.locator("#conversations").locator(made).count() == 0


async def test_markup_in_the_names_of_models_stays_text(browser):
    name = '<img src=x onerror="document.title=1">'
    async with open_page(browser, scripted_engine("fine"), path="/docs") as page:

        async def tell(route):
            await route.fulfill(json={"object": "list", "data": [{"id": name}, {"id": "scripted"}]})

        await page.route("**/v1/models", tell)
        await page.goto(page.url.replace("/docs", "/"))
        await ready(page, name)
        assert await page.locator("#model option").all_inner_texts() == [name, "scripted"]
        await say(page, "hi")
        await page.wait_for_selector(".error:visible")
        assert name in await page.locator(".answer .error").inner_text()
        assert await page.locator("main img, #model img").count() == 0
        await page.select_option("#model", "scripted")
        await page.get_by_role("button", name="Try again").click()
        assert await answered(page) == "fine"


async def test_headings_bold_text_and_code_are_shown_as_such(browser):
    async with open_page(browser, scripted_engine("# Cities\n\n**Paris** is `one`, 2 ** 3 ** 4 is none.")) as page:
        await ready(page)
        await say(page, "hi")
        assert await answered(page) == "Cities\n\nParis is one, 2 ** 3 ** 4 is none."
        assert "Paris" in await page.locator(".text strong").all_inner_texts()
        assert await page.locator(".text p code").inner_text() == "one"


async def test_code_is_copied(browser):
    async with open_page(browser, scripted_engine("```py\nprint(1)\n```\n")) as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await ready(page)
        await say(page, "hi")
        await answered(page)
        await page.locator(".text").get_by_role("button").click()
        await playwright.expect(page.locator(".text").get_by_role("button")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "print(1)"
        await page.locator(".answer .tools").get_by_role("button", name="Copy").click()
        await page.wait_for_function("async () => (await navigator.clipboard.readText()).startsWith('```py')")


async def test_the_whole_conversation_is_sent_back_with_the_system_prompt(browser):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        bodies = sent(page)
        await set_up(page, system="Be brief.")
        await say(page, "one")
        await answered(page, 1)
        await page.fill("#prompt", "two")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("lines")
        await page.keyboard.press("Enter")
        await answered(page, 2)
        await page.click("#new-chat")
        await playwright.expect(page.locator(".answer")).to_have_count(0)
        await say(page, "three")
        await answered(page, 1)
    system = {"role": "system", "content": "Be brief."}
    assert [body["messages"] for body in bodies] == [
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


async def test_a_question_waits_for_a_key_that_is_wanted_only_then(browser):
    settings = HttpSettings(api_keys={"me": "right"})
    async with open_page(browser, scripted_engine("welcome"), settings) as page:
        await page.fill("#key", "right")
        await page.keyboard.press("Enter")
        await ready(page)
        await page.evaluate("sessionStorage.clear()")
        await say(page, "hi")
        await page.wait_for_selector("#key-dialog[open]")
        await playwright.expect(page.locator(".status")).to_have_text("Waiting for an API key")
        await page.fill("#key", "right")
        await page.keyboard.press("Enter")
        assert await answered(page) == "welcome"


async def test_an_error_is_shown_and_the_question_can_be_asked_again(browser):
    faults = [RuntimeError()]

    def fail(_step):
        if faults:
            raise faults.pop()

    async with open_page(browser, scripted_engine("fine now", before_step=fail)) as page:
        await ready(page)
        await say(page, "hi")
        await page.wait_for_selector(".error:visible")
        shown = await page.locator(".answer .error").inner_text()
        assert "failed" in shown
        assert "(req_" in shown
        await page.get_by_role("button", name="Try again").click()
        assert await answered(page) == "fine now"
        assert "2 of 2" in await page.locator(".versions:visible").inner_text()


async def test_the_place_in_the_queue_is_told_while_it_waits(browser):
    barrier = Barrier(passing=3)
    engine = scripted_engine("abcdef", before_step=barrier, max_num_seqs=1)
    async with open_page(browser, engine) as page, anyio.create_task_group() as others:
        await ready(page)
        others.start_soon(engine.generate, "first")
        with anyio.fail_after(20):
            while engine.statistics().num_requests < 1:
                await anyio.sleep(0.01)
        await say(page, "hi")
        await playwright.expect(page.locator(".status")).to_have_text("Place 1 in the queue")
        barrier.open()
        assert await answered(page) == "abcdef"


async def test_it_works_under_a_root_path(browser):
    settings = HttpSettings(root_path="/llm")
    async with open_page(browser, scripted_engine("fine"), settings, "/llm") as page:
        await ready(page)
        await say(page, "hi")
        assert await answered(page) == "fine"
        assert page.url.partition("#")[0].endswith("/llm/")


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
                    const comments = [];
                    const parser = new EventParser((comment) => comments.push(comment));
                    const text = Array.from(stream);
                    const edges = [0, ...borders, text.length];
                    const pieces = edges.slice(1).map((end, at) => text.slice(edges[at], end).join(""));
                    const events = pieces.flatMap((piece) => parser.push(piece));
                    return [comments, events.map(({ type, data, id }) => [type, data, id])];
                }));
            }""",
            cases,
        )
    assert len(results) == 606
    events = [["message", "one", None], ["x", "two\n😀 lines", "3"], ["message", "", "3"], ["message", "end", "3"]]
    assert all(result == [["comment"], events] for result in results)
