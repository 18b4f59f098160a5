"""What a replay found: whether the tokens are the same, where they first differ, and what else is not the same."""

import msgspec

from limelight.models.loaded_model import LoadedModel
from limelight.models.surroundings import machine, versions
from limelight.replay.bundle import Bundle


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first token that came out otherwise.

    Attributes:
        position: among the choice's output tokens, from 0.
        step: number of the step, in the recording, that drew it.
        got: None: nothing was drawn.
        expected_logprob, got_logprob: in the replay; None: not known.
        recorded_logprob: of the expected token, when it was recorded.
        reason: why nothing was drawn; "" otherwise.
    """

    choice: int
    position: int
    step: int
    expected: int
    expected_text: str
    got: int | None
    got_text: str = ""
    expected_logprob: float | None = None
    got_logprob: float | None = None
    recorded_logprob: float | None = None
    reason: str = ""

    @property
    def logprob_gap(self) -> float | None:
        """By how much the token that came is likelier, in the replay, than the expected one."""
        if self.got_logprob is None or self.expected_logprob is None:
            return None
        return self.got_logprob - self.expected_logprob


class Change(msgspec.Struct, frozen=True):
    """Something that is not as it was, and may explain a difference."""

    what: str
    recorded: str
    here: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one replay.

    Attributes:
        same: all tokens that could be compared are.
        num_compared, num_recorded: output tokens, of all choices. Fewer were compared where the recording does not
            have all steps, or behind a difference.
        with_neighbours: the others in its steps were there, in their lengths.
        largest_logprob_change: of the tokens that are the same, by how much the log-probability of one has changed at
            the most; None: they were not recorded.
    """

    record_id: str
    same: bool
    num_compared: int
    num_recorded: int
    num_steps: int
    with_neighbours: bool
    largest_logprob_change: float | None
    first_difference: Difference | None
    changes: tuple[Change, ...]


def changes(bundle: Bundle, model: LoadedModel, config: object) -> tuple[Change, ...]:
    """What is different here from when the bundle was recorded.

    Args:
        config: the `EngineConfig` that the model was loaded with.
    """
    identity = model.identity()
    before = {"model": bundle.model.name, "model files": bundle.model.digest, "kernels": bundle.model.kernels}
    now = {"model": identity.name, "model files": identity.digest, "kernels": identity.kernels}
    for part in sorted({*bundle.model.precision, *identity.precision}):
        before[f"precision of {part}"] = str(bundle.model.precision.get(part))
        now[f"precision of {part}"] = str(identity.precision.get(part))
    before |= {f"version of {name}": version for name, version in bundle.versions.items()}
    now |= {f"version of {name}": version for name, version in versions().items()}
    before |= bundle.machine
    now |= machine()
    for name in bundle.config.__struct_fields__:
        if name not in NOT_OF_TOKENS:
            before[f"config {name}"] = str(getattr(bundle.config, name))
            now[f"config {name}"] = str(getattr(config, name))
    return tuple(
        Change(what, before.get(what, "none"), now.get(what, "none"))
        for what in dict.fromkeys((*before, *now))
        if before.get(what) != now.get(what)
    )


NOT_OF_TOKENS = frozenset(
    {
        "adapters", "deterministic", "gpu_memory_utilization", "loop_stall_seconds", "max_num_requests",
        "max_queued_tokens", "max_record_bytes", "max_records", "reasoning_parser", "recent_requests", "record_dir",
        "served_model_name", "stall_seconds", "step_timeout_seconds", "stream_interval", "target_itl_ms",
        "tool_call_parser", "trace_content", "trace_step_interval", "trace_vllm_attributes", "vllm_metrics",
    }
)  # fmt: skip
"""Settings that no token depends on once the steps are given."""
