"""The pages of the docs: each is in the index, and links lead to what exists."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(
    {page for pattern in ("*.md", "docs/**/*.md", "*/README.md", "tests/**/README.md") for page in ROOT.glob(pattern)}
)

_FENCED = re.compile(r"^( *)(```+).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    """Return where the links of a page lead, except to other sites."""
    found = _LINK.findall(_CODE.sub("", prose(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, by the rules of GitHub."""
    seen: Counter[str] = Counter()
    made = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        made.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return made


def lead_nowhere(page: Path) -> list[str]:
    """Return the links of a page that lead to no file, or to no heading of it."""
    missing = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert lead_nowhere(page) == []


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# The `why` of it\n\n```sh\n# no heading\n```\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[1](b.md#the-why-of-it) [2](b.md#twice-1) [3](#here) [4](https://x.example) `[5](no.md)`\n\n# Here\n"
        "[6](no.md) [7](b.md#no-heading) [8](#there) [9](b.md#twice-2)\n"
    )
    assert lead_nowhere(page) == ["no.md", "b.md#no-heading", "#there", "b.md#twice-2"]


def test_each_page_is_in_the_index_once() -> None:
    index = DOCS / "README.md"
    listed = Counter(re.findall(r"^- \[[^\]]*\]\((\w[\w/-]*\.md)\)", index.read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page for page in DOCS.glob("**/*.md") if page != index and page.parent.name != "decisions"}
    assert listed == Counter(page.relative_to(DOCS).as_posix() for page in pages)
