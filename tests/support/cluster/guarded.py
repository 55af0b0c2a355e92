"""A real cluster with authentication, and its keys."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fila_cluster import Client
from fila_cluster.client.calls import cluster as calls
from fila_cluster.errors import FilaError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, running

WITH_AUTH = {"FILA_AUTH__ENABLED": "true"}


@dataclass
class Guarded:
    """A running cluster with authentication, and its first keys."""

    cluster: Cluster
    api_key: str
    server_key: str

    def client(self, api_key: str | None = None, **options: Any) -> Client:
        """A client with a key, the first one unless another is given."""
        key = self.api_key if api_key is None else api_key
        return Client(self.cluster.endpoint, api_key=key, server_key=self.server_key, **{"timeout": PATIENCE_S} | options)

    def key(self, name: str, *allow: str, expires: float | None = None) -> str:
        """A new API key."""
        with self.client() as admin:
            return str(admin.request(calls.create_key(name, allow, expires)).secret)

    def revoke(self, name: str) -> None:
        with self.client() as admin:
            admin.request(calls.revoke_key(name))

    def run(self, *arguments: object, api_key: str | None = None) -> subprocess.CompletedProcess[str]:
        """The command line, as somebody with a key."""
        env = environment(
            FILA_ENDPOINT=self.cluster.endpoint, FILA_API_KEY=api_key or self.api_key, FILA_SERVER_KEY=self.server_key
        )
        return subprocess.run(command(*arguments), env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def initialized(data_dir: Path) -> dict[str, str]:
    made = subprocess.run(
        command("--json", "auth", "init", "--data-dir", data_dir),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
        env=environment(),
    )
    keys: dict[str, str] = json.loads(made.stdout)
    return keys


@contextmanager
def guarded_cluster(data_dir: Path) -> Iterator[Guarded]:
    """A cluster with a dashboard, two workers, and two queues."""
    keys = initialized(data_dir)
    with running(data_dir, "--dashboard", "127.0.0.1:0", workers=2, env=WITH_AUTH) as cluster:
        guarded = Guarded(cluster, keys["api_key"], keys["server_key"])
        with guarded.client() as admin:
            for name in ("orders", "secret"):
                admin.create_queue(name)
        yield guarded


def refusal(ask: Callable[[], object]) -> type[FilaError] | None:
    """Which error a call raises."""
    try:
        ask()
    except FilaError as error:
        return type(error)
    else:
        return None
