"""Attributes of a request's own span, derived from its timeline: no content, and 0 is a value like any other."""

import time

from limelight.errors import ContextLengthExceeded, EngineNotRunning, Overloaded, RequestExpired, StepFailure
from limelight.generation import INT64_MAX
from limelight.quoting import encodable
from limelight.telemetry import conventions as names
from limelight.telemetry.timeline import Ending, RequestTimeline
from limelight.telemetry.timings import timings

AttributeValue = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, AttributeValue]

QUOTES_NOTHING = (ContextLengthExceeded, EngineNotRunning, Overloaded, RequestExpired, StepFailure)
"""Errors whose messages hold our own words and numbers alone."""


def span_name(timeline: RequestTimeline) -> str:
    """As the GenAI conventions say."""
    return f"{timeline.operation} {timeline.model}"


def creation_attributes(timeline: RequestTimeline) -> Attributes:
    """What samplers see: known before anything has happened."""
    return {
        names.GEN_AI_OPERATION_NAME: timeline.operation,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_NAME,
        names.GEN_AI_REQUEST_MODEL: timeline.model,
    }


def request_attributes(timeline: RequestTimeline) -> Attributes:
    """All that is known by now; also the only place of `gen_ai.usage.*`."""
    return {
        **creation_attributes(timeline),
        **_asked(timeline),
        **(_usage(timeline) if timeline.encoded_at is not None else {}),
        **_spent(timeline),
        **_ended(timeline),
    }


def older_attributes(timeline: RequestTimeline) -> Attributes:
    """Numbers of an ended request under the names that vLLM and SGLang use, in seconds and tokens."""
    assert timeline.ended_at is not None, "it has ended"
    parts = timings(timeline)
    inference = None if parts.prefill is None or parts.decode is None else parts.prefill + parts.decode
    return _known(
        {
            names.VLLM_REQUEST_ID: timeline.request_id,
            names.VLLM_REQUEST_N: timeline.num_choices,
            names.VLLM_PROMPT_TOKENS: timeline.prompt_tokens,
            names.VLLM_COMPLETION_TOKENS: timeline.output_tokens,
            names.SGLANG_CACHED_TOKENS: timeline.cached_tokens,
            names.VLLM_TIME_TO_FIRST_TOKEN: parts.time_to_first_token,
            names.VLLM_E2E: parts.total,
            names.VLLM_TIME_IN_QUEUE: parts.queue,
            names.VLLM_TIME_IN_PREFILL: parts.prefill,
            names.VLLM_TIME_IN_DECODE: parts.decode,
            names.VLLM_TIME_IN_INFERENCE: inference,
        }
    )


def error_type(timeline: RequestTimeline) -> str | None:
    """`error.type`: the error's code; None if there is no error."""
    error = timeline.error
    return None if error is None else error.code or names.ERROR_TYPE_OTHER


def error_description(timeline: RequestTimeline) -> str | None:
    """Why the request's span has the status of an error; None: it has not, completed and aborted requests.

    Messages that may quote the request give way to the code and the field.
    """
    error = timeline.error
    if error is None or timeline.ending is Ending.ABORTED:
        return None
    if isinstance(error, QUOTES_NOTHING):
        return encodable(error.message)
    code = error.code or names.ERROR_TYPE_OTHER
    return code if error.param is None else encodable(f"{code}: {error.param}")


