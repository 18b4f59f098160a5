"""The LoRA adapters of a running engine: names, who uses them, and their way in and out of the model runner.

Lives on the event loop. Files are read on a thread of its own while steps go on; the model runner puts an adapter into
the model, or drops it, between two steps. An adapter that is unloaded is found by no new request at once, and dropped
when the last request that uses it has ended.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from limelight.actors.channel import Sender
from limelight.actors.messages import DropAdapter, PutAdapter, ToModelRunner
from limelight.actors.outcome import mark_heard, settle
from limelight.actors.worker_thread import WorkerThreads
from limelight.errors import EngineNotRunning, InvalidRequest, ModelNotFound, UnsupportedModel
from limelight.models.loaded_model import AdapterLoader, AdapterWeights, LoadedModel
from limelight.progress import Report
from limelight.quoting import quoted
from limelight.telemetry.statistics import LoadedAdapter

logger = logging.getLogger(__name__)

MAX_NAME_CHARACTERS = 200
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Adapter:
    """From the call that loads it to the moment its memory is free.

    Attributes:
        id: never given twice, so that pages of one adapter are never taken for another's of the same name.
        is_known: whether the runner has it, or will have: it must then be dropped.
        num_requests: live ones that use it.
        leaving: resolved when it has been dropped; None until it is unloaded.
    """

    id: int
    name: str
    path: str
    rank: int = 0
    num_bytes: int = 0
    is_known: bool = False
    num_requests: int = 0
    leaving: asyncio.Future[None] | None = None


class Adapters:
    """The table of adapters.

    Args:
        limit: adapters at once, those included that are being loaded or still in use after `unload`.
        runner: told to put and to drop.
        report: told what a download does; raises to end it.
    """

    def __init__(self, limit: int, runner: Sender[ToModelRunner], report: Report) -> None:
        self._limit = limit
        self._runner = runner
        self._report = report
        self._loader: AdapterLoader | None = None
        self._reserved: set[str] = set()
        self._by_name: dict[str, _Adapter] = {}
        self._by_id: dict[int, _Adapter] = {}
        self._num_given = 0
        self._threads: WorkerThreads | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def begin(self, model: LoadedModel, model_name: str, adapters: Iterable[tuple[str, str]]) -> None:
        """Load `adapters` (name, path) before the first step; on the model runner's thread, which is the only one yet.

        Raises:
            InvalidRequest: a name is impossible.
            ModelError: an adapter cannot be loaded.
        """
        self._loader = model.adapters
        self._reserved.add(model_name)
        for name, path in adapters:
            adapter, loader = self._reserve(name, path)
            weights = loader.read(path, self._report)
            loader.put(adapter.id, weights)
            adapter.is_known = True
            self._publish(adapter, weights)

    async def load(self, name: str, path: str) -> LoadedAdapter:
        """Load an adapter; requests find it when this returns. If it fails or is cancelled, nothing has changed.

        Raises:
            InvalidRequest: the name is impossible or in use, or there are too many adapters.
            ModelError: the adapter cannot be loaded.
            EngineNotRunning: the engine is being stopped.
        """
        adapter, loader = self._reserve(name, path)
        given_up = threading.Event()
        try:
            if self._threads is None:
                self._threads = WorkerThreads("limelight-adapters")
            weights = await self._outcome(self._threads.call(partial(self._read, loader, path, given_up)))
            await self._put(adapter, weights)
        except BaseException:
            given_up.set()
            self._reserved.discard(name)
            if adapter.is_known:
                self._drop(adapter)
            else:
                del self._by_id[adapter.id]
            raise
        self._publish(adapter, weights)
        return _described(adapter)

    async def unload(self, name: str) -> None:
        """Let no new request find the adapter, and return when its memory is free.

        That is when the last request that uses it has ended. Cancelling the wait takes nothing back.

        Raises:
            ModelNotFound: there is no such adapter.
            EngineNotRunning: the engine was stopped meanwhile, and the memory is free all the same.
        """
        adapter = self._by_name.pop(name, None)
        if adapter is None:
            raise ModelNotFound(f"there is no adapter {quoted(name)}; {self._listed()}", param="lora_name")
        adapter.leaving = asyncio.get_running_loop().create_future()
        if not adapter.num_requests:
            self._drop(adapter)
        await self._outcome(adapter.leaving)

    def hold(self, name: str) -> int:
        """Id of the adapter for one more request, which gives it back with `release`.

        Raises:
            ModelNotFound: there is no such adapter.
        """
        adapter = self._by_name.get(name)
        if adapter is None:
            raise ModelNotFound(f"there is no adapter {quoted(name)}; {self._listed()}", param="model")
        adapter.num_requests += 1
        return adapter.id

    def release(self, adapter_id: int) -> None:
        """A request has ended, and no step that is told to the runner from now on carries it."""
        adapter = self._by_id[adapter_id]
        adapter.num_requests -= 1
        if adapter.leaving is not None and not adapter.num_requests:
            self._drop(adapter)

    def described(self) -> tuple[LoadedAdapter, ...]:
        """Those that requests find, in the order of loading."""
        return tuple(map(_described, list(self._by_name.values())))

    def end(self) -> None:
        """Whoever waits hears that the engine is being stopped; nothing more is told to the runner."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def close(self) -> None:
        """End the thread, after the file that it reads."""
        self.end()
        if self._threads is not None:
            await self._threads.close()

    def _reserve(self, name: str, path: str) -> tuple[_Adapter, AdapterLoader]:
        if self._loader is None:
            raise UnsupportedModel(
                "this model takes no LoRA adapters: only models that run on Limelight's own layers do"
            )
        if self._ended.done():
            raise EngineNotRunning("the engine is being stopped")
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARACTERS or not name.isprintable():
            raise InvalidRequest(
                f"the adapter's name is {quoted(name)}; it must have 1 to {MAX_NAME_CHARACTERS} printable characters",
                param="lora_name",
            )
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise InvalidRequest(
                f"the adapter's name is {quoted(name)}; between its slashes there must be more than dots, because "
                "addresses of the API hold the name as a path",
                param="lora_name",
            )
        if name in self._reserved or name in self._by_name:
            raise InvalidRequest(
                f"the name {quoted(name)} is in use; choose another one, or unload the adapter of this name first",
                param="lora_name",
            )
        if len(self._by_id) >= self._limit:
            raise InvalidRequest(
                f"{len(self._by_id)} adapters are loaded, being loaded or still in use, the limit is {self._limit}; "
                "unload one first, or raise max_loras",
                param="lora_name",
            )
        self._num_given += 1
        adapter = _Adapter(self._num_given, name, path)
        self._by_id[adapter.id] = adapter
        self._reserved.add(name)
        return adapter, self._loader

    def _read(self, loader: AdapterLoader, path: str, given_up: threading.Event) -> AdapterWeights:
        """On the thread. What nobody waits for any more isn't begun, and not downloaded to its end: others queue."""

        def report(what: str, fraction: float | None) -> None:
            if given_up.is_set():
                raise EngineNotRunning("nobody waits for this adapter any more")
            self._report(what, fraction)

        report("adapter", None)
        return loader.read(path, report)

    def _publish(self, adapter: _Adapter, weights: AdapterWeights) -> None:
        adapter.rank, adapter.num_bytes = weights.rank, weights.num_bytes
        self._reserved.discard(adapter.name)
        self._by_name[adapter.name] = adapter

    async def _put(self, adapter: _Adapter, weights: AdapterWeights) -> None:
        """Tell the runner, and wait for its answer."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._runner.tell(PutAdapter(adapter.id, weights, partial(settle, outcome)))
        adapter.is_known = True
        try:
            await self._outcome(outcome)
        finally:
            if outcome.done() and outcome.exception() is not None:
                adapter.is_known = False

    def _drop(self, adapter: _Adapter) -> None:
        """The last steps that use it have been told to the runner before, and messages keep their order."""
        if not self._ended.done():
            self._runner.tell(DropAdapter(adapter.id, partial(self._dropped, adapter)))

    def _dropped(self, adapter: _Adapter, error: Exception | None) -> None:
        if error is not None:
            logger.error("adapter %s could not be dropped", adapter.name, exc_info=error)
        del self._by_id[adapter.id]
        if adapter.leaving is not None:
            settle(adapter.leaving, error)

    async def _outcome(self, outcome: "asyncio.Future[T]") -> T:
        """What `outcome` becomes, unless the engine ends before."""
        either: set[asyncio.Future[Any]] = {outcome, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            outcome.add_done_callback(mark_heard)
            raise
        if not outcome.done():
            outcome.add_done_callback(mark_heard)
            raise EngineNotRunning("the engine was stopped meanwhile")
        return outcome.result()

    def _listed(self) -> str:
        return f"the loaded ones are {', '.join(self._by_name)}" if self._by_name else "none is loaded"


def _described(adapter: _Adapter) -> LoadedAdapter:
    return LoadedAdapter(
        name=adapter.name,
        path=adapter.path,
        rank=adapter.rank,
        num_bytes=adapter.num_bytes,
        num_requests=adapter.num_requests,
    )
