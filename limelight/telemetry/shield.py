"""Keeps what a host's tracer or meter raises away from requests."""

import logging
from types import TracebackType

from limelight.telemetry.log_fields import without_message

logger = logging.getLogger(__name__)


class Shield:
    """`with shield:` swallows exceptions, and logs the first one; further ones would only fill the log.

    Args:
        what: whose fault they are, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._told = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        if not self._told:
            self._told = True
            logger.error(
                "%s failed; requests go on, and this is told once", self._what, exc_info=without_message(error)
            )
        return True
