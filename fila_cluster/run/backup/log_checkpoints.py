"""Keep the checkpoints of shards at a target, and bring them back. Each function may be killed at any moment and called
again.

::

    checkpoints/LOG/shard-0003/checkpoints/OFFSET.json    the manifest of a checkpoint, written last
    checkpoints/LOG/shard-0003/files/AB/ABCDEF…           the files of this shard's checkpoints by their SHA-256
    checkpoints/LOG/shard-0003/writing/…                  the host that writes now

Each shard has a folder of its own, because the host that leads it writes there. Each log has one, because a topic that was
made anew has other offsets. Keeping and bringing have a thread each: a new host must not wait for the checkpoints of others."""

import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Final

import msgspec

from fila_cluster.run.backup.process import KeeperSettings, cause, run
from fila_cluster.run.backup.repository import ManifestStore, StoredFile, refuse_foreign
from fila_cluster.run.backup.restoring import draft_of, refuse_lack_of_space, restore_files, sync
from fila_cluster.run.backup.taking import Copying, Tables, tables_of
from fila_cluster.run.backup.target import Target, Within, explained, target_at
from fila_process.journal import Journal
from fila_proto_zmq.errors import FilaError, OverloadedError, StorageError
from fila_proto_zmq.events import CheckpointBrought, CheckpointKept, CheckpointTransferFailed, Event
from fila_proto_zmq.version import VERSION
from fila_worker.replication.log_checkpoints.exchange import Exchange, Kept, Made, Refused, Wanted, exchanges_of

