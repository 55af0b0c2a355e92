"""The site is built without a warning, has all pages, asks no other host for anything, and what is wrong with a page is an error."""

import re
import shutil
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.site.conftest import build

LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]* src=\"([^\"]+)\"|<link[^>]* rel=\"(?:stylesheet|icon|preload)\"[^>]* href=\"([^\"]+)\""
)


def test_each_page_is_there_for_people_and_for_programs(site: Path) -> None:
    pages = {page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")}
    for page in {*pages - {Path("README")}, Path("index"), Path("project/ARCHITECTURE"), Path("project/CONTRIBUTING")}:
        assert (site / page).with_suffix(".html").exists(), page
        assert (site / page).with_suffix(".md").read_text().startswith("# "), page
    listed = re.findall(r"\]\((.*?)\)", (site / "llms.txt").read_text())
    assert len(listed) == len(set(listed)) > 50
    assert all((site / page).is_file() for page in listed)


def test_a_page_loads_nothing_from_elsewhere(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for found in LOADED.findall(page.read_text()) for link in found if link}
    assert "_static/site.css" in {link.partition("?")[0] for link in loaded}
    assert {link for link in loaded if re.match(r"([a-z]+:)?//", link)} == set()
    assert not any("url(http" in sheet.read_text() or "@import" in sheet.read_text() for sheet in site.rglob("*.css"))


@pytest.mark.parametrize(
    ("addition", "complaint"),
    [
        ("[No such page](nowhere.md).", "nowhere.md"),
        ("[No such heading](other.md#nowhere).", "nowhere"),
        ("![No such picture](images/nowhere.png)", "nowhere.png"),
    ],
)
def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path, addition: str, complaint: str) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / "README.md").write_text("# A project\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("# Start\n\nWords.\n\n## Pages\n\n- [Other](other.md): a page.\n")
    (tmp_path / "docs/other.md").write_text("# Other\n\n## A heading\n\n[Here](#a-heading), [the start](README.md).\n")
    assert build(tmp_path, tmp_path / "built").returncode == 0
    (tmp_path / "docs/README.md").write_text(f"# Start\n\nWords. {addition}\n\n## Pages\n\n- [Other](other.md): a page.\n")
    done = build(tmp_path, tmp_path / "built")
    assert done.returncode != 0
    assert complaint in done.stderr
