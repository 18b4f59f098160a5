"""Limelight: an async, actor-based serving framework for language models.

Names are imported lazily, so that `import limelight` stays cheap and loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.config import EngineConfig as EngineConfig
    from limelight.engine import Engine as Engine
    from limelight.errors import LimelightError as LimelightError
    from limelight.generation import Completion as Completion
    from limelight.generation import Delta as Delta
    from limelight.generation import FinishReason as FinishReason
    from limelight.generation import Generation as Generation
    from limelight.generation import SamplingParams as SamplingParams
    from limelight.generation import Usage as Usage
    from limelight.llm import LLM as LLM
    from limelight.offline.adapters import LoRARequest as LoRARequest
    from limelight.stream import Stream as Stream
    from limelight.structured_outputs import StructuredOutputsParams as StructuredOutputsParams

__version__ = "0.1.0.dev0"

_HOMES = {
    "Engine": "limelight.engine",
    "Stream": "limelight.stream",
    "EngineConfig": "limelight.config",
    "LimelightError": "limelight.errors",
    "LLM": "limelight.llm",
    "SamplingParams": "limelight.generation",
    "LoRARequest": "limelight.offline.adapters",
    "Delta": "limelight.generation",
    "Completion": "limelight.generation",
    "Generation": "limelight.generation",
    "FinishReason": "limelight.generation",
    "Usage": "limelight.generation",
    "StructuredOutputsParams": "limelight.structured_outputs",
}

__all__ = ["LLM", "Completion", "Delta", "Engine", "EngineConfig", "FinishReason", "Generation"]
__all__ += ["LimelightError", "LoRARequest", "SamplingParams", "Stream", "StructuredOutputsParams", "Usage"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
