"""Descriptors of this process: what a test opens is closed when it ends."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.cluster.cluster import eventually


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

    Descriptors that were opened and closed meanwhile don't matter: something else in the process may connect again and again. Nor do
    connections with Spark's Java. A Spark session lasts as long as the process, and connects when its objects are freed, whatever test runs then.
    """
    before = open_descriptors()
    yield
    gc.collect()
    left = open_descriptors() - before

    def are_closed() -> bool:
        left.intersection_update(open_descriptors())
        if left:
            sparks = _of_sparks_java()
            left.difference_update([each for each in left if each[0] in sparks])
        return not left

    eventually(are_closed, lambda: f"descriptors are closed: {_told(left)}")


def _of_sparks_java() -> set[int]:
    """Return the descriptors of connections with a Java that this process has started."""
    ports = set()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if child.name() == "java":
                ports |= {each.laddr.port for each in child.net_connections("tcp")}
    return {each.fd for each in psutil.Process().net_connections("tcp") if each.raddr and each.raddr.port in ports}


def _told(descriptors: set[tuple[int, str]]) -> str:
    """Return what descriptors are of, and of connections between whom."""
    connections = {each.fd: f"{each.laddr} {each.raddr} {each.status}" for each in psutil.Process().net_connections("inet")}
    return ", ".join(f"{number} {what} {connections.get(number, '')}".rstrip() for number, what in sorted(descriptors))
