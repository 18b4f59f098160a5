"""How an engine is: where in its life, and what speaks against sending it work."""

import enum

import msgspec


class EngineState(enum.StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


WHAT_STATES_MEAN = {
    EngineState.NEW: "the engine has not been started",
    EngineState.LOADING: "the model is loading",
    EngineState.DRAINING: "the server finishes its running requests and takes no new ones",
    EngineState.STOPPED: "the engine has been stopped",
    EngineState.FAILED: "the engine has failed; restart the server",
}


class EngineHealth(msgspec.Struct, frozen=True):
    """What `Engine.health()` tells.

    Attributes:
        reasons: why it should get no new requests, in words; empty: nothing speaks against it.
    """

    state: EngineState
    reasons: tuple[str, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether it should get new requests: it takes them, and steps go on."""
        return self.state is EngineState.READY and not self.reasons
