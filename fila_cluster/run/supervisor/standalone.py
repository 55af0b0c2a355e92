"""One part of a cluster without a supervisor, in the foreground: for containers and several hosts.

The part replaces this process, with the same standard input as under a supervisor: its settings on a pipe that stays open. It
holds the pipe's other end itself, so that input never ends, and signals reach it directly.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

from fila_cluster.run.config.settings import Address, Auth, Settings, refuse_exposure
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.auth import open_auth
from fila_cluster.run.supervisor.child import PRIVATE, without_secrets
from fila_cluster.run.supervisor.data_dir import DataDir
from fila_cluster.run.supervisor.endpoints import WorkerEndpoint
from fila_cluster.run.supervisor.layout import one_line, router_settings, worker_settings
from fila_cluster.run.supervisor.member import refuse_membership
from fila_worker.settings import JoinKeys


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
    """Become a worker that hosts ``shards``.

    ``door``: where clients may reach it directly over the network; ``keys``: those of a router with authentication.

    Raises ``CannotStartError`` and ``InvalidConfigError``.
    """
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
