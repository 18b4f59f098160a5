"""A token bucket: how much may be used at once, and how much over a long time. Pure; times are handed in."""

_ROUNDING = 1e-6
"""Tokens by which a level may miss what it should have by now: sums of floats are not exact."""


class TokenBucket:
    """Fills evenly up to its size. What is taken may exceed what is there; then it has to fill up first.

    Args:
        per_second: by which it fills.
        size: what it holds, and begins with.
        now: seconds of any clock that does not go back.

    Attributes:
        size: as given.
        num_holders: of those who may still take from it.
    """

    __slots__ = ("_at", "_level", "_per_second", "num_holders", "size")

    def __init__(self, per_second: float, size: float, now: float) -> None:
        self._per_second = per_second
        self._at = now
        self._level = self.size = size
        self.num_holders = 0

    def set_limits(self, per_second: float, size: float, now: float) -> None:
        """From now on it fills by so much, up to so much; what it has, it keeps as far as there is room."""
        self._level = min(self.level(now), size)
        self._per_second, self.size = per_second, size

    def level(self, now: float) -> float:
        """What it has; below 0: what it owes."""
        self._level = min(self.size, self._level + self._per_second * (now - self._at))
        self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Use so much, whether or not it is there; less than 0 gives back."""
        self._level = min(self.size, self.level(now) - amount)

    def seconds_until(self, amount: float, now: float) -> float:
        """Until it has so much, or is full, if nothing is taken meanwhile; 0: it has."""
        missing = min(amount, self.size) - self.level(now)
        return missing / self._per_second if missing > _ROUNDING else 0.0
