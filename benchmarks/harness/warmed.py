"""A system through which messages have gone before it is measured, as through one that has served for a while."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import clients
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.systems import Server, System

QUEUE = "before"
"""Another one than those that are measured."""


@dataclass(frozen=True)
class Warmed:
    """``messages`` are enqueued and consumed before. Java compiles in its first seconds what runs often, and brokers are
    Java."""

    system: System
    messages: int

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.system.name

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Server]:
        """Start a server, and send the messages through it."""
        with self.system.serve(directory) as server:
            clients.create(self, server, QUEUE)
            load = Load(self.messages)
            for work in (clients.produce, clients.consume):
                together((work, self.system, server.address, QUEUE, load), env=self.environment())
            yield server

    def environment(self) -> Mapping[str, str]:
        """Return the variables that the system's clients have."""
        return self.system.environment()

    def connect(self, address: str) -> AbstractAsyncContextManager[Any]:
        """Open a client."""
        return self.system.connect(address)
