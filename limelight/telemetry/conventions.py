"""Every OpenTelemetry name in use, in one place: spans, attributes, events and metrics.

The GenAI names are those of the OpenTelemetry GenAI semantic conventions v0.1.0 (development status, and without a
package of constants), the HTTP names those of the stable HTTP conventions. What has no standard name is `limelight.*`.
"""
# ruff: noqa: S105 - tokens here are a model's, no passwords

SCOPE = "limelight"
"""Name of the tracer and of the meter."""
PROVIDER_NAME = "limelight"
"""Value of `gen_ai.provider.name`."""

# ---- GenAI: the request's span

GEN_AI_OPERATION_NAME = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
GEN_AI_OUTPUT_TYPE = "gen_ai.output.type"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
GEN_AI_RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_USAGE_REASONING_OUTPUT_TOKENS = "gen_ai.usage.reasoning.output_tokens"

# ---- GenAI: metrics, all of them histograms of seconds

GEN_AI_SERVER_REQUEST_DURATION = "gen_ai.server.request.duration"
GEN_AI_SERVER_TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"

# ---- GenAI: content, by opt-in alone

GEN_AI_INPUT_MESSAGES = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES = "gen_ai.output.messages"
GEN_AI_TOOL_DEFINITIONS = "gen_ai.tool.definitions"

# ---- HTTP, and what is common to all conventions

ERROR_TYPE = "error.type"
ERROR_TYPE_OTHER = "_OTHER"
"""Value of `error.type` where there is no better one."""
HTTP_REQUEST_METHOD = "http.request.method"
HTTP_REQUEST_METHOD_ORIGINAL = "http.request.method_original"
HTTP_RESPONSE_BODY_SIZE = "http.response.body.size"
HTTP_RESPONSE_STATUS_CODE = "http.response.status_code"
HTTP_ROUTE = "http.route"
URL_PATH = "url.path"
URL_SCHEME = "url.scheme"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
CLIENT_ADDRESS = "client.address"
NETWORK_PROTOCOL_VERSION = "network.protocol.version"
USER_AGENT_ORIGINAL = "user_agent.original"

# ---- Limelight: spans below the request's, and their events

SPAN_ADMISSION = "admission"
SPAN_TOKENIZE = "tokenize"
SPAN_CONSTRAINTS = "constraints"
SPAN_QUEUE = "queue"
SPAN_PREFILL = "prefill"
SPAN_DECODE = "decode"
SPAN_CHOICE = "choice"
"""Followed by the number of the choice, where there are several."""
SPAN_STEP = "step"

EVENT_CHUNK = "chunk"
EVENT_FIRST_TOKEN = "first token"
EVENT_LAST_TOKEN = "last token"
EVENT_PREEMPTED = "preempted"
EVENT_RESUMED = "resumed"
EVENT_STALL = "stall"

# ---- Limelight: the request's span

REQUEST_ID = "limelight.request.id"
HTTP_REQUEST_ID = "limelight.http_request.id"
"""`x-request-id` of the HTTP request."""
OWNER = "limelight.owner"
"""Name of the principal that asked; never its key."""
PRIORITY = "limelight.priority"
REPETITION_PENALTY = "limelight.request.repetition_penalty"
MIN_P = "limelight.request.min_p"
NUM_STOP_STRINGS = "limelight.request.num_stop_strings"
CONSTRAINED = "limelight.request.constrained"
CACHE_SALTED = "limelight.request.cache_salted"
ENDING = "limelight.ending"
"""`completed`, `aborted`, `rejected`, `expired`, `invalid` or `failed`."""
DEADLINE = "limelight.deadline"
"""Which limit of time ended it: `max_queue_ms`, `max_ttft_ms` or `max_total_ms`."""
ENDING_REASON = "limelight.ending_reason"
"""Why it was aborted, in words; what is an error has them in its status."""
TIME_TO_FIRST_TOKEN = "limelight.time_to_first_token"
"""Seconds from the call, whether or not the client streams."""
TIME_PER_OUTPUT_TOKEN = "limelight.time_per_output_token"
"""Mean seconds between two tokens."""
DETOKENIZE_SECONDS = "limelight.detokenize.seconds"
TIME_TO_FIRST_BYTE = "limelight.time_to_first_byte"
"""Seconds from the arrival of an HTTP request until its status line went out."""
DELIVERY_SECONDS = "limelight.delivery.seconds"
"""That writes to the client waited for the socket."""
DELIVERY_LONGEST_SECONDS = "limelight.delivery.longest_seconds"
DELIVERY_NUM_WRITES = "limelight.delivery.num_writes"
DELIVERY_NUM_BYTES = "limelight.delivery.num_bytes"
NUM_PREEMPTIONS = "limelight.num_preemptions"
NUM_STALLS = "limelight.num_stalls"
STEP_SECONDS = "limelight.step_seconds"
"""Its share of the time that steps took."""
PAGE_SECONDS = "limelight.page_seconds"
"""KV pages that it held, times seconds."""

