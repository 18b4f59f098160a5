"""Conversations on the chat page: kept, found again, branched, and taken elsewhere as a file."""

import json

import pytest

from limelight.testing import scripted_engine
from tests.browser.chat import answered, counting, growing, last_question, ready, replying, say, sent, set_up
from tests.browser.pages import browsing, open_page
from tests.http.wire import serving

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]


async def titles(page, *expected):
    await playwright.expect(page.locator("#conversations .open")).to_have_text(list(expected))


async def test_conversations_are_kept_found_renamed_and_deleted(browser):
    async with open_page(browser, replying(last_question)) as page:
        await ready(page)
        for text in ("about the sea", "about trains"):
            await say(page, text)
            await answered(page)
            await page.click("#new-chat")
        await titles(page, "about trains", "about the sea")
        await page.locator("#conversations .open").nth(1).click()
        assert await answered(page) == "about the sea"
        await page.reload()
        assert await answered(page) == "about the sea"
        await titles(page, "about trains", "about the sea")
        await page.get_by_role("button", name="More about “about trains”").click()
        await page.get_by_role("menuitem", name="Rename").click()
        await page.keyboard.type("<b>Rails</b>")
        await page.keyboard.press("Enter")
        await titles(page, "<b>Rails</b>", "about the sea")
        await page.fill("#search", "RAIL")
        await titles(page, "<b>Rails</b>")
        await page.fill("#search", "ships")
        await titles(page)
        assert await page.locator("#no-match").is_visible()
        await page.fill("#search", "")
        for answer in ("Cancel", "Delete for good"):
            await page.get_by_role("button", name="More about “about the sea”").click()
            await page.get_by_role("menuitem", name="Delete").click()
            await page.get_by_role("dialog").get_by_role("button", name=answer).click()
        await titles(page, "<b>Rails</b>")
        await playwright.expect(page.locator("#welcome")).to_be_visible()
        await page.reload()
        await titles(page, "<b>Rails</b>")


async def test_an_edited_question_begins_a_branch_and_arrows_lead_back(browser):
    async with open_page(browser, replying(last_question)) as page:
        await ready(page)
        bodies = sent(page)
        for number, text in enumerate(("one", "two"), 1):
            await say(page, text)
            await answered(page, number)
        await page.locator(".user").first.get_by_role("button", name="Edit").click()
        await page.get_by_label("Edited text").fill("uno")
        await page.keyboard.press("Enter")
        assert await answered(page, 1) == "uno"
        assert [message["content"] for message in bodies[-1]["messages"]] == ["uno"]
        await say(page, "due")
        assert await answered(page, 2) == "due"
        await page.get_by_role("button", name="Earlier version").click()
        await playwright.expect(page.locator(".user .said")).to_have_text(["one", "two"])
        assert await page.get_by_role("button", name="Earlier version").is_disabled()
        await page.reload()
        await playwright.expect(page.locator(".user .said")).to_have_text(["one", "two"])
        await page.get_by_role("button", name="Later version").click()
        await playwright.expect(page.locator(".user .said")).to_have_text(["uno", "due"])
        await page.locator(".user").last.get_by_role("button", name="Edit").click()
        await page.keyboard.press("Escape")
        await playwright.expect(page.locator(".user .said")).to_have_text(["uno", "due"])


async def test_an_answer_that_was_cut_is_gone_on_with_in_a_version_of_its_own(browser):
    async with open_page(browser, replying(lambda prompt: "c" if prompt.endswith("ab") else "ab")) as page:
        await ready(page)
        bodies = sent(page)
        await set_up(page, max_completion_tokens="2")
        await say(page, "hi")
        assert await answered(page) == "ab"
        await page.get_by_role("button", name="Continue").click()
        await playwright.expect(page.locator(".answer .text")).to_have_text("abc")
        await answered(page)
        assert bodies[1]["messages"] == [*bodies[0]["messages"], {"role": "assistant", "content": "ab"}]
        assert bodies[1]["continue_final_message"] is True
        await playwright.expect(page.get_by_role("button", name="Continue")).to_be_hidden()  # it ended by itself
        await page.reload()
        assert await answered(page) == "abc"
        await page.get_by_role("button", name="Earlier version").click()
        assert await answered(page) == "ab"


