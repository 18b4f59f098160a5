"""What a client asks for and what it gets: the vocabulary shared by every layer. No torch, no asyncio."""

import enum
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from limelight.errors import InvalidRequest
from limelight.quoting import quoted
from limelight.structured_outputs import StructuredOutputsParams

INT64_MAX = 2**63 - 1
MAX_LOGPROBS = 20
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARACTERS = 1024
MAX_LOGIT_BIAS_ENTRIES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_REPETITION_PATTERN_TOKENS = 256
MAX_QUOTA_TOKENS = 10**9
GREEDY_TEMPERATURE = 1e-5
"""Temperatures below this are greedy decoding (as in vLLM)."""
MIN_TEMPERATURE = 0.01
"""Non-greedy temperatures below this are raised to it, so that logits / temperature stays finite."""


class FinishReason(enum.StrEnum):
    """Why a choice ended; the values of the OpenAI API that a text generation can have."""

    STOP = "stop"
    LENGTH = "length"


class Pooling(enum.StrEnum):
    """How the hidden states of a prompt's tokens (behind the model's final norm) become one vector."""

    LAST = "last"
    MEAN = "mean"


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True):
    """Ends a choice whose last tokens are one pattern again and again (as vLLM's field of this name).

    Attributes:
        max_pattern_size: longest pattern that is looked for, in tokens; 0 switches it off.
        min_pattern_size: shortest one; 0 counts as 1.
        min_count: how often the pattern must stand at the end, at least 2.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        _integer("repetition_detection.max_pattern_size", self.max_pattern_size, 0, MAX_REPETITION_PATTERN_TOKENS)
        _integer("repetition_detection.min_pattern_size", self.min_pattern_size, 0, self.max_pattern_size)
        _integer("repetition_detection.min_count", self.min_count, 2 if self.max_pattern_size else 0, INT64_MAX)


class ReasoningFormat(msgspec.Struct, frozen=True):
    """How a model marks its reasoning in the text: between `start` and `end` (`"<think>"`, `"</think>"`)."""

    start: str
    end: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are drawn and when a choice ends. Names and defaults follow vLLM's class of the same name.

    Attributes:
        n: number of choices, 1 to 128.
        temperature: 0 to 2; below 1e-5 is greedy, which ignores `top_p`, `top_k` and `min_p`.
        top_p: nucleus mass, in (0, 1].
        top_k: keep the k best tokens; 0 or -1 switches it off.
        min_p: keep tokens with at least `min_p` times the best token's probability, in [0, 1].
        presence_penalty, frequency_penalty: -2 to 2, over output tokens only.
        repetition_penalty: > 0; divides or multiplies logits of tokens in prompt or output (CTRL, Keskar 2019).
        seed: int64; the same seed and prompt give the same tokens in any batch. None draws one at admission.
        stop: up to 16 strings that end a choice; not part of the text unless `include_stop_str_in_output`.
        stop_token_ids: token ids that end a choice.
        ignore_eos: go on after the model's end-of-sequence tokens.
        max_tokens: output limit; None means up to the end of the context. Larger than the context is clamped. 0 draws
            nothing, for requests that want `prompt_logprobs` alone.
        min_tokens: end-of-sequence and stop tokens are not drawn, and stop strings not matched, before this many.
        logprobs: also return the log-probabilities of the drawn token and of this many best ones (0 to 20).
        logit_bias: token id -> -100..100, added to the logits.
        skip_special_tokens: leave special tokens out of the text.
        include_stop_str_in_output: keep the matched stop string in the text.
        structured_outputs: what the output must look like.
        bad_words: words that never occur in the output.
        allowed_token_ids: only these tokens are drawn (and those that end the choice).
        thinking_token_budget: after this many tokens of reasoning its end is forced; None or -1: no budget.
        shown_special_tokens: special tokens that stay in the text although `skip_special_tokens` leaves the others out.
        prompt_logprobs: also return log-probabilities of the prompt's tokens, as `logprobs`. Then nothing of the prompt
            is taken from the prefix cache.
        logprob_token_ids: also return the log-probabilities of these tokens at every output position; at most 128.
        repetition_detection: end a choice that repeats itself, once it has `min_tokens`.
        detokenize: make text of the tokens; without it there is none, and no stop strings.
        stream_interval: a stream gives news after this many tokens (the first ones and the last are not held back);
            None: as the engine does by itself.
        skip_reading_prefix_cache: compute the whole prompt. It is still put into the cache.

    Raises:
        InvalidRequest: a value is out of range; `param` names the field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    logit_bias: Mapping[int, float] | None = None
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    thinking_token_budget: int | None = None
    shown_special_tokens: frozenset[int] = frozenset()
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    repetition_detection: RepetitionDetection | None = None
    detokenize: bool = True
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool = False

    def __post_init__(self) -> None:
        _integer("n", self.n, 1, MAX_CHOICES)
        _number("temperature", self.temperature, 0.0, 2.0)
        _number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p <= 0.0:
            raise InvalidRequest(f"top_p is {self.top_p}, must be above 0 and at most 1", param="top_p")
        _integer("top_k", self.top_k, -1, INT64_MAX)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 1e6)
        if self.repetition_penalty <= 0.0:
            raise InvalidRequest("repetition_penalty must be above 0", param="repetition_penalty")
        _optional_integer("seed", self.seed, -INT64_MAX - 1, INT64_MAX)
        _stop_strings(self.stop_strings)
        for token_id in self.stop_token_ids or ():
            _integer("stop_token_ids", token_id, 0, INT64_MAX)
        if self.max_tokens is not None:
            _max_tokens(self.max_tokens, least=1 if self.prompt_logprobs is None else 0)
        _integer("min_tokens", self.min_tokens, 0, INT64_MAX if self.max_tokens is None else self.max_tokens)
        _optional_integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        _logit_bias(self.logit_bias)
        _bounds_of_output(self)
        _optional_integer("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)
        _optional_integer("stream_interval", self.stream_interval, 1, INT64_MAX)
        if self.stop_strings and not self.detokenize:
            raise InvalidRequest("stop needs text: leave out detokenize: false, or use stop_token_ids", param="stop")
        _logprob_token_ids(self.logprob_token_ids)

    @property
    def wants_logprobs(self) -> bool:
        """Whether output tokens come with log-probabilities."""
        return self.logprobs is not None or bool(self.logprob_token_ids)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class TextPrompt(msgspec.Struct, frozen=True):
    """Raw text; the tokenizer adds its own special tokens (a BOS, say) when `add_special_tokens`."""

    text: str
    add_special_tokens: bool = True


class TokensPrompt(msgspec.Struct, frozen=True):
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for the model's chat template.

    Attributes:
        messages: OpenAI-shaped dictionaries (`role`, `content`, `tool_calls` ...), already validated.
        tools: OpenAI-shaped tool definitions, or None.
        add_generation_prompt: end with the header of an assistant turn.
        continue_final_message: leave the last (assistant) message open, so that the model goes on with it.
        template_arguments: further variables for the template (`enable_thinking` ...).
        template: a template to use instead of the model's own; it is foreign code, however well it is fenced in.
        add_special_tokens: the tokenizer adds its own special tokens to what the template wrote, which as a rule has
            them already.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_arguments: Mapping[str, Any] = {}
    template: str | None = None
    add_special_tokens: bool = False


class Truncation(msgspec.Struct, frozen=True, kw_only=True):
    """Cuts a prompt that is too long, instead of refusing it.

    Attributes:
        max_tokens: tokens of the prompt that are kept; None: as many as leave room in the context for `max_tokens` of
            output, or for one token if that has no limit.
        side: where tokens are dropped. "left" keeps the end of the prompt.

    Raises:
        InvalidRequest: `max_tokens` is below 1.
    """

    max_tokens: int | None = None
    side: Literal["left", "right"] = "left"

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _integer("truncate_prompt_tokens", self.max_tokens, 1, INT64_MAX)


Prompt = TextPrompt | TokensPrompt | ChatPrompt


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of time, in milliseconds from when the engine is asked; None: no limit.

    Attributes:
        max_queue_ms: until the first step that works on the request.
        max_ttft_ms: until its first token.
        max_total_ms: until its end. A request that has output by then ends with what there is: `finish_reason`
            "length", `finish_details` "deadline". One that has none, and one that breaks another limit, fails with
            `DeadlineExceeded`.
    """

    max_queue_ms: float | None = None
    max_ttft_ms: float | None = None
    max_total_ms: float | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Whose turn a request takes where requests of equal priority compete, and how much that one may use.

    Its quota is a token bucket: it fills by `tokens_per_minute` up to `burst_tokens`. A request costs what its `usage`
    says: the tokens of the prompt that were not cached, and those of the output. It is let in if the bucket has what
    its prompt costs (or is full, for a prompt that costs more than it holds), else it fails with `ShareExceeded`, which
    says when the bucket will. Output is taken as it is drawn, also below zero. What is not computed is given back.

    Attributes:
        name: of a key, user or team; at most 300 characters, which UTF-8 can encode.
        weight: one of weight 3 gets three times what one of weight 1 gets, while both want more.
        tokens_per_minute: 1 to 1,000,000,000; None: no quota.
        burst_tokens: likewise; None: those of one minute.
        payer: the name of the one whose quota it is, if several shares draw on one; None: its own.
    """

    name: str
    weight: float = 1.0
    tokens_per_minute: float | None = None
    burst_tokens: float | None = None
    payer: str | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the engine admits it.

    Attributes:
        request_id: unique among live requests. It, `owner` and `http_request_id` are shown to others: they have at most
            300 characters, which UTF-8 can encode.
        priority: lower is served earlier.
        cache_salt: only requests with the same salt share cached prefix pages.
        adapter: name of a loaded LoRA adapter to run with, or None for the model itself. Only requests with the same
            adapter share cached prefix pages.
        owner: name of the principal that asked, for accounting; never its key.
        max_owner_requests: live requests that the owner may have, this one included; None: any number.
        share: whose turn it takes when requests compete, and on whose quota it draws; None: the owner's, without one.
        reasoning: how the model marks its reasoning, which then becomes `Delta.reasoning` and not text; None leaves it
            in the text. A rendered prompt that ends inside a reasoning lets the output begin in it.
        pooling: read the prompt's hidden states and draw nothing; None: generate.
        truncation: cut a prompt that is too long; None refuses it.
        return_token_offsets: say where in the prompt's text each of its tokens stands.
        deadlines: when it is no longer wanted; None: always.
        streams: whether the client reads the answer while it is made, for traces.
        record_id: write a replay bundle of this name when the request has ended, into `EngineConfig.record_dir`; it
            holds the prompt and the answer. At most 64 letters, digits, `-` and `_`. None: record nothing.
        http_request_id: `x-request-id` of the HTTP request behind it, for logs and the live view.
        trace_context: the `opentelemetry.context.Context` whose span is the parent of the request's; None: the one that
            is current where the request is opened.
    """

    request_id: str
    prompt: Prompt
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    adapter: str | None = None
    owner: str = "anonymous"
    max_owner_requests: int | None = None
    share: Share | None = None
    reasoning: ReasoningFormat | None = None
    pooling: Pooling | None = None
    truncation: Truncation | None = None
    return_token_offsets: bool = False
    deadlines: Deadlines | None = None
    streams: bool = False
    record_id: str | None = None
    http_request_id: str | None = None
    trace_context: Any = None


