"""The checks: each is a function from what was read to a finding. Nothing here looks at the machine."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import Final

from fila_cluster.client import ClusterStatus
from fila_cluster.errors import FilaError, UnauthenticatedError
from fila_cluster.figures import counted, sized
from fila_cluster.run.asking import HttpAnswer
from fila_cluster.run.config.settings import Address

DISK_SPARE: Final = 4
"""So many times the least free space should be free: the rest is used up before somebody looks."""
FILES_MIN: Final = 1024
"""Tables of RocksDB and the sockets between the processes take some hundreds."""
FILES_GOOD: Final = 4096
"""Beyond it there is room for some thousand clients; each is a descriptor at the router and at each worker that it uses."""
MEMORY_BYTES_MIN: Final = 128 * 1024**2
"""Below it not even an idle cluster starts."""
WORKER_BYTES: Final = 256 * 1024**2
"""What a worker with a large backlog takes, rounded up."""
SKEW_S_MAX: Final = 5.0
"""A router says to the second when it heard something, and an answer may take a second."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of a check: what was found, and what to do about it unless it is ok."""

    check: str
    level: Level
    found: str
    action: str = ""


def check_python(version: tuple[int, int, int], minimum: tuple[int, int]) -> Diagnosis:
    """Check the version of Python."""
    found = ".".join(map(str, version))
    if version[:2] < minimum:
        needed = ".".join(map(str, minimum))
        return Diagnosis("python", Level.ERROR, found, f"use Python {needed} or later")
    return Diagnosis("python", Level.OK, found)


