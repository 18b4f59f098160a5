"""What a request asks of its output, compiled for one model. Runs on threads of its own: a grammar can take seconds."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from limelight.errors import InvalidRequest
from limelight.generation import ReasoningFormat, SamplingParams
from limelight.models.constraints.constraint import Constraints
from limelight.models.constraints.grammar import Grammar, GrammarTokenizer
from limelight.models.constraints.json_schema import json_grammar
from limelight.models.constraints.lark import choice_grammar, lark_grammar, regex_grammar
from limelight.models.constraints.reasoning import Marks
from limelight.models.constraints.structural_tag import structural_tag_grammar
from limelight.models.constraints.token_table import TokenTable
from limelight.models.constraints.words import WatchedWord, watched_form
from limelight.models.loaded_model import Vocabulary
from limelight.structured_outputs import StructuredOutputsParams

MAX_CACHED_GRAMMARS = 32
UNBOUNDED = -1
"""A `thinking_token_budget` that is none, as in vLLM."""


def needs_constraints(sampling: SamplingParams) -> bool:
    """Whether anything bounds which tokens may come, beyond the sampling itself."""
    return bool(
        sampling.structured_outputs is not None
        or sampling.bad_words
        or sampling.allowed_token_ids is not None
        or sampling.thinking_token_budget not in (None, UNBOUNDED)
    )


class ConstraintCompiler:
    """Compiles for one model, and keeps the grammars used last. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(id_ for id_ in eos_token_ids if id_ < vocab_size)
        self._lock = threading.Lock()
        self._table: TokenTable | None = None
        self._tokenizer: GrammarTokenizer | None = None
        self._grammars: OrderedDict[bytes, Grammar] = OrderedDict()

    def prepare(self) -> None:
        """Build now what the first grammar would wait for. It keeps the interpreter lock, about 3 us per token.

        Raises:
            InvalidRequest: no grammar works with this model.
        """
        self._grammar_tokenizer()

    def compile(self, sampling: SamplingParams, marks: ReasoningFormat | None) -> Constraints:
        """What `needs_constraints` asks for.

        Raises:
            InvalidRequest: it cannot be honoured; `param` names the field.
        """
        table = self._token_table()
        grammar = None if sampling.structured_outputs is None else self._grammar(sampling.structured_outputs)
        budget = None if sampling.thinking_token_budget == UNBOUNDED else sampling.thinking_token_budget
        if budget is not None and marks is None:
            raise InvalidRequest(
                "thinking_token_budget needs a model whose reasoning is marked, and this one's is not; leave it out",
                param="thinking_token_budget",
            )
        stop_token_ids = frozenset(sampling.stop_token_ids or ())
        if not sampling.ignore_eos:
            stop_token_ids |= self._eos_token_ids
        return Constraints(
            table=table,
            grammar=grammar,
            stop_token_ids=stop_token_ids,
            min_tokens=sampling.min_tokens,
            allowed_token_ids=None if sampling.allowed_token_ids is None else tuple(sampling.allowed_token_ids),
            words=tuple(WatchedWord(watched_form(word).encode(), table) for word in sampling.bad_words or ()),
            hidden_token_ids=table.special_token_ids - sampling.shown_special_tokens
            if sampling.skip_special_tokens
            else frozenset(),
            marks=None if marks is None else Marks(marks, table, self._vocabulary),
            budget=budget,
        )

    def _token_table(self) -> TokenTable:
        with self._lock:
            if self._table is None:
                self._table = TokenTable(self._vocabulary, self._vocab_size)
            return self._table

    def _grammar_tokenizer(self) -> GrammarTokenizer:
        table = self._token_table()
        with self._lock:
            if self._tokenizer is None:
                if not self._eos_token_ids:
                    raise InvalidRequest("the model has no end-of-sequence token, which a form of the output needs")
                try:
                    self._tokenizer = GrammarTokenizer(self._vocabulary, table, self._eos_token_ids)
                except ValueError as error:
                    raise InvalidRequest(f"grammars do not work with the vocabulary of this model: {error}") from error
            return self._tokenizer

    def _grammar(self, params: StructuredOutputsParams) -> Grammar:
        try:
            source = self._source(params)
            key = source.encode()
            with self._lock:
                if key in self._grammars:
                    self._grammars.move_to_end(key)
                    return self._grammars[key]
            grammar = Grammar(source, self._grammar_tokenizer())
        except InvalidRequest as error:
            name = f"structured_outputs.{params.kind}" if params.param == "structured_outputs" else params.param
            raise InvalidRequest(f"{name} cannot be honoured: {error.message}", param=params.param) from error
        with self._lock:
            self._grammars[key] = grammar
            if len(self._grammars) > MAX_CACHED_GRAMMARS:
                self._grammars.popitem(last=False)
        return grammar

    def _source(self, params: StructuredOutputsParams) -> str:
        if params.choice is not None:
            return choice_grammar(params.choice)
        if params.json_object:
            return json_grammar({"type": "object"}, params)
        readers: dict[str, Callable[..., str]] = {
            "json": lambda schema: json_grammar(schema, params),
            "regex": regex_grammar,
            "grammar": lark_grammar,
            "structural_tag": lambda text: structural_tag_grammar(text, self._token_table()),
        }
        return readers[params.kind](getattr(params, params.kind))
