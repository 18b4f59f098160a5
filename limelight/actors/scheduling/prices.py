"""Non-negative prices of a few quantities, learnt from what baskets of them cost."""

from collections.abc import Sequence

_SWEEPS = 4
"""Of the descent, after each basket: it starts from the last prices, so it need not end at once."""


class Prices:
    """Least squares with no price below 0 over baskets that count ever less, by coordinate descent.

    Prices that the baskets say nothing of stay what they were: quantities that never vary, or only together.

    Args:
        number: of quantities.
        forgetting: weight of a basket against the next one.

    Attributes:
        values: the prices.
    """

    __slots__ = ("_forgetting", "_moments", "_products", "values")

    def __init__(self, number: int, forgetting: float) -> None:
        self._forgetting = forgetting
        self._products = [[0.0] * number for _ in range(number)]
        self._moments = [0.0] * number
        self.values = [0.0] * number

    def learn(self, quantities: Sequence[float], cost: float) -> None:
        """A basket with these quantities cost `cost`."""
        for index, quantity in enumerate(quantities):
            row = self._products[index]
            for other, factor in enumerate(quantities):
                row[other] = self._forgetting * row[other] + quantity * factor
            self._moments[index] = self._forgetting * self._moments[index] + quantity * cost
        for _ in range(_SWEEPS):
            for index, row in enumerate(self._products):
                if row[index] > 0:
                    change = (self._moments[index] - _product(row, self.values)) / row[index]
                    self.values[index] = max(0.0, self.values[index] + change)

    def of(self, quantities: Sequence[float]) -> float:
        """What a basket costs."""
        return _product(quantities, self.values)


def _product(these: Sequence[float], those: Sequence[float]) -> float:
    total = 0.0
    for this, that in zip(these, those, strict=True):
        total += this * that
    return total
