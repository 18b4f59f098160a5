"""A look at the names of models before anything slow is imported or loaded: a slip is told at once."""

import argparse

from limelight.cli.settings import adapters
from limelight.errors import ConfigError
from limelight.models.hub.names import HubName, parse_adapter_name, parse_name


def check_names(options: argparse.Namespace) -> None:
    """Asks the file system, never the network, whether MODEL and `--lora` can be what they say.

    Raises:
        CheckpointError: a path that does not exist, or a name that cannot be one.
        ConfigError: `--revision` of something local, or a wrong `--lora`.
    """
    if options.model is not None:
        name = parse_name(options.model)
        if options.revision is not None and not isinstance(name, HubName):
            raise ConfigError(f"--revision is {options.revision!r}, but {name} is a local path; leave it out")
    for adapter in adapters(getattr(options, "lora", [])).values():
        parse_adapter_name(adapter)
