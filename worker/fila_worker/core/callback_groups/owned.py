"""The batches that a shard owns: those whose callbacks go to its queues.

An owned batch is *open*, then *sealed*, then *ended*. It has the queues with members, its *parts*. When the final counts of a
part arrive, they are added to the batch's counts, and the part is removed. All of this is on disk, under the name of the
callback's queue, so that the batches of a deleted queue are one range. The callback is on disk only. An ended batch is
remembered for a while, without its callback.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fila_proto_zmq.commands import Enqueue, PartReport
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError
from fila_proto_zmq.names import BATCH_TOKEN_BYTES, ROUTING_KEY_BYTES_MAX, batch_id
from fila_worker.core.callback_group_parts import PART, RETRY_S, decode_part, parse_place, sealed_error
from fila_worker.core.due_time import AT_ONCE, NEVER, DueTime
from fila_worker.core.keys import range_of

if TYPE_CHECKING:
    from fila_worker.core.settings import Limits
    from fila_worker.core.store import Families, Store, StoreBatch

BATCH: Final = b"batch:"
CALLBACK: Final = b"batch callback:"
_MARK: Final = b"#"


class BatchStage(IntEnum):
    """How far a batch is."""

    OPEN = 0
    SEALED = 1
    ENDED = 2


class MemberCounts(msgspec.Struct, array_like=True, frozen=True):
    """Members of a batch, and how they ended."""

    added: int = 0
    acked: int = 0
    dead: int = 0
    removed: int = 0


class BatchRecord(msgspec.Struct, array_like=True):
    """The record of a batch. ``until_ms``: when it ended, or is forgotten if still open. ``counts``: of the parts done."""

    name: str
    stage: BatchStage
    until_ms: int
    callback_bytes: int
    counts: MemberCounts = MemberCounts()


class BatchName(NamedTuple):
    """Which batch: its callback's queue, and its token."""

    queue: str
    token: bytes

    def __str__(self) -> str:
        return batch_id(self.queue, self.token)


_encode = msgspec.msgpack.Encoder().encode
decode_batch = msgspec.msgpack.Decoder(BatchRecord).decode
decode_callback = msgspec.msgpack.Decoder(Enqueue).decode


class OwnedBatch:
    """An open or sealed batch."""

    __slots__ = ("name", "parts", "record", "sent_ms", "to_be_sealed")

    def __init__(self, name: BatchName, record: BatchRecord) -> None:
        self.name = name
        self.record = record
        self.parts: dict[str, None] = {}
        """The queues that may have members, and whose final counts are not known."""
        self.to_be_sealed: set[str] = set()
        """The parts of a sealed batch whose shards have not confirmed the seal."""
        self.sent_ms: int | None = None
        """When the seals were sent last."""

    @property
    def sealed(self) -> bool:
        """Whether it takes no more members."""
        return self.record.stage is BatchStage.SEALED


