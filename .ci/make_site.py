"""Build the documentation site: ``python .ci/make_site.py DIRECTORY``. Needs the group ``site`` of ``pyproject.toml``, and no network.

The pages stay where they are, and stay readable where the repository is browsed. The index, ``docs/README.md``, is the start page, and its lists
are the navigation. A page that is only linked from others, as a decision is, stands below the first one that links to it. A link to a file of
code leads to a copy of it. A link that leads nowhere, an anchor that is missing and a page that nobody links to are errors.

Sphinx reads Markdown by the rules of CommonMark, as the repository's pages are read, so both show the same.
"""

import re
import shutil
import sys
import tempfile
from os.path import relpath
from pathlib import Path
from typing import Final

from sphinx.cmd.build import build_main

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
INDEX: Final = DOCS / "README.md"
PLACES: Final = {INDEX: "index.md", ROOT / "README.md": "index.md"}
"""Pages whose place in the site is not that of their file."""
REST: Final = "project"
"""The folder of what is outside ``docs``."""
SETTINGS: Final = Path(__file__).parent / "site"

_FENCED = re.compile(r"^( *)(```+).*?^ *\2 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^()\s#]+)(?=[#)])")
_LISTED = re.compile(r"^- \[([^\]]*)\]\(([^)#]+\.md)\)(?:: (.*))?$", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)


def place_of(file: Path) -> str:
    """Return where a file of the repository is in the site."""
    if file in PLACES:
        return PLACES[file]
    return str(file.relative_to(DOCS)) if DOCS in file.parents else f"{REST}/{file.relative_to(ROOT)}"


class Gathering:
    """The pages of the site, as Markdown with links that hold there, and the files that they link to."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        """The text of each page, by its place."""
        self.files: dict[str, Path] = {}
        """The files that are copied, by their place."""
        self.below: dict[str, list[str]] = {}
        """The pages that a page is the first to link to."""
        self._met = {INDEX, *PLACES}
        waiting = [INDEX]
        for page in waiting:
            waiting += self._take(page)

    def _take(self, page: Path) -> list[Path]:
        """Gather a page. Return the pages that nobody has linked to before."""
        text, place = page.read_text(encoding="utf-8"), place_of(page)
        code = [found.span() for pattern in (_FENCED, _CODE) for found in pattern.finditer(text)]
        new: list[Path] = []

        def moved(link: re.Match[str]) -> str:
            if any(start <= link.start() < end for start, end in code):
                return link[0]
            target = (page.parent / link[0]).resolve()
            target = target / "README.md" if target.is_dir() else target
            if not target.is_file():
                raise SystemExit(
                    f"{page.relative_to(ROOT)} links to {link[0]}, which is no file, and no folder with a README.md"
                )
            if target.suffix != ".md":
                self.files[place_of(target)] = target
            elif target not in self._met:
                self._met.add(target)
                new.append(target)
            return relpath(place_of(target), str(Path(place).parent))

        self.pages[place] = _LINK.sub(moved, text)
        self.below[place] = [place_of(target) for target in new]
        return new

    def sections(self) -> dict[str, list[tuple[str, str, str]]]:
        """Return the lists of the index by their heading: titles, places, and what the pages are about."""
        _, *parts = _SECTION.split(self.pages[place_of(INDEX)])
        return {title: _LISTED.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True)}

    def with_navigation(self, place: str) -> str:
        """Return a page with what the navigation has below it."""
        text = self.pages[place]
        if place != place_of(INDEX):
            return text + tree("", [relpath(below, str(Path(place).parent)) for below in self.below[place]])
        return text + "".join(
            tree(title, [f"{name} <{page}>" for name, page, _ in listed]) for title, listed in self.sections().items()
        )

    def llms(self) -> str:
        """Return ``llms.txt``: what the site is, and where the Markdown of each page is."""
        head = _SECTION.split(self.pages[place_of(INDEX)])[0].split("\n\n")
        about = " ".join(next(part for part in head[1:] if part[0].isalpha()).split())
        lines = [head[0], "", f"> {about}"]
        for title, listed in self.sections().items():
            lines += ["", f"## {title}", "", *(f"- [{name}]({page}): {words}" for name, page, words in listed)]
        return "\n".join(lines) + "\n"


def tree(caption: str, pages: list[str]) -> str:
    """Return a part of the navigation, as Sphinx reads it."""
    return (
        "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}" if caption else "", "", *pages, "```\n"])
        if pages
        else ""
    )


def main(target: Path) -> None:
    """Build the site into a directory that is empty, or has an earlier one."""
    gathered = Gathering()
    with tempfile.TemporaryDirectory(prefix="fila-site-") as made:
        folder = Path(made)
        for place in (*gathered.pages, *gathered.files):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
        for place in gathered.pages:
            (folder / place).write_text(gathered.with_navigation(place), encoding="utf-8")
        for place, file in gathered.files.items():
            shutil.copyfile(file, folder / place)
        strict = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet", "--jobs", "auto"]
        if build_main([*strict, "-c", str(SETTINGS), "-d", str(folder / ".read"), str(folder), str(target)]):
            raise SystemExit("the site has the errors above")
    for place, text in gathered.pages.items():
        (target / place).write_text(text, encoding="utf-8")
    (target / "llms.txt").write_text(gathered.llms(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
