"""The application alone, for servers that import it: its lifespan starts and stops the engine, here of a scripted model
that says when it is closed."""

from litestar import Litestar

from limelight import EngineConfig
from limelight import engine as engine_module
from limelight.http import create_app
from limelight.models.loaded_model import LoadedModel
from limelight.progress import Report
from limelight.testing import scripted_model
from limelight.testing.executor import ScriptedExecutor


def load(config: EngineConfig, report: Report) -> LoadedModel:
    """A model of slow and long answers."""
    model = scripted_model("word " * 300, step_seconds=0.01)(config, report)
    executor = model.executor
    assert isinstance(executor, ScriptedExecutor)
    close = executor.close

    def close_and_say_so() -> None:
        close()
        print("model closed", flush=True)

    executor.close = close_and_say_so  # type: ignore[method-assign]
    return model


engine_module._default_loader = load


def make() -> Litestar:
    """What servers call; as `create_app` itself, of the model above."""
    return create_app()