class OwnedBatches:
    """All batches of a shard. Memory and disk agree, except for the callbacks."""

    def __init__(self, families: "Families", limits: "Limits", timer: DueTime) -> None:
        """``timer``: when there is something to do for a batch."""
        self._family = families.state
        self._limits = limits
        self._timer = timer
        self.batches: dict[BatchName, OwnedBatch] = {}
        self.ended: OrderedDict[BatchName, None] = OrderedDict()
        """Remembered batches that have ended, the oldest first."""
        self.complete: dict[BatchName, None] = {}
        """Sealed batches whose members are all done: their callbacks are due."""
        self.sealing: dict[BatchName, None] = {}
        """Sealed batches with parts that have not confirmed the seal."""
        self.check_ms = NEVER
        """When the first open batch may be too old, Unix ms."""
        self.seal_again_ms = NEVER
        """When the first confirmed seal is to be repeated, Unix ms."""
        self._of_queue: Counter[str] = Counter()
        self._callback_bytes = 0

    def recover(self, store: "Store") -> Iterator[None]:
        """Read the stored batches, a record at a step."""
        ended: list[tuple[int, BatchName]] = []
        for key, value in store.scan(*range_of(BATCH), self._family):
            name, part = parse_batch_key(key)
            if part is not None:
                self.batches[name].parts[part] = None
            else:
                record = decode_batch(value)
                if record.stage is BatchStage.ENDED:
                    ended.append((record.until_ms, name))
                else:
                    self._enter(OwnedBatch(name, record))
            yield
        self.ended = OrderedDict.fromkeys(name for _, name in sorted(ended))
        for batch in self.batches.values():
            if batch.sealed:
                self._begin_sealing(batch)

    # --- the states of a batch -------------------------------------------------------------------------------------------

    def find(self, queue: str, token: bytes) -> OwnedBatch | None:
        """Return an open or sealed batch, or None."""
        return self.batches.get(BatchName(queue, token))

    def open(self, name: BatchName, label: str, callback: Enqueue, now_ms: int, batch: "StoreBatch") -> OwnedBatch:
        """Open a batch. Raise :class:`OverloadedError` if there are too many."""
        data, limits = _encode(callback), self._limits
        if len(self.batches) >= limits.batches_max or (
            self._callback_bytes and self._callback_bytes + len(data) > limits.batch_callback_bytes_max
        ):
            raise OverloadedError(
                f"{len(self.batches)} batches with callbacks of {self._callback_bytes} bytes are open on this shard: let "
                "some of them end, or use smaller callbacks",
                retry_after=RETRY_S,
                details={"refused": True},
            )
        owned = OwnedBatch(name, BatchRecord(label, BatchStage.OPEN, now_ms + limits.batch_open_ms_max, len(data)))
        self._enter(owned)
        self._save(owned, batch)
        batch.put(callback_key(name), data, self._family)
        return owned

    def _enter(self, owned: OwnedBatch) -> None:
        self.batches[owned.name] = owned
        self._of_queue[owned.name.queue] += 1
        self._callback_bytes += owned.record.callback_bytes
        if not owned.sealed and owned.record.until_ms < self.check_ms:
            self.check_ms = owned.record.until_ms
            self._timer.by(self.check_ms)

    def join(self, owned: OwnedBatch, queue: str, batch: "StoreBatch") -> None:
        """Note that a queue may get members. Raise :class:`InvalidArgumentError` if the batch takes no more."""
        if owned.sealed:
            raise sealed_error(*owned.name)
        if queue in owned.parts:
            return
        if len(owned.parts) >= self._limits.batch_queues_max:
            raise InvalidArgumentError(
                f"batch {str(owned.name)!r} has members in {len(owned.parts)} queues: use at most "
                f"{self._limits.batch_queues_max}"
            )
        owned.parts[queue] = None
        batch.put(owned_part_key(owned.name, queue), b"", self._family)

    def seal(self, owned: OwnedBatch, batch: "StoreBatch") -> None:
        """Take no more members."""
        if not owned.sealed:
            owned.record.stage = BatchStage.SEALED
            self._save(owned, batch)
            self._begin_sealing(owned)

    def _begin_sealing(self, owned: OwnedBatch) -> None:
        owned.to_be_sealed = set(owned.parts)
        if owned.to_be_sealed:
            self.sealing[owned.name] = None
        else:
            self.complete[owned.name] = None
        self._timer.by(AT_ONCE)

    def seals_sent(self, owned: OwnedBatch, now_ms: int) -> None:
        """Note that the seals of a batch were sent."""
        owned.sent_ms = now_ms
        self.seal_again_ms = min(self.seal_again_ms, now_ms + self._limits.batch_check_ms)

    def seal_again(self, now_ms: int) -> None:
        """Seal again the parts that were sealed long ago and are not done. All batches are searched.

        Without ``fsync``, a power cut may undo a part with its seal, on a shard that had confirmed it.
        """
        if now_ms < self.seal_again_ms:
            return
        self.seal_again_ms = NEVER
        for owned in self.batches.values():
            if owned.sent_ms is not None and owned.name not in self.sealing and owned.parts:
                due_ms = owned.sent_ms + self._limits.batch_check_ms
                if due_ms <= now_ms:
                    self._begin_sealing(owned)
                else:
                    self.seal_again_ms = min(self.seal_again_ms, due_ms)

    def add_report(self, owned: OwnedBatch, report: PartReport, batch: "StoreBatch") -> bool:
        """Take in the counts of a sealed part. Return whether they are here for good, so that its shard may forget them."""
        if not owned.sealed:
            return False
        owned.to_be_sealed.discard(report.queue)
        if not owned.to_be_sealed:
            self.sealing.pop(owned.name, None)
        if report.added != report.acked + report.dead + report.removed:
            return False
        if report.queue in owned.parts:  # else it is a repeated report
            del owned.parts[report.queue]
            batch.delete(owned_part_key(owned.name, report.queue), self._family)
            counts = owned.record.counts
            owned.record.counts = MemberCounts(
                counts.added + report.added,
                counts.acked + report.acked,
                counts.dead + report.dead,
                counts.removed + report.removed,
            )
            self._save(owned, batch)
            if not owned.parts:
                self.complete[owned.name] = None
                self._timer.by(AT_ONCE)
        return True

    def end(self, owned: OwnedBatch, now_ms: int, batch: "StoreBatch") -> None:
        """End a batch whose callback is enqueued, and remember that."""
        self._leave(owned, batch)
        self.ended[owned.name] = None
        batch.put(batch_key(owned.name), _encode(BatchRecord("", BatchStage.ENDED, now_ms, 0)), self._family)
        if len(self.ended) > self._limits.ended_batches_max:
            forgotten, _ = self.ended.popitem(last=False)
            batch.delete(batch_key(forgotten), self._family)

    def forget(self, owned: OwnedBatch, batch: "StoreBatch") -> None:
        """Forget a batch without a callback."""
        self._leave(owned, batch)
        batch.delete(batch_key(owned.name), self._family)

    def _leave(self, owned: OwnedBatch, batch: "StoreBatch") -> None:
        self._drop(owned)
        batch.delete(callback_key(owned.name), self._family)
        for queue in owned.parts:
            batch.delete(owned_part_key(owned.name, queue), self._family)

    def _drop(self, owned: OwnedBatch) -> None:
        name = owned.name
        del self.batches[name]
        self.complete.pop(name, None)
        self.sealing.pop(name, None)
        self._callback_bytes -= owned.record.callback_bytes
        self._of_queue[name.queue] -= 1
        if not self._of_queue[name.queue]:
            del self._of_queue[name.queue]

    def has_any(self, queue: str) -> bool:
        """Return whether a queue will get a callback."""
        return queue in self._of_queue

    def remove_queue(self, queue: str, batch: "StoreBatch") -> None:
        """Forget all batches whose callbacks go to a deleted queue."""
        for owned in [each for each in self.batches.values() if each.name.queue == queue]:
            self._drop(owned)
        for name in [each for each in self.ended if each.queue == queue]:
            del self.ended[name]
        for prefix in (BATCH, CALLBACK):
            batch.delete_range(*range_of(prefix + queue.encode() + _MARK), self._family)

    def too_old(self, now_ms: int) -> list[OwnedBatch]:
        """Return some open batches whose time is over, and plan the next look. All batches are searched."""
        if now_ms < self.check_ms:
            return []
        open_ones = [each for each in self.batches.values() if not each.sealed]
        found = [each for each in open_ones if each.record.until_ms <= now_ms]
        some = found[: self._limits.batch_ends_at_once]
        later = (each.record.until_ms for each in open_ones if each.record.until_ms > now_ms)
        self.check_ms = AT_ONCE if len(some) < len(found) else min(later, default=NEVER)
        return some

    # --- records ------------------------------------------------------------------------------------------------------

    def _save(self, owned: OwnedBatch, batch: "StoreBatch") -> None:
        batch.put(batch_key(owned.name), _encode(owned.record), self._family)


