"""Tables, and the docstrings that fill them."""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from types import ModuleType


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield the lines of a table. An empty cell becomes a dash."""
    titles = list(titles)
    yield f"| {' | '.join(titles)} |"
    yield "|" + "---|" * len(titles)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') or '–' for cell in row)} |"


def prose(docstring: str | None) -> str:
    """Return the first paragraph of a docstring on one line, with Markdown's marks for code."""
    paragraph = " ".join((docstring or "").strip().split("\n\n")[0].split())
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", paragraph).replace("``", "`")


def codes(names: Iterable[str]) -> str:
    """Return names as code, with commas."""
    return ", ".join(f"`{name}`" for name in names)


def field_docs(owner: type | ModuleType) -> dict[str, str]:
    """Return the docstrings below the fields of a class or the constants of a module, by name."""
    tree = ast.parse(inspect.getsource(owner))
    body = (
        tree.body
        if isinstance(owner, ModuleType)
        else next(each for each in tree.body if isinstance(each, ast.ClassDef)).body
    )
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = prose(str(ast.literal_eval(text.value)))
    return found
