"""Run tasks of a backend."""

import os
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Final
from uuid import uuid4

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fila_cluster.django.backend import FilaBackend
from fila_cluster.django.framework import task_backends
from fila_cluster.django.worker import TaskWorker
from fila_cluster.errors import InvalidArgumentError
from fila_process.parent import ENDINGS, handling
from fila_proto_zmq.names import check_new_queue_name

PARENT: Final = "FILA_WORKER_PARENT"
"""In the environment of one of several processes: the process that started it."""
RESTART_S: Final = 1.0
"""The pause before a process that died is started again."""


class Command(BaseCommand):  # type: ignore[misc] # Django is not typed
    """``manage.py fila_worker``."""

    help = "Run tasks. SIGTERM and Ctrl-C wait for running ones, and give the others back."

    def add_arguments(self, parser: CommandParser) -> None:
        """Describe the options."""
        parser.add_argument("--backend", default="default", help="The alias in TASKS (default: default).")
        parser.add_argument("--queues", help="Queues, with commas between (default: the backend's QUEUES).")
        parser.add_argument("--threads", type=int, default=4, help="Tasks that a process runs at once (default: 4).")
        parser.add_argument("--processes", type=int, default=1, help="Processes (default: 1).")
        parser.add_argument("--grace", type=float, default=30.0, help="Seconds that running tasks have to end (default: 30).")
        parser.add_argument("--batch", action="store_true", help="Run what waits, then end.")

    def handle(self, **options: Any) -> None:
        """Run the worker, or several of them."""
        for name in ("threads", "processes"):
            if options[name] < 1:
                raise CommandError(f"--{name} {options[name]}: use 1 or more")
        backend = _backend(options["backend"])
        named = [name.strip() for name in (options["queues"] or "").split(",")]
        queues = [name for name in named if name] or sorted(backend.queues) or ["default"]
        unknown = set(queues) - backend.queues
        if backend.queues and unknown:
            raise CommandError(
                f"--queues {options['queues']}: {sorted(unknown)[0]!r} is not in the backend's QUEUES "
                f"{sorted(backend.queues)}"
            )
        for queue in queues:
            try:
                check_new_queue_name(backend.queue_of(queue))
            except InvalidArgumentError as error:
                raise CommandError(f"--queues {options['queues']}: {error}") from error
        if options["processes"] > 1:
            code = _several(options["processes"], options["grace"])
        else:
            code = self._one(backend, queues, options)
        if code:
            sys.exit(code)

    def _one(self, backend: FilaBackend, queues: list[str], options: dict[str, Any]) -> int:
        worker_id = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        worker = TaskWorker(backend, queues, threads=options["threads"], worker_id=worker_id)
        parent = int(os.environ.get(PARENT) or 0)
        with handling(lambda *_: worker.stop()):
            self.stderr.write(f"fila_worker {worker_id}: {', '.join(queues)}, {options['threads']} threads")
            done = worker.run(
                batch=options["batch"], grace_s=options["grace"], alive=lambda: not parent or os.getppid() == parent
            )
        if not done:
            self.stderr.write(f"fila_worker {worker_id}: tasks were still running after {options['grace']:g} s; they go back")
            backend.client.close()
            sys.stderr.flush()
            os._exit(1)  # their threads would hold up an ordinary end
        return 0


def _backend(alias: str) -> FilaBackend:
    try:
        backend = task_backends[alias]
    except Exception as error:
        raise CommandError(f"--backend {alias}: {error}") from error
    if not isinstance(backend, FilaBackend):
        raise CommandError(f"--backend {alias}: TASKS[{alias!r}] is {type(backend).__name__}, not a FilaBackend")
    return backend


def _several(count: int, grace_s: float) -> int:
    """Run this command in several processes. One that dies is started again; one that ends well (``--batch``) is not."""
    stopped = threading.Event()
    command = [sys.executable, *sys.orig_argv[1:], "--processes", "1"]
    environment = os.environ | {PARENT: str(os.getpid())}
    with handling(lambda *_: stopped.set()):
        running = [subprocess.Popen(command, env=environment) for _ in range(count)]
        while running and not stopped.wait(RESTART_S):
            codes = [process.poll() for process in running]  # asked once: one that dies meanwhile is found the next time
            running = [process for process, code in zip(running, codes, strict=True) if code is None]
            running += [subprocess.Popen(command, env=environment) for code in codes if code]
        for process in running:
            process.terminate()
        give_up_at = time.monotonic() + grace_s + 10.0
        for process in running:
            try:
                process.wait(max(0.0, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    # One that a signal ended was still starting: it had no task.
    return max((abs(process.returncode) for process in running if -process.returncode not in ENDINGS), default=0)
