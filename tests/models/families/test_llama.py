"""The Llama family against transformers, on tiny random weights in float32."""

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.kernels.reference import ReferenceKernels
from limelight.models.decoder import parameter_shapes, weights_bytes
from tests.models.families.agreement import (
    Oracle,
    assert_agrees,
    assert_all_differ,
    assert_same_logits,
    logits_of,
    prompt_of,
)
from tests.models.sequences import Batch, Running
from tests.models.tiny_models import SMALL, VOCAB_SIZE, Rig, saved, tiny_llama, tiny_mistral

pytestmark = pytest.mark.usefixtures("one_torch_thread")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
    "rope_theta": 100.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1000.0}


MODELS = {
    "plain": (tiny_llama, {"num_key_value_heads": 4}),
    "grouped heads": (tiny_llama, {}),
    "one kv head": (tiny_llama, {"num_key_value_heads": 1}),
    "tied head": (tiny_llama, {"tie_word_embeddings": True}),
    "biases": (tiny_llama, {"attention_bias": True, "mlp_bias": True}),
    "own head size": (tiny_llama, {"head_dim": 20}),
    "three layers": (tiny_llama, {"num_hidden_layers": 3, "rms_norm_eps": 1e-2}),
    "large theta": (tiny_llama, {"rope_theta": 500000.0}),
    "linear": (tiny_llama, {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}),
    "dynamic, within the trained context": (tiny_llama, {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "llama3": (tiny_llama, {"rope_scaling": LLAMA3}),
    "yarn": (tiny_llama, {"rope_scaling": YARN}),
    "yarn, own attention factor": (tiny_llama, {"rope_scaling": {**YARN, "attention_factor": 0.7, "beta_fast": 8.0}}),
    "mistral": (tiny_mistral, {"sliding_window": None}),
    "mistral, sliding window": (tiny_mistral, {"sliding_window": 11}),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    make, options = MODELS[name]
    model = make(**options)
    assert_agrees(model, saved(model, tmp_path))


def test_every_rope_scaling_reaches_the_logits() -> None:
    scalings = [None, {"rope_type": "linear", "factor": 3.0}, LLAMA3, YARN]
    assert_all_differ([tiny_llama(**({"rope_scaling": scaling} if scaling else {})) for scaling in scalings])


def test_dynamic_rope_stretches_for_the_served_context(tmp_path: Path) -> None:
    """At its full length a sequence agrees with transformers, which stretches for the length that it is given."""
    model = tiny_llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=32)
    rig = Rig(saved(model, tmp_path), max_model_len=60)
    batch = Batch(rig.executor, rig.capacity.page_size, range(64))
    prompt = prompt_of(60)
    batch.step((batch.sit(0, prompt), 60))
    assert_same_logits(rig.logits, logits_of(model, prompt)[-1:])


@pytest.fixture(scope="module", params=["llama", "mistral"])
def oracle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    model = tiny_llama() if request.param == "llama" else tiny_mistral(sliding_window=7)
    return Oracle(model, saved(model, tmp_path_factory.mktemp(request.param)))


@settings(max_examples=30)
@given(drawn=st.data())
def test_any_way_of_cutting_sequences_into_steps_gives_the_same_tokens_and_logits(
    oracle: Oracle, drawn: st.DataObject
) -> None:
    page_size = drawn.draw(st.sampled_from([8, 16]))
    rig = Rig(oracle.checkpoint, page_size=page_size)
    batch = Batch(rig.executor, page_size, drawn.draw(st.permutations(range(64))))
    prompts = [prompt_of(length, seed) for seed, length in enumerate(drawn.draw(lengths))]
    seats = drawn.draw(st.permutations(range(8)))
    sequences = [batch.sit(seat, prompt) for seat, prompt in zip(seats, prompts, strict=False)]
    logits: dict[int, list[torch.Tensor]] = {sequence.seat: [] for sequence in sequences}
    while unfinished := [sequence for sequence in sequences if len(sequence.output) < 5]:
        chosen = drawn.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique_by=id))
        sizes = [drawn.draw(st.integers(1, len(sequence.tokens) - sequence.num_computed)) for sequence in chosen]
        drawing = batch.step(*zip(chosen, sizes, strict=True))
        for row, sequence in zip(rig.logits, drawing, strict=True):
            logits[sequence.seat].append(row)
    for sequence in sequences:
        expected = logits_of(oracle.model, sequence.tokens[:-1])[sequence.num_prompt_tokens - 1 :]
        assert_same_logits(torch.stack(logits[sequence.seat]), expected)
        assert sequence.output == expected.argmax(-1).tolist()


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def test_logits_come_for_sampled_rows_only(oracle: Oracle) -> None:
    rig = Rig(oracle.checkpoint)
    batch = Batch(rig.executor, 8, range(64))
    first, second, third = batch.sit(0, prompt_of(20, 1)), batch.sit(1, prompt_of(9, 2)), batch.sit(2, prompt_of(30, 3))
    batch.step((first, 20), (second, 4), (third, 30))
    assert rig.logits.shape == (2, VOCAB_SIZE)
    assert_same_logits(rig.logits[1], logits_of(oracle.model, third.tokens[:-1])[-1])
    batch.step((second, 4))
    assert rig.logits.shape == (0, VOCAB_SIZE)


