"""Requests recorded by an engine of this process, and their bundles run again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from limelight.engine import Engine, ModelLoader
from limelight.generation import Generation, GenerationRequest, SamplingParams, TextPrompt
from limelight.replay.bundle import Bundle, decode
from limelight.replay.run import replay, replay_config
from limelight.replay.verdict import Verdict


async def ask(engine: Engine, name: str, text: str, sampling: SamplingParams, **fields: Any) -> Generation:
    """One request, recorded under its own id."""
    request = GenerationRequest(request_id=name, record_id=name, prompt=TextPrompt(text), sampling=sampling, **fields)
    async with engine.open(request) as running:
        return await running.result()


def bundle_of(folder: Path, name: str) -> Bundle:
    """What was written; the engine has stopped."""
    return decode((folder / f"{name}.replay.json").read_bytes())


def run_again(
    bundle: Bundle,
    load: ModelLoader | None,
    *,
    with_neighbours: bool = False,
    adapter_path: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **given: Any,
) -> Verdict:
    """The verdict."""
    return replay(
        bundle,
        replay_config(bundle, given),
        load=load,
        report=lambda what, fraction: None,
        progress=progress,
        with_neighbours=with_neighbours,
        adapter_path=adapter_path,
    )
