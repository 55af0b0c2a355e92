"""Ask a running cluster for checkpoints of all its shards at one moment, and keep them while their files are copied."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import BackupParts, BeginBackup, CutBackup, KeepBackup, ShardCut
from fila_proto_zmq.errors import FilaError, RequestTimeoutError, ShardUnavailableError, StorageError

if TYPE_CHECKING:
    from fila_cluster import Client

ASK_AGAIN_S: Final = 0.02
"""Between two requests of the same step."""
STEP_S: Final = 30.0
"""How long a step may take: to be ready, or to be cut."""
KEEP_MS: Final = 30_000
RENEW_S: Final = 3.0
TRIES: Final = 20
PAUSE_S: Final = 1.0
"""Before the next try: a worker that was restarted during a cut voids it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The checkpoints of all shards. Everything that was confirmed before ``cut_at`` is in them."""

    cut_at: datetime
    parts: list[ShardCut]

    @property
    def data_dir(self) -> Path:
        """The data directory of shard 0: ``DATA/checkpoints/BACKUP/shard-0000`` is its checkpoint."""
        return Path(self.parts[0].path).parents[2]

    def refuse_elsewhere(self, hosts: list[str]) -> None:
        """Raise :class:`StorageError` if some of the files are not on this machine."""
        missing = next((part.path for part in self.parts if not Path(part.path, "CURRENT").is_file()), None)
        if missing is not None:
            raise StorageError(
                f"there is no {missing} here: the workers' files are on {', '.join(hosts)}; run `fila-cluster backup` there, "
                "as the user who runs the cluster"
            )


@contextmanager
def cut_of(client: "Client", backup: str) -> Iterator[Cut]:
    """Cut all shards, and keep the checkpoints for a block.

    Raise :class:`FilaError` if the cluster does not answer, or if its files are not on this machine. The end of the block raises
    the error by which checkpoints were lost meanwhile.
    """
    cut, attempt = _cut(client, backup)
    keeping = _Keeping(client, attempt)
    try:
        yield cut
        keeping.check()
    finally:
        keeping.stop()
        _release(client, attempt)


def _cut(client: "Client", backup: str) -> tuple[Cut, str]:
    """Return a cut, and the name under which the workers have it."""
    number = 0
    while True:
        number += 1
        attempt = f"{backup}-{number}"
        try:
            return _try(client, attempt), attempt
        except FilaError as error:
            _release(client, attempt)
            if number == TRIES or not error.retryable:
                raise
            time.sleep(max(PAUSE_S, min(error.retry_after or 0, STEP_S)))
        except BaseException:
            _release(client, attempt)
            raise


def _try(client: "Client", attempt: str) -> Cut:
    _until(client, BeginBackup(attempt), "ready")
    cut_at = datetime.now(UTC)
    _until(client, CutBackup(attempt), "path")
    parts: BackupParts = client.request(KeepBackup(attempt, KEEP_MS))
    _check_rested(parts)
    cut = Cut(cut_at, parts.shards)
    cut.refuse_elsewhere(parts.hosts)
    return cut


def _until(client: "Client", command: BeginBackup | CutBackup, field: str) -> None:
    """Repeat a step until all shards have taken it."""
    give_up_at = time.monotonic() + STEP_S
    while True:
        parts: BackupParts = client.request(command)
        _check_rested(parts)
        if all(getattr(part, field) for part in parts.shards):
            return
        if time.monotonic() > give_up_at:
            late = [part.shard for part in parts.shards if not getattr(part, field)]
            raise RequestTimeoutError(f"shards {late} were not ready for a backup in {STEP_S:g} s: is their disk slow?")
        time.sleep(ASK_AGAIN_S)


def _check_rested(parts: BackupParts) -> None:
    void = [part.shard for part in parts.shards if not part.rested]
    if void:
        raise ShardUnavailableError(f"shards {void} were restarted, or paused, while a backup of them was made: try again")


def _release(client: "Client", attempt: str) -> None:
    """Have the checkpoints removed now. Workers that do not hear it remove them later by themselves."""
    with suppress(FilaError):
        client.request(KeepBackup(attempt, 0))


class _Keeping:
    """Renews the checkpoints in a thread."""

    def __init__(self, client: "Client", attempt: str) -> None:
        self._client = client
        self._attempt = attempt
        self._stopped = Event()
        self._lost: FilaError | None = None
        self._thread = Thread(target=self._renew, name="keep-backup", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        heard_at = time.monotonic()
        while not self._stopped.wait(RENEW_S):
            try:
                self._client.request(KeepBackup(self._attempt, KEEP_MS))
                heard_at = time.monotonic()
            except FilaError as error:
                if time.monotonic() - heard_at > KEEP_MS / 1000:
                    self._lost = error

    def check(self) -> None:
        """Raise the error by which the checkpoints were lost, if they were."""
        if self._lost is not None:
            raise StorageError(f"the checkpoints were removed before all was copied: {self._lost}; begin the backup again")

    def stop(self) -> None:
        """Renew no more."""
        self._stopped.set()
        self._thread.join()
