"""The parts of a cluster: how many workers, the shards of each, and the settings of every process."""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fila_cluster.ops.observer.settings import ObserverSettings
from fila_cluster.run.backup.process import KeeperSettings, ScheduleSettings
from fila_cluster.run.config.settings import Address, Settings
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.auth import ClusterAuth
from fila_proto_zmq.events import LogSettings
from fila_router.settings import RouterSettings
from fila_worker.core.settings import ShardSettings
from fila_worker.settings import JoinKeys, WorkerSettings


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers of processes. Invariant: 1 ≤ workers ≤ shards."""

    workers: int
    shards: int

    def shards_of(self, worker: int) -> list[int]:
        """Return the shards that a worker hosts, dealt round robin."""
        return list(range(worker, self.shards, self.workers))


def lay_out(workers: int | None, shards: int | None, fixed_shards: int | None) -> Layout:
    """Choose the numbers: those asked for, those fixed in the data directory (None: it is new), else by the machine."""
    if fixed_shards is not None and shards not in {None, fixed_shards}:
        raise CannotStartError(
            f"this data directory has {fixed_shards} shards, not {shards}: leave the number of shards out, or change it with "
            f"`fila-cluster reshard --shards {shards}` while the cluster is stopped"
        )
    shards = fixed_shards or shards or workers or cores()
    workers = workers or min(cores(), shards)
    if workers > shards:
        raise CannotStartError(f"{workers} workers have only {shards} shards to share: use --workers {shards} or fewer")
    return Layout(workers, shards)


def cores() -> int:
    """Return the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def router_settings(
    settings: Settings, listen: str, worker_listen: str, shards: int, auth: ClusterAuth | None
) -> RouterSettings:
    """Return the router's settings."""
    return RouterSettings(
        listen=listen,
        worker_listen=worker_listen,
        shards_total=shards,
        consumer_timeout_ms=settings.scheduler.consumer_timeout_ms,
        max_payload_bytes=settings.limits.max_payload_bytes,
        auth=auth.of_router() if auth else None,
        log=log_settings(settings),
    )


def log_settings(settings: Settings) -> LogSettings:
    """Return every process's settings for the log."""
    return LogSettings(settings.telemetry.log_format, settings.telemetry.log_level)


def worker_settings(
    settings: Settings,
    name: str,
    router: str,
    data_dir: Path,
    shards: list[int],
    shards_total: int,
    door: str | None,
    keys: JoinKeys | None = None,
) -> WorkerSettings:
    """Return a worker's settings. ``door``: its ``tcp://HOST:PORT`` for clients on other hosts, if at all; ``keys``: for a
    router with authentication that is not reached through a socket file."""
    return WorkerSettings(
        name=name,
        router=router,
        data_dir=str(data_dir),
        keys=None if router.startswith("ipc://") else keys,
        shards=shards,
        shards_total=shards_total,
        doors=_doors(settings, shards[0], door),
        auth=settings.auth.enabled,
        durability=settings.storage.durability,
        shard=_shard_settings(settings),
        log=log_settings(settings),
    )


def _doors(settings: Settings, first_shard: int, door: str | None) -> list[str]:
    """Return the endpoints of a worker's own door: a socket in the data directory, and the one named."""
    if not settings.server.direct:
        return []
    over_tcp = [] if door is None or settings.auth.enabled else [door]  # a plain socket, which encrypts nothing
    return [f"ipc://door-{first_shard:04d}.ipc", *over_tcp]


def _shard_settings(settings: Settings) -> ShardSettings:
    """Return a shard's settings. Options of the same name and unit are copied; those of hooks have longer names there."""
    lua = settings.lua
    return ShardSettings(
        **settings.scheduler.model_dump(),
        **settings.limits.model_dump(),
        lua_timeout_ms=lua.default_timeout_ms,
        lua_memory_limit_bytes=lua.default_memory_limit_bytes,
        lua_breaker_threshold=lua.circuit_breaker_threshold,
        lua_breaker_cooldown_ms=lua.circuit_breaker_cooldown_ms,
    )


def observer_settings(
    settings: Settings, endpoint: str, dashboard: Address | None, auth: ClusterAuth | None
) -> ObserverSettings:
    """Return the observer's settings: ``endpoint`` is the router's, ``dashboard`` where to serve HTTP, if at all."""
    telemetry = settings.telemetry
    return ObserverSettings(
        endpoint=endpoint,
        api_key=auth.api_key if auth else None,
        server_key=auth.server_keys if auth else None,
        host=dashboard.host if dashboard else None,
        port=dashboard.port if dashboard else 0,
        otlp_endpoint=telemetry.otlp_endpoint,
        service_name=telemetry.service_name,
        metrics_interval_ms=telemetry.metrics_interval_ms,
        allowed_hosts=settings.dashboard.allowed_hosts,
        certificate=_absolute(settings.http.certificate),
        private_key=_absolute(settings.http.key),
        log=log_settings(settings),
    )


def _absolute(path: Path | None) -> str | None:
    """Return a path for a process with another working directory."""
    return None if path is None else str(path.expanduser().absolute())


def schedule_settings(settings: Settings, endpoint: str, target: str, auth: ClusterAuth | None) -> ScheduleSettings:
    """Return the settings of the process that makes backups. ``target``: an absolute path, or a URL."""
    backup = settings.backup
    return ScheduleSettings(
        endpoint=endpoint,
        api_key=auth.api_key if auth else None,
        server_key=auth.server_keys if auth else None,
        target=target,
        every_ms=backup.every,
        keep=backup.keep,
        log=log_settings(settings),
    )


def keeper_settings(settings: Settings, data_dir: Path, target: str) -> KeeperSettings:
    """Return the settings of the process that keeps checkpoints. ``target``: an absolute path, or a URL."""
    return KeeperSettings(data_dir=str(data_dir), target=target, log=log_settings(settings))


def one_line(settings: msgspec.Struct) -> bytes:
    """Return settings as the line on a child's standard input."""
    return msgspec.json.encode(settings) + b"\n"
