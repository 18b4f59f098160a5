"""Settings of the chat page and what becomes of them: sampling, models, reasoning, tools, JSON."""

import json

import pytest

from limelight.generation import ReasoningFormat
from limelight.parsing.answer_format import AnswerFormat
from limelight.testing import scripted_engine
from tests.browser.chat import answered, ready, replying, say, sent, set_up
from tests.browser.pages import open_page
from tests.http.test_sse import Barrier

playwright = pytest.importorskip("playwright.async_api")

pytestmark = [pytest.mark.browser, pytest.mark.anyio]

CALLING = AnswerFormat(tool_format="hermes", renders_tools=True, renders_calls=True)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


async def test_sampling_settings_are_sent_kept_and_reset(browser):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        bodies = sent(page)
        await say(page, "plain")
        await answered(page, 1)
        await set_up(
            page,
            temperature="0.5",
            top_p="0.9",
            top_k="20",
            min_p="0.1",
            max_completion_tokens="50",
            presence_penalty="0.25",
            frequency_penalty="-0.5",
            repetition_penalty="1.1",
            seed="7",
            stop="END\n\\n\\n",
        )
        await page.reload()
        await ready(page)
        await say(page, "set")
        await answered(page, 2)
        await page.click("#new-chat")
        await say(page, "inherited")
        await answered(page, 1)
        await page.keyboard.press("Alt+s")
        await page.click("#reset")
        await page.keyboard.press("Escape")
        await say(page, "reset")
        await answered(page, 2)
    wanted = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "max_completion_tokens": 50,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 7,
        "stop": ["END", "\n\n"],
    }
    plain, *given, reset = [{name: body[name] for name in wanted if name in body} for body in bodies]
    assert plain == reset == {"max_completion_tokens": 1024}
    assert given == [wanted, wanted]


async def test_a_setting_that_makes_no_sense_is_marked_and_nothing_is_sent(browser):
    async with open_page(browser, scripted_engine("fine")) as page:
        await ready(page)
        bodies = sent(page)
        await page.click("#open-settings")
        for name, text, said in (
            ("temperature", "warm", "not a number"),
            ("top_k", "1.5", "not a whole number"),
            ("top_p", "2", "At most 1"),
            ("tools", "[{}]", "must be a list"),
            ("schema", "{", "not JSON"),
        ):
            await page.fill(f"#setting-{name}", text)
            await playwright.expect(page.locator(f"#setting-{name}-error")).to_contain_text(said)
            assert await page.get_attribute(f"#setting-{name}", "aria-invalid") == "true"
            if name != "temperature":
                await page.fill(f"#setting-{name}", "")
        await page.keyboard.press("Escape")
        await say(page, "hi")
        await playwright.expect(page.locator("#setting-temperature")).to_be_focused()
        await page.fill("#setting-temperature", "1")
        await page.keyboard.press("Escape")
        assert await page.input_value("#prompt") == "hi"
        assert bodies == []
        await page.click("#send")
        assert await answered(page) == "fine"


async def test_an_adapter_is_picked_and_kept_with_the_conversation(browser, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 8}')
    engine = scripted_engine("fine", adapters={"poet": str(tmp_path)})
    async with open_page(browser, engine) as page:
        await ready(page)
        bodies = sent(page)
        await page.select_option("#model", "poet")
        await say(page, "hi")
        await answered(page)
        await page.reload()
        await ready(page, "poet")
        assert await page.locator("#model option").all_inner_texts() == ["scripted", "poet"]
        assert bodies[0]["model"] == "poet"
        assert await page.get_attribute(".answer", "aria-label") == "poet"


