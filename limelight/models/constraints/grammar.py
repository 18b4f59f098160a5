"""Grammars over the tokens of a model: llguidance's matchers, their limits, and its words about what it cannot do.

Imported and built on first use: a model that nobody asks for a form never pays for it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from limelight.errors import InvalidRequest, LimelightError
from limelight.models.constraints.token_table import Mask, TokenTable, unpacked
from limelight.models.loaded_model import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_REASON_CHARACTERS = 300
MAX_ITEMS_IN_ROW = 10_000
"""Ways on at one place, about four for each property that may come next; a row of so many takes 50 ms."""
MAX_LEXER_STATES = 50_000
"""About 2 kB each."""
UNSATISFIABLE = "no text has this form"
_ONE_OF_ADVICE = "Enable 'coerce_one_of' option to approximate oneOf with anyOf"
_FUTILE = "NoExtension"
"""How llguidance's error begins where no token may follow."""


class GrammarTokenizer:
    """The model's tokens as llguidance wants them. Made off the loop: it takes about two microseconds per token."""

    def __init__(self, vocabulary: Vocabulary, table: TokenTable, eos_token_ids: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        eos = sorted(eos_token_ids)
        wrapped = TokenizerWrapper(_Tokens(vocabulary, table, eos[0]))
        self.vocab_size = table.vocab_size
        self.native: LLTokenizer = LLTokenizer(wrapped, n_vocab=table.vocab_size, eos_token=eos)


class Grammar:
    """A compiled grammar. Never advanced itself: every choice begins its own copy, from any thread.

    Args:
        source: in llguidance's own notation.

    Raises:
        InvalidRequest: the grammar is wrong, too large, or asks for what is not supported. Names no field.
    """

    def __init__(self, source: str, tokenizer: GrammarTokenizer) -> None:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(
            max_items_in_row=MAX_ITEMS_IN_ROW, max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
        )
        self._vocab_size = tokenizer.vocab_size
        self._native = LLMatcher(tokenizer.native, source, log_level=0, limits=limits)
        if self._native.is_error():
            raise InvalidRequest(reason(self._native.get_error()))
        warnings = self._native.get_grammar_warnings()
        if warnings:
            raise InvalidRequest(reason(warnings[0]))
        self._check_beginning()

    def begin(self) -> "Matcher":
        """A matcher at the beginning."""
        return Matcher(self._native.deep_copy(), self._vocab_size)

    def _check_beginning(self) -> None:
        """Most of what is too complex shows with the first token, the brace of a large object, say."""
        trial = self._native.deep_copy()
        mask = unpacked(trial.compute_bitmask(), self._vocab_size)
        if not trial.is_error() and not trial.is_stopped():
            trial.consume_token(int(mask.argmax()))
        if trial.is_error():
            error = trial.get_error()
            raise InvalidRequest(UNSATISFIABLE if error.startswith(_FUTILE) else reason(error))


class Matcher:
    """A grammar on its way through one answer. Used by one thread at a time."""

    def __init__(self, native: "LLMatcher", vocab_size: int) -> None:
        self._native = native
        self._vocab_size = vocab_size

    def would_take(self, token_id: int) -> bool:
        """Whether the token may follow."""
        return bool(self._native.validate_tokens([token_id]))

    def take(self, token_id: int) -> None:
        """Go on by a token that may follow.

        Raises:
            LimelightError: a limit is reached, or the token may not follow.
        """
        if not self._native.consume_token(token_id):
            raise self._failure()

    def mask(self) -> tuple[Mask, bool]:
        """The tokens that may follow, and whether the answer may end here.

        Raises:
            LimelightError: a limit is reached.
        """
        bits = self._native.compute_bitmask()
        if self._native.is_error():
            raise self._failure()
        return unpacked(bits, self._vocab_size), self._native.is_accepting()

    def _failure(self) -> LimelightError:
        return InvalidRequest(
            f"the form that structured_outputs asks for became too complex in the middle of the output: "
            f"{reason(self._native.get_error() or self._native.stop_reason())}; make it simpler",
            param="structured_outputs",
        )


class _Tokens:
    """What llguidance asks of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary, table: TokenTable, eos_token_id: int) -> None:
        self.eos_token_id = eos_token_id
        self.bos_token_id = None
        self.tokens = table.tokens
        self.special_token_ids = sorted(table.special_token_ids)
        self._vocabulary = vocabulary
        self._table = table

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens that spell the text itself: without the space that some tokenizers put before a text."""
        raw = text if isinstance(text, bytes) else text.encode()
        written = raw.decode(errors="replace")
        token_ids = self._vocabulary.encode(written, add_special_tokens=False)
        if self._spelling(token_ids) == raw:
            return token_ids
        token_ids = self._vocabulary.encode(f"\n{written}", add_special_tokens=False)
        num_bytes = len(self._spelling(token_ids)) - len(raw)
        while token_ids and num_bytes > 0:
            num_bytes -= len(self.tokens[token_ids.pop(0)])
        return token_ids if self._spelling(token_ids) == raw else list(self._table.spelling(raw))

    def _spelling(self, token_ids: Sequence[int]) -> bytes:
        return b"".join([self.tokens[token_id] for token_id in token_ids])


def reason(message: str) -> str:
    """What llguidance says, as one short line: without the pictures of places, which quote the whole grammar."""
    lines = [line.strip() for line in message.splitlines()]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    kept = errors[0] if errors else next((line for line in lines if line), "unknown reason")
    kept = kept.replace(_ONE_OF_ADVICE, "write anyOf, or alternatives that a const or a type tells apart")
    return kept if len(kept) <= MAX_REASON_CHARACTERS else f"{kept[:MAX_REASON_CHARACTERS]}..."
