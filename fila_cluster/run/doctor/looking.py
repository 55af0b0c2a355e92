"""Read from the machine and the cluster what the checks want to know. Nothing is changed, and no port is kept."""

import importlib
import importlib.metadata
import importlib.util
import os
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from fila_cluster.client import Client
from fila_cluster.client.requests.endpoints import parse_endpoints
from fila_cluster.errors import FilaError, InvalidConfigError, PermissionDeniedError
from fila_cluster.run.asking import ask_dashboard, dashboard_url
from fila_cluster.run.config.loading import Flags, file_in_force, load
from fila_cluster.run.config.settings import Address, Settings
from fila_cluster.run.doctor import checks
from fila_cluster.run.doctor.checks import Diagnosis, Level
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.endpoints import Ports
from fila_cluster.run.supervisor.layout import cores
from fila_proto_zmq.version import VERSION

DISTRIBUTION: Final = "fila-cluster"
PYTHON_MIN: Final = (3, 11)
NATIVE: Final = {"pyzmq": "zmq", "rocksdict": "rocksdict", "lupa": "lupa"}
"""Libraries with native code, whose wheels may not fit a machine, and their modules."""
BROKER_S_MAX: Final = 2.0
CGROUP: Final = Path("/sys/fs/cgroup")


def diagnoses(endpoint: str | None, flags: Flags, config: Path | None) -> Iterator[Diagnosis]:
    """Yield what is found, in the order of a start. ``endpoint`` None: that of the configuration; the others: as for ``up``."""
    yield from _installation()
    file = file_in_force(config)
    try:
        settings, problem = load(flags, config), None
    except InvalidConfigError as error:
        settings, problem = Settings.model_construct(), str(error)
    yield checks.check_config(file, problem)
    yield from _machine(settings)
    yield from _cluster(settings, endpoint)


def _installation() -> Iterator[Diagnosis]:
    yield checks.check_python(sys.version_info[:3], PYTHON_MIN)
    for name, module in NATIVE.items():
        yield checks.check_library(name, _version(name), _minimum(name), _problem_of(module))
    yield checks.check_pages(installed=importlib.util.find_spec("nicegui") is not None)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _minimum(name: str) -> str:
    """Return the least version that this package declares."""
    declared = importlib.metadata.requires(DISTRIBUTION) or []
    return next((found[1] for each in declared if (found := re.match(rf"{name}\s*>=\s*([\d.]+)", each))), "0")


def _problem_of(module: str) -> str | None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return None


def _machine(settings: Settings) -> Iterator[Diagnosis]:
    data_dir = settings.server.data_dir.expanduser().absolute()
    there = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    writable = os.access(there, os.W_OK | os.X_OK) and there.is_dir()
    yield checks.check_data_dir(data_dir, exists=there == data_dir, writable=writable)
    yield checks.check_disk(shutil.disk_usage(there).free, settings.limits.min_free_disk_bytes)
    yield checks.check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield checks.check_memory(available_memory(CGROUP), settings.server.workers or cores())


def available_memory(cgroup: Path) -> int:
    """Return the bytes that this process may still use: of the machine, or of its container if that has less."""
    available = int(psutil.virtual_memory().available)
    try:
        most, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return min(available, max(0, int(most) - int(used)))
    except (OSError, ValueError):  # no container, or one without a limit: "max"
        return available


def _cluster(settings: Settings, endpoint: str | None) -> Iterator[Diagnosis]:
    own = settings.server.listen_addr.reachable.endpoint
    answering: list[str] = []
    nobody_knows = endpoint is None and settings.server.listen_addr.port == 0  # the system will pick a port
    for each in [] if nobody_knows else parse_endpoints(endpoint or own):
        found = list(_broker(each.text, named=endpoint is not None))
        if len(found) > 1:
            answering.append(each.text)
        yield from found
    serves = own in answering
    yield checks.check_port(
        "clients", settings.server.listen_addr, _refusal(settings.server.listen_addr, "--listen"), serves=serves
    )
    if not settings.dashboard.enabled:
        return
    listen, tls = settings.dashboard.listen_addr, settings.http.certificate is not None
    yield checks.check_port("the dashboard", listen, _refusal(listen, "--dashboard"), serves=serves)
    if serves:
        yield checks.check_dashboard(
            dashboard_url(listen, tls=tls), ask_dashboard(listen, "/readyz", tls=tls, timeout_s=BROKER_S_MAX)
        )


def _broker(endpoint: str, *, named: bool) -> Iterator[Diagnosis]:
    """Yield the findings about the broker at one endpoint; if it does not answer, only that."""
    with Client(endpoint, timeout=BROKER_S_MAX) as client:
        try:
            status = client.cluster_status()
        except FilaError as error:
            yield checks.check_broker(endpoint, error, named=named)
            return
        yield checks.check_broker(endpoint, status, named=named)
        yield checks.check_versions(endpoint, VERSION, status.version)
        yield _clock(client, endpoint)


def _clock(client: Client, endpoint: str) -> Diagnosis:
    """Compare the clocks: the router has just heard this client, and says of each client when it has heard it last."""
    try:
        heard_at = max(each.heard_at for each in client.connections())
    except PermissionDeniedError:
        return Diagnosis("clock", Level.OK, f"not compared with {endpoint}: that needs an admin key")
    except (FilaError, ValueError) as error:
        return Diagnosis("clock", Level.WARNING, f"not compared with {endpoint}: {error}", "try again")
    return checks.check_clock(endpoint, (datetime.now(UTC) - heard_at).total_seconds())


def _refusal(address: Address, flag: str) -> str | None:
    """Return why nothing can listen there."""
    try:
        with Ports() as ports:
            ports.reserve(address, flag)
    except CannotStartError as error:
        return str(error)
    return None