async def test_reasoning_is_folded_and_can_be_switched_off(browser):
    barrier = Barrier(passing=14)
    answers = AnswerFormat(reasoning=ReasoningFormat("<think>", "</think>"), reasoning_switch="enable_thinking")
    engine = scripted_engine("<think>hm, <b>well</b></think>Yes.", before_step=barrier, answer_format=answers)
    async with open_page(browser, engine) as page:
        await ready(page)
        bodies = sent(page)
        await say(page, "hi")
        await playwright.expect(page.locator(".reasoning summary")).to_have_text("Reasoning…")
        barrier.open()
        assert await answered(page) == "Yes."
        assert await page.locator(".reasoning summary").inner_text() == "Reasoning"
        assert not await page.locator(".thoughts").is_visible()
        await page.click(".reasoning summary")
        assert await page.locator(".thoughts").inner_text() == "hm, <b>well</b>"
        await set_up(page, reasoning="off")
        await say(page, "again")
        await answered(page, 2)
    assert "chat_template_kwargs" not in bodies[0]
    assert bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}
    assert bodies[1]["messages"][1]["reasoning"] == "hm, <b>well</b>"


async def test_calls_are_shown_and_their_results_lead_to_an_answer(browser):
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "<i>Seoul</i>"}}\n</tool_call>'

    def reply(prompt):
        return "It rains." if "tool: " in prompt else call

    async with open_page(browser, replying(reply, answer_format=CALLING)) as page:
        await ready(page)
        bodies = sent(page)
        await set_up(page, tools=json.dumps(TOOLS), tool_choice="required")
        await say(page, "Is it dry?")
        await answered(page)
        assert await page.locator(".call .label").inner_text() == "Call of get_weather"
        assert json.loads(await page.locator(".call code").inner_text()) == {"city": "<i>Seoul</i>"}
        await page.reload()
        await ready(page)
        await set_up(page, tool_choice="")
        await page.get_by_label("Result of get_weather").fill('{"rain": true}')
        await page.get_by_role("button", name="Send results").click()
        assert await answered(page, 2) == "It rains."
        assert not await page.locator("#results").is_visible()
        await page.locator(".tool").get_by_role("button", name="Edit").click()
        await page.get_by_label("Edited text").fill('{"rain": false}')
        await page.keyboard.press("Enter")
        await playwright.expect(page.locator(".tool .said")).to_have_text('{"rain": false}')
        await answered(page, 2)
    assert (bodies[0]["tools"], bodies[0]["tool_choice"]) == (TOOLS, "required")
    for body, result in ((bodies[1], '{"rain": true}'), (bodies[2], '{"rain": false}')):
        _question, answer, given = body["messages"]
        assert answer["tool_calls"][0]["function"]["name"] == "get_weather"
        assert given == {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": result}


async def test_answers_follow_a_schema_and_are_shown_as_json(browser):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    async with open_page(browser, scripted_engine('{"city":"Seoul"}')) as page:
        await ready(page)
        bodies = sent(page)
        await set_up(page, schema=json.dumps(schema))
        await say(page, "Where?")
        await answered(page)
        assert bodies[0]["response_format"]["json_schema"]["schema"] == schema
        assert await page.locator(".answer pre").inner_text() == '{\n  "city": "Seoul"\n}'
        assert await page.locator(".verdict").inner_text() == "Valid JSON"
        await set_up(page, max_completion_tokens="5")
        await say(page, "Again")
        await answered(page, 2)
        assert "Not valid JSON" in await page.locator(".verdict").nth(1).inner_text()
        assert "cut at its length limit" in await page.locator(".figures").nth(1).inner_text()


async def test_settings_that_a_server_does_not_take_cannot_be_typed(browser):
    async with open_page(browser, scripted_engine("fine"), path="/docs") as page:

        async def tell(route):
            answer = await route.fetch()
            told = await answer.json()
            chat = next(endpoint for endpoint in told["endpoints"] if endpoint["path"] == "/v1/chat/completions")
            chat["fields"]["min_p"]["effect"] = "refused"
            await route.fulfill(json=told)

        await page.route("**/v1/capabilities", tell)
        await page.goto(page.url.replace("/docs", "/"))
        await ready(page)
        await page.click("#open-settings")
        assert await page.locator("#setting-min_p").is_disabled()
        assert "does not take" in await page.locator("#setting-min_p-error").inner_text()
        assert await page.locator("#setting-top_p").is_enabled()
        assert await page.locator("#setting-reasoning").count() == 0
