"""Bytes in, bytes out: the OpenAI-compatible API over an engine. Never imports actors, models, kernels or torch."""

from limelight.http.app import create_app as create_app
from limelight.http.settings import HttpSettings as HttpSettings