class AlternativeToken(msgspec.Struct, frozen=True, gc=False):
    """One of the most likely tokens at a position.

    `bytes` are the token's own raw bytes: joined, those of all tokens are the text. So a token of an output that adds
    nothing to it (the end, a special token that is left out) has none, only its name `token`.
    """

    token_id: int
    token: str
    bytes: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, gc=False):
    """Log-probability (natural log, of the model's own distribution before temperature and cuts) of a token.

    Attributes:
        top: the `SamplingParams.logprobs` (`prompt_logprobs`) most likely tokens, best first.
        asked: those of `SamplingParams.logprob_token_ids`, in their order.
        rank: how many tokens are at least as likely, 1 for the best; None for output tokens.
    """

    token_id: int
    token: str
    bytes: bytes
    logprob: float
    top: tuple[AlternativeToken, ...] = ()
    asked: tuple[AlternativeToken, ...] = ()
    rank: int | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a request.

    Attributes:
        prompt_tokens: counts once for all choices and includes `cached_tokens`.
        reasoning_tokens: those of `completion_tokens` that were reasoning, its marks included.
        accepted_prediction_tokens: those of `completion_tokens` that were guessed rightly (speculative decoding).
        rejected_prediction_tokens: wrong guesses; not among `completion_tokens`.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt plus completion."""
        return self.prompt_tokens + self.completion_tokens


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is new of one choice.

    Text never ends inside a character and never holds part of a stop string. `token_ids` and `logprobs` are those of
    exactly the tokens whose text has now been released. The last delta of a choice has a `finish_reason`.

    Attributes:
        index: which choice, 0 to n-1.
        reasoning: what the model wrote to itself before its answer, where `GenerationRequest.reasoning` asks for it; it
            comes before `text`.
        logprobs: None unless asked for.
        stop_reason: the stop string, or the one of `stop_token_ids`, that ended the choice, else None.
        finish_details: a finer reason than `finish_reason` ("kv_cache_full", "deadline", "repetition"), else None.
        usage: set on the last delta of the whole request, else None.
    """

    index: int = 0
    reasoning: str = ""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    finish_details: str | None = None
    usage: Usage | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One whole choice; `reasoning` as in `Delta`."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    finish_details: str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the drawn tokens' log-probabilities, if they were asked for."""
        return None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request: vLLM's `RequestOutput` under the field's names.

    Attributes:
        prompt: the prompt's text after the chat template, or None for a token-id prompt.
        prompt_logprobs: one entry per prompt token, None for the first; None unless asked for.
        pooled: the vector that `GenerationRequest.pooling` asks for, as the model gave it; None unless asked for.
        prompt_token_offsets: start and end of every prompt token in `prompt`, in characters; None unless asked for, and
            for a prompt of token ids.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[Completion, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    pooled: tuple[float, ...] | None = None
    prompt_token_offsets: tuple[tuple[int, int], ...] | None = None

    @property
    def prompt_text(self) -> str | None:
        """`prompt`, by the name that it has while the request runs."""
        return self.prompt

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.outputs[0].text

    @property
    def finished(self) -> bool:
        """Always True; kept for code written for vLLM."""
        return True


def _number(name: str, value: float, low: float, high: float) -> None:
    """Written so that NaN fails: it is in no range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (low <= value <= high):
        raise InvalidRequest(f"{name} is {quoted(value)}, must be a number from {low:g} to {high:g}", param=name)


def _integer(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not (low <= value <= high):
        raise InvalidRequest(f"{name} is {quoted(value)}, must be an integer from {low} to {high}", param=name)


def _max_tokens(max_tokens: int, least: int) -> None:
    if max_tokens == 0 < least:
        raise InvalidRequest(
            "max_tokens is 0, must be at least 1; 0 needs prompt_logprobs, which then is all that is returned",
            param="max_tokens",
        )
    _integer("max_tokens", max_tokens, least, INT64_MAX)


def _logprob_token_ids(token_ids: Sequence[int] | None) -> None:
    if token_ids is None:
        return
    if len(token_ids) > MAX_LOGPROB_TOKEN_IDS:
        raise InvalidRequest(
            f"logprob_token_ids holds {len(token_ids)} token ids, at most {MAX_LOGPROB_TOKEN_IDS} are allowed",
            param="logprob_token_ids",
        )
    for token_id in token_ids:
        _integer("logprob_token_ids", token_id, 0, INT64_MAX)


def _optional_integer(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None:
        _integer(name, value, low, high)


def _stop_strings(stop: tuple[str, ...]) -> None:
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop has {len(stop)} strings, at most {MAX_STOP_STRINGS} are allowed", param="stop")
    for text in stop:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"stop holds {quoted(text)}; each stop must be a non-empty string", param="stop")
        if len(text) > MAX_STOP_STRING_CHARACTERS:
            raise InvalidRequest(
                f"a stop string has {len(text)} characters, at most {MAX_STOP_STRING_CHARACTERS} are allowed",
                param="stop",
            )


def _bounds_of_output(sampling: SamplingParams) -> None:
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise InvalidRequest("allowed_token_ids is empty; give at least one token id", param="allowed_token_ids")
    for token_id in sampling.allowed_token_ids or ():
        _integer("allowed_token_ids", token_id, 0, INT64_MAX)
    _bad_words(sampling.bad_words or ())
    if sampling.structured_outputs is not None and sampling.ignore_eos:
        raise InvalidRequest(
            "ignore_eos goes on behind the end of the output, which structured_outputs determines; leave one out",
            param="ignore_eos",
        )
    _optional_integer("thinking_token_budget", sampling.thinking_token_budget, -1, INT64_MAX)


def _bad_words(words: Sequence[str]) -> None:
    if isinstance(words, str):
        raise InvalidRequest("bad_words is a string; give a list of strings", param="bad_words")
    if len(words) > MAX_BAD_WORDS:
        raise InvalidRequest(
            f"bad_words has {len(words)} words; at most {MAX_BAD_WORDS} are allowed", param="bad_words"
        )
    for word in words:
        if not isinstance(word, str) or not word:
            raise InvalidRequest(f"bad_words holds {word!r:.80}; each must be a non-empty string", param="bad_words")
        if len(word) > MAX_BAD_WORD_CHARACTERS:
            raise InvalidRequest(
                f"a word of bad_words has {len(word)} characters, at most {MAX_BAD_WORD_CHARACTERS} are allowed",
                param="bad_words",
            )


def _logit_bias(logit_bias: Mapping[int, float] | None) -> None:
    if logit_bias is None:
        return
    if len(logit_bias) > MAX_LOGIT_BIAS_ENTRIES:
        raise InvalidRequest(
            f"logit_bias has {len(logit_bias)} entries, at most {MAX_LOGIT_BIAS_ENTRIES} are allowed",
            param="logit_bias",
        )
    for token_id, bias in logit_bias.items():
        _integer("logit_bias", token_id, 0, INT64_MAX)
        if not math.isfinite(bias) or not -100 <= bias <= 100:
            raise InvalidRequest(
                f"logit_bias[{token_id}] is {quoted(bias)}, must be from -100 to 100", param="logit_bias"
            )
