"""The synchronous class, over a scripted model: no torch, the real actors and a real thread."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from limelight.errors import ConfigError, EngineFailed, EngineNotRunning, InvalidRequest, ModelError, UnsupportedField
from limelight.generation import FinishReason, SamplingParams
from limelight.llm import LLM
from limelight.offline.adapters import LoRARequest
from limelight.step import Step
from limelight.testing import babble, echo, scripted_engine

ROOT = Path(__file__).resolve().parent.parent
BABBLE = SamplingParams(max_tokens=8)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM.from_engine(scripted_engine("Hello!")) as llm:
        yield llm


def limelight_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("limelight")}


def test_outputs_have_the_names_that_vllm_scripts_read(llm: LLM) -> None:
    outputs = llm.generate(["one", "three"], SamplingParams(temperature=0.7, top_p=0.95), use_tqdm=False)
    assert [output.prompt for output in outputs] == ["one", "three"]
    assert [output.outputs[0].text for output in outputs] == ["Hello!", "Hello!"]
    assert outputs[0].prompt_token_ids[-3:] == tuple(b"one")
    assert outputs[0].outputs[0].token_ids[:6] == tuple(b"Hello!")
    assert outputs[0].outputs[0].finish_reason == FinishReason.STOP
    assert outputs[0].finished


@pytest.mark.parametrize(
    "prompts",
    ["abc", ["abc"], list(b"abc"), [list(b"abc")], {"prompt": "abc"}, [{"prompt_token_ids": list(b"abc")}]],
    ids=repr,
)
def test_a_prompt_may_be_text_ids_or_a_dictionary_alone_or_in_a_list(prompts: object) -> None:
    with LLM.from_engine(scripted_engine(lambda turn: turn.prompt[-3:][turn.number])) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=3), use_tqdm=False)  # type: ignore[arg-type]
    assert [output.outputs[0].text for output in outputs] == ["abc"]


def test_no_prompts_give_no_outputs(llm: LLM) -> None:
    assert llm.generate([], use_tqdm=False) == []
    assert llm.chat([], use_tqdm=False) == []


@pytest.mark.parametrize(
    ("prompts", "error", "says"),
    [
        ([{"text": "x"}], UnsupportedField, "'text'"),
        ([{}], InvalidRequest, "neither"),
        (["ok", 5], InvalidRequest, r"prompts\[1\]"),
        ([["a"]], InvalidRequest, "token ids"),
        ([[True]], InvalidRequest, "token ids"),
        ([[99999]], InvalidRequest, "99999"),
        ([[]], InvalidRequest, "empty"),
    ],
)
def test_a_wrong_prompt_is_refused_by_name(llm: LLM, prompts: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        llm.generate(prompts, use_tqdm=False)  # type: ignore[arg-type]
    assert llm.generate("still works", use_tqdm=False)[0].text == "Hello!"


def test_thousands_of_prompts_stay_within_the_admission_limit_and_keep_their_order() -> None:
    engine = scripted_engine(lambda turn: turn.prompt[-1], max_num_requests=5, max_num_seqs=4)
    with LLM.from_engine(engine) as llm:
        prompts = [f"prompt {index}" for index in range(2000)]
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1), use_tqdm=False)
    assert [output.prompt for output in outputs] == prompts
    assert [output.text for output in outputs] == [prompt[-1] for prompt in prompts]


def test_calls_from_several_threads_share_the_admission_limit() -> None:
    with LLM.from_engine(scripted_engine(babble, max_num_requests=3, max_num_seqs=2)) as llm:
        results: list[int] = []
        callers = [
            threading.Thread(target=lambda: results.append(len(llm.generate(["x"] * 20, BABBLE, use_tqdm=False))))
            for _ in range(5)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert results == [20] * 5


def test_settings_may_be_given_for_each_prompt() -> None:
    with LLM.from_engine(scripted_engine(babble)) as llm:
        outputs = llm.generate(["a", "b"], [SamplingParams(max_tokens=2), SamplingParams(max_tokens=5)], use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [2, 5]
        with pytest.raises(InvalidRequest, match="3 prompts and 1"):
            llm.generate(["a", "b", "c"], [BABBLE], use_tqdm=False)


def test_without_settings_the_output_has_vllms_length() -> None:
    with LLM.from_engine(scripted_engine(babble)) as llm:
        assert llm.get_default_sampling_params().max_tokens == 16
        assert len(llm.generate("a", use_tqdm=False)[0].outputs[0].token_ids) == 16


def test_a_seed_makes_unseeded_prompts_reproducible_and_their_noise_distinct() -> None:
    def texts(seed: int | None) -> list[str]:
        with LLM.from_engine(scripted_engine(babble), seed=seed) as llm:
            return [output.text for output in llm.generate(["a"] * 4, BABBLE, use_tqdm=False)]

    assert texts(7) == texts(7)
    assert texts(7) != texts(8)
    assert len(set(texts(7))) > 1


def test_chat_takes_one_conversation_or_many() -> None:
    hello = [{"role": "user", "content": "Hello"}]
    with LLM.from_engine(scripted_engine(echo)) as llm:
        params = SamplingParams(max_tokens=100)
        one = llm.chat(hello, params, use_tqdm=False)
        many = llm.chat([hello, [{"role": "system", "content": "S"}, *hello]], params, use_tqdm=False)
    assert [output.text for output in one] == ["user: Hello\nassistant:"]
    assert [output.text for output in many] == ["user: Hello\nassistant:", "system: S\nuser: Hello\nassistant:"]


def test_an_error_of_one_prompt_is_raised_in_the_caller_and_the_rest_is_given_up() -> None:
    with LLM.from_engine(scripted_engine(babble)) as llm:
        with pytest.raises(InvalidRequest, match="forbidden"):
            llm.chat(
                [[{"role": role, "content": "x"}] for role in ("user", "forbidden", "user")], BABBLE, use_tqdm=False
            )
        assert len(llm.generate("a", BABBLE, use_tqdm=False)[0].text) == 8


def test_a_model_that_does_not_load_raises_in_the_constructor_and_leaves_no_thread() -> None:
    before = limelight_threads()
    with pytest.raises(ModelError):
        LLM(model="/no/such/folder")
    assert limelight_threads() == before


def test_it_works_where_an_event_loop_is_running() -> None:
    async def notebook_cell() -> str:
        with LLM.from_engine(scripted_engine("Hi")) as llm:
            return llm.generate("x", use_tqdm=False)[0].text

    assert asyncio.run(notebook_cell()) == "Hi"


def test_closing_ends_all_threads_and_a_closed_one_says_so() -> None:
    before = limelight_threads()
    llm = LLM.from_engine(scripted_engine("Hi"))
    assert limelight_threads() > before
    llm.close()
    llm.close()
    assert limelight_threads() == before
    with pytest.raises(EngineNotRunning, match="closed"):
        llm.generate("x", use_tqdm=False)


def test_calls_that_meet_close_in_another_thread_are_answered() -> None:
    outcomes: list[str] = []

    def call_until_closed(llm: LLM) -> None:
        try:
            while True:
                llm.generate("x", SamplingParams(max_tokens=2), use_tqdm=False)
        except EngineNotRunning:
            outcomes.append("closed")

    for _ in range(10):
        llm = LLM.from_engine(scripted_engine(babble))
        callers = [threading.Thread(target=call_until_closed, args=[llm], daemon=True) for _ in range(4)]
        for caller in callers:
            caller.start()
        llm.generate("x", SamplingParams(max_tokens=20), use_tqdm=False)
        llm.close()
        for caller in callers:
            caller.join(timeout=60)
    assert outcomes == ["closed"] * 40


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_child_is_told_that_its_llm_stayed_with_the_parent() -> None:
    script = """
