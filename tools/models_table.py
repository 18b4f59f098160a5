"""Writes the tables of docs/models.md from the code; with `--check`, only says whether they are stale."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a script, it is not beside the package

from limelight.models.supported import Table, supported_tables  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
BEGIN = "<!-- made by tools/models_table.py: begin -->\n"
END = "<!-- made by tools/models_table.py: end -->\n"


def main(arguments: Sequence[str] | None = None, page: Path = PAGE) -> int:
    """Brings the page up to date; with `--check`, returns 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is stale")
    options = parser.parse_args(arguments)
    before = page.read_text()
    after = with_tables(before, supported_tables())
    if options.check:
        if before != after:
            print(f"{page} is stale; run python tools/models_table.py", file=sys.stderr)
        return int(before != after)
    page.write_text(after)
    return 0


def with_tables(text: str, tables: Sequence[Table]) -> str:
    """`text` with the tables between its two marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the page has lost its marks:\n{BEGIN}{END}")
    return head + BEGIN + "\n" + "\n".join(map(as_markdown, tables)) + "\n" + END + tail


def as_markdown(table: Table) -> str:
    """A heading and a table."""
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    rows = "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
    return f"### {table.title}\n\n{rows}"


if __name__ == "__main__":
    sys.exit(main())
