"""Starting, measured in a real process over a scripted model."""

import sys

import pytest

from limelight.bench.startup import FIRST_PART, LAST_PARTS, Start, measure_start, startup_figures
from limelight.bench.target import BenchmarkFailed

SCRIPTED = """
import sys
from limelight.bench.startup_child import serve_marked
from limelight.testing import scripted_model
raise SystemExit(serve_marked(["--port", "0", *sys.argv[1:]], scripted_model("Hello")))
"""
COMMAND = (sys.executable, "-c", SCRIPTED)


def test_the_parts_of_a_start_add_up_to_the_first_token() -> None:
    start = measure_start([], command=COMMAND)
    named = [FIRST_PART, "importing the models", "finding the model", "script", *LAST_PARTS]
    assert list(start.parts) == named
    assert sum(start.parts.values()) == pytest.approx(start.first_token_seconds)
    assert start.ready_seconds == pytest.approx(start.first_token_seconds - start.parts["first token"])
    assert all(seconds >= 0 for seconds in start.parts.values())


def test_a_server_with_a_key_is_asked_with_it() -> None:
    assert measure_start(["--api-key", "secret"], "secret", COMMAND).first_token_seconds > 0
    with pytest.raises(BenchmarkFailed, match="refuses the key"):
        measure_start(["--api-key", "secret"], None, COMMAND)


def test_a_server_that_does_not_start_is_told_by_its_last_words() -> None:
    with pytest.raises(BenchmarkFailed, match=r"did not start: .*unrecognized arguments: --nonsense"):
        measure_start(["--nonsense"], command=COMMAND)


NOTED = """
import sys
from limelight.bench.startup_child import serve_marked
from limelight.progress import Note
from limelight.testing import scripted_model

def load(config, report):
    report(Note("computing in float32"), None)
    return scripted_model("Hello")(config, report)

raise SystemExit(serve_marked(["--port", "0"], load))
"""


def test_a_note_is_no_part_of_a_start() -> None:
    start = measure_start([], command=(sys.executable, "-c", NOTED))
    assert [part for part in start.parts if "computing" in part] == []
    assert "finding the model" in start.parts


def test_figures_of_starts() -> None:
    starts = [Start(1.0, 1.5, {"a": 1.0, "b": 0.5}), Start(3.0, 3.5, {"a": 3.5})]
    got = startup_figures(starts)
    assert (got["num_starts"], got["mean_ready_seconds"], got["min_first_token_seconds"]) == (2, 2.0, 1.5)
    assert got["parts_seconds"] == {"a": 2.25, "b": 0.25}
