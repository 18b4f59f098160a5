"""The edge between two actors: a bounded queue whose sender never waits and whose receiver takes all that is there.

A send appends to a deque and, if the receiver sleeps, resolves one future: one step that feeds 64 requests costs 64
appends. Nothing here is thread-safe; threads come in through `loop.call_soon_threadsafe(sender.tell, message)`.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

Message = TypeVar("Message")
MessageIn = TypeVar("MessageIn", contravariant=True)


class ChannelOverflow(RuntimeError):
    """More messages than the edge can hold by construction: a bug in the protocol, not a load condition."""


class Sender(Generic[MessageIn]):
    """The send half. Cheap, hashable by identity, safe to put into messages."""

    __slots__ = ("_channel",)

    def __init__(self, channel: "Channel[MessageIn]") -> None:
        self._channel = channel

    def tell(self, message: MessageIn) -> bool:
        """Queue `message` and return at once.

        Returns:
            False if the receiver has closed its end; the message is dropped then.

        Raises:
            ChannelOverflow: the channel already holds `capacity` messages.
        """
        return self._channel.put(message)

    @property
    def closed(self) -> bool:
        """Whether nobody receives any more. May be read from any thread."""
        return self._channel.closed


class Channel(Generic[Message]):
    """The receive half, owned by one actor.

    Args:
        name: for error messages.
        capacity: upper bound that the protocol guarantees; exceeding it raises in the sender.
    """

    __slots__ = ("_capacity", "_closed", "_messages", "_name", "_waiter", "sender")

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self._capacity = capacity
        self._messages: deque[Message] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self.sender: Sender[Message] = Sender(self)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    async def drain(self) -> list[Message]:
        """Wait until there is a message, then take everything queued, in order.

        Cancellation takes nothing: the messages stay queued.
        """
        while not self._messages:
            assert self._waiter is None, f"{self._name} has one receiver"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self.take()

    def take(self) -> list[Message]:
        """Take everything queued without waiting; may be empty."""
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def close(self) -> list[Message]:
        """Refuse further messages and return those that nobody received. Idempotent, never waits."""
        self._closed = True
        return self.take()

    def put(self, message: Message) -> bool:
        """What `Sender.tell` does; for the send half only."""
        if self._closed:
            return False
        if len(self._messages) >= self._capacity:
            raise ChannelOverflow(
                f"channel {self._name} holds {self._capacity} messages; its sender broke the protocol"
            )
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        return True
