"""What is done with the checkpoints of one shard. Each function may be killed at any moment, and called again."""

import socket
import time
from datetime import UTC, datetime

from fila_cluster.run.backup.log_checkpoints.store import KEEP, Checkpoint, CheckpointStore
from fila_cluster.run.backup.restoring import draft_of, refuse_lack_of_space, restore_files, sync
from fila_cluster.run.backup.taking import Copying, Tables, tables_of
from fila_cluster.run.backup.target import Target, explained
from fila_proto_zmq.errors import FilaError, StorageError
from fila_proto_zmq.events import CheckpointBrought, CheckpointKept
from fila_proto_zmq.version import VERSION
from fila_worker.replication.log_checkpoints.exchange import Exchange, Kept, Made, Wanted


def keep(exchange: Exchange, target: Target) -> CheckpointKept | None:
    """Carry the checkpoint that a worker has made to the target, if there is one. Raise :class:`FilaError`.

    The worker is told last, when the older checkpoints were removed: from then on the log may forget what they needed.
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
            log=made.log, shard=made.shard, shards=made.shards, offset=made.offset, epoch=made.epoch, number=made.number,
            made_at=datetime.now(UTC), host=host, version=VERSION, files=files, copied_bytes=copying.copied_bytes,
        )  # fmt: skip
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
        f"{store.target.name} has no checkpoint of shard {wanted.shard} from which its log can be read on: the log begins at offset "
        f"{wanted.begin}, and {last}; let a host that has a copy of the shard run with this target, and see that it is the same on all hosts"
    )
