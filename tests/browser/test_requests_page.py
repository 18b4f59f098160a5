"""The page of requests in a real browser, against a real server over the scripted engine."""

import json
import random
import re
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from subprocess import DEVNULL

import anyio
import httpx
import pytest

from limelight.generation import SamplingParams
from limelight.http import HttpSettings
from limelight.testing import scripted_engine
from tests.browser.pages import REQUESTS, browsing, connected, endless, lane, open_page, row
from tests.http.test_sse import Barrier
from tests.http.wire import CHAT, chat_body

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]


async def test_a_request_moves_through_its_phases_and_ends_as_a_waterfall(browser):
    barrier = Barrier()
    engine = scripted_engine(before_step=barrier, step_seconds=0.02, max_num_seqs=1)
    async with open_page(browser, engine, path=REQUESTS) as page:
        await connected(page)
        await playwright.expect(page.locator("#running")).to_contain_text("No request is running.")
        sampling = SamplingParams(max_tokens=80, ignore_eos=True)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: engine.generate("first", sampling, request_id="one"))
            await playwright.expect(row(page, "one").locator(".cell-phase")).to_have_text("prefill")
            tasks.start_soon(lambda: engine.generate("second", sampling, request_id="two"))
            await playwright.expect(row(page, "two").locator(".cell-phase")).to_have_text("queued, place 1")
            assert await row(page, "one").locator(".cell-output").inner_text() == "0"
            barrier.open()
            await playwright.expect(row(page, "one").locator(".cell-phase")).to_have_text("decode")
            await playwright.expect(row(page, "one").locator(".cell-output")).not_to_have_text("0")
            await playwright.expect(lane(page, "one")).to_have_attribute("data-ending", "completed")
        await playwright.expect(row(page, "one")).to_have_count(0)
        await playwright.expect(lane(page, "two")).to_have_attribute("data-ending", "completed")
        assert await lane(page, "one").locator(".lane-state").inner_text() == "completed"
        label = await lane(page, "two").locator("button").get_attribute("aria-label")
        assert "queue" in label
        assert "80 tokens" in label


async def test_parts_are_as_wide_as_they_were_long(browser):
    engine = scripted_engine(step_seconds=0.02)
    async with open_page(browser, engine, path=REQUESTS, viewport={"width": 1280, "height": 800}) as page:
        await connected(page)
        await engine.generate("x" * 1500, SamplingParams(max_tokens=60, ignore_eos=True), request_id="one")
        await playwright.expect(lane(page, "one")).to_have_attribute("data-ending", "completed")
        view = await page.evaluate("async () => (await fetch('../v1/requests/one')).json()")
        boxes = {
            name: await lane(page, "one").locator(f".part.{name}").bounding_box()
            for name in ("queue", "prefill", "decode")
        }
        whole = await lane(page, "one").locator(".stretch").bounding_box()
        for name, box in boxes.items():
            expected = view["timings"][name] / view["timings"]["total"] * whole["width"]
            assert box["width"] == pytest.approx(expected, abs=1.5), name
        assert boxes["prefill"]["x"] + boxes["prefill"]["width"] == pytest.approx(boxes["decode"]["x"], abs=1.5)
        await lane(page, "one").locator("button").click()
        spans = {
            name: await page.locator(f'#spans [data-span="{name}"] .stretch').bounding_box()
            for name in ("request", "decode")
        }
        lengths = {span["key"]: span["end"] - span["start"] for span in view["spans"]}
        ratio = spans["decode"]["width"] / spans["request"]["width"]
        assert ratio == pytest.approx(lengths["decode"] / lengths["request"], abs=0.01)
        await page.locator('#spans [data-span="prefill"] summary').click()
        assert await page.locator('#spans [data-span="prefill"] .events li').count() >= 1


async def test_a_running_request_is_followed_through_preemptions_with_its_spans_left_open(browser):
    engine = scripted_engine(step_seconds=0.01, num_pages=24)
    async with open_page(browser, engine, path=REQUESTS) as page:
        await connected(page)
        async with endless(engine, "one", "two"):
            await page.locator('#running tr:has-text("preempted") button.link').click()
            decode = page.locator('#spans [data-span="decode"]')
            await decode.locator("summary").click()
            await playwright.expect(decode.locator(".events .preempted")).not_to_have_count(0)
            await playwright.expect(decode.locator(".pause")).not_to_have_count(0)
            length = await decode.locator(".span-seconds").inner_text()
            await playwright.expect(decode.locator(".span-seconds")).not_to_have_text(length)
            assert await decode.get_attribute("open") is not None
            await page.click("#detail-abort")
            await playwright.expect(page.locator("#detail-state")).to_have_text("aborted")


