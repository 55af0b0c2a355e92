"""Real Celery workers of :mod:`tests.support.external.celery_project` on a cluster of a test."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from celery import Celery
from kombu import pools

from tests.support.cluster.cluster import PATIENCE_S, Cluster, environment, eventually
from tests.support.external.celery_project import BROKER, FILE, project

ROOT = Path(__file__).parents[3]


def broker_url(cluster: Cluster, namespace: str = "") -> str:
    """Return the URL of a cluster, as Celery's ``broker_url``."""
    return cluster.endpoint.replace("tcp://", "fila://") + f"/{namespace}"


class Worker:
    """A running ``celery worker``, and the lines that its tasks write."""

    def __init__(self, url: str, file: Path, *options: str) -> None:
        self.file = file
        self._log = file.with_suffix(f".{os.getpid()}.{id(self)}.log")
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "tests.support.external.celery_project",
            "worker",
            "--loglevel",
            "INFO",
            *options,
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(**{BROKER: url, FILE: str(file)}),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        eventually(self._is_ready, "the worker is ready")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log()
        return " ready." in self.log()

    def log(self) -> str:
        """Return what it has logged."""
        return self._log.read_text(errors="replace")

    def children(self) -> list[psutil.Process]:
        """Return its pool's processes."""
        return psutil.Process(self.process.pid).children()

    def memory_bytes(self) -> int:
        """Return the memory that only the worker itself has."""
        return int(psutil.Process(self.process.pid).memory_full_info().uss)

    def stop(self) -> None:
        """Stop it warmly."""
        self.process.terminate()
        self.process.wait(PATIENCE_S)


@contextmanager
def working(cluster: Cluster, file: Path, *options: str, namespace: str = "") -> Iterator[Worker]:
    """Run a worker, and end it."""
    worker = Worker(broker_url(cluster, namespace), file, *options)
    try:
        yield worker
    finally:
        for each in [*worker.children(), worker.process] if worker.process.poll() is None else []:
            each.kill()
        worker.process.wait(PATIENCE_S)


def lines(file: Path) -> list[list[str]]:
    """Return what tasks have written: time, process, words."""
    return [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []


@contextmanager
def sending(cluster: Cluster, namespace: str = "") -> Iterator[Celery]:
    """Yield an app that sends tasks, and leave no connection open."""
    app = project(broker_url(cluster, namespace))
    try:
        yield app
    finally:
        with suppress(AttributeError):  # no result was waited for
            app.backend.result_consumer.stop()
        app.close()
        pools.reset()
