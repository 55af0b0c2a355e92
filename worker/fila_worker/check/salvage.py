"""The messages of a shard that can still be read around damage.

Only copies of the database are read. In the first copy the damaged blocks are skipped, which leaves gaps. A second copy, from
which RocksDB has left out the damaged tables, shows the content of other tables in these gaps. If the first copy does not
open, only the second one is read. Then acked messages may come back, because the removals may have been in the missing
tables.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.record import Extension, Record, pack_record
from fila_worker.check.reading import decoded
from fila_worker.core.keys import LANE_BYTES, MESSAGE_KEY_BYTES, u64
from fila_worker.core.model.acked_messages import is_mark, parse_mark
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.ledger import LaneRecord, decode_lane
from fila_worker.core.model.queues import decode_queue
from fila_worker.core.model.shard_transfers import decode_outbox
from fila_worker.storage.offline import Gap, OfflineStore, copied, readable, trustworthy

_LANE, _MESSAGE, _DELAYED = range(3)


class Salvaged(NamedTuple):
    """A message. ``queue``: None if the record that names it is lost; then only ``lane`` is known of its place."""

    queue: str | None
    lane: int
    fairness_key: str | None
    weight: int | None
    throttle_keys: list[str]
    record: bytes
    due_ms: int | None
    """When it is to be delivered, Unix ms, if it is delayed."""


class Salvage:
    """The readable messages of one shard, lane by lane in the order of delivery. ``scratch``: where a copy may be made."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch
        self._gaps: list[list[Gap]] = [[], [], []]
        self._queues: dict[int, str] = {}
        self._acked: set[bytes] = set()
        self._stores: list[OfflineStore] = []
        self._opened = False

    def messages(self) -> Iterator[Salvaged]:
        """Yield them. Raise :class:`StorageError` if nothing of the database can be read."""
        with self._folder() as scratch, ExitStack() as opened:
            self._open(Path(scratch), opened)
            for store in self._stores:
                self._read_queues(store)
            lines = merge(*(self._lines(number, store) for number, store in enumerate(self._stores)), key=itemgetter(0, 1, 2))
            for prefix, items in groupby(lines, key=itemgetter(0)):
                yield from self._of_lane(prefix, items)
            yield from self._outgoing()

    def _folder(self) -> TemporaryDirectory[str]:
        """Return a folder for copies. RocksDB may write its journal there until the last handle is gone."""
        return TemporaryDirectory(prefix="salvage-", dir=self._scratch, ignore_cleanup_errors=True)

    def _open(self, scratch: Path, opened: ExitStack) -> None:
        """Open the database, and a copy of its sound tables if there is damage."""
        with suppress(StorageError):  # then tables can only be read by themselves
            if trustworthy(self._path):
                store = opened.enter_context(closing(copied(self._path, scratch / "whole")))
                self._stores.append(store)
                self._opened = True
                if not _damaged(store):
                    return
        try:
            self._stores.append(opened.enter_context(closing(copied(self._path, scratch / "sound", without_damaged=True))))
        except StorageError:
            if not self._stores:
                raise

    def _read_queues(self, store: OfflineStore) -> None:
        for key, data in readable(store.families.queues, []):
            record = decoded(decode_queue, data)
            if record is not None:
                self._queues.setdefault(int.from_bytes(key, "big"), record.name)
        for _, data in readable(store.families.leases, []):
            mark = decoded(parse_mark, data) if is_mark(data) else None
            self._acked |= set(mark.keys) if mark is not None else set()

    def _lines(self, number: int, store: OfflineStore) -> Iterator[tuple[bytes, int, bytes, int, bytes]]:
        """Yield the lanes and messages of a store: the lane's prefix, the family, the key, the store, and the value."""
        families = store.families
        parts = [
            self._part(rank, number, family)
            for rank, family in enumerate((families.lanes, families.messages, families.delayed))
        ]
        return merge(*parts, key=itemgetter(0, 1, 2))

    def _part(self, rank: int, number: int, family: object) -> Iterator[tuple[bytes, int, bytes, int, bytes]]:
        gaps = self._gaps[rank] if number == 0 else []
        for key, value in readable(family, gaps):
            yield key[:LANE_BYTES], rank, key, number, value

    def _of_lane(self, prefix: bytes, items: Iterable[tuple[bytes, int, bytes, int, bytes]]) -> Iterator[Salvaged]:
        record: LaneRecord | None = None
        last: bytes | None = None
        for _, rank, key, number, value in items:
            if rank == _LANE:
                record = record or decoded(decode_lane, value)
            elif len(key) == MESSAGE_KEY_BYTES and key != last and self._counts(rank, key, number):
                last = key
                yield from self._message(u64(prefix), record, rank, value)

    def _counts(self, rank: int, key: bytes, number: int) -> bool:
        """Return whether a message counts. One of the second copy counts in a gap of the first, or without the first."""
        if key in self._acked:
            return False
        return number == 0 or not self._opened or any(begin <= key < end for begin, end in self._gaps[rank])

    def _message(self, lane: int, record: LaneRecord | None, rank: int, value: bytes) -> Iterator[Salvaged]:
        due_ms = None
        if rank == _DELAYED:
            delayed = decoded(parse_delayed, value)
            if delayed is None:
                return
            due_ms, value = delayed.due_ms, delayed.record
        if record is None:
            yield Salvaged(None, lane, None, None, [], value, due_ms)
        else:
            queue = self._queues.get(record.queue)
            yield Salvaged(queue, lane, record.fairness_key, record.weight, record.throttle_keys, value, due_ms)

    def _outgoing(self) -> Iterator[Salvaged]:
        """Yield the messages on their way to queues of other shards."""
        seen: set[bytes] = set()
        for store in self._stores:
            for key, data in readable(store.families.outbox, []):
                entry = decoded(decode_outbox, data) if key not in seen else None
                seen.add(key)
                if entry is not None:
                    to = entry.transfer
                    record = to.record if to.enqueue is None else _new_record(to.enqueue)
                    yield Salvaged(to.queue, 0, to.fairness_key, to.weight, to.throttle_keys, record, None)


def _new_record(enqueue: Enqueue) -> bytes:
    """Return the record of a message that the broker is enqueueing. It has no id yet."""
    return pack_record(Record(0, 0, 0, 0, Extension(), enqueue.envelopes[0]))


def _damaged(store: OfflineStore) -> bool:
    """Return whether a scan of any family that is needed meets damage."""
    families = store.families
    needed = (families.messages, families.delayed, families.lanes, families.queues, families.leases, families.outbox)
    gaps: list[Gap] = []
    for family in needed:
        for _ in readable(family, gaps):
            if gaps:
                return True
    return bool(gaps)
