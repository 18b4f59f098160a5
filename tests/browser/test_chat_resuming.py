"""Answers of the chat page that outlive their connection: the page loaded anew, the network lost, the server gone."""

import itertools
import string

import pytest

from limelight.http import HttpSettings
from limelight.testing import END, scripted_engine
from tests.browser.chat import answered, growing, idle, ready, say, sent
from tests.browser.cuttable import CuttableProxy
from tests.browser.pages import browsing, open_page
from tests.http.test_sse import Barrier
from tests.http.wire import serving

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

LETTERS = "".join(itertools.islice(itertools.cycle(string.ascii_lowercase + string.digits), 400))
"""A text in which any gap or repetition shows."""


async def test_a_page_loaded_anew_goes_on_where_the_answer_was(browser):
    barrier = Barrier(passing=60)
    engine = scripted_engine(LETTERS, before_step=barrier)
    async with open_page(browser, engine) as page:
        await ready(page)
        bodies = sent(page)
        await say(page, "hi")
        await growing(page, 40)
        await page.wait_for_timeout(600)  # longer than the page takes to keep what has come
        resumed = []
        page.on("request", lambda request: resumed.append(request) if "/v1/streams/" in request.url else None)
        await page.reload()
        await growing(page, 40)
        assert len(resumed) == 1
        assert resumed[0].headers["last-event-id"].rpartition(":")[2] != "0"
        barrier.open()
        assert await answered(page) == LETTERS
        assert "tokens/s" in await page.locator(".figures").inner_text()
        assert engine.statistics().num_requests == 0
        await page.reload()
        assert await answered(page) == LETTERS
        assert (len(bodies), len(resumed)) == (1, 1)


async def test_a_lost_network_is_told_and_the_answer_goes_on_when_it_is_back(browser):
    engine = scripted_engine(LETTERS, step_seconds=0.01)
    async with open_page(browser, engine) as page:
        await ready(page)
        bodies = sent(page)
        await say(page, "hi")
        await growing(page, 40)
        await page.context.set_offline(True)
        await playwright.expect(page.locator(".status")).to_contain_text("Connection lost")
        await page.context.set_offline(False)
        assert await answered(page) == LETTERS
        assert len(bodies) == 1


async def test_cut_connections_are_made_again_until_one_lasts(browser):
    engine = scripted_engine(LETTERS, step_seconds=0.02)
    async with serving(engine) as client:
        proxy = CuttableProxy(client.base_url.port)
        async with proxy.running() as address, browsing(browser, address) as page:
            await ready(page)
            bodies = sent(page)
            await say(page, "hi")
            for least in (20, 60, 100):
                await growing(page, least)
                await proxy.cut()
                await playwright.expect(page.locator(".status")).to_contain_text("Connection lost")
                proxy.away = False
                await page.get_by_role("button", name="Try now").click()
            assert await answered(page) == LETTERS
            assert len(bodies) == 1


async def test_stop_works_while_the_network_is_away(browser):
    engine = scripted_engine(step_seconds=0.01)
    settings = HttpSettings(max_grace_seconds=1)
    async with open_page(browser, engine, settings) as page:
        await ready(page)
        await say(page, "talk for ever")
        await growing(page)
        await page.context.set_offline(True)
        await playwright.expect(page.locator(".status")).to_contain_text("Connection lost")
        await page.click("#stop")
        await answered(page)
        assert "stopped" in await page.locator(".figures").inner_text()
        await idle(engine)  # for want of a reader


async def test_what_was_said_stays_when_the_rest_has_expired(browser):
    engine = scripted_engine(step_seconds=0.005)
    settings = HttpSettings(max_grace_seconds=0)
    async with open_page(browser, engine, settings) as page:
        await ready(page)
        await say(page, "talk for ever")
        await growing(page, 40)
        await page.wait_for_timeout(600)
        await page.goto("about:blank")
        await idle(engine)
        await page.go_back()
        text = await answered(page)
        assert len(text) > 40
        assert "cannot be fetched any more" in await page.locator(".answer .error").inner_text()


async def test_what_was_said_stays_when_the_server_has_started_anew(browser):
    engine = scripted_engine(step_seconds=0.01)
    async with serving(engine) as client, serving(scripted_engine("fine")) as successor:
        proxy = CuttableProxy(client.base_url.port)
        async with proxy.running() as address, browsing(browser, address) as page:
            await ready(page)
            await say(page, "talk for ever")
            await growing(page, 40)
            await proxy.cut()
            proxy.lead_to(successor.base_url.port)
            text = await answered(page)
            assert len(text) > 40
            assert "cannot be fetched any more" in await page.locator(".answer .error").inner_text()
            await page.get_by_role("button", name="Try again").click()
            await playwright.expect(page.locator(".answer .text")).to_have_text("fine")


async def test_text_whose_characters_are_cut_is_the_same_after_a_reload(browser):
    """The cut may go through the bytes of a character."""
    barrier = Barrier(passing=42)
    token_ids = [*("가나다😀" * 20).encode(), END]
    engine = scripted_engine(lambda turn: token_ids[min(turn.number, len(token_ids) - 1)], before_step=barrier)
    async with open_page(browser, engine) as page:
        await ready(page)
        await say(page, "hi")
        await growing(page, 8)
        await page.wait_for_timeout(600)
        await page.reload()
        await growing(page, 8)
        barrier.open()
        assert await answered(page) == "가나다😀" * 20
