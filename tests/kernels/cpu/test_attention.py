"""Attention in C over pages against the reference, and bit by bit against itself."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.kernels.cpu import attention
from limelight.kernels.cpu.library import Library
from limelight.kernels.cpu.recorder import Recorder, Value
from limelight.kernels.cpu.threads import ThreadPool
from limelight.kernels.interface import AttentionSettings
from tests.kernels.cpu.attention_steps import (
    Contexts,
    Shape,
    Step,
    attend,
    expected,
    filled_pool,
    normal,
    pool_of_nan,
    random_contexts,
    write,
)
from tests.kernels.cpu.recorded import run_recorded

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TOLERANCE = 1e-5
"""Of results that are sums of a few hundred or thousand products of numbers near 1, in float32, relative to 1: keys and
values are the same rounded ones on both sides."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MIXED = [(1, 13), (6, 6), (1, 30), (70, 150), (1, 2), (3, 1300), (1, 64), (1, 1)]


def compare(
    library: Library, chunks: list[tuple[int, int]], shape: Shape, attention_settings: AttentionSettings, seed: int = 0
) -> None:
    step = Step(chunks, shape.page_size, seed=seed)
    contexts = random_contexts(step, shape, seed)
    queries = normal(len(step), shape.heads, shape.head_dim, seed=seed + 1)
    ours = attend(library, filled_pool(library, step, shape, contexts), 1, step, queries, attention_settings)
    np.testing.assert_allclose(
        ours, expected(step, shape, contexts, queries, attention_settings), rtol=TOLERANCE, atol=TOLERANCE
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_size", attention.PAGE_SIZES)
@pytest.mark.parametrize("window", [None, 1, 5, 100, 700])
def test_attention_agrees_for_every_page_size_dtype_and_window(
    library: Library, dtype: torch.dtype, page_size: int, window: int | None
) -> None:
    shape = Shape(page_size=page_size, dtype=dtype)
    compare(library, MIXED, shape, AttentionSettings(scale=0.3, sliding_window=window))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 8), (9, 3, 64), (8, 1, 20), (5, 5, 15), (14, 2, 64), (16, 1, 128), (40, 2, 8), (8, 4, 256), (60, 1, 16)],
)
def test_attention_agrees_for_other_heads(
    library: Library, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    shape = Shape(heads, kv_heads, head_dim, dtype=dtype)
    compare(library, MIXED, shape, AttentionSettings(scale=head_dim**-0.5))


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("soft_cap", [None, 0.8, 30.0])
@pytest.mark.parametrize("sinks", [None, (-30.0, -1.0, 0.0, 0.5, 3.0, 60.0)])
def test_attention_with_soft_caps_and_sinks(
    library: Library, window: int | None, soft_cap: float | None, sinks: tuple[float, ...] | None
) -> None:
    attention_settings = AttentionSettings(
        scale=1.3, sliding_window=window, soft_cap=soft_cap, sinks=None if sinks is None else torch.tensor(sinks)
    )
    compare(library, MIXED, Shape(heads=6), attention_settings)


def test_long_contexts_are_split_and_merged(library: Library) -> None:
    """One decode row has the most to do: its context is split, that of the others is not."""
    compare(library, [(1, 5000)], Shape(dtype=torch.bfloat16), AttentionSettings(scale=0.3))
    compare(library, [(1, 5000), (1, 20), (2, 4097), (17, 600)], Shape(), AttentionSettings(scale=0.3))
    compare(library, [(1, 5000), (3, 4608)], Shape(), AttentionSettings(scale=0.3, sliding_window=1500))


@pytest.mark.parametrize("slope", [0.05, 0.15, -0.1])
def test_scores_that_rise_or_fall_by_tens_along_a_context(library: Library, slope: float) -> None:
    """The softmax is made relative to a new score again and again, or never; splits differ by far."""
    shape = Shape(dtype=torch.float32)
    step = Step([(3, 400), (1, 1200)], shape.page_size)
    contexts = random_contexts(step, shape, 3)
    queries = normal(len(step), shape.heads, shape.head_dim, seed=4)
    queries[..., 0] = 1.0
    for keys in contexts.keys:
        keys[..., 0] = slope * np.arange(len(keys), dtype=np.float32)[:, None]
    attention_settings = AttentionSettings(scale=0.3)
    ours = attend(library, filled_pool(library, step, shape, contexts), 1, step, queries, attention_settings)
    wanted = expected(step, shape, contexts, queries, attention_settings)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-4)  # a score of 50 has an error of 4e-6 by itself


