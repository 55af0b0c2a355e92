"""To put something in the place of names of the product's modules for a while. Each run does so some fifty times."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(things: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Let ``(owner, name, thing)`` be in force. A name that does not exist is an error, so that no entry goes stale in silence."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, thing in things:
            before.append((owner, name, getattr(owner, name)))
            setattr(owner, name, thing)
        yield
    finally:
        for owner, name, thing in reversed(before):
            setattr(owner, name, thing)
