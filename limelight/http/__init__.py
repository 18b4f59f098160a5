"""Bytes in, bytes out: the OpenAI-compatible API over an engine. Never imports actors, models, kernels or torch.

Names are imported lazily: whoever needs the settings alone does not wait for the web framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from limelight.http.app import create_app as create_app
    from limelight.http.settings import HttpSettings as HttpSettings

_HOMES = {"create_app": "limelight.http.app", "HttpSettings": "limelight.http.settings"}

__all__ = ["HttpSettings", "create_app"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'limelight.http' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
