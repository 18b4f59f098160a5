"""The notebook: its cells, in order, in one loop that runs already, as IPython runs them."""

import ast
import contextlib
import inspect
import io
import json

import pytest

from tests.examples.running import EXAMPLES

NOTEBOOK = json.loads((EXAMPLES / "notebook.ipynb").read_text())
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_it_is_a_notebook_without_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"], cell["metadata"]) == ([], None, {})


async def executed(cells):
    """What each cell prints, and at last the variables of all."""
    variables = {"__name__": "__main__"}
    printed = []
    for number, source in enumerate(cells):
        code = compile(source, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            result = eval(code, variables)
            if inspect.iscoroutine(result):
                await result
        printed.append(output.getvalue())
    return printed, variables


@pytest.mark.model
@pytest.mark.anyio
async def test_its_cells_run_from_top_to_bottom():
    printed, variables = await executed(CODE)
    shown = "".join(printed)
    assert "Paris" in printed[1]
    assert isinstance(variables["city"], variables["City"])
    assert shown.count(" ms  #") == 4
    assert "8 at once, each further" in shown
    assert variables["engine"].state.name == "STOPPED"
