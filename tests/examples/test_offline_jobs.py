"""The batch job and the extraction: over the scripted model, and as they stand over the default one."""

import json

import msgspec
import pytest

from examples import batch_job, extraction
from limelight import LLM
from limelight.testing import scripted_engine
from tests.examples.running import run


def test_the_batch_job_asks_in_slices_and_keeps_the_order(monkeypatch):
    monkeypatch.setattr(batch_job, "PROMPTS_AT_ONCE", 2)
    prompts = ["one", "two", "three"]
    with LLM.from_engine(scripted_engine("yes")) as llm:
        rows = [batch_job.as_row(prompt, answer) for prompt, answer in batch_job.answers(llm, prompts, 10)]
    assert rows == [{"prompt": p, "answer": "yes", "finish_reason": "stop", "tokens": 4} for p in prompts]


@pytest.mark.model
def test_the_batch_job_turns_a_file_into_a_file(tmp_path):
    (tmp_path / "prompts.txt").write_text("Name the capital of France.\n\nWhat is two and two?\n")
    shown = run("examples/batch_job.py", str(tmp_path / "prompts.txt"), str(tmp_path / "answers.jsonl"), may_log=True)
    assert shown == ""
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [row["prompt"] for row in rows] == ["Name the capital of France.", "What is two and two?"]
    assert "Paris" in rows[0]["answer"]


PEOPLE = extraction.People([extraction.Person("Ada Lovelace", 1815, "writer"), extraction.Person("Bo", None, "other")])


@pytest.mark.anyio
async def test_the_extraction_gives_typed_objects():
    async with scripted_engine(msgspec.json.encode(PEOPLE)) as engine:
        assert await extraction.extract(engine, "Ada wrote.", extraction.People) == PEOPLE


@pytest.mark.anyio
async def test_an_object_that_does_not_end_is_an_error():
    endless = msgspec.json.encode(extraction.Person("A" * 1000, None, "other"))

    class Named(msgspec.Struct):
        name: str
        born: None
        role: str

    async with scripted_engine(endless) as engine:
        with pytest.raises(ValueError, match="400 tokens"):
            await extraction.extract(engine, "Ada wrote.", Named)


@pytest.mark.model
def test_the_extraction_prints_a_table():
    lines = run("examples/extraction.py").splitlines()
    assert lines
    for line in lines:
        assert " born " in line
        assert line.split()[-1] in ("writer", "scientist", "other")
