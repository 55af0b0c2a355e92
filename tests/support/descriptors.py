"""Descriptors of this process: what a test opens is closed when it ends."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.cluster import eventually


def open_descriptors() -> set[tuple[int, str]]:
    """Each open descriptor of this process, and what it is of."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.add((int(entry.name), os.readlink(entry)))
    return found


@contextmanager
def all_closed_again() -> Iterator[None]:
    """Wait until everything that was opened in the block is closed.

    Descriptors that were opened and closed meanwhile don't matter: something else in the process may connect again and again.
    """
    before = open_descriptors()
    yield
    gc.collect()
    left = open_descriptors() - before

    def are_closed() -> bool:
        left.intersection_update(open_descriptors())
        return not left

    eventually(are_closed, lambda: f"descriptors are closed: {sorted(left)}")
