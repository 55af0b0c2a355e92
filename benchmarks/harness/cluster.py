"""A cluster to measure: started as a user starts it, with the CPU time, memory and disk of its processes."""

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.harness.ending import undisturbed
from benchmarks.harness.systems import Processes

MODULES = {"router": "fila_router", "worker": "fila_worker", "observer": "fila_cluster.ops.observer"}
STOP_S_MAX = 60.0


class OneCluster(Processes):
    """``fila-cluster up`` on a free port, for the length of a ``with`` block. ``options`` are flags of ``up``."""

    def __init__(
        self,
        data_dir: Path,
        *options: str,
        workers: int = 1,
        facts: Mapping[str, str] = {},
        settings: Mapping[str, str] = {},
    ) -> None:
        """``settings``: in the environment, as ``FILA_SECTION__KEY``."""
        super().__init__(self.processes, data_dir)
        watched = [] if "--dashboard" in options else ["--no-dashboard"]
        self._command = [
            sys.executable,
            "-m",
            "fila_cluster",
            "up",
            "--listen",
            "127.0.0.1:0",
            *watched,
            "--data-dir",
            str(data_dir),
            "--workers",
            str(workers),
            *options,
        ]
        self.facts = facts
        self._settings = settings
        self.ready_line = self.address = ""
        self._started = ExitStack()

    def __enter__(self) -> Self:
        env = {name: value for name, value in os.environ.items() if not name.startswith("FILA_")}
        env["FILA_TELEMETRY__LOG_LEVEL"] = "warning"  # keep the log out of the table
        env |= self._settings
        with ExitStack() as started:
            with undisturbed():
                self._up = subprocess.Popen(self._command, env=env, stdout=subprocess.PIPE, text=True)
                started.callback(self._stop)
            assert self._up.stdout is not None
            self.ready_line = self._up.stdout.readline()
            if not self.ready_line.startswith("ready"):
                raise SystemExit("the cluster did not start")
            self.address = self.ready_line.split()[1]
            self._started = started.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._started.close()

    def _stop(self) -> None:
        self._up.terminate()
        self._up.communicate(timeout=STOP_S_MAX)

    @property
    def dashboard(self) -> str:
        """The address of the dashboard, if there is one."""
        return self.ready_line.split(" dashboard ")[1].split()[0]

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of the router and the workers, and of the observer if there is one."""
        children = psutil.Process(self._up.pid).children()
        found = {kind: [child for child in children if module in child.cmdline()] for kind, module in MODULES.items()}
        return {kind: processes for kind, processes in found.items() if processes}
