"""Scores and hidden states of models that run with the layers of transformers, whatever lies before their logits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from limelight.actors.scheduling.prompt_readout import PromptReadout
from limelight.generation import Pooling
from limelight.models.transformers_model.source import TransformersSource
from limelight.step import Chunk, SeatTaken, Step
from tests.models.sequences import GREEDY
from tests.models.tiny_models import VOCAB_SIZE, Rig, tiny_named

pytestmark = pytest.mark.usefixtures("one_torch_thread")
PROMPT = tuple((5 * index * index + 7) % VOCAB_SIZE for index in range(80))
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MODELS: dict[str, dict[str, Any]] = {
    "GPT2Config": {},
    "OPTConfig": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "GraniteConfig": {"logits_scaling": 2.0},
    "CohereConfig": {"logit_scale": 0.5},
    "MixtralConfig": EXPERTS,
    "GPTNeoXConfig": {"rotary_pct": 0.5, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    "Olmo2Config": {},
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_agree_with_transformers_alone(name: str, tmp_path: Path) -> None:
    model = tiny_named(name, **MODELS[name])
    model.save_pretrained(tmp_path)
    rig = Rig(TransformersSource(tmp_path))
    assert rig.unreadable is None
    taken = tuple(SeatTaken(seat=seat, sampling=GREEDY, num_prompt_tokens=80) for seat in (0, 1))
    readouts = (PromptReadout(80, 2), PromptReadout(80, pooling=Pooling.MEAN, draws=False))
    chunks = tuple(
        Chunk(
            seat=seat,
            start=0,
            num_tokens=80,
            token_ids=PROMPT,
            new_pages=tuple(range(10 * seat, 10 * seat + 10)),
            sample=readout.draws,
            readout=readout.plan(PROMPT, 0, 80),
        )
        for seat, readout in enumerate(readouts)
    )
    scored, pooled = rig.executor.submit(Step(number=0, chunks=chunks, taken=taken))()
    assert scored is not None
    assert pooled is not None
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT]))
        states = model.base_model(torch.tensor([PROMPT])).last_hidden_state[0]
    logprobs = expected.logits[0].float().log_softmax(-1)
    own = logprobs[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])[:, 0]
    assert np.allclose([score.logprob for score in scored.scores], own, atol=1e-3)
    assert scored.token_ids == (int(logprobs[-1].argmax()),)
    assert np.allclose(np.frombuffer(pooled.hidden, "<f4"), states.sum(0), atol=1e-2)