EDGES = [7, 8, 9, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 511, 512, 513, 576, 1023, 1024, 1025]


@pytest.mark.parametrize("window", [None, 64, 512, 513])
def test_contexts_that_end_at_the_edges_of_pages_blocks_and_splits(library: Library, window: int | None) -> None:
    chunks = [(1, context) for context in EDGES] + [(5, context) for context in EDGES]
    compare(library, chunks, Shape(2, 1, 16), AttentionSettings(scale=0.3, sliding_window=window))


@settings(max_examples=20)
@given(
    contexts=st.lists(st.tuples(st.integers(1, 60), st.integers(0, 700)), min_size=1, max_size=6),
    group=st.integers(1, 16),
    kv_heads=st.integers(1, 3),
    head_dim=st.integers(8, 80),
    page_size=st.sampled_from(attention.PAGE_SIZES),
    dtype=st.sampled_from(DTYPES),
    window=st.none() | st.integers(1, 800),
)
def test_random_steps_of_random_shapes(
    library: Library,
    contexts: list[tuple[int, int]],
    group: int,
    kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    shape = Shape(group * kv_heads, kv_heads, head_dim, page_size, dtype)
    chunks = [(rows, rows + before) for rows, before in contexts]
    compare(library, chunks, shape, AttentionSettings(scale=0.3, sliding_window=window), seed=len(contexts))


def in_chunks(
    library: Library, shape: Shape, whole: Step, contexts: Contexts, queries: Any, sizes: list[int], window: int | None
) -> np.ndarray[Any, Any]:
    """A prompt written and attended chunk by chunk, as an engine does it."""
    attention_settings = AttentionSettings(scale=0.3, sliding_window=window, sinks=torch.linspace(-1, 2, shape.heads))
    kv = pool_of_nan(shape.layout(whole.num_pages))
    results = []
    for first, end in itertools.pairwise(np.cumsum([0, *sizes]).tolist()):
        step = Step([(end - first, end)], shape.page_size, whole.tables)
        write(library, kv, 1, step, contexts.keys[0][first:end], contexts.values[0][first:end])
        results.append(attend(library, kv, 1, step, queries[first:end], attention_settings))
    return np.concatenate(results)


@pytest.mark.parametrize(
    ("dtype", "window", "group", "head_dim"),
    [
        (torch.bfloat16, None, 3, 64),
        (torch.bfloat16, 45, 7, 20),
        (torch.bfloat16, 530, 1, 20),
        (torch.float16, None, 1, 40),
        (torch.float32, 530, 3, 40),
    ],
)
def test_a_prompt_gives_equal_bits_however_it_is_cut_into_chunks(
    library: Library, dtype: torch.dtype, window: int | None, group: int, head_dim: int
) -> None:
    shape = Shape(2 * group, 2, head_dim, 16, dtype)
    length = 580
    whole = Step([(length, length)], shape.page_size)
    contexts = random_contexts(whole, shape, 5)
    # A value that overflows, as in float16, is not to be seen by the tokens before it, not even times 0.
    contexts.values[0][540, 0, 3] = np.inf
    queries = normal(length, shape.heads, head_dim, seed=6)
    generator = np.random.default_rng(7)
    cuts = np.unique(np.concatenate(([0], generator.integers(1, length, 12), [length])))
    at_once = in_chunks(library, shape, whole, contexts, queries, [length], window)
    assert np.isfinite(at_once[:540]).all()
    np.testing.assert_array_equal(
        at_once.view(np.uint32),
        in_chunks(library, shape, whole, contexts, queries, np.diff(cuts).tolist(), window).view(np.uint32),
    )
    some = [*range(60, 70), 127, 128, 129, 511, 512, 513, 539, 540, 575, 576, 579]
    kv = filled_pool(library, whole, shape, contexts)
    attention_settings = AttentionSettings(scale=0.3, sliding_window=window, sinks=torch.linspace(-1, 2, shape.heads))
    for position in some:
        alone = Step([(1, position + 1)], shape.page_size, whole.tables)
        result = attend(library, kv, 1, alone, queries[position : position + 1], attention_settings)
        np.testing.assert_array_equal(result[0].view(np.uint32), at_once[position].view(np.uint32))


def test_rows_give_equal_bits_in_any_batch_and_on_shared_pages(library: Library) -> None:
    shape = Shape(6, 2, 64, 16, torch.bfloat16)
    lengths = (2000, 1700, 40)
    prefix = list(range(30))
    tables = [prefix + list(range(100, 196)), prefix + list(range(200, 277)), list(range(300, 303))]
    step = Step([(1, lengths[0]), (1, lengths[1]), (1, lengths[2])], shape.page_size, tables)
    contexts = random_contexts(step, shape, 1)
    contexts.keys[1][:480], contexts.values[1][:480] = contexts.keys[0][:480], contexts.values[0][:480]
    kv = filled_pool(library, step, shape, contexts)
    queries = normal(3, shape.heads, shape.head_dim, seed=2)
    attention_settings = AttentionSettings(scale=0.125)
    together = attend(library, kv, 1, step, queries, attention_settings)
    many = Step([(1, lengths[i % 3]) for i in range(150)], shape.page_size, [tables[i % 3] for i in range(150)])
    repeated = attend(library, kv, 1, many, np.tile(queries, (50, 1, 1)), attention_settings)
    np.testing.assert_array_equal(repeated, np.tile(together, (50, 1)))
    for i in range(3):
        alone = Step([(1, lengths[i])], shape.page_size, [tables[i]])
        result = attend(library, kv, 1, alone, queries[i : i + 1], attention_settings)
        np.testing.assert_array_equal(result[0], together[i])


@pytest.mark.parametrize("chunks", [[(1, 5000)], [(150, 150), (1, 700), (9, 2000)]])
def test_threads_change_nothing(library: Library, pool: ThreadPool, chunks: list[tuple[int, int]]) -> None:
    shape = Shape(6, 2, 64, 16, torch.bfloat16)
    step = Step(chunks, shape.page_size)
    kv = filled_pool(library, step, shape, random_contexts(step, shape, 1))
    queries = normal(len(step), shape.heads, shape.head_dim, seed=2)
    alone = attend(library, kv, 1, step, queries, AttentionSettings(scale=0.3))
    for _ in range(5):
        shared = attend(library, kv, 1, step, queries, AttentionSettings(scale=0.3), pool)
        np.testing.assert_array_equal(shared, alone)


def test_layers_share_a_plan_and_windows_have_their_own(library: Library) -> None:
    shape = Shape()
    step = Step(MIXED, shape.page_size)
    contexts = random_contexts(step, shape, 1)
    queries = normal(len(step), shape.heads, shape.head_dim, seed=2)
    kv = filled_pool(library, step, shape, contexts)
    recorder = Recorder(library)
    plan = attention.AttentionPlan(step.buffers, kv)
    windows = (None, 20, None, 20)
    outputs = [
        attention.attend(
            recorder, kv, 1, step.value(queries), plan, AttentionSettings(scale=0.3, sliding_window=window)
        )
        for window in windows
    ]
    for output in outputs:
        recorder.keep(output)
    program, memory = recorder.finish()
    for _ in range(2):
        program.run()
        for window, output in zip(windows, outputs, strict=True):
            wanted = expected(step, shape, contexts, queries, AttentionSettings(scale=0.3, sliding_window=window))
            np.testing.assert_allclose(memory[output][: len(step)], wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("chunks", [MIXED, [(1, 3000)]])
def test_quantised_rows_are_those_of_the_outputs(library: Library, chunks: list[tuple[int, int]]) -> None:
    shape = Shape(8, 2, 64)  # rows of 512, which fill all bytes of a quantised row
    step = Step(chunks, shape.page_size)
    kv = filled_pool(library, step, shape, random_contexts(step, shape, 1))
    queries = normal(len(step), shape.heads, shape.head_dim, seed=2)

    def record(recorder: Recorder) -> list[Value]:
        plan = attention.AttentionPlan(step.buffers, kv)
        attended = attention.attend(recorder, kv, 1, step.value(queries), plan, AttentionSettings(scale=0.3))
        outputs = step.value(attend(library, kv, 1, step, queries, AttentionSettings(scale=0.3)))
        return [recorder.quantized(attended), recorder.quantized(outputs)]

    on_the_way, afterwards = run_recorded(library, record)
    np.testing.assert_array_equal(on_the_way, afterwards)


def test_an_unknown_dtype_is_refused(library: Library) -> None:
    with pytest.raises(ValueError, match="float64"):
        attention.allocate_kv(Shape(dtype=torch.float64).layout(4))
