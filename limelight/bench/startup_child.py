"""The process that `startup.py` measures: `limelight serve` whose loader marks each stage that it reports."""

import sys
from collections.abc import Sequence

from limelight.bench.startup import LAST_PARTS, mark
from limelight.cli import main
from limelight.config import EngineConfig
from limelight.engine import ModelLoader
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Note, Report


def serve_marked(arguments: Sequence[str], loader: ModelLoader | None = None) -> int:
    """`limelight serve` with `arguments`; its exit code.

    Args:
        loader: what loads the model, the usual one unless given.
    """

    def load(config: EngineConfig, report: Report) -> LoadedModel:
        stages: list[str] = []

        def marked(stage: str, fraction: float | None) -> None:
            if stages[-1:] != [stage] and not isinstance(stage, Note):
                stages.append(stage)
                mark(stage)
            report(stage, fraction)

        mark("importing the models")
        load_model = loader or _usual_loader()
        mark("finding the model")
        model = load_model(config, marked)
        mark(LAST_PARTS[0])
        return model

    return main(["serve", *arguments], loader=load)


def _usual_loader() -> ModelLoader:
    from limelight.models.loading import load_model

    return load_model


if __name__ == "__main__":
    raise SystemExit(serve_marked(sys.argv[1:]))
