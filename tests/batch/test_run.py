"""Many lines through an engine in this process."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from limelight.batch.input_file import read_lines
from limelight.batch.output_file import OutputLine
from limelight.batch.run import run_lines
from limelight.engine import Engine
from limelight.errors import EngineFailed, EngineNotRunning, LimelightError
from limelight.testing import echo, scripted_engine
from tests.batch.batch_lines import request, written
from tests.http.wire import HI, serving

pytestmark = pytest.mark.anyio


async def answered(engine: Engine, path: Path) -> dict[str | None, OutputLine]:
    """What came out, by `custom_id`."""
    lines: list[OutputLine] = []
    async with engine:
        await run_lines(engine, read_lines(path), lines.append)
        assert engine.statistics().num_requests == 0
    return {line.custom_id: line for line in lines}


def body_of(line: OutputLine) -> Any:
    assert line.response is not None
    return json.loads(bytes(line.response.body))


async def test_every_answer_is_the_one_that_http_gives(tmp_path: Path) -> None:
    chat = {"model": "scripted", "messages": HI, "max_tokens": 5, "seed": 3, "n": 2, "logprobs": True}
    bodies = {
        "chat": ("/v1/chat/completions", chat),
        "text": ("/v1/completions", {"model": "scripted", "prompt": ["a", "b"], "max_tokens": 3, "seed": 1}),
        "message": ("/v1/messages", {"model": "scripted", "messages": HI, "max_tokens": 4}),
        "response": ("/v1/responses", {"model": "scripted", "input": "hi", "store": False}),
        "embedding": ("/v1/embeddings", {"model": "scripted", "input": ["hi", "ho"]}),
        "none": ("/v1/completions", {"model": "nope", "prompt": "a"}),
        "slip": ("/v1/completions", {"model": "scripted", "prompt": "a", "temprature": 1}),
        "long": ("/v1/completions", {"model": "scripted", "prompt": "x" * 3000}),
    }
    lines = [{"custom_id": name, "method": "POST", "url": url, "body": body} for name, (url, body) in bodies.items()]
    found = await answered(scripted_engine(echo), written(tmp_path / "in", *lines))
    async with serving(scripted_engine(echo)) as client:
        for name, (url, body) in bodies.items():
            over_http = await client.post(url, json=body)
            response = found[name].response
            assert response is not None
            assert response.status_code == over_http.status_code
            assert alike(body_of(found[name])) == alike(over_http.json())


OWN = ("id", "request_id", "created", "created_at", "completed_at")


def alike(body: Any) -> Any:
    """Without what no two answers have in common."""
    if isinstance(body, list):
        return [alike(value) for value in body]
    if isinstance(body, dict):
        return {name: alike(value) for name, value in body.items() if name not in OWN}
    return body


async def test_answers_belong_to_their_lines_whatever_order_they_complete_in(tmp_path: Path) -> None:
    lines = [request(f"{number}", prompt=f"{number:03}", max_tokens=1 + number % 4) for number in range(60)]
    found = await answered(scripted_engine(echo, max_num_seqs=8), written(tmp_path / "in", *lines))
    for number in range(60):
        assert (
            body_of(found[f"{number}"])["choices"][0]["text"] == f"{number:03}"[: number % 4]
        )  # begins with <|begin|>


async def test_lines_run_together(tmp_path: Path) -> None:
    num_chunks = []
    engine = scripted_engine(before_step=lambda step: num_chunks.append(len(step.chunks)), max_num_seqs=4)
    await answered(engine, written(tmp_path / "in", *(request(f"{number}", max_tokens=20) for number in range(12))))
    assert max(num_chunks) == 4


async def test_an_engine_that_is_full_is_waited_for(tmp_path: Path) -> None:
    """Each line has more prompts than the others leave room for, so that most are refused at first."""
    lines = [request(f"{number}", prompt=["a", "b", "c"], max_tokens=2) for number in range(4)]
    engine = scripted_engine(max_num_requests=4)
    found = await answered(engine, written(tmp_path / "in", *lines))
    assert [line.response and line.response.status_code for line in found.values()] == [200] * 4


async def test_a_step_that_fails_costs_its_requests_and_no_others(tmp_path: Path) -> None:
    def fail(step: Any) -> None:
        if step.number == 3:
            raise RuntimeError

    lines = [request(f"{number}", max_tokens=6) for number in range(4)]
    found = await answered(scripted_engine(before_step=fail, max_num_seqs=1), written(tmp_path / "in", *lines))
    assert sorted(line.response.status_code for line in found.values() if line.response) == [200, 200, 200, 500]


async def test_an_engine_that_fails_ends_the_run_and_becomes_no_line(tmp_path: Path) -> None:
    def fail(step: Any) -> None:
        if step.number == 3:
            raise EngineFailed("the device fell off the bus")

    lines: list[OutputLine] = []
    path = written(tmp_path / "in", *(request(f"{number}", max_tokens=9) for number in range(5)))
    async with scripted_engine(before_step=fail) as engine:
        with pytest.raises(EngineFailed, match="fell off the bus"):
            await run_lines(engine, read_lines(path), lines.append)
    assert lines == []


async def test_an_engine_that_is_stopped_ends_the_run_and_becomes_no_line(tmp_path: Path) -> None:
    lines: list[OutputLine] = []
    path = written(tmp_path / "in", *(request(f"{number}", max_tokens=1000) for number in range(5)))
    engine = scripted_engine(step_seconds=0.01)
    await engine.start()
    failures: list[LimelightError] = []

    async def run() -> None:
        try:
            await run_lines(engine, read_lines(path), lines.append)
        except LimelightError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        while not engine.statistics().num_running:
            await anyio.lowlevel.checkpoint()
        await engine.stop()
    assert [type(failure) for failure in failures] == [EngineNotRunning]
    assert lines == []


async def test_what_writing_raises_comes_out_as_it_is_and_ends_everything(tmp_path: Path) -> None:
    def full(_line: OutputLine) -> None:
        raise OSError(28, "No space left on device")

    path = written(tmp_path / "in", *(request(f"{number}") for number in range(5)))
    async with scripted_engine() as engine:
        with pytest.raises(OSError, match="No space left"):
            await run_lines(engine, read_lines(path), full)
        while engine.statistics().num_requests:
            await anyio.lowlevel.checkpoint()


async def test_a_run_that_is_cancelled_leaves_nothing_running(tmp_path: Path) -> None:
    path = written(tmp_path / "in", *(request(f"{number}", max_tokens=2000) for number in range(5)))
    async with scripted_engine(step_seconds=0.01) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(run_lines, engine, read_lines(path), lambda _: None)
            while not engine.statistics().num_running:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        while engine.statistics().num_requests:
            await anyio.lowlevel.checkpoint()


async def test_input_is_read_as_it_is_needed(tmp_path: Path) -> None:
    num_read = 0
    ahead = []

    def counted() -> Iterator[Any]:
        nonlocal num_read
        for line in read_lines(path):
            num_read += 1
            yield line

    path = written(tmp_path / "in", *(request(f"{number}", max_tokens=2) for number in range(50)))
    lines: list[OutputLine] = []

    def write(line: OutputLine) -> None:
        lines.append(line)
        ahead.append(num_read - len(lines))

    async with scripted_engine(max_num_seqs=2) as engine:
        await run_lines(engine, counted(), write)
    assert len(lines) == 50
    assert max(ahead) <= 4
