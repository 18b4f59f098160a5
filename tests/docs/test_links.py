"""Every relative link of every page leads to something that is there, and every anchor to a heading."""

import re

import pytest

from tests.docs.pages import FENCE, ROOT, pages

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
PAGES = pages()


def anchors(text: str) -> set[str]:
    """Those that GitHub makes of the headings of a page."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number = 0
        while (unique := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(unique)
    return found


def broken(page: str, text: str) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(FENCE.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if (
            not target.exists()
            or not target.resolve().is_relative_to(ROOT)
            or (anchor and anchor not in anchors(target.read_text()))
        ):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert broken(page, PAGES[page]) == []


@pytest.mark.parametrize(
    "link",
    ["[x](docs/nowhere.md)", "![x](images/none.png)", "[x](#nothing)", "[x](docs/models.md#nothing)", "[x](/etc)"],
)
def test_a_link_that_leads_nowhere_is_found(link: str) -> None:
    assert len(broken("README.md", f"# Title\n{link}\n")) == 1


def test_anchors_are_those_of_github() -> None:
    text = "# What is `it`, then?\n## [Twice](x.md)\n## Twice\n```bash\n# no heading\n```\n"
    assert anchors(text) == {"what-is-it-then", "twice", "twice-1"}


def test_every_page_of_docs_is_in_its_index() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(PAGES["docs/README.md"])}
    names = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert names <= linked