import os, sys
from limelight import LLM
from limelight.errors import EngineNotRunning
from limelight.testing import scripted_engine
llm = LLM.from_engine(scripted_engine("Hi"))
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    print(llm.generate("x", use_tqdm=False)[0].text)
else:
    try:
        llm.generate("x", use_tqdm=False)
    except EngineNotRunning:
        llm.close()
        os._exit(0)
    os._exit(1)
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hi\n", "")


def test_a_loop_that_cannot_be_made_raises_in_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_descriptors(runner: asyncio.Runner) -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    before = limelight_threads()
    monkeypatch.setattr(asyncio.Runner, "get_loop", out_of_descriptors)
    with pytest.raises(OSError, match="Too many open files"):
        LLM.from_engine(scripted_engine("Hi"))
    assert limelight_threads() == before


def test_one_that_is_dropped_without_closing_gives_its_threads_back() -> None:
    before = limelight_threads()
    llm = LLM.from_engine(scripted_engine("Hi"))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "limelight-offline"]
    del llm
    thread.join(timeout=60)
    assert limelight_threads() == before


def test_an_interrupt_cancels_every_prompt_and_the_llm_goes_on() -> None:
    num_steps = 0

    def interrupt_at_the_tenth_step(step: Step) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 10:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    engine = scripted_engine(babble, before_step=interrupt_at_the_tenth_step, max_num_seqs=2)
    with LLM.from_engine(engine) as llm:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["x"] * 8, SamplingParams(max_tokens=1500), use_tqdm=False)
        llm.generate("after", SamplingParams(max_tokens=1), use_tqdm=False)
    assert num_steps < 1500, "the cancelled prompts were not computed to their end"


