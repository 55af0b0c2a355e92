"""The reference of handlers, by their classes and functions, and the operations of the HTTP API."""

import inspect
from collections.abc import Iterator
from typing import Any

from fila_cluster import app
from fila_cluster.ops.observer.http_api.openapi import DESCRIBED
from parts.markdown import prose, table

DECLARED = ("App", "backoff", "Depends", "RetryAfter", "Fail", "Defer")
"""What a module of handlers uses."""
RUN = ("Call", "Stop", "Work", "Verdict", "HandlerTimeoutError", "PayloadError")
"""What runs handlers, and what middleware sees."""


def handlers() -> str:
    """Return the public names of ``fila_cluster.app``."""
    return "\n".join(line for name in DECLARED + RUN for line in _named(name, getattr(app, name))).strip()


def _named(name: str, what: Any) -> Iterator[str]:
    """Yield the section of a class or a function, with the methods of a class."""
    yield from ("", f"### {name}", "", f"`{name}{_arguments(what)}`", "", prose(what.__doc__))
    members = [each for each in vars(what) if not each.startswith("_")] if inspect.isclass(what) else []
    rows = [row for each in members if (row := _member(what, each)) is not None]
    if rows:
        yield from ("", *table(["name", "what it does"], rows))


def _member(owner: type, name: str) -> tuple[str, str] | None:
    """Return the row of a method or property; None for a field without words of its own."""
    found = inspect.getattr_static(owner, name)
    if isinstance(found, property):
        return f"`{name}`", prose(found.__doc__)
    if not callable(found) or not found.__doc__:
        return None
    waits = "await " if inspect.iscoroutinefunction(found) else ""
    return f"`{waits}{name}{_arguments(found)}`", prose(found.__doc__)


def _arguments(what: Any) -> str:
    """Return the arguments of a call, without types."""
    given = [each for each in inspect.signature(what).parameters.values() if each.name != "self"]
    shown = []
    for each in given:
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        default = "…" if callable(each.default) else repr(each.default)
        shown.append(each.name if each.default is each.empty else f"{each.name}={default}")
    return f"({', '.join(shown)})"


def operations() -> str:
    """Return the table of operations over HTTP."""
    rows = (
        (
            f"`{each.method} {each.path}`",
            f"{each.summary}. {each.description}",
            ", ".join(f"`{kind.__name__}`" for kind in each.takes),
        )
        for each in DESCRIBED
    )
    return "\n".join(table(["request", "what it does", "schema of its body in `/openapi.json`"], rows))
