"""How often a request that asks for it gives news: after so many tokens. Pure."""

from limelight.actors.event_log import ChoiceRecord
from limelight.generation import Delta


class Pacer:
    """Gathers the deltas of one choice until they have `interval` tokens. The first token and the end never wait."""

    def __init__(self, index: int, interval: int) -> None:
        self._index = index
        self._interval = interval
        self._record = ChoiceRecord(index)
        self._num_tokens = 0
        self._begun = False

    def add(self, delta: Delta) -> Delta | None:
        """Take the next delta; returns what is due, None as long as nothing is."""
        self._record.add(delta)
        self._num_tokens += len(delta.token_ids)
        if self._record.empty or (self._begun and self._num_tokens < self._interval and delta.finish_reason is None):
            return None
        due = self._record.delta()
        self._record = ChoiceRecord(self._index)
        self._num_tokens = 0
        self._begun = True
        return due
