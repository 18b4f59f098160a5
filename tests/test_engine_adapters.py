"""Adapters of a running engine: loaded, used, unloaded. The scripted model's answers depend on the adapter's id."""

import json
import threading
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from limelight.engine import Engine
from limelight.errors import (
    CheckpointError,
    ConfigError,
    EngineNotRunning,
    InvalidRequest,
    ModelNotFound,
    UnsupportedModel,
)
from limelight.generation import SamplingParams
from limelight.testing import scripted_engine, scripted_model
from limelight.testing.executor import ScriptedExecutor

pytestmark = pytest.mark.anyio
LONG = SamplingParams(max_tokens=40, seed=3)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4, "num_bytes": 1000}))
    return str(tmp_path)


class Gate:
    """Holds steps back until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def __call__(self, step: object) -> None:
        self.reached.set()
        assert self.opened.wait(20)


def loaded_ids(engine: Engine) -> set[int]:
    executor = engine.model.executor
    assert isinstance(executor, ScriptedExecutor)
    return set(executor.adapters.loaded)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_requests_choose_their_adapter_by_name(folder):
    async with scripted_engine() as engine:
        described = await engine.load_adapter("one", folder)
        await engine.load_adapter("two", folder)
        texts = {}
        async with anyio.create_task_group() as group:
            for name in (None, "one", "two"):

                async def ask(name: str | None = name) -> None:
                    texts[name] = (
                        await engine.generate("the same prompt, longer than a page", LONG, adapter=name)
                    ).text

                group.start_soon(ask)
        alone = (await engine.generate("the same prompt, longer than a page", LONG, adapter="two")).text
        assert engine.adapters[0] == described
        assert [adapter.name for adapter in engine.statistics().adapters] == ["one", "two"]
    assert len(set(texts.values())) == 3
    assert texts["two"] == alone
    assert (described.rank, described.num_bytes, described.path, described.num_requests) == (4, 1000, folder, 0)


async def test_adapters_of_the_config_are_there_from_the_start(folder):
    async with scripted_engine(adapters={"one": folder}) as engine:
        assert [adapter.name for adapter in engine.adapters] == ["one"]
        assert (await engine.generate("hi", LONG, adapter="one")).text


async def test_an_adapter_of_the_config_that_cannot_be_loaded_fails_the_start(tmp_path):
    closed = []
    load = scripted_model()

    def watched(config, report):
        model = load(config, report)
        close = model.executor.close
        model.executor.close = lambda: closed.append(close())
        return model

    engine = Engine("scripted", loader=watched, adapters={"one": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError, match="nowhere"):
        await engine.start()
    assert closed == [None]


async def test_equal_prompts_share_pages_within_one_adapter_only(folder):
    prompt = "x" * 100
    async with scripted_engine() as engine:
        await engine.load_adapter("one", folder)
        await engine.load_adapter("two", folder)

        async def cached(adapter: str | None, salt: str | None = None) -> int:
            return (await engine.generate(prompt, LONG, adapter=adapter, cache_salt=salt)).usage.cached_tokens

        assert [await cached("one"), await cached("two"), await cached(None)] == [0, 0, 0]
        assert [await cached("one"), await cached("two"), await cached(None)] == [96, 96, 96]
        assert [await cached("one", "salt"), await cached("one", "salt")] == [0, 96]
        assert await cached(None, "one") == 0  # a salt that is the name of an adapter
        await engine.unload_adapter("one")
        await engine.load_adapter("one", folder)
        assert await cached("one") == 0


async def test_unloading_waits_for_those_who_use_it_and_refuses_new_ones_at_once(folder):
    gate = Gate()
    async with scripted_engine(before_step=gate) as engine:
        await engine.load_adapter("one", folder)
        done = []

        async def unload() -> None:
            await engine.unload_adapter("one")
            done.append(True)

        async with anyio.create_task_group() as group, engine.stream("hi", LONG, adapter="one") as stream:
            group.start_soon(unload)
            await turns()
            assert (done, engine.adapters) == ([], ())
            with pytest.raises(ModelNotFound, match="'one'"):
                await engine.generate("hi", LONG, adapter="one")
            with pytest.raises(ModelNotFound):
                await engine.unload_adapter("one")
            assert loaded_ids(engine) == {1}
            gate.opened.set()
            assert (await stream.result()).usage.completion_tokens == 40
        assert done == [True]
        assert loaded_ids(engine) == set()


async def test_the_name_is_free_again_while_the_old_one_is_still_in_use(folder):
    gate = Gate()
    async with scripted_engine(before_step=gate) as engine:
        await engine.load_adapter("one", folder)
        async with anyio.create_task_group() as group, engine.stream("hi", LONG, adapter="one") as stream:
            group.start_soon(engine.unload_adapter, "one")
            await turns()
            loading: list[str] = []

            async def load() -> None:
                loading.append((await engine.load_adapter("one", folder)).name)

            group.start_soon(load)
            gate.opened.set()
            old = await stream.result()
        new = await engine.generate("hi", LONG, adapter="one")
        assert loaded_ids(engine) == {2}
    assert loading == ["one"]
    assert old.text != new.text


async def test_a_cancelled_request_lets_its_adapter_go(folder):
    gate = Gate()
    async with scripted_engine(before_step=gate) as engine:
        await engine.load_adapter("one", folder)
        async with engine.stream("hi", LONG, adapter="one"):
            await anyio.to_thread.run_sync(gate.reached.wait)
            assert engine.adapters[0].num_requests == 1
        gate.opened.set()
        await engine.unload_adapter("one")
        assert loaded_ids(engine) == set()


async def test_a_request_that_could_not_be_made_holds_no_adapter(folder, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    async with scripted_engine(adapters={"one": folder}) as engine:
        monkeypatch.setattr("limelight.actors.request.Choice", broken)
        with pytest.raises(ZeroDivisionError):
            await engine.generate("hi", LONG, adapter="one")
        assert engine.adapters[0].num_requests == 0
        with anyio.fail_after(60):
            await engine.unload_adapter("one")


async def test_giving_up_the_wait_for_an_unload_does_not_keep_the_adapter(folder):
    gate = Gate()
    async with scripted_engine(before_step=gate) as engine:
        await engine.load_adapter("one", folder)
        async with engine.stream("hi", LONG, adapter="one") as stream:
            with anyio.move_on_after(0):
                await engine.unload_adapter("one")
            assert engine.adapters == ()
            gate.opened.set()
            await stream.result()
        await engine.load_adapter("two", folder)  # the runner answers in order
        assert loaded_ids(engine) == {2}


async def test_a_load_that_fails_changes_nothing(folder, tmp_path):
    async with scripted_engine(max_loras=2) as engine:
        await engine.load_adapter("one", folder)
        before = engine.adapters
        for name, path, error in (
            ("two", str(tmp_path / "nowhere"), CheckpointError),
            ("one", folder, InvalidRequest),
            ("scripted", folder, InvalidRequest),
            ("", folder, InvalidRequest),
            ("new\nline", folder, InvalidRequest),
            ("x" * 201, folder, InvalidRequest),
            ("a//b", folder, InvalidRequest),
            ("a/../b", folder, InvalidRequest),
            ("one/", folder, InvalidRequest),
        ):
            with pytest.raises(error):
                await engine.load_adapter(name, path)
        assert engine.adapters == before
        await engine.load_adapter("two", folder)
        with pytest.raises(InvalidRequest, match="max_loras"):
            await engine.load_adapter("three", folder)
        await engine.unload_adapter("one")
        await engine.load_adapter("three", folder)
        assert [adapter.name for adapter in engine.adapters] == ["two", "three"]


def loader_with_slow_files(entered: threading.Event, go_on: threading.Event):
    load = scripted_model()

    def slow(config, report):
        model = load(config, report)
        read = model.adapters.read

        def read_slowly(path, report):
            entered.set()
            assert go_on.wait(20)
            return read(path, report)

        model.adapters.read = read_slowly
        return model

    return slow


async def test_others_go_on_while_files_are_read(folder):
    entered, go_on = threading.Event(), threading.Event()
    async with Engine("scripted", loader=loader_with_slow_files(entered, go_on)) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.load_adapter, "one", folder)
            await anyio.to_thread.run_sync(entered.wait)
            assert (await engine.generate("hi", LONG)).usage.completion_tokens == 40
            assert engine.adapters == ()
            with pytest.raises(InvalidRequest, match="in use"):
                await engine.load_adapter("one", folder)
            go_on.set()
        assert [adapter.name for adapter in engine.adapters] == ["one"]


async def test_a_load_that_is_cancelled_changes_nothing(folder):
    entered, go_on = threading.Event(), threading.Event()
    async with Engine("scripted", loader=loader_with_slow_files(entered, go_on), max_loras=1) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.load_adapter, "one", folder)
            await anyio.to_thread.run_sync(entered.wait)
            group.cancel_scope.cancel()
        go_on.set()
        await engine.load_adapter("one", folder)
        assert loaded_ids(engine) == {2}


async def test_loads_that_nobody_waits_for_any_more_are_not_read(folder):
    """A client that asks and leaves, again and again, would else queue reads without end before those of others."""
    entered, go_on = threading.Event(), threading.Event()
    paths = []

    def load(config, report):
        model = loader_with_slow_files(entered, go_on)(config, report)
        read = model.adapters.read
        model.adapters.read = lambda path, report: (paths.append(path), read(path, report))[1]
        return model

    async with Engine("scripted", loader=load, max_loras=2) as engine:
        for name in ("one", "two", "three"):
            async with anyio.create_task_group() as group:
                group.start_soon(engine.load_adapter, name, f"{folder}/../{name}")
                await anyio.to_thread.run_sync(entered.wait)  # by the first one, which holds the thread from now on
                await turns()
                group.cancel_scope.cancel()
        go_on.set()
        await engine.load_adapter("one", folder)
        assert paths == [f"{folder}/../one", folder]
        assert loaded_ids(engine) == {4}


async def test_a_load_that_is_cancelled_when_the_model_has_it_takes_it_back(folder):
    gate = Gate()
    async with scripted_engine(before_step=gate, max_loras=1) as engine:
        async with engine.stream("hi", LONG) as stream:
            await anyio.to_thread.run_sync(gate.reached.wait)  # the submit thread is busy: nothing is put yet
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(engine.load_adapter, "one", folder)
                    adapters = engine._system.parts.adapters
                    while not any(adapter.is_known for adapter in adapters._by_id.values()):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()
            gate.opened.set()
            await stream.result()
        await engine.generate("hi", LONG)
        assert (engine.adapters, loaded_ids(engine)) == ((), set())
        await engine.load_adapter("one", folder)


async def test_stopping_the_engine_ends_a_load_and_an_unload_that_wait(folder):
    gate = Gate()
    errors = []

    async def failing(call, *arguments) -> None:
        try:
            await call(*arguments)
        except EngineNotRunning as error:
            errors.append(error)

    engine = scripted_engine(before_step=gate)
    await engine.start()
    await engine.load_adapter("one", folder)
    async with anyio.create_task_group() as group:
        stream = engine.stream("hi", LONG, adapter="one")
        await stream.__aenter__()
        await anyio.to_thread.run_sync(gate.reached.wait)
        group.start_soon(failing, engine.unload_adapter, "one")
        group.start_soon(failing, engine.load_adapter, "two", folder)
        await turns()
        group.start_soon(engine.stop)
        with anyio.fail_after(60):
            while len(errors) < 2:
                await anyio.lowlevel.checkpoint()
        gate.opened.set()
        await stream.__aexit__(None, None, None)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("limelight")]


async def test_a_model_without_adapters_says_so(folder):
    def plain(config, report):
        import msgspec

        return msgspec.structs.replace(scripted_model()(config, report), adapters=None)

    async with Engine("scripted", loader=plain) as engine:
        with pytest.raises(UnsupportedModel, match="takes no LoRA"):
            await engine.load_adapter("one", folder)
        assert (await engine.generate("hi", LONG)).text
        with pytest.raises(ModelNotFound):
            await engine.generate("hi", LONG, adapter="one")
    with pytest.raises(UnsupportedModel):
        await Engine("scripted", loader=plain, adapters={"one": folder}).start()


def test_impossible_settings_are_refused():
    for options in ({"max_loras": 0}, {"max_lora_rank": 0}, {"max_loras": 1, "adapters": {"a": "x", "b": "y"}}):
        with pytest.raises(ConfigError):
            scripted_engine(**options)


async def test_choices_preemption_and_two_steps_in_flight_keep_their_adapter(folder):
    """Few pages, so that sequences are preempted; the scripted pages complain of any mixture of adapters."""

    async def texts(num_pages: int, depth: int) -> list[list[str]]:
        found: list[list[str]] = [[] for _ in range(6)]
        async with scripted_engine(num_pages=num_pages, pipeline_depth=depth, page_size=8) as engine:
            await engine.load_adapter("one", folder)
            await engine.load_adapter("two", folder)

            async def ask(number: int) -> None:
                sampling = SamplingParams(max_tokens=30, seed=number, n=2)
                adapter = (None, "one", "two")[number % 3]
                generation = await engine.generate("a prompt of some length", sampling, adapter=adapter)
                found[number] = [output.text for output in generation.outputs]

            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(ask, number)
            if num_pages < 100:
                assert engine.statistics().num_preemptions > 0
        return found

    roomy = await texts(512, 1)
    assert await texts(20, 1) == roomy
    assert await texts(20, 2) == roomy
