"""`limelight replay` over scripted models: what it tells, and its exit codes."""

import asyncio
import json
from pathlib import Path

import pytest

from limelight.cli import main
from limelight.generation import SamplingParams
from limelight.testing import babble, scripted_engine, scripted_model
from tests.replay.recorded import ask

SAME = scripted_model(babble)
OTHER = scripted_model(lambda turn: ord("!") if turn.number == 4 else babble(turn))


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    async def record() -> None:
        async with scripted_engine(babble, record_dir=str(tmp_path)) as engine:
            await asyncio.gather(
                ask(engine, "one", "hello", SamplingParams(max_tokens=9, seed=1)),
                ask(engine, "other", "hi", SamplingParams(max_tokens=9)),
            )

    asyncio.run(record())
    return str(tmp_path / "one.replay.json")


@pytest.mark.parametrize("how", [[], ["--as-scheduled"]])
def test_the_same_tokens_are_exit_code_0(bundle, how, capsys):
    assert main(["replay", bundle, *how], loader=SAME) == 0
    output, told = capsys.readouterr()
    neighbours = "with its neighbours" if how else "alone"
    assert output.startswith(f"same: 9 of 9 recorded tokens compared, {neighbours}\n")
    assert "replaying one: 6 prompt tokens" in told


def test_another_token_is_exit_code_1_and_named(bundle, capsys):
    assert main(["replay", bundle, "--num-threads", "1"], loader=OTHER) == 1
    output = capsys.readouterr().out
    assert output.startswith("different, alone: first at output token 4 (step ")
    assert "got 33 '!'" in output
    assert "may explain it:\n  config num_threads: None -> 1" in output


def test_a_program_gets_json(bundle, capsys):
    assert main(["replay", bundle, "--json"], loader=OTHER) == 1
    verdict = json.loads(capsys.readouterr().out)
    assert verdict["same"] is False
    assert verdict["first_difference"]["position"] == 4
    assert verdict["first_difference"]["got_text"] == "!"
    assert verdict["num_recorded"] == 9


def test_what_cannot_be_run_is_exit_code_2(bundle, tmp_path, capsys):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for file, reason in (("none.json", "No such file"), (str(wrong), "no replay bundle"), (str(tmp_path), "directory")):
        assert main(["replay", file], loader=SAME) == 2
        assert reason in capsys.readouterr().err
    assert main(["replay", bundle, "--kv-cache-memory", "1"], loader=scripted_model(babble, num_pages=0)) == 2
    assert "--kv-cache-memory" in capsys.readouterr().err
    assert main(["replay", bundle, "--model", "/no/such/model"]) == 2
    assert "cannot replay" in capsys.readouterr().err


def test_control_characters_of_a_model_do_not_reach_the_terminal(bundle, capsys):
    assert main(["replay", bundle], loader=scripted_model(lambda turn: 27)) == 1
    assert "\x1b" not in capsys.readouterr().out
