"""docs/testing.md as the tests of a foreign project, in which torch cannot be imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "testing.md").read_text()
BLOCKS = re.findall(r"^```python ?(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
HEAVY = ("torch", "triton", "transformers", "tokenizers", "safetensors")
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ImportError(f"{{name}} is not there")

sys.meta_path.insert(0, Blocker())
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    [conftest] = [code for kind, code in BLOCKS if kind == "conftest"]
    (tmp_path / "conftest.py").write_text(BLOCKER + conftest)
    return tmp_path


def test_every_snippet_is_of_a_kind_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"conftest", "test"}
    assert PAGE.count("```python") == len(BLOCKS)


def test_the_tests_of_the_page_pass_without_torch(project: Path) -> None:
    tests = [code for kind, code in BLOCKS if kind == "test"]
    for number, code in enumerate(tests):
        (project / f"test_part{number}.py").write_text(code)
    done = run(project)
    count = sum(code.count("\ndef test_") + code.count("\nasync def test_") for code in tests)
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr


def test_torch_is_really_out_of_reach(project: Path) -> None:
    (project / "test_heavy.py").write_text("def test_torch():\n    import torch\n")
    assert "torch is not there" in run(project).stdout


def test_the_tests_fail_if_something_is_left(project: Path) -> None:
    (project / "test_left.py").write_text(
        "import threading\n"
        "from limelight.testing import Answers, Hang, live_server, read_stream\n"
        "def test_left():\n"
        "    hang = Hang()\n"
        "    with live_server(Answers(otherwise=['a', hang])) as server:\n"
        "        body = {'model': 'scripted', 'prompt': 'x', 'stream': True}\n"
        "        client = threading.Thread(target=read_stream, args=(f'{server.url}/v1/completions', body))\n"
        "        client.start()\n"
        "        assert hang.reached.wait(10)\n"
        "        try:\n"
        "            server.wait_until_idle(seconds=0.2)\n"
        "        finally:\n"
        "            hang.release()\n"
        "            client.join()\n"
    )
    assert "num_requests=1" in run(project).stdout