FORMAT: Final = 1
KEEP: Final = 2
"""How many checkpoints of a shard stay at the target. The log is kept from the older one on: a copy can begin from each."""
_DIGITS: Final = 20


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of one shard. It has all records of the log up to ``offset``."""

    format: int = FORMAT
    log: str
    shard: int
    shards: int
    offset: int
    epoch: int
    number: int
    made_at: datetime
    host: str
    """The machine whose files they are."""
    version: str
    """Of fila-cluster."""
    files: list[StoredFile]
    copied_bytes: int = 0
    """Bytes that were not at the target before."""

    @property
    def id(self) -> str:
        """Its name, which sorts by the offset."""
        return f"{self.offset:0{_DIGITS}d}"

    @property
    def every_file(self) -> list[StoredFile]:
        """All files."""
        return self.files

    @property
    def size_bytes(self) -> int:
        """The size of a copy that begins from it."""
        return sum(file.size_bytes for file in self.files)


class CheckpointStore(ManifestStore[Checkpoint]):
    """The checkpoints of one shard of one log."""

    what, folder, names = "checkpoint", "checkpoints", re.compile(rf"\d{{{_DIGITS}}}")

    def __init__(self, target: Target, log: str, shard: int) -> None:
        super().__init__(Within(target, f"checkpoints/{log}/shard-{shard:04d}"))

    def offsets(self) -> list[int]:
        """Return where the checkpoints are, rising."""
        return [int(name) for name in self.ids()]

    def at(self, offset: int) -> Checkpoint:
        """Return the checkpoint at an offset."""
        return self.manifest(f"{offset:0{_DIGITS}d}")

    def _decode(self, content: bytes, name: str) -> Checkpoint:
        try:
            checkpoint = msgspec.json.decode(content, type=Checkpoint)
        except msgspec.MsgspecError as cause:
            raise StorageError(f"the manifest {name} is damaged: {cause}; remove it, a new checkpoint will be made") from None
        if checkpoint.format != FORMAT:
            raise StorageError(
                f"the manifest {name} has format {checkpoint.format}, this version reads {FORMAT}: upgrade this host"
            )
        refuse_foreign(checkpoint.files, name)
        return checkpoint


def keep(exchange: Exchange, target: Target) -> CheckpointKept | None:
    """Carry the checkpoint that a worker has made to the target, if there is one. Raise :class:`FilaError`.

    The worker gets its answer last, when the older checkpoints were removed: then the log may drop the records that they
    needed.
    """
    made, kept = exchange.made(), exchange.kept()
    if made is None or (kept is not None and (kept.log, kept.offset) == (made.log, made.offset)):
        return None
    began = time.monotonic()
    store = CheckpointStore(target, made.log, made.shard)
    checkpoint = None if max(store.offsets(), default=-1) >= made.offset else _carry(exchange, made, store)
    store.prune(KEEP)
    offsets = store.offsets()[-KEEP:]
    with explained(f"cannot note the checkpoint of shard {made.shard}"):
        exchange.keep(Kept(made.log, made.offset, offsets[0] if len(offsets) == KEEP else -1))
    if checkpoint is None:
        return None  # another host has led the shard meanwhile, or this process was killed before the note
    took_ms = round(1000 * (time.monotonic() - began))
    size, copied = checkpoint.size_bytes, checkpoint.copied_bytes
    return CheckpointKept(target.name, made.shard, made.offset, size, copied, took_ms)


def _carry(exchange: Exchange, made: Made, store: CheckpointStore) -> Checkpoint:
    host = socket.gethostname()
    with store.writing():
        copying = Copying(store, _known(store, host))
        files = copying.shard(exchange.made_path, made.shard)
        checkpoint = Checkpoint(
            log=made.log,
            shard=made.shard,
            shards=made.shards,
            offset=made.offset,
            epoch=made.epoch,
            number=made.number,
            made_at=datetime.now(UTC),
            host=host,
            version=VERSION,
            files=files,
            copied_bytes=copying.copied_bytes,
        )
        store.add(checkpoint)
    return checkpoint


def _known(store: CheckpointStore, host: str) -> Tables:
    """Return the tables of the last checkpoint, if it is of this host: those of another one may have the same names."""
    latest = store.latest()
    try:
        last = store.manifest(latest) if latest else None
    except FilaError:
        return {}  # a damaged one: all files are read again
    return tables_of(last.shard, last.files) if last is not None and last.host == host else {}


def bring(exchange: Exchange, target: Target) -> CheckpointBrought | None:
    """Bring the newest checkpoint that is sound to a copy that needs one. Raise :class:`FilaError`, also if there is none."""
    wanted = exchange.wanted()
    if wanted is None or exchange.brought_path.exists():
        return None
    began = time.monotonic()
    store = CheckpointStore(target, wanted.log, wanted.shard)
    offsets = store.offsets()
    failure = _none_fits(wanted, offsets, store)
    for offset in reversed([offset for offset in offsets if offset >= wanted.begin]):
        try:
            checkpoint = store.at(offset)
            _fetch(exchange, store, checkpoint)
        except StorageError as error:
            failure = error
            continue
        took_ms = round(1000 * (time.monotonic() - began))
        return CheckpointBrought(target.name, wanted.shard, offset, checkpoint.size_bytes, took_ms)
    raise failure


def _fetch(exchange: Exchange, store: CheckpointStore, checkpoint: Checkpoint) -> None:
    path = exchange.brought_path
    with explained(f"cannot bring a checkpoint to {path}"), draft_of(path) as draft:
        refuse_lack_of_space(draft, checkpoint)
        restore_files(store, checkpoint.files, draft)
        sync(draft)
        exchange.bring(draft)


def _none_fits(wanted: Wanted, offsets: list[int], store: CheckpointStore) -> StorageError:
    last = f"the last one is at offset {offsets[-1]}" if offsets else "there is none"
    return StorageError(
        f"{store.target.name} has no checkpoint of shard {wanted.shard} from which its log can be read on: the log begins "
        f"at offset {wanted.begin}, and {last}; let a host that has a copy of the shard run with this target, and see that "
        "it is the same on all hosts"
    )


LOOK_S: Final = 0.5
"""How often to see whether there is something to do."""
RETRY_S: Final = 10.0
"""After a failure, for the same shard."""

Work = Callable[[Exchange, Target], Event | None]


def begin(settings: KeeperSettings, journal: Journal) -> None:
    """Keep and bring checkpoints from now on."""
    for work in (keep, bring):
        Thread(target=Rounds(settings, journal, work).work, name=work.__name__, daemon=True).start()


class Rounds:
    """One kind of work, for all shards of this host in turn."""

    def __init__(self, settings: KeeperSettings, journal: Journal, work: Work) -> None:
        self._settings, self._journal, self._work = settings, journal, work
        self._not_before: dict[int, float] = {}
        """When to try again what has failed, by shard."""
        self._told: dict[int, tuple[str, str]] = {}
        """Why it failed, by shard: the same again is not logged."""

    def work(self) -> None:
        """Work for ever."""
        while True:
            self.round()
            time.sleep(LOOK_S)

    def round(self) -> None:
        """Do once the work that each shard needs."""
        for exchange in exchanges_of(Path(self._settings.data_dir)):
            if time.monotonic() < self._not_before.get(exchange.shard, 0):
                continue
            try:
                event = self._work(exchange, target_at(self._settings.target))
            except Exception as error:  # a bug, too, is logged: the other shards must not stop
                self._failed(exchange, error)
                continue
            self._told.pop(exchange.shard, None)
            if event is not None:
                self._journal.tell([event])

    def _failed(self, exchange: Exchange, error: Exception) -> None:
        self._not_before[exchange.shard] = time.monotonic() + RETRY_S
        if isinstance(error, OverloadedError):
            return  # the host that led the shard before still writes
        code, reason = cause(error)
        if self._told.get(exchange.shard) != (code, reason):
            self._told[exchange.shard] = code, reason
            self._journal.tell([CheckpointTransferFailed(self._settings.target, exchange.shard, code, reason)])
        with suppress(OSError):  # the disk refuses this, too
            wanted = exchange.wanted() if self._work is bring else None
            if wanted is not None:
                exchange.refuse(
                    Refused(wanted.begin, reason or f"no checkpoint could be brought ({code}): see this host's log")
                )


if __name__ == "__main__":
    run("checkpoints", KeeperSettings, begin)
