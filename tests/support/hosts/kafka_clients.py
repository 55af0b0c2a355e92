"""What a test leaves of Kafka's client library in its process: nothing.

A client that is left goes on looking for its broker for as long as the process lives. Its descriptors come and go, and a later test that
counts descriptors fails.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fila_worker.log.kafka.partition import KafkaPartition
from tests.support.cluster.cluster import eventually


def library_threads() -> int:
    """How many threads of the library this process has."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text())
    return sum(name.startswith("rdk:") for name in names)


@contextmanager
def none_left() -> Iterator[None]:
    """Close the appenders and tails that are made in the block, and wait until the threads of all clients have ended."""
    before, made = library_threads(), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("appender", "tail"):
            patch.setattr(KafkaPartition, name, _noting(getattr(KafkaPartition, name), made))
        yield
    while made:
        made.pop().close()

    def are_gone() -> bool:
        gc.collect()  # what ended just now may be in a cycle
        return library_threads() <= before

    eventually(are_gone, "the clients of Kafka end")


def _noting(make: Any, made: list[Any]) -> Any:
    def noted(partition: KafkaPartition, *arguments: Any) -> Any:
        made.append(make(partition, *arguments))
        return made[-1]

    return noted
