"""Ways of this broker that the harness does not have: clients that reach workers as from another host."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila

SOCKETS = "door-*.ipc"
"""The sockets of the workers' own doors in a data directory."""


@dataclass(frozen=True)
class OverTcp:
    """A cluster whose clients reach the workers directly over tcp: the sockets that a client on the same host prefers are
    removed."""

    fila: Fila

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.fila.name

    @contextmanager
    def serve(self, directory: Path) -> Iterator[OneCluster]:
        """Start a cluster, and remove its sockets."""
        with self.fila.serve(directory) as cluster:
            sockets = list(directory.glob(SOCKETS))
            if not sockets:
                raise SystemExit(f"there is no {SOCKETS} in the data directory: clients go another way")
            for each in sockets:
                each.unlink()
            cluster.facts = {**cluster.facts, "client": f"{cluster.facts['client']}, tcp"}
            yield cluster

    def environment(self) -> Mapping[str, str]:
        """Return what clients have in their environment."""
        return self.fila.environment()

    def connect(self, address: str) -> AbstractAsyncContextManager[Any]:
        """Open a client."""
        return self.fila.connect(address)
