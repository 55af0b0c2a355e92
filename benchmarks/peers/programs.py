"""Servers of others: started on free ports, with their data in a temporary directory, and stopped in the end."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.harness.ending import undisturbed
from benchmarks.harness.systems import Processes

HOST = "127.0.0.1"
FIRST = ("/usr/lib/rabbitmq/bin",)
"""Debian's ``rabbitmq-server`` in the usual place runs the one here as another user, who may not write where the data is to
be."""
LAST = ("/usr/sbin", "/usr/local/sbin")
START_S_MAX = 60.0
STOP_S_MAX = 30.0


class Program(Processes):
    """A server as workloads see it. Its CPU time is that of one process and, if it has any, of their children."""

    def __init__(self, kind: str, process: psutil.Process, address: str, facts: Mapping[str, str], data: Path) -> None:
        super().__init__(lambda: {kind: [process, *process.children(recursive=True)]}, data)
        self.address = address
        self.facts = facts


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port: int = bound.getsockname()[1]
    return port


def find(*names: str) -> str | None:
    """Return the path of the first of these programs that is installed; some are where only root looks."""
    path = os.pathsep.join([*FIRST, os.environ.get("PATH", ""), *LAST])
    return next((found for name in names if (found := shutil.which(name, path=path))), None)


def required(name: str, package: str) -> str:
    """Return the path of a program, or end with a line that says how to get it."""
    found = find(name)
    if found is None:
        raise SystemExit(f"there is no {name}: install it (Debian: apt-get install --no-install-recommends {package})")
    return found


def output_of(*command: str) -> str:
    """Return what a program prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=START_S_MAX).stdout.strip()


@contextmanager
def started(
    command: list[str], directory: Path, answers: Callable[[], bool], env: Mapping[str, str] = {}
) -> Iterator[psutil.Process]:
    """Run a program in a directory until the end of the context. It is there when ``answers()`` is true."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "output.log"
    with ExitStack() as stack:
        with undisturbed(), log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
            )
            stack.callback(_stop, process)
        _await(process, answers, log)
        yield psutil.Process(process.pid)


def accepts(host: str, port: int) -> bool:
    """Return whether there is somebody who listens."""
    with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
        return True
    return False


def _await(process: "subprocess.Popen[bytes]", answers: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + START_S_MAX
    while not answers():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"{process.args!r} does not serve:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a program and what it has started: a script may stand before the server itself."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S_MAX)
            return
