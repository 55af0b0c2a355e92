"""Start a whole cluster. All checks come before anything is made; after that the cluster starts."""

import time
from collections.abc import Callable
from typing import TypeAlias

from fila_cluster.config.address import Address, refuse_exposure, refuse_sharing
from fila_cluster.config.settings import Settings
from fila_cluster.supervisor.child import Child
from fila_cluster.supervisor.data_dir import DataDir
from fila_cluster.supervisor.endpoints import Ports, WorkerEndpoint
from fila_cluster.supervisor.layout import (
    Layout,
    lay_out,
    log_settings,
    observer_settings,
    one_line,
    router_settings,
    worker_settings,
)
from fila_cluster.supervisor.ready_probe import ReadyProbe
from fila_cluster.supervisor.supervisor import Supervisor
from fila_process.journal import Journal
from fila_proto_zmq.events import ClusterReady, ClusterStarting, DataDirCreated
from fila_proto_zmq.version import VERSION

Announce: TypeAlias = Callable[[Address, Address | None, int], None]
"""Called once, when all parts serve: with the clients' address, the dashboard's if there is one, and the number of workers.
"""


def up(settings: Settings, worker_endpoint: WorkerEndpoint, *, insecure: bool, announce: Announce) -> int:
    """Run a cluster in the foreground; return the exit code. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    with Ports() as ports:
        return _up(settings, worker_endpoint, ports, insecure=insecure, announce=announce)


def _up(settings: Settings, worker_endpoint: WorkerEndpoint, ports: Ports, *, insecure: bool, announce: Announce) -> int:
    began = time.monotonic()
    addresses = _addresses(settings, worker_endpoint)
    refuse_exposure(addresses.values(), insecure=insecure)
    refuse_sharing(addresses)
    data_dir = DataDir(settings.server.data_dir)
    layout = lay_out(settings.server.workers, settings.server.shards, data_dir.shards)
    worker_endpoint.check_path("--worker-listen", data_dir.path)
    listen = ports.reserve(settings.server.listen_addr, "--listen")
    worker_endpoint = worker_endpoint.reserve(ports, "--worker-listen")
    dashboard = ports.reserve(settings.dashboard.listen_addr, "--dashboard") if settings.dashboard.enabled else None
    is_new = data_dir.shards is None
    data_dir.claim(layout.shards)
    journal = _open_journal(settings, data_dir, layout, is_new=is_new)

    def ready() -> None:
        announce(listen, dashboard, layout.workers)
        where = f"http://{dashboard.reachable}" if dashboard else None
        took_ms = round(1000 * (time.monotonic() - began))
        journal.tell([ClusterReady(listen.endpoint, where, layout.workers, took_ms)])

    supervisor = Supervisor(
        _router(settings, data_dir, layout, listen, worker_endpoint),
        [_worker(settings, data_dir, layout, listen, worker_endpoint, index) for index in range(layout.workers)],
        _observers(settings, data_dir, listen, dashboard),
        ReadyProbe(listen.reachable.endpoint, layout, dashboard),
        ready,
        journal,
    )
    return supervisor.run()


def _open_journal(settings: Settings, data_dir: DataDir, layout: Layout, *, is_new: bool) -> Journal:
    """Return the journal, opened only after the checks: a cluster that can't start prints one plain line."""
    journal = Journal("supervisor", log_settings(settings))
    if is_new:
        journal.tell([DataDirCreated(str(data_dir.path), layout.shards)])
    journal.tell([ClusterStarting(VERSION, str(data_dir.path), layout.workers, layout.shards)])
    return journal


def _addresses(settings: Settings, worker_endpoint: WorkerEndpoint) -> dict[str, Address]:
    """Return the addresses to listen on, by their flags."""
    dashboard = settings.dashboard.listen_addr if settings.dashboard.enabled else None
    addresses = {
        "--listen": settings.server.listen_addr,
        "--worker-listen": worker_endpoint.address,
        "--dashboard": dashboard,
    }
    return {flag: address for flag, address in addresses.items() if address is not None}


def _router(settings: Settings, data_dir: DataDir, layout: Layout, listen: Address, worker_endpoint: WorkerEndpoint) -> Child:
    process_settings = router_settings(settings, listen.endpoint, worker_endpoint.endpoint, layout.shards)
    return Child("router", "fila_router", one_line(process_settings), data_dir.path, data_dir.lock)


def _observers(settings: Settings, data_dir: DataDir, listen: Address, dashboard: Address | None) -> list[Child]:
    """Return the observer, if there is a dashboard or an export."""
    if dashboard is None and settings.telemetry.otlp_endpoint is None:
        return []
    process_settings = observer_settings(settings, listen.reachable.endpoint, dashboard)
    return [Child("observer", "fila_cluster.observer", one_line(process_settings), data_dir.path, data_dir.lock)]


def _worker(
    settings: Settings, data_dir: DataDir, layout: Layout, listen: Address, worker_endpoint: WorkerEndpoint, index: int
) -> Child:
    name, shards = f"worker-{index}", layout.shards_of(index)
    door = Address(listen.host, 0).endpoint  # a free port, which the router names to clients
    process_settings = worker_settings(settings, name, worker_endpoint.join, data_dir.path, shards, layout.shards, door)
    return Child(name, "fila_worker", one_line(process_settings), data_dir.path, data_dir.lock)