def test_the_progress_bar_counts_prompts_and_speed(capsys: pytest.CaptureFixture[str], llm: LLM) -> None:
    llm.generate(["a", "b"])
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "2/2" in shown
    assert "toks/s" in shown
    llm.generate(["a", "b"], use_tqdm=False)
    assert capsys.readouterr().err == ""


def device_lost(step: Step) -> None:
    raise EngineFailed("the device fell off the bus")


def test_the_death_of_the_engine_is_raised_in_the_caller() -> None:
    with LLM.from_engine(scripted_engine(before_step=device_lost)) as llm, pytest.raises(EngineFailed):
        llm.generate(["a", "b"], use_tqdm=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size is 2"),
        ({"pipeline_parallel_size": 4}, "pipeline_parallel_size is 4"),
        ({"quantization": "awq"}, "quantization is 'awq'"),
        ({"tokenizer": "other/model"}, "tokenizer is 'other/model'"),
        ({"dtype": "int3"}, "dtype is 'int3'"),
        ({"block_size": 7}, "page_size is 7"),
    ],
)
def test_an_option_that_would_change_results_is_refused_by_name(options: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        LLM(**options)  # type: ignore[arg-type]


def test_an_option_without_effect_is_named_in_a_warning() -> None:
    with (
        pytest.warns(UserWarning, match="swap_space"),
        pytest.raises(ModelError),
    ):
        LLM(model="/no/such/folder", gpu_memory_utilization=0.5, enforce_eager=True, swap_space=1)


def seconds_to_exit(script: str) -> float:
    """From the script's last statement to the end of its process, which must have gone well and said nothing."""
    timed = f"import time\n{script}\nprint(time.time())"
    done = subprocess.run(
        [sys.executable, "-c", timed], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    ended = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    return ended - float(done.stdout)


def test_a_script_that_never_closes_it_exits_with_0_and_waits_for_nothing() -> None:
    script = """
from limelight import LLM
from limelight.testing import scripted_engine
llm = LLM.from_engine(scripted_engine("Hi"))
assert llm.generate(["Hello", "Once"], use_tqdm=False)[1].outputs[0].text == "Hi"
"""
    assert seconds_to_exit(script) < 10  # 0.1 s on an idle machine


@pytest.mark.model
def test_with_a_real_model_that_adds_little_to_what_torch_needs_to_exit() -> None:
    script = """
from limelight import LLM
llm = LLM()
assert llm.generate(["Hello", "Once"], use_tqdm=False)[1].outputs[0].text
"""
    assert seconds_to_exit(script) < 10 + seconds_to_exit("import torch")


def test_adapters_are_loaded_when_a_call_first_names_them(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 4}')
    first, second = (LoRARequest(name, number, str(tmp_path)) for number, name in enumerate(("first", "second"), 1))
    sampling = SamplingParams(max_tokens=8, seed=1)
    with LLM.from_engine(scripted_engine(babble, max_loras=2)) as llm:

        def texts(lora_request: object, num_prompts: int = 3) -> list[str]:
            prompts = ["same"] * num_prompts
            outputs = llm.generate(prompts, sampling, use_tqdm=False, lora_request=lora_request)  # type: ignore[arg-type]
            return [output.outputs[0].text for output in outputs]

        plain, one, two = texts([None, first, second])
        assert len({plain, one, two}) == 3
        assert texts(first) == [one] * 3
        assert texts(None) == [plain] * 3
        chat = [{"role": "user", "content": "hi"}]
        chats = [llm.chat(chat, sampling, use_tqdm=False, lora_request=adapter) for adapter in (None, first)]
        assert chats[0][0].text != chats[1][0].text
        with pytest.raises(InvalidRequest, match="one each"):
            texts([first], num_prompts=2)
        with pytest.raises(InvalidRequest, match="own name"):
            texts(LoRARequest("first", 1, "/elsewhere"))
        with pytest.raises(InvalidRequest, match="max_loras"):
            texts(LoRARequest("third", 3, str(tmp_path)))


def test_an_adapter_that_is_not_there_fails_its_call_only(llm: LLM, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ModelError, match="nowhere"):
            llm.generate("hi", use_tqdm=False, lora_request=LoRARequest("one", 1, str(tmp_path / "nowhere")))
    assert llm.generate("hi", use_tqdm=False)[0].text == "Hello!"


def test_the_engine_of_a_script_that_never_closes_it_stops_before_the_interpreter_goes() -> None:
    script = """
import atexit
llm = None
atexit.register(lambda: print(llm._background.engine.state, flush=True))
from limelight import LLM
from limelight.testing import scripted_engine
llm = LLM.from_engine(scripted_engine("Hi"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "STOPPED" in done.stdout.upper()
