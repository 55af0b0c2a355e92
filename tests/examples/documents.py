"""The blocks of a page of the docs, in order."""

import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A block, and its language."""

    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """All blocks of ``docs/<page>``."""
    found = [Block(*match.groups()) for match in _BLOCK.finditer((DOCS / page).read_text())]
    assert found, page
    return found
