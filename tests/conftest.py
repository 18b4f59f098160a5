"""Fixtures of all tests: asynchronous tests are marked `anyio` and run on asyncio."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# As the command line does, and before torch is loaded: threads that wait must not take the cores from those that work.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
# Before triton is loaded, which some libraries do: its kernels then run in Python, on tensors of the CPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Examples of properties are the same in every run, so that a test fails for whoever broke it; `make test-explore` draws
# others. Nothing measures time: machines may be busy.
ANYWHERE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
settings.register_profile("repeatable", ANYWHERE, derandomize=True)
settings.register_profile("explore", ANYWHERE, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

SCRIPTED_SERVER = """
from limelight.cli import main
from limelight.testing import echo, scripted_model

raise SystemExit(main(["serve", "--port", "0"], loader=scripted_model(echo)))
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[str]:
    """Address of a `limelight serve` in a process of its own, whose model says the prompt again."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPTED_SERVER],
        cwd=Path(__file__).resolve().parent.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().rpartition(" ")[2].strip()
        process.terminate()


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """For tests on tiny tensors: on busy machines torch's threads wait for each other far longer than they compute."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