async def test_parts_of_any_request_fill_its_time_without_gaps(browser):
    chance = random.Random(3)
    names = ["admission", "tokenize", "queue", "prefill", "decode"]
    views = []
    for _ in range(300):
        reached = chance.randrange(6)
        timings = {name: chance.random() if place < reached else None for place, name in enumerate(names)}
        known = sum(timings[name] or 0 for name in names)
        ended = chance.random() < 0.5
        timings["total"] = known + chance.random() if ended else None
        phase = ["tokenizing", "tokenizing", "queued", "prefill", "decode", "decode"][reached]
        ending = chance.choice(["completed", "failed"]) if ended else None
        views.append({"arrived_at": 100.0, "timings": timings, "ending": ending, "phase": phase, "known": known})
    async with open_page(browser, scripted_engine(), path=REQUESTS) as page:
        results = await page.evaluate(
            """async (views) => {
                const { partsOf, duration } = await import("./parts.js");
                return views.map((view) => [partsOf(view, 110), duration(view, 110)]);
            }""",
            views,
        )
    for view, (parts, whole) in zip(views, results, strict=True):
        assert whole == pytest.approx(view["timings"]["total"] or 10.0)
        ends = [part["start"] + part["seconds"] for part in parts]
        assert [part["start"] for part in parts] == pytest.approx([0.0, *ends[:-1]])
        assert ends[-1] == pytest.approx(whole)
        assert len({part["part"] for part in parts}) == len(parts)