async def test_an_adapter_that_is_loaded_later_can_be_picked(browser, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    engine = replying(last_question)
    async with open_page(browser, engine) as page:
        await ready(page)
        await playwright.expect(page.locator("#model option")).to_have_text(["scripted"])
        await engine.load_adapter("polite", str(tmp_path))
        await page.locator("#model").focus()
        await playwright.expect(page.locator("#model option")).to_have_text(["scripted", "polite"])
        await page.select_option("#model", "polite")
        bodies = sent(page)
        await say(page, "hi")
        await answered(page)
        assert bodies[0]["model"] == "polite"


async def test_an_answer_is_tried_again_beside_the_first_one(browser):
    async with open_page(browser, counting()) as page:
        await ready(page)
        bodies = sent(page)
        await say(page, "hi")
        assert await answered(page) == "answer 1"
        await page.get_by_role("button", name="Try again").click()
        await playwright.expect(page.locator(".answer .text")).to_have_text("answer 2")
        await answered(page)
        assert bodies[0] == bodies[1]
        await page.get_by_role("button", name="Earlier version").click()
        await playwright.expect(page.locator(".answer .text")).to_have_text("answer 1")
        await say(page, "and then")
        await answered(page, 2)
        contents = [message["content"] for message in bodies[-1]["messages"]]
        assert contents == ["hi", "answer 1", "and then"]


async def test_an_answer_goes_on_while_another_conversation_is_shown(browser):
    engine = scripted_engine("x" * 300, step_seconds=0.01)
    async with open_page(browser, engine) as page:
        await ready(page)
        await say(page, "first")
        await growing(page)
        await page.click("#new-chat")
        assert not await page.locator("#stop").is_visible()
        await playwright.expect(page.locator("#conversations .busy")).to_have_count(1)
        await playwright.expect(page.locator("#conversations .busy")).to_have_count(0)
        await page.locator("#conversations .open").click()
        assert await answered(page) == "x" * 300


async def test_two_pages_show_the_same_answer(browser):
    engine = scripted_engine("x" * 200, step_seconds=0.01)
    async with open_page(browser, engine) as page:
        await ready(page)
        other = await page.context.new_page()
        await other.goto(page.url)
        await ready(other)
        await say(page, "first")
        await other.locator("#conversations .open").click()
        await growing(other)
        assert await answered(page) == "x" * 200
        assert await answered(other) == "x" * 200


async def exported(page):
    async with page.expect_download() as download:
        await page.click("#export")
    return await (await download.value).path()


async def test_what_is_exported_from_one_browser_is_imported_into_another(browser, tmp_path):
    async with serving(counting()) as client:
        address = str(client.base_url)
        async with browsing(browser, address) as page:
            await ready(page)
            await set_up(page, system="Be brief.", temperature="0.5")
            await say(page, "hi")
            await answered(page)
            await page.get_by_role("button", name="Try again").click()
            await playwright.expect(page.locator(".answer .text")).to_have_text("answer 2")
            await answered(page)
            first = json.loads((await exported(page)).read_bytes())
        path = tmp_path / "conversations.json"
        path.write_text(json.dumps(first))
        async with browsing(browser, address) as page:
            await ready(page)
            for _ in range(2):  # the second time changes nothing
                await page.set_input_files("#import-file", path)
                await playwright.expect(page.locator("#notice")).to_have_text("Imported 1 conversations.")
            await titles(page, "hi")
            await page.locator("#conversations .open").click()
            assert await answered(page) == "answer 2"
            await page.get_by_role("button", name="Earlier version").click()
            assert await answered(page) == "answer 1"
            await page.get_by_role("button", name="Later version").click()
            second = json.loads((await exported(page)).read_bytes())
    assert (first["format"], first["version"]) == ("limelight-conversations", 1)
    assert ordered(first) == ordered(second)


def ordered(file):
    for conversation in file["conversations"]:
        conversation["messages"].sort(key=lambda message: message["id"])
        for message in conversation["messages"]:
            for name in ("timings", "usage", "stream"):  # of which a file keeps what is shown
                message.pop(name, None)
    return file["conversations"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "The file is not JSON"),
        ('{"a": 1}', "not an export"),
        ('{"format": "limelight-conversations", "version": 2}', "version 2"),
        ('{"format": "limelight-conversations", "version": 1, "conversations": [{"id": 7}]}', "conversations[0].id"),
    ],
)
async def test_a_file_that_is_no_export_changes_nothing_and_is_told_why(browser, text, said):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        await page.set_input_files(
            "#import-file", {"name": "x.json", "mimeType": "application/json", "buffer": text.encode()}
        )
        await playwright.expect(page.locator("#notice")).to_contain_text(said)
        await titles(page)
