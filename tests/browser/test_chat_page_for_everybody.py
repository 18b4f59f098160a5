"""The chat page by keyboard, for screen readers, in the dark, on a phone, in Korean, and with long conversations."""

import json
import time

import pytest

from limelight.testing import scripted_engine
from tests.browser.chat import answered, growing, last_question, ready, replying, say
from tests.browser.measures import CONTRASTS, FRAMES, busy_seconds, contrast, luminance, placeholders
from tests.browser.pages import open_page
from tests.http.test_sse import Barrier

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

PHONE = {"width": 360, "height": 640}
SELECTORS = [
    *("#model", ".hint", "#new-chat", "#conversations .open", ".user .said", ".text", ".figures", ".tools button"),
    *("a.quiet", "#prompt", "#send", ".sidebar-end button", ".versions", ".error", ".label"),
]


async def test_it_is_used_by_keyboard_alone(browser):
    engine = replying(lambda prompt: last_question(prompt) * 60, step_seconds=0.002)
    async with open_page(browser, engine) as page:
        await ready(page)
        await playwright.expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.type("one")
        await page.keyboard.press("Enter")
        await growing(page)
        await page.keyboard.press("Escape")
        await answered(page)
        await page.keyboard.press("Alt+n")
        await playwright.expect(page.locator(".answer")).to_have_count(0)
        await playwright.expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.type("two")
        await page.keyboard.press("Enter")
        await answered(page)
        await page.keyboard.press("Alt+k")
        await playwright.expect(page.locator("#search")).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("ArrowDown")
        assert await focused(page) == "one"
        await page.keyboard.press("ArrowRight")
        assert await focused(page) == "More about “one”"
        await page.keyboard.press("Enter")
        assert await focused(page) == "Rename"
        for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp"):
            await page.keyboard.press(key)
        assert await focused(page) == "Rename"
        await page.keyboard.press("Escape")
        assert await focused(page) == "More about “one”"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await page.keyboard.type("first")
        await page.keyboard.press("Enter")
        assert await focused(page) == "first"
        await page.keyboard.press("Enter")
        await playwright.expect(page.locator(".user .said")).to_have_text("one")
        await page.keyboard.press("/")
        await playwright.expect(page.locator("#prompt")).to_be_focused()
        await page.keyboard.type("either/or")
        assert await page.input_value("#prompt") == "either/or"
        await page.keyboard.press("Alt+s")
        await playwright.expect(page.locator("#settings")).to_be_visible()
        await page.keyboard.press("Escape")
        await playwright.expect(page.locator("#settings")).to_have_count(0)


async def focused(page):
    return await page.evaluate(
        "document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"
    )


async def test_every_control_has_a_name_and_every_id_is_there_once(browser):
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    async with open_page(browser, scripted_engine(f"`a`\n```py\nb\n```\n{call}")) as page:
        await ready(page)
        await say(page, "hi")
        await answered(page)
        await page.get_by_role("button", name="Try again").click()
        await playwright.expect(page.locator(".versions:visible")).to_have_count(1)
        await answered(page)
        await page.locator(".user").get_by_role("button", name="Edit").click()
        await page.evaluate("document.getElementById('open-settings').click()")
        nameless, doubled = await page.evaluate(AUDIT)
    assert nameless == []
    assert doubled == []


AUDIT = """() => {
    const name = (node) => node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.[0]?.textContent;
    const tags = "button, a, input, select, textarea, dialog, summary, article, nav";
    const controls = [...document.querySelectorAll(tags)];
    const heading = (node) => document.getElementById(node.getAttribute("aria-labelledby"))?.textContent;
    const nameless = controls.filter((node) => !(node.tagName === "DIALOG" ? heading(node) : name(node)));
    const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
    const doubled = ids.filter((id, place) => ids.indexOf(id) !== place);
    return [nameless.map((node) => node.outerHTML.slice(0, 100)), doubled];
}"""


async def test_a_screen_reader_hears_of_an_answer_twice_and_not_of_every_token(browser):
    barrier = Barrier(passing=10)
    async with open_page(browser, scripted_engine("Hello wide world", before_step=barrier)) as page:
        await ready(page)
        await page.evaluate(
            """() => {
                window.heard = [];
                const node = document.getElementById("announcer");
                const watch = new MutationObserver(() => window.heard.push(node.textContent));
                watch.observe(node, { childList: true, characterData: true, subtree: true });
            }"""
        )
        await say(page, "hi")
        await growing(page, 5)
        live = await page.evaluate("document.querySelector('.answer').closest('[aria-live], [role=log]')")
        assert live is None
        assert await page.get_attribute(".answer", "aria-busy") == "true"
        barrier.open()
        await answered(page)
        await page.wait_for_function("window.heard.length >= 2")
        assert await page.evaluate("window.heard") == ["Answering", "Hello wide world"]
        assert await page.get_attribute(".answer", "aria-busy") == "false"


