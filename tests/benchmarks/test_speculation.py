"""The benchmark of speculative decoding over a scripted model: it compares texts and prints what was guessed."""

import re

import pytest

from benchmarks.speculation import main
from limelight.testing import echo, scripted_model


def test_both_kinds_of_prompts_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--rounds", "1", "--max-tokens", "20"], scripted_model(echo))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" plain")[0].strip() for line in lines] == ["repeating", "free text"]
    accepted, guessed = map(int, re.findall(r"(\d+) of (\d+) guesses", lines[0])[0])
    assert 0 < accepted <= guessed


def test_texts_that_differ_end_the_comparison() -> None:
    num_answers = 0

    def unsteady(turn: object) -> int:
        nonlocal num_answers
        num_answers += 1
        return 97 + num_answers % 26

    with pytest.raises(SystemExit, match="the texts differ"):
        main(["--rounds", "1", "--max-tokens", "7"], scripted_model(unsteady))
