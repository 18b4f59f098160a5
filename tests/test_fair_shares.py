"""Fair shares through the whole engine: who asks once does not wait for somebody else's hundred."""

import asyncio

import pytest

from limelight import Engine, SamplingParams
from limelight.errors import InvalidRequest
from limelight.generation import GenerationRequest, Share, TextPrompt
from limelight.http import HttpSettings
from limelight.http.keys.key_file import KeyEntry, KeyFile, digest_of, write_keys
from limelight.testing import scripted_engine
from tests.http.test_disconnect import until
from tests.http.wire import COMPLETIONS, completion_body, error_of, serving

pytestmark = pytest.mark.anyio

LONG = SamplingParams(max_tokens=400, ignore_eos=True)


def asking(name: str, **fields: object) -> GenerationRequest:
    return GenerationRequest(request_id=name, prompt=TextPrompt("x" * 20), sampling=LONG, **fields)


async def run(engine: Engine, request: GenerationRequest) -> None:
    async with engine.open(request) as stream:
        await stream.result()


async def steps_to_first_token(engine: Engine, request: GenerationRequest) -> int:
    before = engine.statistics().num_steps
    async with engine.open(request) as stream:
        await anext(stream)
        return engine.statistics().num_steps - before


def of_owner(name: str) -> dict[str, object]:
    return {"owner": name}


def of_share(name: str) -> dict[str, object]:
    return {"share": Share(name=name)}


@pytest.mark.parametrize("by", [of_owner, of_share])
@pytest.mark.parametrize("depth", [1, 2])
async def test_one_request_is_served_at_once_beside_a_crowd(by, depth):
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "step_seconds": 0.002, "pipeline_depth": depth}
    async with scripted_engine("a" * 1000, num_pages=512, **options) as engine:
        crowd = [asyncio.create_task(run(engine, asking(f"r{number}", **by("crowd")))) for number in range(40)]
        await until(lambda: engine.statistics().num_running == 4)
        single = await steps_to_first_token(engine, asking("single", **by("single")))
        one_more = await steps_to_first_token(engine, asking("late", **by("crowd")))
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
        await until(lambda: engine.statistics().num_free_pages == 512)
    assert one_more > 400
    assert single < one_more / 10


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf"), "3"])
async def test_a_weight_that_makes_no_sense_is_refused(weight):
    async with scripted_engine() as engine:
        with pytest.raises(InvalidRequest, match=r"share\.weight"):
            await run(engine, asking("x", share=Share(name="x", weight=weight)))


async def test_keys_and_headers_name_shares_over_http(tmp_path):
    path = tmp_path / "keys.json"
    entries = (
        KeyEntry(name="gateway", sha256=digest_of("g"), weight=2.0),
        KeyEntry(name="other", sha256=digest_of("o")),
    )
    write_keys(path, KeyFile(keys=entries))
    engine = scripted_engine("fine")
    seen = []
    admit = engine.open

    def noting(request):
        seen.append((request.owner, request.share.name, request.share.weight))
        return admit(request)

    engine.open = noting
    async with serving(engine, HttpSettings(key_file=str(path), share_header="x-user")) as client:
        for key, headers in (("g", {"x-user": "ada"}), ("g", {}), ("o", {"x-user": "\u00fc"})):
            encoded = {name: value.encode() for name, value in headers.items()}
            encoded["authorization"] = f"Bearer {key}".encode()
            answer = await client.post(COMPLETIONS, json=completion_body(), headers=encoded)
            assert answer.status_code == 200
        twice = [("authorization", "Bearer g"), ("x-user", "ada"), ("x-user", "eve")]
        answer = await client.post(COMPLETIONS, json=completion_body(), headers=twice)
        assert error_of(answer, 400)["param"] == "x-user"
    assert len(seen) == 3
    assert seen[:2] == [("gateway", "gateway/ada", 2.0), ("gateway", "gateway", 2.0)]
    assert seen[2][1].startswith("other/")
