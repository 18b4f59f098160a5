"""Models and engines that answer by a script."""

from collections.abc import Callable
from typing import Unpack

from limelight.config import EngineConfig, EngineOptions
from limelight.embeddings import EmbeddingSettings
from limelight.engine import Engine, ModelLoader, Report
from limelight.models.loaded_model import ChatFormat, LoadedModel
from limelight.parsing.answer_format import AnswerFormat
from limelight.step import Capacity, Step
from limelight.testing.chat_format import PlainChatFormat
from limelight.testing.executor import HIDDEN_SIZE, ScriptedExecutor
from limelight.testing.script import Script, babble
from limelight.testing.vocabulary import END, VOCAB_SIZE, ByteVocabulary


def scripted_model(
    script: Script = babble,
    *,
    num_pages: int = 512,
    max_model_len: int = 2048,
    before_step: Callable[[Step], None] | None = None,
    step_seconds: float = 0.0,
    answer_format: AnswerFormat | None = None,
    chat_format: ChatFormat | None = None,
) -> ModelLoader:
    """A loader for `Engine(loader=...)`: answers by script.

    Args:
        script: what to answer.
        num_pages: size of the KV pool, in pages.
        before_step: called with each step before it runs; may block, or raise to fail the step.
        step_seconds: how long each step takes.
        answer_format: how it marks reasoning and writes tool calls; neither, if left out.
        chat_format: what renders conversations, else `PlainChatFormat`.
    """

    def load(config: EngineConfig, report: Report) -> LoadedModel:
        report("script", 1.0)
        capacity = Capacity(
            num_pages=num_pages,
            page_size=config.page_size,
            num_seats=config.num_seats("cpu"),
            max_num_batched_tokens=config.tokens_per_step("cpu"),
            max_model_len=config.max_model_len or max_model_len,
            vocab_size=VOCAB_SIZE,
        )
        executor = ScriptedExecutor(script, capacity, before_step, step_seconds)
        return LoadedModel(
            name="scripted",
            vocabulary=ByteVocabulary(),
            chat_format=chat_format or PlainChatFormat(),
            answer_format=answer_format or AnswerFormat(),
            executor=executor,
            adapters=executor.adapters,
            capacity=capacity,
            embedding=EmbeddingSettings(num_dimensions=HIDDEN_SIZE),
            eos_token_ids=frozenset({END}),
        )

    return load


def scripted_engine(
    script: Script = babble,
    *,
    num_pages: int = 512,
    before_step: Callable[[Step], None] | None = None,
    step_seconds: float = 0.0,
    answer_format: AnswerFormat | None = None,
    chat_format: ChatFormat | None = None,
    **options: Unpack[EngineOptions],
) -> Engine:
    """An engine, not started yet, over `scripted_model`; `options` as for `Engine`."""
    loader = scripted_model(
        script,
        num_pages=num_pages,
        before_step=before_step,
        step_seconds=step_seconds,
        answer_format=answer_format,
        chat_format=chat_format,
    )
    return Engine("scripted", loader=loader, **options)
