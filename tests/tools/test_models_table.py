"""docs/models.md says what the code says."""

from pathlib import Path

import pytest

from limelight.models.families.registry import FAMILIES
from limelight.models.supported import Table, supported_tables
from tools.models_table import BEGIN, END, as_markdown, main, with_tables


def test_the_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_stale_page_is_found_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "models.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    assert main(["--check"], page) == 1
    assert "is stale; run python tools/models_table.py" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}")
    assert text.endswith(f"{END}after\n")
    assert "old" not in text


def test_every_family_and_every_model_type_has_its_row() -> None:
    page = "\n".join(map(as_markdown, supported_tables()))
    for family in FAMILIES:
        assert family.title in page
        assert all(f"`{architecture}`" in page for architecture in family.architectures)


def test_a_cell_cannot_break_its_table() -> None:
    assert as_markdown(Table("T", ("a", "b"), (("x|y", "z"),))) == "### T\n\n| a | b |\n| --- | --- |\n| x\\|y | z |\n"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="has lost its marks"):
        with_tables("nothing", ())
