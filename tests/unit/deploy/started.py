"""What a command line and its variables make of a cluster, instead of starting it."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from fila_cluster.cli.processes import cluster
from fila_cluster.cli.root import root
from fila_cluster.run.config import loading
from fila_cluster.run.config.settings import Settings
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.endpoints import WorkerEndpoint
from fila_cluster.run.supervisor.member import HostMember, check_membership, member, worker_listen
from fila_cluster.run.supervisor.up import check_addresses


class Started(Exception):  # noqa: N818  # it is no error
    """Instead of a host."""

    def __init__(self, settings: Settings, insecure: bool) -> None:
        self.settings, self.insecure = settings, insecure


def instead_of_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands start nothing, and read neither this machine's files nor its variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "SYSTEM_FILE", tmp_path / "etc" / "fila.toml")
    for name in list(os.environ):
        if name.upper().startswith("FILA_"):
            monkeypatch.delenv(name)

    def start(settings: Settings, *_: object, insecure: bool, announce: object) -> int:
        raise Started(settings, insecure)

    monkeypatch.setattr(cluster, "node", start)
    monkeypatch.setattr(cluster, "up", start)


def settings_of(arguments: Sequence[str], env: dict[str, str]) -> tuple[Settings, bool]:
    """The settings of a command, and whether it may listen without authentication."""
    result = CliRunner().invoke(root, arguments, env=env)
    assert isinstance(result.exception, Started), result.output
    return result.exception.settings, result.exception.insecure


def host(arguments: Sequence[str], env: dict[str, str], tmp_path: Path) -> tuple[HostMember, Settings]:
    """What a command line and its variables make of a host."""
    settings, insecure = settings_of(arguments, env)
    check_membership(settings)
    address = worker_listen(settings)
    check_addresses(settings, WorkerEndpoint(address.endpoint, address), insecure=insecure)
    assert settings.server.shards is not None
    return member(settings, DataDir(tmp_path / "data", of_host=True), settings.server.shards), settings