def batch_key(name: BatchName) -> bytes:
    """Return the key of a batch's record."""
    return BATCH + name.queue.encode() + _MARK + name.token


def callback_key(name: BatchName) -> bytes:
    """Return the key of a batch's callback."""
    return CALLBACK + name.queue.encode() + _MARK + name.token


def owned_part_key(name: BatchName, queue: str) -> bytes:
    """Return the key of an owned batch's record of a part. It follows the key of the batch."""
    return batch_key(name) + queue.encode()


def parse_batch_key(key: bytes) -> tuple[BatchName, str | None]:
    """Return the batch and the part of a key; None: the batch itself. Raise :class:`ValueError` for another key."""
    prefix = CALLBACK if key.startswith(CALLBACK) else BATCH
    queue, mark, rest = key[len(prefix) :].partition(_MARK)
    if not mark or not 0 < len(queue) <= ROUTING_KEY_BYTES_MAX or len(rest) < BATCH_TOKEN_BYTES:
        raise ValueError(f"{key.hex()} is not a key of a batch")
    part = rest[BATCH_TOKEN_BYTES:].decode()
    return BatchName(queue.decode(), rest[:BATCH_TOKEN_BYTES]), part or None


PREFIXES: Final = (BATCH, CALLBACK, PART)
"""The beginnings of the keys of all records of batches and parts, in the ``state`` family."""


def batch_queue(key: bytes) -> str:
    """Return the queue that a record goes with. Raise :class:`ValueError` if the key is of no batch."""
    return parse_place(key).queue if key.startswith(PART) else parse_batch_key(key)[0].queue


def check_record(key: bytes, value: bytes) -> None:
    """Raise :class:`ValueError` or :class:`msgspec.MsgspecError` for a record that can't be read."""
    if key.startswith(PART):
        parse_place(key)
        decode_part(value)
        return
    _, part = parse_batch_key(key)
    if key.startswith(CALLBACK):
        decode_callback(value)
    elif part is None:
        decode_batch(value)
    elif value:
        raise ValueError(f"{key.hex()} has a value of {len(value)} bytes, and is only a name")