async def test_the_theme_follows_the_system_until_one_is_chosen(browser):
    def ground(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    async with open_page(browser, scripted_engine("fine"), color_scheme="dark") as page:
        await ready(page)
        await say(page, "hi")
        await answered(page)
        await page.get_by_role("button", name="Try again").click()
        await playwright.expect(page.locator(".versions:visible")).to_have_count(1)
        await answered(page)
        for theme, dark in (("system", True), ("light", False), ("dark", True)):
            await page.click("#open-settings")
            await page.select_option("#setting-theme", theme)
            await page.keyboard.press("Escape")
            assert (luminance(await ground(page)) < 0.5) == dark
            contrasts = await page.evaluate(CONTRASTS, SELECTORS)
            assert {name: pair for name, pair in contrasts.items() if contrast(*pair) < 4.5} == {}
            assert len(contrasts) > 10
        await page.emulate_media(color_scheme="light")
        await page.reload()
        assert luminance(await ground(page)) < 0.5
        await page.goto(page.url.partition("#")[0] + "ui/requests")
        assert luminance(await ground(page)) < 0.5


async def test_it_speaks_korean_to_those_who_do_and_to_those_who_choose_it(browser):
    async with open_page(browser, scripted_engine("네"), locale="ko-KR") as page:
        await ready(page)
        assert await page.evaluate("document.documentElement.lang") == "ko"
        assert await page.locator("#send").inner_text() == "보내기"
        assert await page.get_attribute("#prompt", "placeholder") == "메시지를 입력하세요"
        await say(page, "안녕")
        assert await answered(page) == "네"
        assert "초당 토큰" in await page.locator(".figures").inner_text()
        await page.click("#open-settings")
        await page.select_option("#setting-language", "en")
        await playwright.expect(page.locator("#settings-title")).to_have_text("Settings")
        await page.keyboard.press("Escape")
        assert await page.locator("#send").inner_text() == "Send"
        assert "tokens/s" in await page.locator(".figures").inner_text()
        await page.goto(page.url.partition("#")[0] + "ui/requests")
        await playwright.expect(page.locator("h1")).to_have_text("Requests")
        parts = await page.evaluate(
            "async () => (await import('./strings.js')).parts.map(({ en, ko }) => ({ en, ko }))",
        )
    names = [name for part in parts for name in part["en"]]
    assert len(names) == len(set(names))
    for part in parts:
        assert part["en"].keys() == part["ko"].keys()
        for name, text in part["en"].items():
            assert placeholders(text) == placeholders(part["ko"][name]), name


async def test_it_fits_on_a_phone(browser):
    wide = "x" * 300 + "\n\n```\n" + "y" * 300 + "\n```\n\n| " + " | ".join(["cell" * 5] * 12) + " |\n"
    async with open_page(browser, scripted_engine(wide), viewport=PHONE) as page:
        await ready(page)
        assert not await page.locator("#sidebar").is_visible()
        await say(page, "z" * 300)
        await answered(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        assert await page.evaluate("document.querySelector('main').scrollWidth") <= 360
        await page.click("#toggle-sidebar")
        await playwright.expect(page.locator("#conversations .open")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        await page.keyboard.press("Escape")
        assert not await page.locator("#sidebar").is_visible()
        await page.click("#open-settings")
        assert await page.evaluate("document.querySelector('#settings').scrollWidth") <= 360


async def test_a_conversation_of_two_hundred_messages_stays_smooth(browser):
    """Processor time of the page's thread, which another program on the machine does not lengthen."""
    engine = scripted_engine(PARAGRAPH * 20, step_seconds=0.005, max_model_len=50_000, num_pages=4096)
    async with open_page(browser, engine, viewport={"width": 1000, "height": 800}) as page:
        await ready(page)
        file = {"name": "long.json", "mimeType": "application/json", "buffer": long_conversation(200)}
        await page.set_input_files("#import-file", file)
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = await busy_seconds(session)
        await page.locator("#conversations .open").click()
        await playwright.expect(page.locator(".message")).to_have_count(200)
        await page.evaluate(FRAMES, 500)
        opening = await busy_seconds(session) - before
        await say(page, "and now?")
        await growing(page, 200)
        before = await busy_seconds(session)
        frames = await page.evaluate(FRAMES, 3000)
        streaming = await busy_seconds(session) - before
        assert await page.locator(".answer.waiting").count() == 1
        end = "document.querySelector('main').scrollHeight - document.querySelector('main').scrollTop"
        assert await page.evaluate(end) < 900
    print(
        f"opening {opening:.2f} s; streaming {streaming:.2f} of 3 s; {len(frames)} frames, the longest "
        f"{max(frames):.0f} ms, the median {sorted(frames)[len(frames) // 2]:.0f} ms"
    )
    assert opening < 3
    assert streaming < 1.5


PARAGRAPH = "Some **words** about `code`, and a list:\n\n- one\n- two\n\n```py\nprint('three')\n```\n\n"


def long_conversation(number):
    """An export of one conversation with so many messages."""
    now = int(time.time() * 1000)
    messages = []
    for place in range(number):
        common = {"id": f"m{place}", "parent": f"m{place - 1}" if place else None, "order": place, "created": now}
        if place % 2 == 0:
            messages.append(common | {"role": "user", "content": f"Question {place}"})
        else:
            answer = {"reasoning": "", "tool_calls": [], "model": "scripted", "format": "text", "status": "done"}
            messages.append(common | answer | {"role": "assistant", "content": PARAGRAPH * 3})
    conversation = {"id": "long", "title": "long", "titled": True, "created": now, "updated": now, "messages": messages}
    return json.dumps({"format": "limelight-conversations", "version": 1, "conversations": [conversation]}).encode()
