"""docs/metrics.md says what is exported."""

from limelight.telemetry.prometheus.collector import ROWS
from limelight.telemetry.prometheus.vllm_rows import VLLM_ROWS
from tools.metrics_table import as_markdown, main


def test_the_page_is_up_to_date(capsys):
    code = main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_stale_page_is_found_and_mended(tmp_path, capsys):
    page = tmp_path / "metrics.md"
    assert main(["--check"], page) == 1
    page.write_text("old")
    assert main(["--check"], page) == 1
    assert "is stale; run python tools/metrics_table.py" in capsys.readouterr().err
    assert main([], page) == 0
    assert main(["--check"], page) == 0


def test_every_metric_has_its_line():
    page = as_markdown()
    for row in (*ROWS, *VLLM_ROWS):
        assert page.count(f"\n| `{row.exposed_name}` | {row.kind} |") == 1, row.name