def check_library(name: str, version: str | None, minimum: str, problem: str | None = None) -> Diagnosis:
    """Check a library with native code. ``version`` None: it is not installed; ``problem``: why it can't be loaded."""
    install = f"pip install --upgrade '{name}>={minimum}'"
    if version is None:
        return Diagnosis(name, Level.ERROR, "not installed", install)
    if problem is not None:
        return Diagnosis(
            name, Level.ERROR, f"{version} can't be loaded: {problem}", f"{install}; is there a wheel for this machine?"
        )
    if _numbers(version) < _numbers(minimum):
        return Diagnosis(name, Level.ERROR, f"{version}, needs {minimum} or later", install)
    return Diagnosis(name, Level.OK, version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def check_pages(*, installed: bool) -> Diagnosis:
    """Check whether the dashboard's pages are installed."""
    if installed:
        return Diagnosis("dashboard pages", Level.OK, "installed")
    install = "for pages in a browser: pip install 'fila-cluster[dashboard]'"
    return Diagnosis("dashboard pages", Level.WARNING, "not installed: only /metrics, /readyz and HTTP are served", install)


def check_config(file: Path | None, problem: str | None) -> Diagnosis:
    """Check the configuration: ``problem`` is the error that `up` would print."""
    if problem is not None:
        return Diagnosis("configuration", Level.ERROR, problem, "correct it; docs/configuration.md lists all keys")
    return Diagnosis("configuration", Level.OK, "defaults: there is no fila.toml here" if file is None else str(file))


def check_port(name: str, address: Address, problem: str | None, *, serves: bool) -> Diagnosis:
    """Check an address to listen on. ``problem``: why a start could not; ``serves``: because a cluster does already."""
    check = f"port of {name}"
    if problem is None:
        return Diagnosis(check, Level.OK, f"{address} is free")
    if serves:
        return Diagnosis(check, Level.OK, f"{address} is that of the cluster that runs")
    found, _, action = problem.partition("; ")
    return Diagnosis(check, Level.ERROR, found, action)


def check_data_dir(path: Path, *, exists: bool, writable: bool) -> Diagnosis:
    """Check the permission to write. ``writable``: the directory, or the nearest one above it that exists."""
    if writable:
        return Diagnosis("data directory", Level.OK, f"{path} is writable" if exists else f"{path} can be made")
    problem = "is not writable" if exists else "can't be made"
    action = "run as its owner, correct its permissions or its mount, or choose another --data-dir"
    return Diagnosis("data directory", Level.ERROR, f"{path} {problem}", action)


def check_disk(free_bytes: int, min_free_bytes: int) -> Diagnosis:
    """Check the free space of the data directory's disk."""
    found = f"{sized(free_bytes)} free"
    if free_bytes < min_free_bytes:
        action = f"free some: nothing is enqueued below {sized(min_free_bytes)} ([limits] min_free_disk_bytes)"
        return Diagnosis("disk space", Level.ERROR, found, action)
    if free_bytes < DISK_SPARE * min_free_bytes:
        action = f"free some soon: nothing is enqueued below {sized(min_free_bytes)} ([limits] min_free_disk_bytes)"
        return Diagnosis("disk space", Level.WARNING, found, action)
    return Diagnosis("disk space", Level.OK, found)


def check_open_files(hard: int) -> Diagnosis:
    """Check the hard limit of open files, to which each process raises its own. Negative: there is none."""
    if hard < 0:
        return Diagnosis("open files", Level.OK, "no limit")
    found = f"at most {counted(hard)}"
    action = (
        "raise the hard limit (ulimit -Hn, LimitNOFILE= in systemd): each client is one at the router, and one at each worker"
    )
    if hard < FILES_MIN:
        return Diagnosis("open files", Level.ERROR, found, action)
    return Diagnosis(
        "open files", Level.WARNING if hard < FILES_GOOD else Level.OK, found, "" if hard >= FILES_GOOD else action
    )


def check_memory(available_bytes: int, workers: int) -> Diagnosis:
    """Check the memory that is free now, for a cluster that is to start."""
    found, wanted = f"{sized(available_bytes)} available", WORKER_BYTES * workers
    action = f"leave {sized(wanted)} for {counted(workers, 'worker')}, or start fewer: --workers"
    if available_bytes < MEMORY_BYTES_MIN:
        return Diagnosis("memory", Level.ERROR, found, action)
    if available_bytes < wanted:
        return Diagnosis("memory", Level.WARNING, found, action)
    return Diagnosis("memory", Level.OK, found)


def check_broker(endpoint: str, answer: ClusterStatus | FilaError, *, named: bool) -> Diagnosis:
    """Check that a broker answers. ``named``: somebody said that there is one, so silence is an error."""
    if isinstance(answer, UnauthenticatedError):
        action = "set FILA_API_KEY and FILA_SERVER_KEY, as `fila-cluster auth init` has printed them"
        return Diagnosis("broker", Level.ERROR, f"{endpoint} refuses: {answer}", action)
    if isinstance(answer, FilaError) and not answer.retryable:
        return Diagnosis(
            "broker", Level.ERROR, f"{endpoint} refuses: {answer}", "use a client and a broker of the same version"
        )
    if isinstance(answer, FilaError):
        action = "start one with `fila-cluster up`, or name another with --endpoint or FILA_ENDPOINT"
        return Diagnosis("broker", Level.ERROR if named else Level.WARNING, f"none answers at {endpoint}", action)
    down = [worker.name for worker in answer.workers if worker.state != "up"]
    outages = [f"shard {outage.shard} is {outage.state}" for worker in answer.workers for outage in worker.outages]
    if down or outages:
        found = f"{endpoint} answers; {', '.join([*(f'{name} is down' for name in down), *outages])}"
        return Diagnosis(
            "broker", Level.WARNING, found, "`fila-cluster status` has the reasons, docs/operating.md the remedies"
        )
    return Diagnosis("broker", Level.OK, f"{endpoint} answers, {counted(len(answer.workers), 'worker')}")


def check_versions(endpoint: str, ours: str, theirs: str) -> Diagnosis:
    """Check the client's version against the broker's."""
    if ours == theirs:
        return Diagnosis("version", Level.OK, f"{ours}, as the broker at {endpoint}")
    action = f"install the same version here: pip install fila-cluster=={theirs}"
    return Diagnosis("version", Level.WARNING, f"{ours} here, {theirs} at {endpoint}", action)


def check_clock(endpoint: str, ahead_s: float) -> Diagnosis:
    """Check this machine's clock: how many seconds it is ahead of the router's."""
    if abs(ahead_s) <= SKEW_S_MAX:
        return Diagnosis("clock", Level.OK, f"agrees with {endpoint}")
    found = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} {endpoint}"
    action = "keep the clocks in step (NTP): delays, times to live and leases follow them"
    return Diagnosis("clock", Level.WARNING, found, action)


def check_dashboard(url: str, answer: HttpAnswer | None) -> Diagnosis:
    """Check that the observer answers, and what it says of the shards."""
    if answer is None:
        return Diagnosis(
            "dashboard", Level.WARNING, f"{url} does not answer", "start with it, or look for `observer` in the log"
        )
    if answer.status == HTTPStatus.OK:
        return Diagnosis("dashboard", Level.OK, f"{url} answers")
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        return Diagnosis(
            "dashboard", Level.WARNING, f"{url}/readyz: {_reasons(answer.body)}", "docs/operating.md has the remedies"
        )
    action = "choose another [dashboard] listen_addr, or stop that program"
    return Diagnosis("dashboard", Level.WARNING, f"{url} answers {answer.status}: something else listens there", action)


def _reasons(body: bytes) -> str:
    try:
        return "; ".join(", ".join(f"{key} {value}" for key, value in each.items()) for each in json.loads(body)["reasons"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "not ready"
