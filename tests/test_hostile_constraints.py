"""Whatever form is asked for, there is an output or a refusal that names the field, and others go on meanwhile."""

import threading

import anyio
import pytest

from limelight.errors import InvalidRequest
from limelight.generation import FinishReason, SamplingParams
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.structured_outputs import StructuredOutputsParams
from limelight.testing import babble, scripted_engine
from tests.hostile_forms import FORMS

pytestmark = pytest.mark.anyio

LONG_SECONDS = 100
PLAIN = SamplingParams(structured_outputs=StructuredOutputsParams(regex="[a-z]{8}"), seed=1, max_tokens=20)


async def test_hostile_forms_end_in_an_output_or_a_refusal(monkeypatch):
    compiled_on = set()
    compile_ = ConstraintCompiler.compile

    def watched(*arguments):
        compiled_on.add(threading.get_ident())
        return compile_(*arguments)

    monkeypatch.setattr(ConstraintCompiler, "compile", watched)
    outcomes, neighbours = {}, []

    async def one(name, form):
        sampling = SamplingParams(structured_outputs=form, seed=1, max_tokens=24)
        try:
            outcomes[name] = (await engine.generate("go", sampling)).outputs[0].finish_reason
        except InvalidRequest as refusal:
            outcomes[name] = refusal

    async with scripted_engine(babble) as engine:
        for name, form in FORMS.items():
            with anyio.fail_after(LONG_SECONDS):
                async with anyio.create_task_group() as group:
                    group.start_soon(one, name, form)
                    neighbours.append((await engine.generate("go", PLAIN)).text)
        assert engine.statistics().num_free_seats == engine.statistics().num_seats
        assert engine.statistics().num_free_pages == engine.statistics().num_pages
    assert len(set(neighbours)) == 1
    for name, outcome in outcomes.items():
        assert isinstance(outcome, FinishReason) or outcome.param == "structured_outputs", name
        assert not isinstance(outcome, InvalidRequest) or len(outcome.message) < 600, name
    refused = {name for name, outcome in outcomes.items() if isinstance(outcome, InvalidRequest)}
    assert 70 < len(refused) < 110
    assert threading.get_ident() not in compiled_on
