"""A program that uses the public API alone. Nothing runs it: a strict type checker reads it, and finds no cast and no
comment that silences it. What it assigns has the types that it says."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from limelight import (
    LLM,
    Completion,
    Delta,
    Embedding,
    Engine,
    EngineConfig,
    EngineState,
    EngineStatistics,
    FinishReason,
    Generation,
    GenerationRequest,
    HttpSettings,
    LimelightError,
    LoRARequest,
    RequestView,
    SamplingParams,
    Stream,
    StructuredOutputsParams,
    TextPrompt,
    TokenLogprob,
    TokensPrompt,
    Usage,
    create_app,
)
from limelight.errors import InvalidRequest, ModelError, Overloaded
from limelight.testing import scripted_engine

GREEDY = SamplingParams(temperature=0, max_tokens=20, stop=["\n"], logprobs=2)
SCHEMA: Mapping[str, object] = {"type": "object"}


async def answer(engine: Engine, question: str) -> str:
    messages: Sequence[Mapping[str, object]] = [{"role": "user", "content": question}]
    generation: Generation = await engine.chat(messages, GREEDY, priority=1)
    first: Completion = generation.outputs[0]
    reason: FinishReason | None = first.finish_reason
    usage: Usage = generation.usage
    scores: Sequence[TokenLogprob] | None = first.logprobs
    return f"{generation.text} {reason} {usage.completion_tokens} {0 if scores is None else len(scores)}"


async def read(engine: Engine, prompt: str) -> list[Delta]:
    read: list[Delta] = []
    stream: Stream
    async with engine.stream(prompt, GREEDY, request_id="mine") as stream:
        async for delta in stream:
            read.append(delta)
            if delta.finish_reason is FinishReason.LENGTH:
                stream.abort()
    return read


async def low_level(engine: Engine) -> None:
    bounded = SamplingParams(structured_outputs=StructuredOutputsParams(json=dict(SCHEMA)))
    request = GenerationRequest(request_id="r", prompt=(await tokens(engine)), sampling=bounded)
    async with engine.open(request) as stream:
        deltas: list[Delta] = await stream.next_deltas()
        result: Generation = await stream.result()
    print(deltas, result.text)


async def tokens(engine: Engine) -> TokensPrompt:
    ids: tuple[int, ...] = await engine.tokenize(TextPrompt("hello"))
    text: str = await engine.detokenize(ids)
    print(text)
    return TokensPrompt(ids)


async def look(engine: Engine) -> tuple[EngineState, EngineStatistics, tuple[RequestView, ...]]:
    vector: Embedding = await engine.embed("hello", dimensions=4)
    view: RequestView | None = engine.request_view("mine")
    ended: bool = engine.abort("mine")
    drained: bool = await engine.drain(1.0)
    print(vector.vector, view, ended, drained)
    return engine.state, engine.statistics(), engine.requests(recent=10)


async def careful(engine: Engine) -> str | None:
    try:
        return await answer(engine, "why?")
    except Overloaded as error:
        await asyncio.sleep(error.retry_after_seconds)
    except InvalidRequest as error:
        print(error.param, error.message)
    except LimelightError as error:
        print(error.status, error.code)
    return None


async def main() -> None:
    config = EngineConfig(model="some/model", max_model_len=4096)
    async with Engine(config) as engine:
        print(await careful(engine), await read(engine, "once"), await look(engine))
        await low_level(engine)
        print(engine.app(HttpSettings(api_keys={"me": "secret"})), create_app(engine))
    try:
        async with Engine(Path("folder"), max_num_seqs=4, quantize="none"):
            pass
    except ModelError as error:
        print(error)
    async with scripted_engine("an answer") as engine:
        print(await answer(engine, "x"))


def offline() -> list[str]:
    adapter = LoRARequest("style", 1, "folder")
    with LLM(model="some/model") as llm:
        return [output.outputs[0].text for output in llm.generate(["a", "b"], GREEDY, lora_request=adapter)]


if __name__ == "__main__":
    asyncio.run(main())