# ---- Limelight: spans below it

TOKENIZER_SECONDS = "limelight.tokenize.seconds"
"""On the tokenizer's thread; the rest of the span is waiting for it."""
PROMPT_TOKENS = "limelight.prompt_tokens"
CHOICE_INDEX = "limelight.choice.index"
FINISH_REASON = "limelight.finish_reason"
CACHED_TOKENS = "limelight.cached_tokens"
NUM_CHUNKS = "limelight.num_chunks"
NUM_TOKENS = "limelight.num_tokens"
STEP_NUMBER = "limelight.step.number"
CHUNK_START = "limelight.chunk.start"
CHUNK_TOKENS = "limelight.chunk.tokens"
CHUNK_SECONDS = "limelight.chunk.seconds"
"""From the plan of its step to the result."""
STALL_SECONDS = "limelight.stall.seconds"

# ---- Limelight: a step's span

STEP_PREFILL_TOKENS = "limelight.step.prefill_tokens"
STEP_DECODE_TOKENS = "limelight.step.decode_tokens"
STEP_NUM_CHUNKS = "limelight.step.num_chunks"
STEP_NUM_PREFILL_CHUNKS = "limelight.step.num_prefill_chunks"
STEP_NUM_REQUESTS = "limelight.step.num_requests"
STEP_LINKS_LEFT_OUT = "limelight.step.links_left_out"
STEP_BUSY_SECONDS = "limelight.step.busy_seconds"
"""On the runner's threads, without what overlaps the step before."""
STEP_WAIT_SECONDS = "limelight.step.wait_seconds"
"""From its plan until the runner took it."""
STEP_SUBMIT_SECONDS = "limelight.step.submit_seconds"
STEP_MASK_SECONDS = "limelight.step.mask_seconds"
"""Waiting for masks of constrained requests."""
STEP_RESULT_SECONDS = "limelight.step.result_seconds"
"""From having everything until the result was there."""
STEP_STALLED = "limelight.step.stalled"
STEP_LONGEST_PART = "limelight.step.longest_part"
"""`submit`, `mask` or `result`: where a step that stalled spent most of its time."""

# ---- what vLLM and SGLang call it (`trace_vllm_attributes`)

VLLM_REQUEST_ID = "gen_ai.request.id"
VLLM_REQUEST_N = "gen_ai.request.n"
VLLM_PROMPT_TOKENS = "gen_ai.usage.prompt_tokens"
VLLM_COMPLETION_TOKENS = "gen_ai.usage.completion_tokens"
VLLM_TIME_TO_FIRST_TOKEN = "gen_ai.latency.time_to_first_token"
VLLM_E2E = "gen_ai.latency.e2e"
VLLM_TIME_IN_QUEUE = "gen_ai.latency.time_in_queue"
VLLM_TIME_IN_PREFILL = "gen_ai.latency.time_in_model_prefill"
VLLM_TIME_IN_DECODE = "gen_ai.latency.time_in_model_decode"
VLLM_TIME_IN_INFERENCE = "gen_ai.latency.time_in_model_inference"
SGLANG_CACHED_TOKENS = "gen_ai.usage.cached_tokens"
