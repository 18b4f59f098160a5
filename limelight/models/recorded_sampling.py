"""Who sits where, for passes that were recorded: settings go into the memory that the recorded operations read.

What settings mean is as in `sampling_seats.py`.
"""

from limelight.generation import GREEDY_TEMPERATURE, MIN_TEMPERATURE
from limelight.kernels.cpu.sampling import SamplingBuffers
from limelight.models.drawing import LEAST_REPETITION_PENALTY, settings_of
from limelight.step import SeatSampling, SeatTaken


class RecordedSamplingSeats:
    """Settings of the seats; drawn tokens are counted by the pass itself."""

    def __init__(self, buffers: SamplingBuffers) -> None:
        self._buffers = buffers
        self._settings: list[SeatSampling | None] = [None] * len(buffers.seats)

    def settings(self, seat: int) -> SeatSampling:
        """Settings of an occupied seat.

        Raises:
            ValueError: nobody sits there.
        """
        return settings_of(self._settings, seat)

    def release(self, seat: int) -> None:
        """Forget the tenant."""
        self._settings[seat] = None
        self._buffers.clear(seat)

    def take(self, taken: SeatTaken) -> None:
        """Overwrite everything that a previous tenant left.

        Token ids outside the vocabulary can never be drawn: their bias and block have no effect.
        """
        seat, settings, buffers = taken.seat, taken.sampling, self._buffers
        self.release(seat)
        greedy = settings.temperature < GREEDY_TEMPERATURE
        entry = buffers.seats[seat : seat + 1]
        entry["temperature"] = 0.0 if greedy else max(settings.temperature, MIN_TEMPERATURE)
        entry["top_p"] = settings.top_p
        entry["min_p"] = settings.min_p
        entry["top_k"] = min(max(settings.top_k, 0), buffers.vocab_size)
        entry["repetition_penalty"] = max(settings.repetition_penalty, LEAST_REPETITION_PENALTY)
        entry["presence_penalty"] = settings.presence_penalty
        entry["frequency_penalty"] = settings.frequency_penalty
        entry["seed"] = settings.seed
        entry["num_logprobs"] = -1 if settings.num_logprobs is None else settings.num_logprobs
        bias = {token: value for token, value in (settings.logit_bias or {}).items() if token < buffers.vocab_size}
        if bias:
            buffers.set_bias(seat, list(bias), list(bias.values()))
        blocked = [token for token in settings.blocked_token_ids if token < buffers.vocab_size]
        if blocked:
            buffers.block(seat, blocked, settings.blocked_below_position)
        if settings.logprob_token_ids:
            buffers.ask(seat, settings.logprob_token_ids)
        if settings.has_penalties:
            buffers.count_tokens(seat, taken.prompt_token_ids, taken.output_token_ids)
        self._settings[seat] = settings
