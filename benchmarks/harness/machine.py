"""Facts about the machine and the software, so that a result says where it was made."""

import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil
import zmq

LIBRARIES = ("lupa", "msgspec", "pyzmq", "rocksdict", "uvloop")
ROOT = Path(__file__).parents[2]


class Machine(msgspec.Struct, frozen=True):
    """Where a result was made."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    libraries: dict[str, str]
    commit: str
    """The commit of the sources; "+" at its end: they were changed since. Empty: it is not known."""
    load: float
    """Processes that were ready to run when the benchmark began, as a mean of a minute."""


def this_machine() -> Machine:
    """Return the facts about this machine."""
    return Machine(
        _cpu(),
        psutil.cpu_count() or 1,
        round(psutil.virtual_memory().total / (1 << 30), 1),
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        versions(LIBRARIES) | {"libzmq": zmq.zmq_version()},
        _commit(),
        round(os.getloadavg()[0], 2),
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that are installed."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()