async def test_a_request_is_aborted_by_its_button(browser):
    engine = scripted_engine(step_seconds=0.01)
    async with open_page(browser, engine, path=REQUESTS) as page:
        await connected(page)
        answered = []

        async def run():
            answered.append(await ask(page.url.removesuffix(REQUESTS)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await page.locator("#running tbody .abort").click()
            await playwright.expect(page.locator('#lanes li[data-ending="aborted"]')).to_have_count(1)
        assert answered[0].status_code >= 400
        assert engine.statistics().num_requests == 0
        await page.select_option("#lanes-endings", "bad")
        await playwright.expect(page.locator("#lanes li")).to_have_count(1)


async def test_a_request_is_exported_as_otlp_json(browser):
    engine = scripted_engine("hello")
    async with open_page(browser, engine, path=REQUESTS, accept_downloads=True) as page:
        await connected(page)
        await engine.generate("hi", request_id="cmpl one")
        await lane(page, "cmpl one").locator("button").click()
        async with page.expect_download() as download:
            await page.click("#detail-export")
        file = await download.value
        assert file.suggested_filename == "cmpl_one.otlp.json"
        trace = json.loads(await anyio.Path(await file.path()).read_bytes())
    spans = [span for scope in trace["resourceSpans"][0]["scopeSpans"] for span in scope["spans"]]
    assert {"queue", "prefill", "decode"} <= {span["name"] for span in spans}


async def test_the_address_names_a_request_and_the_chat_page_links_there(browser):
    async with open_page(browser, scripted_engine("hello")) as page:
        await playwright.expect(page.locator("#model")).to_have_text("scripted")
        await page.fill("#prompt", "hi")
        await page.keyboard.press("Enter")
        await page.locator(".figures a").click()
        await playwright.expect(page.locator("#detail")).to_be_visible()
        name = await page.locator("#detail-title").inner_text()
        await playwright.expect(page).to_have_url(re.compile(f"{REQUESTS}#{name}$"))
        await playwright.expect(page.locator("#detail-state")).to_have_text("completed")
        await page.click("#detail-close")
        await playwright.expect(page).to_have_url(re.compile(f"{REQUESTS}$"))
        await page.get_by_role("link", name="Chat").click()
        await page.get_by_role("link", name="Requests").click()
        await connected(page)
        await page.goto(f"{page.url}#nobody")
        await playwright.expect(page.locator("#detail-problem")).to_contain_text("nobody")


async def test_a_key_is_asked_for(browser):
    settings = HttpSettings(api_keys={"me": "right"})
    async with open_page(browser, scripted_engine(), settings, REQUESTS) as page:
        for key in ("wrong", "right"):
            await page.wait_for_selector("#key-dialog[open]")
            await page.fill("#key", key)
            await page.keyboard.press("Enter")
        await connected(page)
        await page.reload()
        await connected(page)


async def test_a_refusal_is_told_in_words_and_not_tried_again(browser):
    async with open_page(browser, scripted_engine(), path=REQUESTS) as page:
        await connected(page)
        asked = []

        async def refuse(route):
            asked.append(route.request.url)
            await route.fulfill(status=403, json={"error": {"message": "This key may not <b>observe</b>"}})

        await page.route("**/v1/requests**", refuse)
        await page.reload()
        await playwright.expect(page.locator("#notice")).to_contain_text("This key may not <b>observe</b>")
        await playwright.expect(page.locator("#another-key")).to_be_visible()
        await page.wait_for_timeout(1500)
        assert len(asked) == 1


async def test_what_requests_are_called_is_text(browser):
    hostile = '<img src=x onerror="document.title=1">"\'&{id}$&'
    async with open_page(browser, scripted_engine(step_seconds=0.01), path=REQUESTS) as page:
        engine_title = await page.title()
        await connected(page)
        await page.route(
            "**/v1/requests/events",
            lambda route: route.fulfill(content_type="text/event-stream", body=feed_of([hostile_view(hostile)])),
        )
        await page.reload()
        await playwright.expect(page.locator("#running tbody tr")).to_have_count(1)
        assert await page.locator("#running tbody button.link").inner_text() == hostile
        assert await page.locator("#running .cell-model").inner_text() == hostile
        assert hostile in await page.locator("#lanes button").get_attribute("title")
        await page.route(
            "**/v1/requests/%3C**",
            lambda route: route.fulfill(
                json={
                    **hostile_view(hostile),
                    "spans": [
                        {
                            "key": hostile,
                            "name": hostile,
                            "parent": None,
                            "start": 0,
                            "end": 1,
                            "error": hostile,
                            "attributes": {hostile: hostile},
                            "events": [{"name": hostile, "at": 0.5, "attributes": {hostile: hostile}}],
                        }
                    ],
                }
            ),
        )
        await page.locator("#running tbody button.link").click()
        await page.locator("#spans summary").click()
        await playwright.expect(page.locator("#spans .span-name")).to_have_text(f"✕ {hostile}")
        await playwright.expect(page.locator("#spans .attributes dd")).to_have_text(hostile)
        assert await page.locator("img:not(.brand img), main script, dialog script").count() == 0
        assert await page.title() == engine_title


def hostile_view(name):
    timings = dict.fromkeys(
        ("admission", "tokenize", "queue", "prefill", "time_to_first_token", "decode", "per_token", "total")
    )
    return {
        "id": name,
        "http_request_id": name,
        "owner": name,
        "share": name,
        "model": name,
        "operation": name,
        "phase": "queued",
        "ending": None,
        "error_code": name,
        "arrived_at": 100.0,
        "queue_position": 1,
        "prompt_tokens": 1,
        "prompt_tokens_done": 0,
        "cached_tokens": 0,
        "output_tokens": 0,
        "pages": 0,
        "page_seconds": 0.0,
        "step_seconds": 0.0,
        "step_share": 0.0,
        "share_wait_seconds": 0.0,
        "num_preemptions": 0,
        "num_stalls": 0,
        "timings": timings,
        "delivery": None,
        "trace_id": name,
        "finish_reasons": [name],
    }


def feed_of(views):
    """A feed that ends after one snapshot."""
    snapshot = {"object": "list", "now": 101.0, "engine": None, "data": views, "sample": None}
    return f"event: snapshot\ndata: {json.dumps(snapshot)}\n\n"


SERVER = """
import sys

from limelight.cli import main
from limelight.testing import scripted_model

raise SystemExit(main(["serve", "--port", sys.argv[1]], loader=scripted_model("hello")))
"""


@asynccontextmanager
async def server_process(port):
    """A server in a process of its own, up when the block begins and killed at its end."""
    process = await anyio.open_process([sys.executable, "-c", SERVER, str(port)], stdout=DEVNULL, stderr=DEVNULL)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            with anyio.fail_after(60):
                while True:
                    try:
                        if (await client.get("/readyz")).status_code == 200:
                            break
                    except httpx.TransportError:
                        pass
                    await anyio.sleep(0.1)
        yield
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def test_the_page_says_that_it_is_disconnected_and_comes_back_with_the_server(browser):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    base_url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as first:
        await first.enter_async_context(server_process(port))
        async with browsing(browser, base_url, REQUESTS) as page:
            await connected(page)
            await ask(base_url)
            await playwright.expect(page.locator("#lanes [data-ending=completed]")).to_have_count(1)
            await first.aclose()
            await playwright.expect(page.locator("#notice")).to_contain_text("Disconnected")
            async with server_process(port):
                state = page.locator("#connection")
                await playwright.expect(state).to_have_attribute("data-state", "connected", timeout=60_000)
                await playwright.expect(page.locator("#notice")).to_be_hidden()
                await ask(base_url)
                await playwright.expect(page.locator("#lanes [data-ending=completed]")).to_have_count(2)


async def ask(base_url):
    async with httpx.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:
        return await client.post(CHAT, json=chat_body(max_tokens=800))
