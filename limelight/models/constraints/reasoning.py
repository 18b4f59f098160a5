"""Where an output is while the model may reason: before the reasoning, inside, at its end, behind it.

It says which tokens keep the marks whole, when the answer begins, and forces the end when the budget is spent. Marks
are followed in the tokens' bytes, those of special tokens included.
"""

import enum
from collections.abc import Sequence

import numpy as np

from limelight.generation import ReasoningFormat
from limelight.models.constraints.token_table import Mask, TokenIds, TokenTable
from limelight.models.constraints.words import WatchedWord
from limelight.models.loaded_model import Vocabulary
from limelight.parsing.reasoning import WHITE_SPACE, Opening

LINE_FEED = b"\n"
MAX_LINE_FEED_TOKENS = 2
"""So many tokens of line feeds may stand between the end of the reasoning and an answer in a given form."""


class Phase(enum.Enum):
    """Of an output."""

    UNKNOWN = enum.auto()
    REASONING = enum.auto()
    BEHIND_END = enum.auto()
    ANSWER = enum.auto()


_FIRST_PHASE = {Opening.UNKNOWN: Phase.UNKNOWN, Opening.REASONING: Phase.REASONING, Opening.TEXT: Phase.ANSWER}


class Marks:
    """The marks of a reasoning over the tokens of a model. Shared by all choices."""

    def __init__(self, marks: ReasoningFormat, table: TokenTable, vocabulary: Vocabulary) -> None:
        self.start = marks.start.encode()
        self.end = WatchedWord(marks.end.encode(), table)
        self._table = table
        self._end_tokens = tuple(vocabulary.encode(marks.end, add_special_tokens=False))
        self._running_over: dict[int, TokenIds] = {}
        self.line_feeds = np.array(
            [id_ for id_ in table.beginning_with(LINE_FEED) if not table.tokens[id_].strip(LINE_FEED)], np.int64
        )

    def beginning(self, seen: bytes) -> TokenIds:
        """Tokens that go on with the start mark, of which `seen` is there; they may begin the reasoning as well."""
        rest = self.start[len(seen) :]
        beyond = [id_ for id_ in self._table.beginning_with(rest) if self.end.word not in self._table.tokens[id_]]
        return np.concatenate([self._table.within(rest), np.array(beyond, np.int64)])

    def ending(self, matched: int) -> tuple[int, ...]:
        """Tokens that write the rest of the end mark, of which `matched` bytes are there."""
        rest = self.end.word[matched:]
        if b"".join(self._table.tokens[token_id] for token_id in self._end_tokens) == rest:
            return self._end_tokens
        return self._table.spelling(rest)

    def running_over(self, matched: int) -> TokenIds:
        """Tokens that hold a piece of the answer behind the end mark: no grammar could take in a part of a token."""
        known = self._running_over.get(matched)
        if known is None:
            known = np.array([id_ for id_ in self.end.completing(matched) if self._rest(matched, id_)], np.int64)
            self._running_over[matched] = known
        return known

    def _rest(self, matched: int, token_id: int) -> bytes:
        """What the token holds behind the first end mark, line feeds aside."""
        text = self.end.word[:matched] + self._table.tokens[token_id]
        return text.partition(self.end.word)[2].strip(LINE_FEED)


class ReasoningGate:
    """Follows one choice.

    Args:
        budget: tokens that the reasoning may have, or None.
        strict: the answer has a form: it begins at a token, and a start mark is all that may stand before it.
    """

    def __init__(self, marks: Marks, table: TokenTable, begins: Opening, budget: int | None, *, strict: bool) -> None:
        self.phase = _FIRST_PHASE[begins]
        self._marks = marks
        self._tokens = table.tokens
        self._budget = budget
        self._strict = strict
        self._seen = b""
        self._matched = 0
        self._num_tokens = 0
        self._num_line_feeds = 0
        self._forced: Sequence[int] = ()

    def advance(self, token_id: int) -> None:
        """Take in the next token of the output."""
        text = self._tokens[token_id]
        if self.phase is Phase.UNKNOWN:
            self._read_start(text)
        elif self.phase is Phase.REASONING:
            self._num_tokens += 1
            self._forced = self._forced[1:]
            self._read_reasoning(text)
        elif self.phase is Phase.BEHIND_END:
            self._num_line_feeds += 1
            if text.strip(LINE_FEED):
                self.phase = Phase.ANSWER

    @property
    def forced(self) -> int | None:
        """The one token that may follow, where the budget is spent."""
        if self.phase is not Phase.REASONING or self._budget is None or self._num_tokens < self._budget:
            return None
        if not self._forced:
            self._forced = self._marks.ending(self._matched)
        return self._forced[0]

    def restrict_reasoning(self, mask: Mask) -> None:
        """In the phase REASONING: leave the end mark whole."""
        if self._strict:
            mask[self._marks.running_over(self._matched)] = False

    def widen_answer(self, mask: Mask) -> None:
        """Where an answer may begin: allow what may stand before it."""
        if self.phase is Phase.UNKNOWN:
            mask[self._marks.beginning(self._seen)] = True
        elif self.phase is Phase.BEHIND_END and self._num_line_feeds < MAX_LINE_FEED_TOKENS:
            mask[self._marks.line_feeds] = True

    def is_line_feed(self, token_id: int) -> bool:
        """Whether the token belongs to the end mark rather than to the answer."""
        return self.phase is Phase.BEHIND_END and not self._tokens[token_id].strip(LINE_FEED)

    def _read_start(self, text: bytes) -> None:
        self._seen += text
        if not self._strict:
            self._seen = self._seen.lstrip(WHITE_SPACE.encode())
        if self._seen.startswith(self._marks.start):
            self.phase = Phase.REASONING
            self._read_reasoning(self._seen[len(self._marks.start) :])
        elif not self._marks.start.startswith(self._seen):
            self.phase = Phase.ANSWER

    def _read_reasoning(self, text: bytes) -> None:
        end = self._marks.end
        for place in range(len(text)):
            self._matched = end.progress(self._matched, text[place : place + 1])
            if self._matched == len(end.word):
                self.phase = Phase.BEHIND_END if self._strict else Phase.ANSWER
                return
