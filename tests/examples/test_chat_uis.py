"""The settings for Open WebUI and LibreChat: a server has what they name, and takes what those programs send."""

import re
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from limelight.cli.options import build_parser
from limelight.http import HttpSettings
from limelight.testing import echo, scripted_engine
from tests.examples.running import EXAMPLES
from tests.http.wire import HI, serving, streamed

pytestmark = pytest.mark.anyio

KEY = "change-me"
OPEN_WEBUI = yaml.safe_load((EXAMPLES / "open_webui" / "compose.yaml").read_text())["services"]["open-webui"]
LIBRECHAT = yaml.safe_load((EXAMPLES / "librechat" / "librechat.yaml").read_text())
LIBRECHAT_API = yaml.safe_load((EXAMPLES / "librechat" / "docker-compose.override.yml").read_text())["services"]["api"]
(ENDPOINT,) = LIBRECHAT["endpoints"]["custom"]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
OPEN_WEBUI_CHATS = [
    {"stream": True, "stream_options": {"include_usage": True}},
    {
        "stream": True,
        "temperature": 0.8,
        "top_p": 0.9,
        "max_tokens": 20,
        "frequency_penalty": 0.1,
        "seed": 1,
        "stop": ["#"],
    },
    {"stream": True, "presence_penalty": 0.1, "logit_bias": {"65": -5}, "min_p": 0.05, "top_k": 40},
    {"stream": True, "tools": [WEATHER], "reasoning_effort": "low", "max_tokens": 20},
    {"stream": False},  # titles, tags, proposed questions
    {"stream": False, "max_completion_tokens": 20},
]
"""What its settings of a chat and of a model become, and requests of its own; it keeps `metadata` and the like."""
LIBRECHAT_CHATS = [
    {"stream": True, "stream_options": {"include_usage": True}, "user": "6650f1c2a1b2c3d4e5f60718"},
    {
        "stream": True,
        "temperature": 1,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "n": 1,
        "stop": ["#"],
    },
    {"stream": True, "max_tokens": 20, "tools": [WEATHER], "tool_choice": "auto", "parallel_tool_calls": True},
    {"stream": False, "temperature": 0.2, "max_tokens": 20, "user": "6650f1c2a1b2c3d4e5f60718"},  # titles
]
"""LangChain's client, with the settings of a conversation."""


@asynccontextmanager
async def server_at(base_url):
    """A client of a server with a key, as one who was told `base_url` and the key: only the host is another one."""
    settings = HttpSettings(api_keys={"default": KEY})
    async with serving(scripted_engine(echo), settings) as client:
        here = f"{client.base_url}{urlsplit(base_url).path}"
        async with httpx.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, trust_env=False) as told:
            yield here, told


BASE_URLS = {"open_webui": OPEN_WEBUI["environment"]["OPENAI_API_BASE_URL"], "librechat": ENDPOINT["baseURL"]}
CASES = [("open_webui", chat) for chat in OPEN_WEBUI_CHATS] + [("librechat", chat) for chat in LIBRECHAT_CHATS]


@pytest.mark.parametrize("name", BASE_URLS)
async def test_the_container_reaches_the_port_of_limelight_serve(name):
    url = urlsplit(BASE_URLS[name])
    service = {"open_webui": OPEN_WEBUI, "librechat": LIBRECHAT_API}[name]
    assert url.port == build_parser({}).parse_args(["serve"]).port
    assert service["extra_hosts"] == [f"{url.hostname}:host-gateway"]


@pytest.mark.parametrize(("name", "fields"), CASES)
async def test_requests_as_they_send_them_are_answered_and_no_field_is_ignored(name, fields):
    async with server_at(BASE_URLS[name]) as (here, client):
        model = (await client.get(f"{here}/models")).json()["data"][0]["id"]
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ]
        response = await client.post(f"{here}/chat/completions", json={"model": model, "messages": messages, **fields})
    assert response.status_code == 200, response.text
    assert "x-limelight-ignored-fields" not in response.headers
    if not fields["stream"]:
        assert response.json()["choices"][0]["message"]["content"].startswith("system: Be kind.")
        return
    chunks = streamed(response)
    assert "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    if "stream_options" in fields:
        assert chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("name", BASE_URLS)
async def test_without_the_key_both_requests_are_refused(name):
    async with server_at(BASE_URLS[name]) as (here, client):
        client.headers.pop("authorization")
        assert (await client.get(f"{here}/models")).status_code == 401
        assert (await client.post(f"{here}/chat/completions", json={"messages": HI})).status_code == 401


def test_the_key_is_the_variable_that_limelight_serve_reads():
    key = re.compile(r"\$\{LIMELIGHT_API_KEY(:\?[^}]+)?\}")
    assert key.fullmatch(OPEN_WEBUI["environment"]["OPENAI_API_KEY"])
    assert key.fullmatch(ENDPOINT["apiKey"])
    assert key.fullmatch(LIBRECHAT_API["environment"]["LIMELIGHT_API_KEY"])
    options = build_parser({"LIMELIGHT_API_KEY": KEY}).parse_args(["serve"])
    assert options.api_key == [KEY]


def test_open_webui_asks_no_other_server_and_listens_on_this_machine_alone():
    environment = OPEN_WEBUI["environment"]
    assert environment["ENABLE_OLLAMA_API"] == "false"
    assert all(isinstance(value, str) for value in environment.values())
    assert all(port.startswith("127.0.0.1:") for port in OPEN_WEBUI["ports"])


def test_librechats_settings_are_where_the_override_mounts_them():
    (mount,) = LIBRECHAT_API["volumes"]
    assert (EXAMPLES / "librechat" / mount["source"]).is_file()
    assert ENDPOINT["models"] == {"default": ["SmolLM2-135M-Instruct"], "fetch": True}


@pytest.mark.parametrize("name", BASE_URLS)
def test_the_command_of_the_readme_is_one_that_the_program_has(name):
    (command,) = re.findall(r"^limelight serve (.*)$", (EXAMPLES / name / "README.md").read_text(), re.MULTILINE)
    options = build_parser({}).parse_args(["serve", *command.split()])
    assert options.host == "0.0.0.0"
