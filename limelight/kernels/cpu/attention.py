"""The KV pool of the C kernels, and attention over it (`csrc/kv.h`, `csrc/attention.h`)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from limelight.kernels.cpu.arrays import exact
from limelight.kernels.cpu.library import Function
from limelight.kernels.cpu.recorder import ALIGNMENT, Recorder, RowCount, Value
from limelight.kernels.cpu.step_buffers import StepBuffers
from limelight.kernels.interface import AttentionSettings, KVLayout, Numbers

PAGE_SIZES = (8, 16, 32, 64, 128)
TYPES = ("bfloat16", "float16", "float32")
SURPLUS_BYTES = 128
"""Bytes behind the pool that may be read: the last values are read together with what follows them."""
PAGES_OF_A_RUN = 16
"""As RUN in `csrc/kv.h`."""
PLAN_BYTES = Function("attention_plan_bytes", "iiiiii")
PARTIAL_FLOATS = Function("attention_partial_floats", "iiiiii")
RECORD_PLAN = Function("record_attention_plan", "ppppipiiiiii")
WRITE = Function("record_write", "ppppppiiii")
ROTATE_AND_WRITE = Function("record_rotate_and_write", "ppppppippfppipiiii")
ATTEND = Function("record_attend", "ppiiiippiiipppipiffpp")


@dataclass(frozen=True, slots=True)
class KVPool:
    """The KV pool.

    Attributes:
        layers: uint8, per layer [num_pages, bytes of a page], aligned to cache lines.
    """

    layout: KVLayout
    layers: tuple[NDArray[np.uint8], ...]

    def arguments(self, layer: int) -> tuple[NDArray[np.uint8], int, int, int, int]:
        """A layer as the operations take it: pages, type, page_size, num_kv_heads, head_dim."""
        layout = self.layout
        kind = TYPES.index(layout.dtype)
        return self.layers[layer], kind, layout.page_size, layout.num_kv_heads, layout.head_dim


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary tables, [max_positions, rotary_dim / 2] float32, read at the positions of the rows."""

    cos: NDArray[np.float32]
    sin: NDArray[np.float32]
    batch: StepBuffers


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """Where the plan of one kind of layer lies once it is made.

    Attributes:
        memory: uint8, the plan.
        partials: room for partial results, used by one layer at a time.
    """

    memory: NDArray[np.uint8]
    partials: Value


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Work split of attention in a step; made by an operation when the first layer with a given window asks."""

    batch: StepBuffers
    kv: KVPool
    _recorded: dict[tuple[int | None, int], RecordedPlan] = field(default_factory=dict)

    def limits(self, num_heads: int) -> tuple[int, int, int, int, int, int]:
        """The largest step and the shape of a layer, as the functions take them."""
        step, layout = self.batch.limits, self.kv.layout
        group = num_heads // layout.num_kv_heads
        max_context = step.max_pages * layout.page_size
        return step.num_tokens, step.num_seats, max_context, layout.num_kv_heads, group, layout.head_dim

    def recorded(self, recorder: Recorder, window: int | None, num_heads: int) -> RecordedPlan:
        """The plan for layers with this window and number of query heads."""
        recorded = self._recorded.get((window, num_heads))
        if recorded is None:
            limits = self.limits(num_heads)
            memory = np.zeros(recorder.library.call_long(PLAN_BYTES, *limits), np.uint8)
            partials = recorder.library.call_long(PARTIAL_FLOATS, *limits)
            always = RowCount(np.ones(1, np.int32), 1)
            recorded = RecordedPlan(memory, recorder.value(always, partials))
            batch = self.batch
            starts, contexts = batch.query_starts, batch.context_lens
            recorder.append(RECORD_PLAN, batch.chunk_count, starts, contexts, window or 0, memory, *limits)
            self._recorded[window, num_heads] = recorded
        return recorded


def page_bytes(layout: KVLayout) -> int:
    """Memory of a page over all layers. Keys of an odd head_dim take one dimension more than `layout` counts."""
    return layout.page_bytes // (2 * layout.head_dim) * (2 * layout.head_dim + layout.head_dim % 2)


def allocate_kv(layout: KVLayout) -> KVPool:
    """The pool, uninitialised: a multiple of `PAGES_OF_A_RUN` pages.

    Raises:
        ValueError: the dtype is none of `TYPES`.
    """
    if layout.dtype not in TYPES:
        raise ValueError(f"the KV pool cannot be {layout.dtype}; use one of {', '.join(TYPES)}")
    num_pages = -(-layout.num_pages // PAGES_OF_A_RUN) * PAGES_OF_A_RUN
    layer_bytes = num_pages * page_bytes(layout) // layout.num_layers
    layer_bytes += -layer_bytes % ALIGNMENT
    memory = np.empty(layout.num_layers * layer_bytes + SURPLUS_BYTES + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return KVPool(layout, tuple(memory[start + i * layer_bytes :][:layer_bytes] for i in range(layout.num_layers)))


def rotation(cos: Numbers, sin: Numbers, batch: StepBuffers) -> Rotation:
    """The tables as C reads them."""
    return Rotation(exact(cos), exact(sin), batch)


def rotate_and_write(
    recorder: Recorder,
    kv: KVPool,
    layer: int,
    qkv: Value,
    rotation: Rotation,
    plan: AttentionPlan,
    q_norm: Numbers | None,
    k_norm: Numbers | None,
    epsilon: float,
) -> Value:
    """QK-norm and rotary embedding; keys and values to their slots.

    Returns:
        queries [tokens, heads * head_dim].
    """
    head_dim = kv.layout.head_dim
    num_heads = qkv.width // head_dim - 2 * kv.layout.num_kv_heads
    queries = recorder.value(qkv.rows, num_heads * head_dim)
    recorder.append(
        ROTATE_AND_WRITE,
        qkv.rows,
        plan.batch.positions,
        plan.batch.slots,
        rotation.cos,
        rotation.sin,
        rotation.cos.shape[1],
        None if q_norm is None else exact(q_norm),
        None if k_norm is None else exact(k_norm),
        epsilon,
        qkv,
        queries,
        num_heads,
        *kv.arguments(layer),
    )
    return queries


def write(recorder: Recorder, kv: KVPool, layer: int, keys: Value, values: Value, plan: AttentionPlan) -> None:
    """Keys and values [tokens, kv_heads * head_dim] to their slots."""
    recorder.append(WRITE, keys.rows, plan.batch.slots, keys, values, *kv.arguments(layer))


def attend(
    recorder: Recorder, kv: KVPool, layer: int, queries: Value, plan: AttentionPlan, settings: AttentionSettings
) -> Value:
    """Attention of `queries` [tokens, heads * head_dim] -> the same shape, quantised rows on the way if wanted."""
    num_heads = queries.width // kv.layout.head_dim
    recorded = plan.recorded(recorder, settings.sliding_window, num_heads)
    outputs = recorder.value(queries.rows, queries.width)
    num_tokens, num_seats, max_context, *_ = plan.limits(num_heads)
    operation = recorder.append(
        ATTEND,
        *kv.arguments(layer),
        recorded.memory,
        recorded.partials,
        num_tokens,
        num_seats,
        max_context,
        plan.batch.page_table,
        plan.batch.chunk_seats,
        queries,
        num_heads,
        None if settings.sinks is None else exact(settings.sinks),
        settings.sliding_window or 0,
        settings.scale,
        settings.soft_cap or 0.0,
        outputs,
        None,
    )
    recorder.can_quantize(outputs, operation, len(operation.arguments) - 1)
    return outputs
