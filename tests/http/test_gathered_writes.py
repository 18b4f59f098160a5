"""Writes of one turn reach their transports together, in order, and none is lost when a transport closes."""

import asyncio

from limelight.http.gathered_writes import GatheredTransport


class Recording:
    """A transport that notes what happens to it."""

    def __init__(self, name: str, log: list[tuple[str, str, bytes]]) -> None:
        self.name = name
        self.log = log
        self.closed = False

    def write(self, data: bytes) -> None:
        self.log.append((self.name, "write", data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self.log.append((self.name, "close", b""))

    def abort(self) -> None:
        self.closed = True
        self.log.append((self.name, "abort", b""))

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> str:
        return name


def gathered(name, log):
    return GatheredTransport(Recording(name, log), asyncio.get_running_loop(), 1.0)


def test_writes_wait_for_the_callbacks_that_are_ready():
    async def run():
        log = []
        first, second = gathered("first", log), gathered("second", log)
        asyncio.get_running_loop().call_soon(lambda: second.write(b"3"))
        first.write(b"1")
        first.write(b"2")
        first.write(b"")
        assert log == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return log

    assert asyncio.run(run()) == [("first", "write", b"12"), ("second", "write", b"3")]


def test_closing_hands_over_what_is_queued_and_aborting_drops_it():
    async def run():
        log = []
        closed, aborted = gathered("closed", log), gathered("aborted", log)
        closed.write(b"last")
        aborted.write(b"lost")
        closed.close()
        aborted.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return log

    assert asyncio.run(run()) == [
        ("closed", "write", b"last"),
        ("closed", "close", b""),
        ("aborted", "abort", b""),
    ]


def test_what_is_queued_when_the_connection_is_lost_goes_nowhere():
    async def run():
        log, failures = [], []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        transport = Recording("lost", log)
        lost = GatheredTransport(transport, asyncio.get_running_loop(), 1.0)
        lost.write(b"1")
        transport.closed = True
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        lost.write(b"2")
        lost.close()
        return log, failures

    assert asyncio.run(run()) == ([("lost", "close", b"")], [])


def test_everything_else_is_the_transport_s_own():
    async def run():
        return gathered("any", []).get_extra_info("peername")

    assert asyncio.run(run()) == "peername"
