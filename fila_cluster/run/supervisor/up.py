"""Start a whole cluster, one host, or one part in the foreground. All checks come before anything is made."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeAlias

import msgspec

from fila_cluster.run.asking import dashboard_url
from fila_cluster.run.backup.target import target_at
from fila_cluster.run.config.settings import Address, Auth, Settings, refuse_exposure, refuse_sharing
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.auth import AuthWatch, ClusterAuth, fingerprint_of, open_auth
from fila_cluster.run.supervisor.child import PRIVATE, Child, without_secrets
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.endpoints import Ports, WorkerEndpoint
from fila_cluster.run.supervisor.layout import (
    Layout,
    keeper_settings,
    lay_out,
    log_settings,
    observer_settings,
    one_line,
    router_settings,
    schedule_settings,
    worker_settings,
)
from fila_cluster.run.supervisor.member import (
    HostMember,
    check_membership,
    member,
    refuse_membership,
    shards_of_cluster,
    worker_listen,
)
from fila_cluster.run.supervisor.ready_probe import OwnWorkers, ReadyProbe, WholeCluster
from fila_cluster.run.supervisor.supervisor import Supervisor
from fila_process.journal import Journal
from fila_proto_zmq.errors import InvalidConfigError
from fila_proto_zmq.events import ClusterReady, ClusterStarting, DataDirCreated
from fila_proto_zmq.version import VERSION
from fila_worker.settings import JoinKeys
from fila_worker.storage.residence import forget_moves


def router(settings: Settings, worker_endpoint: WorkerEndpoint, *, insecure: bool) -> NoReturn:
    """Become a router. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    refuse_membership(settings)
    listen, shards = settings.server.listen_addr, settings.server.shards
    addresses = [listen, *([worker_endpoint.address] if worker_endpoint.address else [])]
    refuse_exposure(addresses, insecure=insecure, auth=settings.auth.enabled)
    if shards is None:
        raise CannotStartError("a router alone needs the number of shards of the cluster: add --shards N")
    worker_endpoint.check_path("--worker-listen")
    data_dir = settings.server.data_dir.expanduser().absolute()
    auth = open_auth(data_dir) if settings.auth.enabled else None
    process_settings = router_settings(settings, listen.endpoint, worker_endpoint.endpoint, shards, auth)
    _become("fila_router", one_line(process_settings), Path.cwd() if auth is None else data_dir)


def worker(
    settings: Settings,
    worker_endpoint: WorkerEndpoint,
    name: str,
    shards: list[int],
    door: Address | None,
    keys: JoinKeys | None,
    *,
    insecure: bool,
) -> NoReturn:
    """Become a worker that hosts ``shards``. ``door``: where clients may reach it over the network; ``keys``: those of a
    router with authentication. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    refuse_membership(settings)
    refuse_exposure([] if door is None else [door], insecure=insecure, auth=False)
    if keys is not None:
        settings = settings.model_copy(update={"auth": Auth(enabled=True)})
    data_dir = DataDir(settings.server.data_dir, shared=True)
    total = settings.server.shards or data_dir.shards
    if total is None:
        raise CannotStartError(f"{data_dir.path} is new, without the number of shards of the cluster: add --shards N")
    if data_dir.shards not in {None, total}:
        raise CannotStartError(f"{data_dir.path} is part of a cluster of {data_dir.shards} shards, not {total}")
    if outside := [shard for shard in shards if not 0 <= shard < total]:
        raise CannotStartError(f"there is no shard {outside[0]} in a cluster of {total}: use 0 to {total - 1}")
    data_dir.claim(total)
    os.set_inheritable(data_dir.lock, True)
    process_settings = worker_settings(
        settings, name, worker_endpoint.endpoint, data_dir.path, shards, total, door.endpoint if door else None, keys
    )
    _become("fila_worker", one_line(process_settings), data_dir.path)


def _become(module: str, line: bytes, cwd: Path) -> NoReturn:
    read_end, write_end = os.pipe()
    os.write(write_end, line)  # far below a pipe's capacity
    os.dup2(read_end, 0)
    os.set_inheritable(write_end, True)
    os.chdir(cwd)
    os.umask(PRIVATE)
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", module], without_secrets())


Announce: TypeAlias = Callable[[Address, str | None, int], None]
"""Called once, when all parts serve: with the clients' address, the dashboard's URL, if any, and the number of workers."""


def up(settings: Settings, worker_endpoint: WorkerEndpoint, *, insecure: bool, announce: Announce) -> int:
    """Run a cluster in the foreground; return the exit code. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    refuse_membership(settings)
    check_addresses(settings, worker_endpoint, insecure=insecure)
    with Ports() as ports:
        data_dir = DataDir(settings.server.data_dir)
        layout = lay_out(settings.server.workers, settings.server.shards, data_dir.shards)
        return serve(settings, worker_endpoint, ports, data_dir, layout, announce)


