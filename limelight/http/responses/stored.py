"""A response as it is kept: JSON for the most part, so that what it costs is known to the byte."""

from collections.abc import Iterator

import msgspec

from limelight.http.protocol.responses.items import Item
from limelight.http.protocol.responses.objects import FINAL, ResponseObject
from limelight.http.recording import Recording
from limelight.http.responses.run import ResponseRun

OVERHEAD_BYTES = 1024
"""What keeping a response costs beside its content."""


class _Output(msgspec.Struct, frozen=True):
    """The output of a response, as items that can be sent."""

    output: list[Item]


_response = msgspec.json.Decoder(ResponseObject)
_items = msgspec.json.Decoder(list[Item])
_output = msgspec.json.Decoder(_Output)


class StoredResponse:
    """One response of `owner`, and the one that it continues, which it keeps alive.

    Attributes:
        created_at: on the store's clock.
        input_json: the items that came with the request, references resolved.
        run: the response in the making; None once it has ended.
        recording: what makes it and keeps its events, if it runs in the background.
        item_ids: of its input and, when it has ended, of its output.
        num_holders: how many of the store and of later responses hold on to it.
    """

    __slots__ = (
        "_json",
        "created_at",
        "id",
        "input_json",
        "item_ids",
        "num_holders",
        "owner",
        "parent",
        "recording",
        "run",
    )

    def __init__(
        self,
        owner: str,
        response: ResponseObject,
        items: tuple[Item, ...],
        parent: "StoredResponse | None",
        created_at: float,
        run: ResponseRun | None = None,
    ) -> None:
        self.id = response.id
        self.owner = owner
        self.parent = parent
        self.created_at = created_at
        self.input_json = msgspec.json.encode(items)
        self.num_holders = 0
        self.run = run
        self.recording: Recording | None = None
        self.item_ids = [item.id for item in items]
        self._json = b""
        if run is None:
            self.end(response)

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.run is not None

    @property
    def num_bytes(self) -> int:
        """What it takes in memory, without its events."""
        return len(self._json) + len(self.input_json) + OVERHEAD_BYTES

    def end(self, response: ResponseObject) -> None:
        """It has ended as `response`."""
        assert response.status in FINAL
        self._json = msgspec.json.encode(response)
        self.item_ids += [item.id for item in response.output]
        self.run = None

    def json(self) -> bytes:
        """The response as it is now."""
        return msgspec.json.encode(self.run.response) if self.run else self._json

    def response(self) -> ResponseObject:
        """The response as it is now."""
        return self.run.response if self.run else _response.decode(self._json)

    def input_items(self) -> list[Item]:
        """The items that came with the request."""
        return _items.decode(self.input_json)

    def items(self) -> list[Item]:
        """The items of its input and output; it must have ended."""
        return [*self.input_items(), *_output.decode(self._json).output]

    def conversation(self) -> list[Item]:
        """Everything said up to the end of this response, from the first one on; it must have ended."""
        lineage = [self, *self._ancestors()]
        return [item for stored in reversed(lineage) for item in stored.items()]

    def _ancestors(self) -> Iterator["StoredResponse"]:
        parent = self.parent
        while parent is not None:
            yield parent
            parent = parent.parent
