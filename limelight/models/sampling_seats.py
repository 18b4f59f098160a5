"""Sampling settings per seat, on the device: written when a seat is taken, gathered for the rows that draw.

Token counts exist for seats with penalties only, in a table that grows to the largest number of them at once.
"""

import torch
from torch import Tensor

from limelight.generation import GREEDY_TEMPERATURE, MIN_TEMPERATURE
from limelight.kernels.interface import SamplingBatch
from limelight.models.drawing import LEAST_REPETITION_PENALTY, settings_of
from limelight.step import SeatSampling, SeatTaken

FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class SamplingSeats:
    """Settings, seeds, sparse biases and token counts of the seats."""

    def __init__(self, num_seats: int, vocab_size: int, device: str) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._floats = torch.zeros(len(FLOATS), num_seats, dtype=torch.float32, device=device)
        self._top_k = torch.zeros(num_seats, dtype=torch.int64, device=device)
        self._seeds = torch.zeros(num_seats, dtype=torch.int64, device=device)
        self._settings: list[SeatSampling | None] = [None] * num_seats
        self._bias: dict[int, tuple[Tensor, Tensor]] = {}
        self._blocked: dict[int, Tensor] = {}
        self._counts_row: dict[int, int] = {}
        self._free_rows: list[int] = []
        self._prompt_mask = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._output_counts = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)

    def settings(self, seat: int) -> SeatSampling:
        """Settings of an occupied seat.

        Raises:
            ValueError: nobody sits there.
        """
        return settings_of(self._settings, seat)

    def release(self, seat: int) -> None:
        """Forget the tenant."""
        self._settings[seat] = None
        self._bias.pop(seat, None)
        self._blocked.pop(seat, None)
        row = self._counts_row.pop(seat, None)
        if row is not None:
            self._free_rows.append(row)

    def take(self, taken: SeatTaken) -> None:
        """Overwrite everything that a previous tenant left.

        Token ids outside the vocabulary can never be drawn: their bias and block have no effect.
        """
        seat, settings = taken.seat, taken.sampling
        self.release(seat)
        greedy = settings.temperature < GREEDY_TEMPERATURE
        self._floats[:, seat] = torch.tensor(
            (
                0.0 if greedy else max(settings.temperature, MIN_TEMPERATURE),
                settings.top_p,
                settings.min_p,
                max(settings.repetition_penalty, LEAST_REPETITION_PENALTY),
                settings.presence_penalty,
                settings.frequency_penalty,
            )
        )
        self._top_k[seat] = min(max(settings.top_k, 0), self._vocab_size)
        self._seeds[seat] = settings.seed
        bias = {token: value for token, value in (settings.logit_bias or {}).items() if token < self._vocab_size}
        if bias:
            self._bias[seat] = (
                torch.tensor(list(bias), device=self._device),
                torch.tensor(list(bias.values()), dtype=torch.float32, device=self._device),
            )
        blocked = [token for token in settings.blocked_token_ids if token < self._vocab_size]
        if blocked:
            self._blocked[seat] = torch.tensor(blocked, device=self._device)
        if settings.has_penalties:
            self._count(seat, taken)
        self._settings[seat] = settings

    def gather(self, seats: list[int], positions: list[int]) -> SamplingBatch:
        """Settings for one row per entry of `seats`, each about to draw the token at its position."""
        index = torch.tensor(seats, device=self._device)
        floats = dict(zip(FLOATS, self._floats.index_select(1, index).unbind(), strict=True))
        bias_rows, bias_token_ids, bias_values = self._gather_bias(seats, positions)
        penalised = [row for row, seat in enumerate(seats) if seat in self._counts_row]
        counts_rows = torch.tensor([self._counts_row[seats[row]] for row in penalised], device=self._device)
        wanted = [settings.num_logprobs for settings in map(self.settings, seats)]
        return SamplingBatch(
            temperature=floats["temperature"],
            top_p=floats["top_p"],
            min_p=floats["min_p"],
            repetition_penalty=floats["repetition_penalty"],
            presence_penalty=floats["presence_penalty"],
            frequency_penalty=floats["frequency_penalty"],
            top_k=self._top_k.index_select(0, index),
            seeds=self._seeds.index_select(0, index),
            positions=torch.tensor(positions, device=self._device),
            bias_rows=bias_rows,
            bias_token_ids=bias_token_ids,
            bias_values=bias_values,
            penalty_rows=torch.tensor(penalised, dtype=torch.int64, device=self._device),
            prompt_mask=self._prompt_mask.index_select(0, counts_rows) if penalised else None,
            output_counts=self._output_counts.index_select(0, counts_rows) if penalised else None,
            num_logprobs=max((number for number in wanted if number is not None), default=None),
        )

    def count_drawn(self, seats: list[int], token_ids: Tensor) -> None:
        """Add the drawn tokens [sampled] to the counts of the penalised seats among `seats`."""
        penalised = [row for row, seat in enumerate(seats) if seat in self._counts_row]
        if penalised:
            rows = torch.tensor([self._counts_row[seats[row]] for row in penalised], device=self._device)
            drawn = token_ids.index_select(0, torch.tensor(penalised, device=self._device))
            self._output_counts[rows, drawn] += 1

    def _count(self, seat: int, taken: SeatTaken) -> None:
        """Give the seat a row of counts that starts from the tokens it sits down with."""
        if not self._free_rows:
            self._grow()
        row = self._counts_row[seat] = self._free_rows.pop()
        prompt = torch.tensor(taken.prompt_token_ids, dtype=torch.int64, device=self._device)
        output = torch.tensor(taken.output_token_ids, dtype=torch.int64, device=self._device)
        self._prompt_mask[row] = False
        self._prompt_mask[row, prompt] = True
        self._output_counts[row] = torch.bincount(output, minlength=self._vocab_size)

    def _grow(self) -> None:
        num_rows = self._prompt_mask.shape[0]
        more = max(num_rows, 1)
        self._prompt_mask = torch.cat((self._prompt_mask, self._prompt_mask.new_zeros(more, self._vocab_size)))
        self._output_counts = torch.cat((self._output_counts, self._output_counts.new_zeros(more, self._vocab_size)))
        self._free_rows += range(num_rows, num_rows + more)

    def _gather_bias(self, seats: list[int], positions: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        rows = [torch.empty(0, dtype=torch.int64, device=self._device)]
        token_ids = [torch.empty(0, dtype=torch.int64, device=self._device)]
        values = [torch.empty(0, dtype=torch.float32, device=self._device)]
        for row, (seat, position) in enumerate(zip(seats, positions, strict=True)):
            if seat in self._bias:
                ids, biases = self._bias[seat]
                rows.append(torch.full_like(ids, row))
                token_ids.append(ids)
                values.append(biases)
            if seat in self._blocked and position < self.settings(seat).blocked_below_position:
                ids = self._blocked[seat]
                rows.append(torch.full_like(ids, row))
                token_ids.append(ids)
                values.append(torch.full_like(ids, -torch.inf, dtype=torch.float32))
        if len(rows) == 1:
            return rows[0], token_ids[0], values[0]
        return torch.cat(rows), torch.cat(token_ids), torch.cat(values)
