"""Writes docs/images/requests.png: the page of requests while the default model serves several chats and a long prompt.

Needs Chromium and the package `playwright` (`make setup` installs it), and takes a minute.
"""

import argparse
import asyncio
import random
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from playwright.async_api import Page, ViewportSize, async_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "requests.png"
SIZE = ViewportSize(width=1280, height=1100)
SUBJECTS = ("the sea", "a lighthouse", "trains", "bread", "the moon", "chess", "rain in Seoul", "owls")


async def main(arguments: Sequence[str] | None = None) -> None:
    """Start a server, send it requests, and take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=5, help="chats at once")
    parser.add_argument("--after", type=float, default=25.0, help="seconds of traffic before the picture")
    options = parser.parse_args(arguments)
    async with server() as address, httpx.AsyncClient(base_url=address, timeout=600, trust_env=False) as client:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]
        chance = random.Random(5)  # noqa: S311 - what chats are about is no secret
        users = [asyncio.create_task(chats(client, model, chance, number)) for number in range(options.users)]
        users.append(asyncio.create_task(reports(client, model, chance)))
        async with async_playwright() as browsers:
            browser = await browsers.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = await (await browser.new_context(viewport=SIZE, locale="en-GB")).new_page()
            await page.goto(f"{address}/ui/requests")
            await asyncio.sleep(options.after)
            await take(page)
            await browser.close()
        for user in users:
            user.cancel()
        await asyncio.gather(*users, return_exceptions=True)


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """Address of a `limelight serve` of the default model."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "limelight", "serve", "--port", str(port), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async for line in process.stdout:
        if b"open http" in line:
            break
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.communicate()


async def chats(client: httpx.AsyncClient, model: str, chance: random.Random, number: int) -> None:
    """One chat after another; now and then somebody leaves in the middle."""
    await asyncio.sleep(0.6 * number)
    while True:
        text = f"Write about {chance.choice(SUBJECTS)}."
        await stream(client, model, text, chance.randrange(30, 220), stay=chance.random() > 0.15)
        await asyncio.sleep(chance.uniform(0.1, 1.5))


async def reports(client: httpx.AsyncClient, model: str, chance: random.Random) -> None:
    """Long prompts, and one that no context holds."""
    while True:
        await asyncio.sleep(5)
        words = " ".join(chance.choice(SUBJECTS) for _ in range(600))
        await stream(client, model, f"Summarize: {words}", 60)
        await stream(client, model, "word " * 20_000, 10)


async def stream(client: httpx.AsyncClient, model: str, text: str, max_tokens: int, *, stay: bool = True) -> None:
    """One streamed answer, to its end or, if nobody stays, to its twentieth line."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_completion_tokens": max_tokens,
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        number = 0
        async for _ in response.aiter_lines():
            number += 1
            if number == 20 and not stay:
                return


async def take(page: Page) -> None:
    """The picture, while a prompt is being read if one is."""
    try:
        await page.locator('#running [data-phase="prefill"]').first.wait_for(timeout=20_000)
    finally:
        await page.screenshot(path=PICTURE)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    asyncio.run(main())
