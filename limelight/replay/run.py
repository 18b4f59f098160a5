"""A bundle, a model, a verdict: what `limelight replay` does, for programs. Blocking, and without an event loop."""

from collections.abc import Callable, Mapping
from typing import Any

from limelight.config import EngineConfig
from limelight.errors import InvalidRequest
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Report
from limelight.replay.bundle import Bundle
from limelight.replay.rerun import Progress, Rerun
from limelight.replay.verdict import Verdict, changes

ADAPTER = 1
"""The id under which the executor has the request's adapter."""


def replay_config(bundle: Bundle, given: Mapping[str, Any]) -> EngineConfig:
    """The recorded settings, but for those that are `given`. The request's own adapter is loaded, and no other.

    Raises:
        ConfigError: a value is out of range.
    """
    settings = {name: getattr(bundle.config, name) for name in EngineConfig.__struct_fields__}
    settings |= {"record_dir": None, "adapters": {}, "deterministic": False, **given}
    if settings["cpu_kernels"] == "reference" and "num_threads" not in given:
        settings["num_threads"] = None  # PyTorch has threads of its own
    return EngineConfig(**settings)


def replay(
    bundle: Bundle,
    config: EngineConfig,
    *,
    load: Callable[[EngineConfig, Report], LoadedModel] | None,
    report: Report,
    progress: Progress,
    with_neighbours: bool = False,
    adapter_path: str | None = None,
) -> Verdict:
    """Load the model, run the recorded steps, and compare.

    Args:
        config: of the model; see `replay_config`.
        load: what loads it; None: `models.loading.load_model`.
        report: told of loading; `progress`: of steps.
        with_neighbours: the others in the recorded steps run, too, in their lengths.
        adapter_path: where the request's LoRA adapter is; None: where the recorded settings had it.

    Raises:
        InvalidRequest: the bundle cannot be run with this model.
        LimelightError: the model cannot be loaded, or a step fails.
    """
    path = None
    if bundle.adapter is not None:
        path = adapter_path or bundle.config.adapters.get(bundle.adapter)
        if path is None:
            raise InvalidRequest(
                f"the request ran with the adapter {bundle.adapter!r}, loaded while the server ran; say where it is: "
                "--lora PATH"
            )
    if load is None:
        from limelight.models.loading import load_model  # imports much, so only now

        load = load_model
    model = load(config, report)
    try:
        if path is not None:
            if model.adapters is None:
                raise InvalidRequest("the request ran with an adapter, and this model takes none")
            model.adapters.put(ADAPTER, model.adapters.read(path, report))
        rerun = Rerun(bundle, model, with_neighbours=with_neighbours, adapter=None if path is None else ADAPTER)
        difference = rerun.run(progress)
        return Verdict(
            record_id=bundle.id,
            same=difference is None,
            num_compared=rerun.num_compared,
            num_recorded=sum(len(choice.token_ids) for choice in bundle.choices),
            num_steps=len(bundle.steps),
            with_neighbours=with_neighbours,
            largest_logprob_change=rerun.largest_logprob_change,
            first_difference=difference,
            changes=changes(bundle, model, config),
        )
    finally:
        model.executor.close()
