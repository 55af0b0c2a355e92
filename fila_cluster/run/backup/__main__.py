"""Make backups on schedule, in a process of their own beside the cluster.

The next backup is due some time after the last one at the target, so restarts change nothing. It runs in a thread: a stop
does not wait for it. The next backup uses the files that an interrupted one has copied."""

import time
from datetime import UTC, datetime
from threading import Thread
from typing import Final

from fila_cluster import Client
from fila_cluster.run.backup.process import ScheduleSettings, cause, run
from fila_cluster.run.backup.repository import Repository
from fila_cluster.run.backup.taking import take
from fila_cluster.run.backup.target import target_at
from fila_process.journal import Journal
from fila_proto_zmq.events import BackupFailed, BackupTaken

LOOK_S: Final = 0.5
"""How often to see whether the next backup is due."""
RETRY_S: Final = 60.0
"""After a failure; at most the time between two backups."""
TIMEOUT_S: Final = 10.0
"""Of each request to the cluster."""


def begin(settings: ScheduleSettings, journal: Journal) -> None:
    """Make backups from now on, in a thread."""
    Thread(target=_work, args=(settings, journal), name="backups", daemon=True).start()


def _work(settings: ScheduleSettings, journal: Journal) -> None:
    while True:
        try:
            repository = Repository(target_at(settings.target))
            _wait_until_due(repository, settings)
            journal.tell([_take(repository, settings)])
        except Exception as error:  # a bug, too, is logged: the next backup must come
            journal.tell([BackupFailed(settings.target, *cause(error))])
            time.sleep(min(RETRY_S, settings.every_ms / 1000))


def _wait_until_due(repository: Repository, settings: ScheduleSettings) -> None:
    """Sleep until the next backup is due. The wall clock counts: a machine that slept is late at once."""
    latest = repository.latest()
    if latest is None:
        return
    due_s = repository.manifest(latest).cut_at.timestamp() + settings.every_ms / 1000
    while datetime.now(UTC).timestamp() < due_s:
        time.sleep(LOOK_S)


def _take(repository: Repository, settings: ScheduleSettings) -> BackupTaken:
    began = time.monotonic()
    with Client(settings.endpoint, api_key=settings.api_key, server_key=settings.server_key, timeout=TIMEOUT_S) as client:
        manifest = take(client, repository)
    removed, _, _ = repository.prune(settings.keep)
    took_ms = round(1000 * (time.monotonic() - began))
    return BackupTaken(settings.target, manifest.id, manifest.size_bytes, manifest.copied_bytes, len(removed), took_ms)


if __name__ == "__main__":
    run("backup", ScheduleSettings, begin)
