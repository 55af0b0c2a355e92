"""A cluster to measure: started as a user starts it, with the CPU time and memory of its processes."""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


class OneCluster:
    """``fila-cluster up`` on a free port, for the length of a ``with`` block."""

    def __init__(self, data_dir: Path, *options: str, workers: int = 1) -> None:
        watched = [] if "--dashboard" in options else ["--no-dashboard"]
        self._command = [
            sys.executable, "-m", "fila_cluster", "up", "--listen", "127.0.0.1:0", *watched,
            "--data-dir", str(data_dir), "--workers", str(workers), *options,
        ]  # fmt: skip
        self.ready_line = self.endpoint = ""
        self._up: subprocess.Popen[str]

    def __enter__(self) -> Self:
        env = {"FILA_TELEMETRY__LOG_LEVEL": "warning", **os.environ}  # keep the log out of the table
        self._up = subprocess.Popen(self._command, env=env, stdout=subprocess.PIPE, text=True)
        assert self._up.stdout is not None
        self.ready_line = self._up.stdout.readline()
        if not self.ready_line.startswith("ready"):
            raise SystemExit("the cluster did not start")
        self.endpoint = self.ready_line.split()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._up.terminate()
        self._up.communicate(timeout=20)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of the router and the workers, and of the observer if there is one."""
        modules = {"router": "fila_router", "worker": "fila_worker", "observer": "fila_cluster.observer"}
        children = psutil.Process(self._up.pid).children()
        found = {kind: [child for child in children if module in child.cmdline()] for kind, module in modules.items()}
        return {kind: processes for kind, processes in found.items() if processes}

    def cpu_seconds(self) -> dict[str, float]:
        """Return user and system time so far, by kind of process."""
        return {
            kind: sum(times.user + times.system for times in (process.cpu_times() for process in processes))
            for kind, processes in self.processes().items()
        }

    def rss_bytes(self) -> dict[str, int]:
        """Return resident memory, by kind of process."""
        return {kind: sum(process.memory_info().rss for process in processes) for kind, processes in self.processes().items()}