def _asked(timeline: RequestTimeline) -> Attributes:
    asked: dict[str, AttributeValue | None] = {
        names.REQUEST_ID: timeline.request_id,
        names.HTTP_REQUEST_ID: timeline.http_request_id,
        names.OWNER: timeline.owner,
        names.SHARE: timeline.share,
        names.PRIORITY: _int64(timeline.priority),
        names.CACHE_SALTED: timeline.cache_salted,
        names.GEN_AI_REQUEST_STREAM: timeline.streams or None,
    }
    if timeline.operation != "embeddings":
        sampling = timeline.sampling
        asked |= {
            names.GEN_AI_REQUEST_CHOICE_COUNT: timeline.num_choices if timeline.num_choices != 1 else None,
            names.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
            names.GEN_AI_REQUEST_TOP_P: sampling.top_p,
            names.GEN_AI_REQUEST_TOP_K: sampling.top_k,
            names.GEN_AI_REQUEST_MAX_TOKENS: sampling.max_tokens,
            names.GEN_AI_REQUEST_SEED: sampling.seed,
            names.GEN_AI_REQUEST_FREQUENCY_PENALTY: sampling.frequency_penalty,
            names.GEN_AI_REQUEST_PRESENCE_PENALTY: sampling.presence_penalty,
            names.REPETITION_PENALTY: sampling.repetition_penalty,
            names.MIN_P: sampling.min_p,
            names.NUM_STOP_STRINGS: sampling.num_stop_strings,
            names.CONSTRAINED: sampling.constrained,
            names.GEN_AI_OUTPUT_TYPE: sampling.output_type,
        }
    return _known(asked)


def _usage(timeline: RequestTimeline) -> Attributes:
    drawn = sum(choice.num_tokens for choice in timeline.choices)
    return {
        names.GEN_AI_USAGE_INPUT_TOKENS: timeline.prompt_tokens,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: drawn if timeline.ended_at is None else timeline.output_tokens,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: timeline.cached_tokens,
        names.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS: timeline.reasoning_tokens,
    }


def _spent(timeline: RequestTimeline) -> Attributes:
    parts = timings(timeline)
    spent: dict[str, AttributeValue | None] = {
        names.TIME_TO_FIRST_TOKEN: parts.time_to_first_token,
        names.TIME_PER_OUTPUT_TOKEN: parts.per_token,
        names.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: _time_to_first_chunk(timeline),
        names.DETOKENIZE_SECONDS: timeline.detokenize_seconds,
    }
    if timeline.choices:
        spent |= {
            names.NUM_PREEMPTIONS: sum(choice.num_preemptions for choice in timeline.choices),
            names.NUM_STALLS: sum(choice.num_stalls for choice in timeline.choices),
            names.SHARE_WAIT_SECONDS: timeline.share_wait(timeline.ended_at or time.monotonic()),
            names.STEP_SECONDS: timeline.step_seconds,
            names.PAGE_SECONDS: sum(choice.page_seconds for choice in timeline.choices),
        }
    delivery = timeline.delivery
    if delivery is not None:
        spent |= {
            names.DELIVERY_SECONDS: delivery.seconds,
            names.DELIVERY_LONGEST_SECONDS: delivery.longest_seconds,
            names.DELIVERY_NUM_WRITES: delivery.num_writes,
            names.DELIVERY_NUM_BYTES: delivery.num_bytes,
        }
    return _known(spent)


def _time_to_first_chunk(timeline: RequestTimeline) -> float | None:
    """For those who stream."""
    at = timeline.first_chunk_at
    return None if at is None or not timeline.streams else at - timeline.arrived_at


def _ended(timeline: RequestTimeline) -> Attributes:
    if timeline.ending is None:
        return {}
    ended: dict[str, AttributeValue | None] = {
        names.ENDING: timeline.ending.value,
        names.ERROR_TYPE: error_type(timeline),
        names.DEADLINE: timeline.deadline,
        names.GEN_AI_RESPONSE_FINISH_REASONS: tuple(reason.value for reason in timeline.finish_reasons) or None,
    }
    if timeline.ending is Ending.COMPLETED:
        ended[names.GEN_AI_RESPONSE_ID] = timeline.request_id
        ended[names.GEN_AI_RESPONSE_MODEL] = timeline.model
    if timeline.ending is Ending.ABORTED and timeline.error is not None:
        ended[names.ENDING_REASON] = encodable(timeline.error.message)
    return _known(ended)


def _int64(value: object) -> int | None:
    """A number from outside, brought to where exporters can encode it; None if it is none, which admission refuses."""
    return min(max(value, -INT64_MAX), INT64_MAX) if isinstance(value, int) else None


def _known(attributes: dict[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
