"""The pages that people read, and what stands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)\n(?P<code>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE)
MARK = re.compile(r"<!-- not run: (.*) -->\s*\Z")
HISTORY = ("CHANGELOG.md", "docs/log.md", "docs/decisions/")
"""What was so when it was written; names in them may have changed."""


@dataclass(frozen=True)
class Fence:
    """A fenced block.

    Attributes:
        place: page and line, for messages.
        kind: words behind the language.
        reason: why it is not run; None: it is.
    """

    place: str
    page: str
    language: str
    kind: str
    code: str
    reason: str | None


def pages() -> dict[str, str]:
    """Every page, by its path below the root."""
    paths = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted(paths)}


def current_pages() -> dict[str, str]:
    """Those that say what is so now."""
    return {name: text for name, text in pages().items() if not name.startswith(HISTORY)}


def fences(page: str, text: str) -> Iterator[Fence]:
    """Every fenced block of a page, indentation of lists taken away."""
    for found in FENCE.finditer(text):
        language, _, kind = found["info"].strip().partition(" ")
        mark = MARK.search(text[: found.start()])
        yield Fence(
            place=f"{page}:{text.count(chr(10), 0, found.start()) + 1}",
            page=page,
            language=language,
            kind=kind,
            code=re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE),
            reason=mark[1] if mark else None,
        )


def all_fences() -> list[Fence]:
    """Of the pages that say what is so now."""
    return [fence for page, text in current_pages().items() for fence in fences(page, text)]


def without_fences(text: str) -> str:
    """The prose of a page."""
    return FENCE.sub("", text)


def commands(code: str) -> list[str]:
    """The commands of a shell's block, those over several lines put together, without comments."""
    found, begun = [], ""
    for line in code.splitlines():
        begun += f"{line}\n"
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        if words:
            found.append(begun.strip())
        begun = ""
    assert not begun, f"a quotation has no end: {begun}"
    return found
