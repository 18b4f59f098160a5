"""Limelight: an async, actor-based serving framework for language models.

The names here are what programs build on, beside the errors in `limelight.errors` and the scripted models in
`limelight.testing`; a change of one is a change of the interface (tests/embedding/public_api.txt). They are imported
lazily, so that `import limelight` stays cheap and loads no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.config import EngineConfig as EngineConfig
    from limelight.embeddings import Embedding as Embedding
    from limelight.engine import Engine as Engine
    from limelight.engine import EngineHealth as EngineHealth
    from limelight.engine import EngineState as EngineState
    from limelight.errors import LimelightError as LimelightError
    from limelight.generation import ChatPrompt as ChatPrompt
    from limelight.generation import Completion as Completion
    from limelight.generation import Deadlines as Deadlines
    from limelight.generation import Delta as Delta
    from limelight.generation import FinishReason as FinishReason
    from limelight.generation import Generation as Generation
    from limelight.generation import GenerationRequest as GenerationRequest
    from limelight.generation import SamplingParams as SamplingParams
    from limelight.generation import Share as Share
    from limelight.generation import TextPrompt as TextPrompt
    from limelight.generation import TokenLogprob as TokenLogprob
    from limelight.generation import TokensPrompt as TokensPrompt
    from limelight.generation import Usage as Usage
    from limelight.http.app import create_app as create_app
    from limelight.http.settings import HttpSettings as HttpSettings
    from limelight.llm import LLM as LLM
    from limelight.offline.adapters import LoRARequest as LoRARequest
    from limelight.stream import Stream as Stream
    from limelight.structured_outputs import StructuredOutputsParams as StructuredOutputsParams
    from limelight.telemetry.request_view import RequestView as RequestView
    from limelight.telemetry.statistics import EngineStatistics as EngineStatistics
    from limelight.telemetry.statistics import QuotaStanding as QuotaStanding

__version__ = "0.1.0"

_HOMES = {
    "Engine": "limelight.engine",
    "EngineConfig": "limelight.config",
    "EngineHealth": "limelight.engine",
    "EngineState": "limelight.engine",
    "Stream": "limelight.stream",
    "LLM": "limelight.llm",
    "LoRARequest": "limelight.offline.adapters",
    "SamplingParams": "limelight.generation",
    "StructuredOutputsParams": "limelight.structured_outputs",
    "GenerationRequest": "limelight.generation",
    "TokensPrompt": "limelight.generation",
    "TextPrompt": "limelight.generation",
    "ChatPrompt": "limelight.generation",
    "Deadlines": "limelight.generation",
    "Share": "limelight.generation",
    "Delta": "limelight.generation",
    "Completion": "limelight.generation",
    "Generation": "limelight.generation",
    "FinishReason": "limelight.generation",
    "Usage": "limelight.generation",
    "TokenLogprob": "limelight.generation",
    "Embedding": "limelight.embeddings",
    "LimelightError": "limelight.errors",
    "RequestView": "limelight.telemetry.request_view",
    "EngineStatistics": "limelight.telemetry.statistics",
    "QuotaStanding": "limelight.telemetry.statistics",
    "HttpSettings": "limelight.http.settings",
    "create_app": "limelight.http.app",
}

__all__ = [
    "LLM",
    "ChatPrompt",
    "Completion",
    "Deadlines",
    "Delta",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EngineHealth",
    "EngineState",
    "EngineStatistics",
    "FinishReason",
    "Generation",
    "GenerationRequest",
    "HttpSettings",
    "LimelightError",
    "LoRARequest",
    "QuotaStanding",
    "RequestView",
    "SamplingParams",
    "Share",
    "Stream",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokenLogprob",
    "TokensPrompt",
    "Usage",
    "create_app",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'limelight' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
