"""lm-eval's client for completions against the real server: the log-likelihoods of transformers on the same weights."""

import json
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import anyio.to_thread
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from limelight.engine import Engine
from limelight.http import create_app
from tests.http.wire import running_server
from tests.models.tiny_models import save_byte_tokenizer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `eval` is not installed (make test does)"),
]

QUESTIONS = [
    ("The lime is", [" green", " made of stone", " a kind of light"]),
    ("Two and two are", [" four", " five"]),
    ("Ein Grüner heißt", [" grün", " Größe", " 緑"]),
    ("A rather long context, " * 8 + "which ends with", [" a word", " a rather long continuation, " * 4]),
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": 0,
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}",
        "metric_list": [{"metric": "byte_perplexity"}],
    },
}


def save_tasks(folder: Path) -> None:
    documents = folder / "documents.jsonl"
    lines = [json.dumps({"question": question, "choices": choices}) for question, choices in QUESTIONS]
    documents.write_text("\n".join(lines))
    for name, task in TASKS.items():
        described = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"validation": str(documents)}},
            "validation_split": "validation",
            **task,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(described))  # JSON is YAML


def save_model(folder: Path) -> None:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=256,
        bos_token_id=None,
        initializer_range=0.2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    save_byte_tokenizer(folder)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<end>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


async def test_log_likelihoods_are_those_of_transformers(tmp_path: Path) -> None:
    model, tasks = tmp_path / "model", tmp_path / "tasks"
    model.mkdir()
    tasks.mkdir()
    await anyio.to_thread.run_sync(partial(save_model, model))
    save_tasks(tasks)
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    client = f"tokenizer={model},tokenizer_backend=huggingface,max_length=400,num_concurrent=4,max_retries=1"
    async with (
        Engine(str(model), served_model_name="tiny", dtype="float32") as engine,
        running_server(create_app(engine)) as port,
    ):
        completed = await anyio.run_process(
            [
                sys.executable,
                str(Path(__file__).with_name("run_tasks.py")),
                str(tasks),
                ",".join(TASKS),
                "local-completions",
                f"model=tiny,base_url=http://127.0.0.1:{port}/v1/completions,{client}",
                "hf",
                f"pretrained={model},dtype=float32,device=cpu,max_length=400",
            ],
            env=os.environ | offline | {"NO_PROXY": "127.0.0.1", "TOKENIZERS_PARALLELISM": "false"},
            check=False,
        )
    assert completed.returncode == 0, completed.stderr.decode()[-3000:]
    ours, theirs = json.loads(completed.stdout)
    assert {name: len(samples) for name, samples in ours.items()} == dict.fromkeys(TASKS, len(QUESTIONS))
    for name in TASKS:
        for mine, expected in zip(ours[name], theirs[name], strict=True):
            assert len(mine) == len(expected)
            found, wanted = (np.array(rows, dtype=object).reshape(len(rows), -1)[:, 0] for rows in (mine, expected))
            assert np.abs(found.astype(float) - wanted.astype(float)).mean() < 1e-3
            assert np.array(mine, dtype=object).shape == np.array(expected, dtype=object).shape
