"""A real cluster for tests: ``fila-cluster up`` on a free port and a data directory of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from fila_cluster import Client, ClusterStatus, WorkerStatus
from fila_cluster.errors import FilaError

PATIENCE_S = 60.0
"""How long to wait for what will surely come: only a test that fails waits so long, and a busy machine may be ten times slower."""
SOON_S = 10.0
"""Less than the time after which a worker gives back the messages of a consumer that is silent."""


def command(*arguments: object) -> list[str]:
    """The command line of ``fila-cluster``."""
    return [sys.executable, "-c", "from fila_cluster.cli import main; main()", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what would configure a cluster, with ``changes``. The way of its clients stays."""
    kept = {
        name: value for name, value in os.environ.items() if not name.upper().startswith("FILA_") or name == "FILA_DIRECT"
    }
    return kept | changes


def eventually(condition: Callable[[], bool], what: str | Callable[[], str], patience_s: float = PATIENCE_S) -> None:
    """Wait until ``condition`` holds; fail after a while. ``what``: what did not happen then."""
    give_up_at = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up_at, f"never happened: {what if isinstance(what, str) else what()}"
        time.sleep(0.02)


settling_may_fail = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""For tests that kill what settles: a delivery whose settling failed is dropped unsettled, which is warned of wherever it is collected."""


class Cluster:
    """A running ``fila-cluster up``. ``logged``: the least level of the events in its log; ``env``: of all its processes, besides ours;
    ``verb``: ``node`` for one host of several."""

    def __init__(
        self,
        data_dir: Path,
        *flags: object,
        workers: int | None = 1,
        listen: str = "127.0.0.1:0",
        cwd: Path | None = None,
        logged: str = "warning",
        env: Mapping[str, str] = {},
        verb: str = "up",
    ) -> None:
        self.data_dir = data_dir
        number = [] if workers is None else ["--workers", workers]
        if not {"--dashboard", "--no-dashboard"} & set(flags):
            flags = (*flags, "--no-dashboard")  # its usual port is one, tests are many
        self.supervisor = subprocess.Popen(
            command(verb, "--data-dir", data_dir, "--listen", listen, *number, *flags),
            cwd=cwd,
            env=environment(FILA_TELEMETRY__LOG_LEVEL=logged, **env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        """Lines of standard error so far: events as JSON, by level ``logged``, and what is wrong with the start."""
        self._reader = Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self.ready_line = self._read_ready()
        except BaseException as error:
            if isinstance(error, AssertionError):
                self.wait()  # its log says why
            self.close()
            raise
        self.endpoint = self.ready_line.removeprefix("ready: ").split(" ")[0]

    def _read_ready(self) -> str:
        assert self.supervisor.stdout
        line = self.supervisor.stdout.readline()
        assert re.fullmatch(r"ready: tcp://\S+ · (dashboard \S+ · )?\d+ workers\n", line), (line, self.log)
        return line.strip()

    def _read_log(self) -> None:
        assert self.supervisor.stderr
        for line in self.supervisor.stderr:
            self.log.append(line.rstrip())

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What was logged so far, of certain names only if some are given."""
        events = [json.loads(line) for line in list(self.log)]
        return [event for event in events if not names or event["event"] in names]

    def client(self, timeout: float = PATIENCE_S) -> Client:
        """A client of it; close it."""
        return Client(self.endpoint, timeout=timeout)

    def status(self) -> ClusterStatus:
        """The cluster's status."""
        with self.client() as client:
            return client.cluster_status()

    def worker_of(self, shard: int) -> WorkerStatus:
        """Who holds a shard."""
        return next(worker for worker in self.status().workers if shard in worker.shards)

    def children(self) -> list[psutil.Process]:
        """Router, workers, and the observer if there is one."""
        return psutil.Process(self.supervisor.pid).children()

    def router_pid(self) -> int:
        """Of the router, once it lives (again)."""
        found: list[int] = []

        def lives() -> bool:
            found[:] = self._router_pids()
            return bool(found)

        eventually(lives, "a router")
        return found[0]

    def _router_pids(self) -> list[int]:
        living = []
        for child in self.children():
            with suppress(psutil.Error):  # it ends at this moment
                if "fila_router" in child.cmdline():
                    living.append(child.pid)
        return living

    def all_up(self) -> bool:
        """Whether every worker serves."""
        try:
            return all(worker.state == "up" for worker in self.status().workers)
        except FilaError:
            return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop it as a person would; returns the exit code."""
        self.supervisor.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end."""
        code = self.supervisor.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def kill_all(self) -> None:
        """Kill -9 everything, the supervisor first, so that it restarts nothing."""
        children = self.children()
        self.supervisor.kill()
        for child in children:
            child.kill()
        self.wait()
        eventually(lambda: all(map(is_dead, children)), "the children's end")

    def close(self) -> None:
        """Leave nothing behind."""
        if self.supervisor.poll() is None:
            self.kill_all()
        assert self.supervisor.stdout
        assert self.supervisor.stderr
        self.supervisor.stdout.close()
        self.supervisor.stderr.close()


def is_dead(process: psutil.Process) -> bool:
    """Whether a process has ended, be it reaped or not."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # orphans are reaped when init gets to it
    except psutil.NoSuchProcess:
        return True


@contextmanager
def running(
    data_dir: Path,
    *flags: object,
    workers: int | None = 1,
    listen: str = "127.0.0.1:0",
    cwd: Path | None = None,
    logged: str = "warning",
    env: Mapping[str, str] = {},
) -> Iterator[Cluster]:
    """A cluster that is gone afterwards. ``flags`` are those of ``fila-cluster up``; ``workers`` None: its own choice."""
    cluster = Cluster(data_dir, *flags, workers=workers, listen=listen, cwd=cwd, logged=logged, env=env)
    try:
        yield cluster
    finally:
        cluster.close()
