"""The chat bot on a real socket: conversations of several users, interruptions, and users who hang up."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from examples import chat_bot
from limelight.telemetry.timeline import Ending
from limelight.testing import babble, echo, scripted_engine

pytestmark = pytest.mark.anyio

PROMPT = "\n> "


@asynccontextmanager
async def bot(script, **options):
    """An engine, and a function that connects a user to its bot."""
    async with scripted_engine(script, **options) as engine:
        server = await chat_bot.listen(engine, port=0)
        port = server.sockets[0].getsockname()[1]
        writers = []

        async def connect():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            assert await reader.readexactly(2) == b"> "
            return reader, writer

        try:
            yield engine, connect
        finally:
            for writer in writers:
                writer.close()
            server.close()


async def say(user, text):
    """What the bot answers."""
    reader, writer = user
    writer.write(f"{text}\n".encode())
    async with asyncio.timeout(30):
        return (await reader.readuntil(PROMPT.encode())).decode().removesuffix(PROMPT)


async def no_requests(engine):
    async with asyncio.timeout(30):
        while engine.requests():
            await asyncio.sleep(0.01)


async def test_each_user_has_a_conversation_of_their_own():
    async with bot(echo) as (_, connect):
        ann, bob = await connect(), await connect()
        assert await asyncio.gather(say(ann, "I am Ann"), say(bob, "I am Bob")) == [
            "user: I am Ann\nassistant:",
            "user: I am Bob\nassistant:",
        ]
        assert (await say(ann, "again")).count("Ann") == 2
        assert "Ann" not in await say(bob, "again")


async def test_hanging_up_ends_the_request():
    async with bot(babble, step_seconds=0.01) as (engine, connect):
        reader, writer = await connect()
        writer.write(b"talk\n")
        assert await reader.read(1)
        writer.close()
        await no_requests(engine)
        (request,) = engine.requests(recent=1)
    assert request.ending is Ending.ABORTED


async def test_a_new_line_interrupts_the_answer_and_both_stay_in_the_conversation():
    def script(turn):
        prompt = bytes(turn.prompt).decode()
        return echo(turn) if "second" in prompt else babble(turn)

    async with bot(script, step_seconds=0.001) as (engine, connect):
        user = reader, writer = await connect()
        writer.write(b"first\n")
        beginning = await reader.read(1)
        writer.write(b"second\n")
        async with asyncio.timeout(30):
            rest = await reader.readuntil(PROMPT.encode())
            answer = await reader.readuntil(PROMPT.encode())
        interrupted = (beginning + rest).decode().removesuffix(PROMPT)
        assert answer.decode().startswith(f"user: first\nassistant: {interrupted}\nuser: second")
        assert [request.ending for request in engine.requests(recent=2)] == [Ending.COMPLETED, Ending.ABORTED]
        assert await say(user, "third")


async def test_what_the_engine_refuses_is_told_to_the_user():
    async with bot(echo, max_model_len=50) as (_, connect):
        user = await connect()
        assert "50" in await say(user, "x" * 100)