def check_addresses(settings: Settings, worker_endpoint: WorkerEndpoint, *, insecure: bool) -> None:
    """Raise :class:`InvalidConfigError` for addresses that must not be listened on."""
    addresses = _addresses(settings, worker_endpoint)
    refuse_exposure(addresses.values(), insecure=insecure, auth=settings.auth.enabled)
    _refuse_plain_login(settings, insecure=insecure)
    refuse_sharing(addresses)


def serve(
    settings: Settings,
    worker_endpoint: WorkerEndpoint,
    ports: Ports,
    data_dir: DataDir,
    layout: Layout,
    announce: Announce,
    member: HostMember | None = None,
) -> int:
    """Run all parts of a cluster, or of one host if it is a ``member`` of a cluster of several; return the exit code."""
    began = time.monotonic()
    auth = open_auth(data_dir.path, of_several=member is not None) if settings.auth.enabled else None
    backups = None if settings.backup.target is None else target_at(settings.backup.target).name
    worker_endpoint.check_path("--worker-listen", data_dir.path)
    listen = ports.reserve(settings.server.listen_addr, "--listen")
    worker_endpoint = worker_endpoint.reserve(ports, "--worker-listen")
    dashboard = ports.reserve(settings.dashboard.listen_addr, "--dashboard") if settings.dashboard.enabled else None
    tls = settings.http.certificate is not None
    is_new = data_dir.shards is None
    if member is not None:
        assert worker_endpoint.address is not None
        member = member.listening(worker_endpoint.address).joining(data_dir, fingerprint_of(auth))
    data_dir.claim(layout.shards, member.replication if member else None)
    forget_moves(data_dir.path)  # the shards are dealt anew
    journal = _open_journal(settings, data_dir, layout, is_new=is_new)

    def ready() -> None:
        where = dashboard_url(dashboard, tls=tls) if dashboard else None
        took_ms = round(1000 * (time.monotonic() - began))
        journal.tell([ClusterReady(listen.endpoint, where, layout.workers, took_ms)])
        announce(listen, where, layout.workers)

    children = _Children(settings, data_dir, layout, listen, worker_endpoint, auth, member)
    watch = None if auth is None else AuthWatch(data_dir.path, auth)

    def renewed() -> dict[str, bytes]:
        """Return new settings for the children with the server's keys, once these have changed."""
        changed = None if watch is None else watch.changed()
        if changed is None:
            return {}
        anew = replace(children, auth=changed)
        return {child.name: child.settings for child in (anew.router(), *anew.helpers(dashboard, backups))}

    supervisor = Supervisor(
        children.router(),
        children.workers(),
        children.helpers(dashboard, backups),
        ReadyProbe(listen.reachable.endpoint, children.expected(), dashboard, auth, tls=tls),
        ready,
        journal,
        renewed,
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


def _refuse_plain_login(settings: Settings, *, insecure: bool) -> None:
    """Raise :class:`InvalidConfigError` if API keys would cross a network in the clear, on their way to the dashboard."""
    if (settings.http.certificate is None) is not (settings.http.key is None):
        raise InvalidConfigError("[http] certificate and key belong together: name both files, or none")
    dashboard = settings.dashboard.listen_addr
    exposed = settings.auth.enabled and settings.dashboard.enabled and not dashboard.is_loopback
    if exposed and settings.http.certificate is None and not insecure:
        raise InvalidConfigError(
            f"--dashboard {dashboard} can be reached from other machines, and API keys would cross the network in the clear: "
            "name [http] certificate and key, or listen on 127.0.0.1 behind a proxy that has a certificate"
        )


@dataclass(frozen=True, slots=True)
class _Children:
    """Makes the processes of a cluster, or of one host. ``listen`` and ``worker_endpoint`` are reserved addresses."""

    settings: Settings
    data_dir: DataDir
    layout: Layout
    listen: Address
    worker_endpoint: WorkerEndpoint
    auth: ClusterAuth | None
    member: HostMember | None

    def router(self) -> Child:
        """Return the router."""
        listen, worker_listen = self.listen.endpoint, self.worker_endpoint.endpoint
        settings = router_settings(self.settings, listen, worker_listen, self.layout.shards, self.auth)
        settings = msgspec.structs.replace(settings, several=self.member is not None)
        return self._child("router", "fila_router", settings)

    def workers(self) -> list[Child]:
        """Return the workers."""
        return [self._worker(index) for index in range(self.layout.workers)]

    def _name(self, index: int) -> str:
        """Return a worker's name, which no other worker of the cluster has."""
        return f"{self.member.name}/worker-{index}" if self.member else f"worker-{index}"

    def _worker(self, index: int) -> Child:
        layout, name, member = self.layout, self._name(index), self.member
        door = Address(self.listen.host, 0).endpoint  # a free port, which the router names to clients
        keys = self.auth.of_workers if self.auth else None
        shards = layout.shards_of(index)
        router = self.worker_endpoint.join
        settings = worker_settings(self.settings, name, router, self.data_dir.path, shards, layout.shards, door, keys)
        if member is not None:
            settings = msgspec.structs.replace(settings, other_routers=list(member.others), replication=member.replication)
        return self._child(name, "fila_worker", settings)

    def expected(self) -> WholeCluster | OwnWorkers:
        """Return the condition of a complete start."""
        layout = self.layout
        if self.member is None:
            return WholeCluster(layout)
        return OwnWorkers({self._name(index): layout.shards_of(index) for index in range(layout.workers)})

    def helpers(self, dashboard: Address | None, backup_target: str | None) -> list[Child]:
        """Return the observer, if it has work, and the processes for backups and checkpoints with targets."""
        settings, endpoint, auth = self.settings, self.listen.reachable.endpoint, self.auth
        found = []
        if dashboard is not None or settings.telemetry.otlp_endpoint is not None:
            found.append(
                self._child("observer", "fila_cluster.ops.observer", observer_settings(settings, endpoint, dashboard, auth))
            )
        if backup_target is not None:
            found.append(
                self._child("backup", "fila_cluster.run.backup", schedule_settings(settings, endpoint, backup_target, auth))
            )
        if self.member is not None and self.member.checkpoints is not None:
            keeper = keeper_settings(settings, self.data_dir.path, self.member.checkpoints)
            found.append(self._child("checkpoints", "fila_cluster.run.backup.log_checkpoints", keeper))
        return found

    def _child(self, name: str, module: str, settings: msgspec.Struct) -> Child:
        return Child(name, module, one_line(settings), self.data_dir.path, self.data_dir.lock)


def node(settings: Settings, *, insecure: bool, announce: Announce) -> int:
    """Run a host in the foreground; return the exit code. Raises ``CannotStartError`` and ``InvalidConfigError``."""
    check_membership(settings)
    address = worker_listen(settings)
    worker_endpoint = WorkerEndpoint(address.endpoint, address)
    check_addresses(settings, worker_endpoint, insecure=insecure)
    with Ports() as ports:
        data_dir = DataDir(settings.server.data_dir, of_host=True)
        shards = shards_of_cluster(settings, data_dir)
        layout = lay_out(settings.server.workers, shards, data_dir.shards)
        return serve(settings, worker_endpoint, ports, data_dir, layout, announce, member(settings, data_dir, shards))
