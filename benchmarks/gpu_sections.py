"""The sections of `gpu_check`: each gives its figures by name. Times are seconds, rates are per second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gpu_model import Machine, executor_of, random_model, this_machine
from limelight.kernels.cuda_graph import token_buckets
from limelight.kernels.torch_dtypes import TORCH_DTYPES
from limelight.models.captured.loading import Ready
from limelight.models.decoder import parameter_shapes
from limelight.models.spec import ModelSpec
from limelight.step import Capacity, Chunk, SeatSampling, SeatTaken, Step, StepExecutor, StepResult

Figures = dict[str, Any]
GREEDY = SeatSampling(temperature=0.0)
DRAWN = SeatSampling(temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, frequency_penalty=0.1, seed=7)
BATCHES, CONTEXTS, PROMPTS = (1, 8, 64, 256), (1024, 8192), (2048, 8192)


def ceilings(machine: Machine) -> Figures:
    """What this device reads and multiplies in a second, measured on random data."""
    num_values, side = (2**10, 32) if machine.is_dry else (2**29, 8192)
    place = machine.kernels.device
    values = torch.randn(num_values, device=place)
    left, right = (torch.randn(side, side, device=place, dtype=TORCH_DTYPES[machine.dtype]) for _ in range(2))
    read = fastest(machine, lambda: values.sum())
    product = fastest(machine, lambda: left @ right)
    return {"read_bytes_per_second": num_values * 4 / read, "flops_per_second": 2 * side**3 / product}


def machine_section(machine: Machine) -> Figures:
    """What there is."""
    import triton

    found: Figures = {"torch": torch.__version__, "triton": triton.__version__, **ceilings(machine)}
    if not machine.is_dry:
        found |= {"gpu": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    return found


def kernels_section(machine: Machine) -> Figures:
    """Triton's kernels against the reference's, in one model: log-probabilities of the same steps."""
    from limelight.kernels.reference import ReferenceKernels
    from limelight.models.kv_cache import allocate_kv_cache, kv_layout
    from limelight.models.step_executor import TorchStepExecutor

    spec, model = random_model(machine, "Qwen3-0.6B")
    ready = executor_of(machine, spec, model, max_num_seqs=8, max_num_batched_tokens=512, kv_cache_bytes=2**30)
    reference = Machine(ReferenceKernels(machine.kernels.device), machine.device, machine.is_dry)  # type: ignore[arg-type]
    _, same = random_model(reference, "Qwen3-0.6B")
    layout = kv_layout(spec, ready.capacity.num_pages, ready.capacity.page_size, machine.dtype)
    exact = TorchStepExecutor(same, reference.kernels, allocate_kv_cache(reference.kernels, layout), ready.capacity)
    sampling = SeatSampling(temperature=0.0, num_logprobs=1)
    results = [list(generate(executor, ready.capacity, sampling, 4)) for executor in (ready.executor, exact)]
    apart, equal = [], []
    alike = [True] * ready.capacity.num_seats
    for ours, theirs in zip(*results, strict=True):
        for seat, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert one is not None, "all of them sample"
            assert other is not None, "the same"
            assert one.logprobs, "and want log-probabilities"
            assert other.logprobs, "the same"
            if alike[seat]:  # behind a token that rounding has changed, another text goes on
                apart.append(abs(one.logprobs[0].logprob - other.logprobs[0].logprob))
                alike[seat] = one.token_ids == other.token_ids
                equal.append(alike[seat])
    worst = max(apart)
    return {"worst_logprob_difference": worst, "same_tokens": statistics.mean(equal), "passed": worst < 0.1}


def tokens_section(machine: Machine) -> Figures:
    """Captured passes, uncaptured ones, and two steps in flight draw the same tokens."""
    spec, model = random_model(machine, "Qwen3-0.6B")
    drawn: list[list[StepResult]] = []
    for enable_cuda_graph, in_flight in ((True, 1), (False, 1), (True, 2)):
        ready = executor_of(
            machine, spec, model, max_num_seqs=16, kv_cache_bytes=2**30, enable_cuda_graph=enable_cuda_graph
        )
        num_steps = 3 if machine.is_dry else 100
        drawn.append(list(generate(ready.executor, ready.capacity, DRAWN, num_steps, in_flight)))
        ready.executor.close()
    graphs, eager, deep = drawn
    return {"graph_is_eager": graphs == eager, "depth_2_is_depth_1": graphs == deep, "passed": graphs == eager == deep}


def products_section(machine: Machine) -> Figures:
    """Products with weights in 8 and 4 bits beside those in 16: time and error."""
    from limelight.kernels.interface import LinearSegment

    kernels, place = machine.kernels, machine.kernels.device
    outputs, inputs = (64, 128) if machine.is_dry else (28672, 4096)
    weight = torch.randn(outputs, inputs, device=place, dtype=torch.bfloat16) * 0.02
    kept: dict[str, Any] = {"bf16": weight}
    for name in ("FP8", "INT4_64"):
        if name in kernels.stored_formats:
            kept[name] = kernels.quantize(weight, name)
    packed = {name: kernels.pack_linear([LinearSegment(weight=one)]) for name, one in kept.items()}
    figures: Figures = {}
    for rows in (1, 3) if machine.is_dry else (1, 64, 512, 4096):
        values = torch.randn(rows, inputs, device=place, dtype=torch.bfloat16)
        exact = values.float() @ weight.float().t()
        figures[f"{rows} rows"] = found = {}
        for name, product in packed.items():
            found[f"{name} us"] = fastest(machine, partial(kernels.linear, values, product)) * 1e6
            apart = kernels.linear(values, product).float() - exact
            found[f"{name} error"] = float(apart.norm() / exact.norm())
    largest = max(found["FP8 error"] for found in figures.values()) if "FP8" in packed else 0.0
    largest_of_4 = max(found["INT4_64 error"] for found in figures.values()) if "INT4_64" in packed else 0.0
    return {**figures, "passed": largest < 0.06 and largest_of_4 < 0.15}


def decode_section(machine: Machine, name: str) -> Figures:
    """Time of a decode step, against the time that reading weights, keys and values takes."""
    spec, model = random_model(machine, name)
    ready = executor_of(machine, spec, model, max_num_seqs=256, max_num_batched_tokens=2048)
    reads = ceilings(machine)["read_bytes_per_second"]
    figures: Figures = {}
    for context in (32,) if machine.is_dry else CONTEXTS:
        for batch in (1, 2) if machine.is_dry else BATCHES:
            seconds = decode_seconds(ready, batch, context, 4 if machine.is_dry else 60)
            needed = (weight_bytes(spec) + batch * context * kv_bytes(spec)) / reads
            figures[f"{batch} x {context}"] = {"ms": seconds * 1000, "roofline": needed / seconds}
    return figures


def prefill_section(machine: Machine, name: str) -> Figures:
    """Time of a prompt's step, against the time that its products take at the measured rate."""
    spec, model = random_model(machine, name)
    ready = executor_of(machine, spec, model, max_num_seqs=8, max_num_batched_tokens=8192, kv_cache_bytes=8 * 2**30)
    rate = ceilings(machine)["flops_per_second"]
    figures: Figures = {}
    for length in (16,) if machine.is_dry else PROMPTS:
        pages = tuple(range(-(-length // ready.capacity.page_size)))
        chunk = Chunk(seat=0, start=0, num_tokens=length, token_ids=(1,) * length, new_pages=pages, sample=True)
        taken = SeatTaken(seat=0, sampling=GREEDY, num_prompt_tokens=length)
        times = []
        for _ in range(2 if machine.is_dry else 8):
            started = time.perf_counter()
            ready.executor.submit(Step(number=1, chunks=(chunk,), taken=(taken,), released=(0,)))()
            times.append(time.perf_counter() - started)
        seconds = statistics.median(times[1:])
        attention = 2 * length * length * spec.num_layers * spec.num_heads * spec.head_dim
        needed = (length * (weight_bytes(spec) - head_bytes(spec)) + attention) / rate
        figures[str(length)] = {"ms": seconds * 1000, "matrix_rate": needed / seconds}
    return figures


def generate(
    executor: StepExecutor, capacity: Capacity, sampling: SeatSampling, num_steps: int, in_flight: int = 1
) -> list[StepResult]:
    """Prompts of different lengths in all seats, then decodes; the tokens of every step."""
    size, budget = capacity.page_size, capacity.max_num_batched_tokens // capacity.num_seats
    starts = [1 + (5 * seat + 3) % min(budget, 37) for seat in range(capacity.num_seats)]
    # As many rows as a captured pass has: uncaptured, products are then of the same shapes, and round alike.
    rows = next(size for size in token_buckets(capacity.max_num_batched_tokens) if size >= sum(starts))
    each, more = divmod(rows - sum(starts), capacity.num_seats)
    starts = [length + each + (seat < more) for seat, length in enumerate(starts)]
    span = -(-(max(starts) + num_steps + 1) // size)
    assert span * capacity.num_seats <= capacity.num_pages, "the pool holds all of it"
    pages = [tuple(range(seat * span, (seat + 1) * span)) for seat in range(capacity.num_seats)]
    prompts = [
        Chunk(
            seat=seat,
            start=0,
            num_tokens=length,
            token_ids=tuple((7 * seat + place) % capacity.vocab_size for place in range(length)),
            new_pages=pages[seat],
            sample=True,
        )
        for seat, length in enumerate(starts)
    ]
    everyone = tuple(
        SeatTaken(
            seat=seat, sampling=sampling, num_prompt_tokens=length, prompt_token_ids=prompts[seat].token_ids or ()
        )
        for seat, length in enumerate(starts)
    )
    steps = [Step(number=0, chunks=tuple(prompts), taken=everyone)]
    steps += [Step(number=number, chunks=decodes(starts, number - 1)) for number in range(1, num_steps)]
    return run(executor, steps, in_flight)


def decodes(starts: Sequence[int], further: int, pages: Sequence[tuple[int, ...]] | None = None) -> tuple[Chunk, ...]:
    """The next token of every sequence, `further` places behind where they began to decode."""
    return tuple(
        Chunk(
            seat=seat,
            start=start + further,
            num_tokens=1,
            token_ids=None,
            new_pages=pages[seat] if pages is not None else (),
            sample=True,
        )
        for seat, start in enumerate(starts)
    )


def run(executor: StepExecutor, steps: Sequence[Step], in_flight: int) -> list[StepResult]:
    """Submit the steps, so many of them in flight; their results in order."""
    waiting: list[Callable[[], StepResult]] = []
    results = []
    for step in steps:
        waiting.append(executor.submit(step))
        if len(waiting) >= in_flight:
            results.append(waiting.pop(0)())
    return results + [wait() for wait in waiting]


def decode_seconds(ready: Ready, batch: int, context: int, num_steps: int) -> float:
    """Of a step with so many sequences of about this context, two in flight. Pages beyond the pool's are shared."""
    executor, capacity = ready.executor, ready.capacity
    span = -(-(context + num_steps) // capacity.page_size)
    pages = [tuple((seat * span + page) % capacity.num_pages for page in range(span)) for seat in range(batch)]
    taken = tuple(SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=1) for seat in range(batch))
    starts = [min(context, capacity.max_model_len - num_steps - 1)] * batch
    run(executor, [Step(number=0, chunks=decodes(starts, 0, pages), taken=taken)], 1)
    warm = num_steps // 3
    run(executor, [Step(number=number, chunks=decodes(starts, number)) for number in range(1, warm + 1)], 2)
    started = time.perf_counter()
    run(executor, [Step(number=number, chunks=decodes(starts, number)) for number in range(warm + 1, num_steps)], 2)
    seconds = (time.perf_counter() - started) / (num_steps - warm - 1)
    executor.submit(Step(number=num_steps, chunks=(), released=tuple(range(batch))))()
    return seconds


def fastest(machine: Machine, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(3 if machine.is_dry else 12):
        machine.device.synchronize()
        started = time.perf_counter()
        work()
        machine.device.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes that a step reads of the weights: of the embedding only what is the head, too."""
    total = sum(2 * torch.Size(shape).numel() for shape in parameter_shapes(spec).values())
    return total if spec.tie_word_embeddings else total - head_bytes(spec)


def head_bytes(spec: ModelSpec) -> int:
    """Bytes of the head, which a prompt's rows but the last don't meet."""
    return 2 * spec.vocab_size * spec.hidden_size


def kv_bytes(spec: ModelSpec) -> int:
    """Bytes of a token's keys and values."""
    return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 2


def served_section(name: str, machine: Machine) -> Figures:
    """A section of `gpu_server`, which needs packages that the others do without."""
    from benchmarks.gpu_server import peers_section, server_section

    return server_section(machine) if name == "server" else peers_section(machine)


def run_section(name: str, *, is_dry: bool) -> Figures:
    """One section, in this process."""
    machine = this_machine(is_dry=is_dry)
    sections: dict[str, Callable[[], Figures]] = {
        "machine": lambda: machine_section(machine),
        "kernels": lambda: kernels_section(machine),
        "tokens": lambda: tokens_section(machine),
        "products": lambda: products_section(machine),
        "decode-8b": lambda: decode_section(machine, "Llama-3-8B"),
        "prefill-8b": lambda: prefill_section(machine, "Llama-3-8B"),
        "server": lambda: served_section(name, machine),
        "decode-0.6b": lambda: decode_section(machine, "Qwen3-0.6B"),
        "prefill-0.6b": lambda: prefill_section(machine, "Qwen3-0.6B"),
        "transformers": lambda: served_section(name, machine),
    }
    return sections[name]()