def test_prefix_pages_are_shared_and_a_chunk_may_read_pages_written_by_the_same_step(oracle: Oracle) -> None:
    rig = Rig(oracle.checkpoint)
    batch = Batch(rig.executor, 8, range(64))
    prefix = prompt_of(16, 1)
    first = batch.sit(0, prefix + prompt_of(5, 2))
    second = batch.sit(1, prefix + prompt_of(9, 3), shared_pages=[0, 1])
    batch.step((first, 21), (second, 9))
    third = batch.sit(2, prefix + prompt_of(3, 4), shared_pages=first.pages[:2])
    batch.step((third, 3), (first, 1), (second, 1))
    assert first.pages[:2] == [0, 1]
    for sequence in (first, second, third):
        oracle.assert_greedy(sequence)


def test_a_sequence_may_sit_down_again_elsewhere_and_go_on(oracle: Oracle) -> None:
    """Preemption: everything drawn so far is computed again, in other pages and at another seat."""
    rig = Rig(oracle.checkpoint)
    batch = Batch(rig.executor, 8, range(64))
    prompt = prompt_of(13, 1)
    sequence = batch.sit(0, prompt)
    batch.generate(sequence, 6)
    batch.leave(sequence)
    other = batch.sit(0, prompt_of(33, 2))
    again = batch.sit(5, prompt, output=sequence.output)
    batch.step((other, 33), (again, 11))
    batch.step((other, 1), (again, len(again.tokens) - again.num_computed))
    batch.generate(again, 9)
    oracle.assert_greedy(again)
    oracle.assert_greedy(other)


def test_a_seat_forgets_the_pages_of_its_last_tenant(oracle: Oracle) -> None:
    rig = Rig(oracle.checkpoint)
    batch = Batch(rig.executor, 8, range(64))
    long = batch.sit(0, prompt_of(60, 1))
    batch.step((long, 60))
    batch.leave(long)
    for page in long.pages:
        for layer in rig.kv.layers:
            layer.view(64, -1)[page] = torch.nan
    short = batch.sit(0, prompt_of(3, 2))
    batch.generate(short, 4)
    oracle.assert_greedy(short)


def test_pages_may_lie_in_any_order_beside_pages_full_of_nan(oracle: Oracle) -> None:
    rig = Rig(oracle.checkpoint)
    order = list(range(64))
    random.Random(3).shuffle(order)
    batch = Batch(rig.executor, 8, order)
    sequences: list[Running] = [batch.sit(seat, prompt_of(5 + 11 * seat, seat)) for seat in range(6)]
    batch.step(*((sequence, len(sequence.tokens)) for sequence in sequences))
    for _ in range(4):
        batch.step(*((sequence, 1) for sequence in sequences))
        assert bool(rig.logits.isfinite().all())
    for sequence in sequences:
        oracle.assert_greedy(sequence)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_stay_near_float32(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_llama()
    rig = Rig(saved(model, tmp_path), dtype=dtype)
    batch = Batch(rig.executor, 8, range(64))
    sequence = batch.sit(0, prompt_of(30))
    batch.step((sequence, 30))
    batch.step((sequence, 1))
    expected = logits_of(model, sequence.tokens[:-1])[-1]
    assert rig.logits.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(rig.logits[0], expected, dim=0) > 0.995


def test_weights_in_bytes_count_every_parameter_and_the_packed_copy_of_a_tied_head(tmp_path: Path) -> None:
    untied, tied = tiny_llama(), tiny_llama(tie_word_embeddings=True)
    spec = saved(untied, tmp_path / "untied").spec
    tied_spec = saved(tied, tmp_path / "tied").spec
    kernels = ReferenceKernels("cpu")
    table_bytes = VOCAB_SIZE * SMALL["hidden_size"] * 4
    assert weights_bytes(spec, kernels, "float32") == sum(4 * p.numel() for p in untied.parameters())
    copies = kernels.embedding_bytes((VOCAB_SIZE, SMALL["hidden_size"]), "float32", is_head=True) // table_bytes
    assert copies in (1, 2)
    assert weights_bytes(tied_spec, kernels, "float32") == (
        sum(4 * p.numel() for p in tied.parameters()) + (copies - 1) * table_bytes
    )
    assert "lm_head.weight" in parameter_shapes(spec)
    assert "lm_head.weight" not in parameter_shapes(tied_spec)
