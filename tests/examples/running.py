"""Runs an example as its reader would."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run(*arguments: str, may_log: bool = False, **environment: str) -> str:
    """What it prints; it must succeed, and write nothing to stderr unless it `may_log`."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=ENVIRONMENT | environment,
    )
    assert done.returncode == 0, done.stderr
    assert may_log or done.stderr == ""
    return done.stdout
