"""A chat bot on a TCP port, over plain asyncio streams: each user has a conversation, and all share one engine.

python examples/chat_bot.py [MODEL]
telnet 127.0.0.1 4000                 or: nc 127.0.0.1 4000

A new line interrupts the answer that is being written; hanging up ends it. Nobody's tokens are computed for nobody.
"""

import asyncio
import contextlib
import sys

from limelight import Engine, LimelightError, SamplingParams

REMEMBERED_MESSAGES = 20


async def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else None  # None: the default model
    async with Engine(model) as engine:
        server = await listen(engine, port=4000)
        print("talk to me: telnet 127.0.0.1 4000", flush=True)
        try:
            await asyncio.Event().wait()  # until Ctrl-C
        finally:
            server.close()


async def listen(engine: Engine, port: int) -> asyncio.Server:
    async def serve_user(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await converse(engine, reader, writer)

    return await asyncio.start_server(serve_user, "127.0.0.1", port)


async def converse(engine: Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One user, until they hang up."""
    messages: list[dict[str, str]] = []
    answering: asyncio.Task[None] | None = None
    writer.write(b"> ")
    async with asyncio.TaskGroup() as tasks:
        while line := await reader.readline():
            if answering is not None:
                answering.cancel()
                await asyncio.wait([answering])
            messages.append({"role": "user", "content": line.decode(errors="replace").strip()})
            answering = tasks.create_task(answer(engine, messages[-REMEMBERED_MESSAGES:], messages, writer))
        if answering is not None:
            answering.cancel()


async def answer(
    engine: Engine, asked: list[dict[str, str]], messages: list[dict[str, str]], writer: asyncio.StreamWriter
) -> None:
    """Writes the answer to `asked` as it comes, and adds to `messages` as much of it as there was time for."""
    text = ""
    try:
        async with engine.stream_chat(asked, SamplingParams(temperature=0.7, max_tokens=300)) as stream:
            async for delta in stream:
                text += delta.text
                writer.write(delta.text.encode())
                await writer.drain()  # a user who reads slowly gets larger pieces, and slows nobody else
    except LimelightError as error:
        writer.write(f"[{error}]".encode())
    finally:
        messages.append({"role": "assistant", "content": text})
        writer.write(b"\n> ")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
