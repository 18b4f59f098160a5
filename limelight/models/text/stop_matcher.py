"""Finds stop strings in a stream of text. Owns the text that may still turn out to begin a stop string.

Pure: no tokens, no clock. The result depends on the text alone, never on how it was cut into pieces.
"""

from dataclasses import dataclass, field


class StopMatcher:
    """Watches one choice for its stop strings.

    On the whole text, the match that *starts* first wins; of several that start there, the shortest. Streamed, that
    means: text is held back exactly while it could begin a stop string (the longest tail that is a proper prefix of
    one), and a complete match waits only while a match that starts before it is still possible.

    Args:
        stops: non-empty strings; an empty tuple releases everything at once.
        include_stop: let the matched stop string be the end of the text, instead of cutting before it.
    """

    __slots__ = ("_automata", "_first_characters", "_held", "_include_stop", "_match", "_match_start", "_stop")

    def __init__(self, stops: tuple[str, ...], include_stop: bool) -> None:
        self._automata = [_PrefixAutomaton(stop) for stop in dict.fromkeys(stops)]
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._include_stop = include_stop
        self._held = ""
        self._match: str | None = None  # complete, but may still lose to one that starts before it
        self._match_start = 0  # index into the held text
        self._stop: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that has ended the text, or None. From then on, `feed` and `flush` return ""."""
        return self._stop

    @property
    def num_held(self) -> int:
        """Characters held back."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Takes the next piece of output and returns the text that may be sent now, of this and earlier pieces."""
        if self._stop is not None:
            return ""
        if not self._held and self._first_characters.isdisjoint(text):
            return text
        position = longest = len(self._held)
        self._held += text
        for character in text:
            position += 1
            if longest == 0 and character not in self._first_characters:
                continue
            longest = self._advance(character, position)
            if self._match is not None and position - longest >= self._match_start:
                return self._cut()
        return self._release(len(self._held) - longest)

    def flush(self) -> str:
        """Ends the output: returns the text held back, cut at a match that was waiting for one that starts earlier."""
        return self._release(len(self._held)) if self._match is None else self._cut()

    def _advance(self, character: str, position: int) -> int:
        """Steps all automata to `position`; notes a better match; returns the length of the longest open prefix."""
        longest = 0
        for automaton in self._automata:
            if automaton.advance(character):
                start = position - len(automaton.stop)
                if self._match is None or start < self._match_start:
                    self._match, self._match_start = automaton.stop, start
            elif automaton.num_matched > longest:
                longest = automaton.num_matched
        return longest

    def _release(self, num_characters: int) -> str:
        released, self._held = self._held[:num_characters], self._held[num_characters:]
        self._match_start -= num_characters
        return released

    def _cut(self) -> str:
        self._stop, self._match = self._match, None
        end = self._match_start
        if self._include_stop and self._stop is not None:
            end += len(self._stop)
        released, self._held = self._held[:end], ""
        return released


@dataclass(slots=True)
class _PrefixAutomaton:
    """Length of the longest tail of the text that is a prefix of `stop` (Knuth, Morris, Pratt 1977).

    The border table grows with the longest prefix seen so far, so a character costs constant time on average, whatever
    the length of stop string and output, and a long stop string costs nothing before it begins to match.

    Attributes:
        num_matched: below `len(stop)`; 0 after a complete match, as a later one of this string cannot start earlier.
        borders: borders[k - 1] is the length of the longest proper prefix of `stop[:k]` that is also its suffix.
    """

    stop: str
    num_matched: int = 0
    borders: list[int] = field(default_factory=lambda: [0])

    def advance(self, character: str) -> bool:
        """Takes the next character; True when it completes `stop`."""
        matched = self._extend(self.num_matched, character)
        if matched == len(self.stop):
            self.num_matched = 0
            return True
        if matched > len(self.borders):
            self.borders.append(self._extend(self.borders[-1], character))
        self.num_matched = matched
        return False

    def _extend(self, matched: int, character: str) -> int:
        while matched and self.stop[matched] != character:
            matched = self.borders[matched - 1]
        return matched + 1 if self.stop[matched] == character else 0
