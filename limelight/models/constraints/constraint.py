"""What one choice may take next: everything that bounds its tokens, put together in one mask.

In the order of their weight: the forced end of a reasoning, the grammar, the list of allowed tokens, the words that
must not occur, and the least number of tokens, which yields where only the end is left.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from limelight.errors import InvalidRequest, LimelightError
from limelight.models.constraints.grammar import Grammar, Matcher
from limelight.models.constraints.reasoning import Marks, Phase, ReasoningGate
from limelight.models.constraints.token_table import Mask, TokenTable, packed
from limelight.models.constraints.words import WatchedWord, WordFilter
from limelight.parsing.reasoning import Opening


class Constraints(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asks of each of its choices, compiled. Immutable: crosses actors and threads.

    Attributes:
        grammar: form of the answer, or None.
        stop_token_ids: tokens that end the choice; with a grammar, where it is complete.
        min_tokens: no end before so many tokens, unless nothing else is possible.
        allowed_token_ids: None: all.
        words: must not occur in the output.
        hidden_token_ids: tokens that leave nothing in the text.
        marks: of the reasoning before the answer, or None.
        begins: what the output begins with, as far as the prompt tells.
        budget: tokens that the reasoning may have, or None.
    """

    table: TokenTable
    grammar: Grammar | None = None
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    allowed_token_ids: tuple[int, ...] | None = None
    words: tuple[WatchedWord, ...] = ()
    hidden_token_ids: frozenset[int] = frozenset()
    marks: Marks | None = None
    begins: Opening = Opening.TEXT
    budget: int | None = None

    def begin(self) -> "Constraint":
        """For one choice. Cheap: a grammar is begun with the first mask."""
        return Constraint(self)


class Constraint:
    """One choice on its way. Used by one thread at a time: `advance` with the tokens as they come, then `mask`."""

    def __init__(self, constraints: Constraints) -> None:
        self._constraints = constraints
        self._num_tokens = 0
        self._matcher: Matcher | None = None
        self._is_grammar_alive = constraints.grammar is not None
        self._stops = np.array(sorted(constraints.stop_token_ids), np.int64)
        table = constraints.table
        self._filter = WordFilter(constraints.words, table, constraints.hidden_token_ids)
        self._gate: ReasoningGate | None = None
        if constraints.marks is not None:
            self._gate = ReasoningGate(
                constraints.marks, table, constraints.begins, constraints.budget, strict=constraints.grammar is not None
            )
        self._allowed: Mask | None = None
        if constraints.allowed_token_ids is not None:
            self._allowed = table.mask((*constraints.allowed_token_ids, *constraints.stop_token_ids))

    def advance(self, token_ids: Sequence[int]) -> None:
        """Take in tokens that the choice has drawn since.

        Raises:
            LimelightError: the grammar gives up.
        """
        for token_id in token_ids:
            self._num_tokens += 1
            self._filter.advance(token_id)
            self._advance_answer(token_id)

    def mask(self) -> bytes:
        """The tokens that may follow, as in `TokenMasks`. At least one.

        Raises:
            InvalidRequest: none is left.
            LimelightError: the grammar gives up.
        """
        gate = self._gate
        forced = None if gate is None else gate.forced
        if forced is not None:
            return packed(self._constraints.table.mask((forced,)))
        mask, may_end = self._form()
        if self._allowed is not None:
            mask &= self._allowed
        self._filter.restrict(mask)
        if len(self._stops):
            self._set_end(mask, may_end and self._num_tokens >= self._constraints.min_tokens, may_end)
        if not mask.any():
            raise InvalidRequest(
                "no token is left that structured_outputs, allowed_token_ids and bad_words all allow; ask for less",
                param="structured_outputs" if self._constraints.grammar is not None else "bad_words",
            )
        return packed(mask)

    def _advance_answer(self, token_id: int) -> None:
        gate = self._gate
        if gate is None:
            self._feed(token_id)
            return
        before = gate.phase
        is_mark = before is Phase.REASONING or gate.is_line_feed(token_id)
        gate.advance(token_id)
        if before is Phase.UNKNOWN and gate.phase is Phase.REASONING:
            self._matcher, self._is_grammar_alive = None, self._constraints.grammar is not None
        elif not is_mark:
            self._feed(token_id)

    def _feed(self, token_id: int) -> None:
        """The grammar's next token. One that it does not take belongs to a start mark, which is not whole yet."""
        if self._constraints.grammar is None or not self._is_grammar_alive:
            return
        if self._matcher is None:
            self._matcher = self._constraints.grammar.begin()
        may_fail = self._gate is not None and self._gate.phase is Phase.UNKNOWN
        if may_fail and not self._matcher.would_take(token_id):
            self._is_grammar_alive = False
        else:
            self._matcher.take(token_id)

    def _form(self) -> tuple[Mask, bool]:
        """What the phase and the grammar allow, and whether the choice may end."""
        size, gate, grammar = self._constraints.table.vocab_size, self._gate, self._constraints.grammar
        if grammar is None:
            return np.ones(size, np.bool_), True
        if gate is not None and gate.phase is Phase.REASONING:
            mask = np.ones(size, np.bool_)
            gate.restrict_reasoning(mask)
            return mask, False
        if not self._is_grammar_alive:
            mask, may_end = np.zeros(size, np.bool_), False
        else:
            if self._matcher is None:
                self._matcher = grammar.begin()
            mask, may_end = self._matcher.mask()
        if gate is not None:
            gate.widen_answer(mask)
        return mask, may_end

    def _set_end(self, mask: Mask, allow: bool, allow_if_nothing_else: bool) -> None:
        kept = mask[self._stops]
        mask[self._stops] = allow
        if not allow and not mask.any():
            mask[self._stops] = True if allow_if_nothing_else else kept


def failure(error: BaseException) -> LimelightError:
    """What the request hears of an error here, whatever it was."""
    if isinstance(error, LimelightError):
        return error
    own = LimelightError(f"what the output may be could not be worked out: {type(error).__name__}")
    own.__cause__ = error
    return own
