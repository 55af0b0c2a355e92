"""A cluster with authentication, which encrypts what comes over TCP."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import Fila
from benchmarks.harness.processes import environment


@dataclass(frozen=True)
class Guarded(Fila):
    """The cluster of ``fila-cluster auth init``. Clients of this process, and of those that it starts, have its first key."""

    label: str = "fila-cluster, encrypted"
    keys: dict[str, str] = field(default_factory=dict, hash=False)
    """What ``auth init`` printed."""

    @contextmanager
    def serve(self, directory: Path) -> Iterator[OneCluster]:
        """Make keys and start a cluster."""
        made = subprocess.run(
            [sys.executable, "-m", "fila_cluster", "--json", "auth", "init", "--data-dir", str(directory)],
            capture_output=True,
            check=True,
        )
        self.keys.update(json.loads(made.stdout))
        flags = ("--durability", self.durability, *self.options)
        guarded = {"FILA_AUTH__ENABLED": "true"}
        with (
            environment(self.environment()),
            OneCluster(directory, *flags, workers=self.workers, facts=self.facts(), settings=guarded) as cluster,
        ):
            yield cluster

    def environment(self) -> Mapping[str, str]:
        """Return what lets clients in."""
        return {
            **super().environment(),
            "FILA_API_KEY": self.keys.get("api_key", ""),
            "FILA_SERVER_KEY": self.keys.get("server_key", ""),
        }
