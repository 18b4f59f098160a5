"""docs/api_fields.md says what the server does."""

from limelight.http.protocol.fields.endpoints import ENDPOINTS
from tools.fields_table import as_markdown, main


def test_the_page_is_up_to_date(capsys):
    code = main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_stale_page_is_found_and_mended(tmp_path, capsys):
    page = tmp_path / "api_fields.md"
    assert main(["--check"], page) == 1
    page.write_text("old")
    assert main(["--check"], page) == 1
    assert "is stale; run python tools/fields_table.py" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0


def test_every_field_of_every_endpoint_has_its_row_with_its_effect():
    sections = as_markdown().split("\n## ")[1:]
    assert len(sections) == len(ENDPOINTS) + 1
    for endpoint, section in zip(ENDPOINTS, sections, strict=False):
        assert section.startswith(f"`POST {endpoint.path}`")
        for name, field in endpoint.fields.items():
            assert f"\n| `{name}` | {field.effect} | {field.note} |" in section
