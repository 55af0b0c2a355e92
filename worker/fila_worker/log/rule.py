"""The rule of a shard's commit log: which records count. Writer and readers use the same one.

**A record counts if it is a marker, or if its epoch is the offset of the last marker and its number follows the last one that
counted.**

Any writer may append a marker at any time, and leads the shard from there on. Later records of its predecessors do not count:
they have an older epoch. A repeated record counts once, because it does not have the next number. So all readers agree,
whatever was delayed or repeated on the way, and they need only the log.

A writer does not read its own records. The log reports the offset of each append. If that is the one behind the last
confirmed record, nothing can stand between them: the record counts. After any other report the writer reads on from there,
and judges as a reader does. So it confirms exactly the records that readers replay. If the outcome of an append is unknown,
the writer must end: a later append could be confirmed although this one is missing.

A transfer request never counts and moves no position. It takes an offset, so the leader reads it where it expects its own
next record.

Rejected: to take each gap between the offsets of one's own records for a new writer. A delayed append of a replaced writer
would end its successor, too.

A number that is too large is not caused by a delay: each writer appends in order, and sends nothing behind an append that it
has given up. Then the log has lost records: :class:`LostError`. This module does not detect a loss behind which other writers
have put the same epochs and numbers at the same offsets. So the log's client must report when the log goes back.
"""

from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn

from fila_worker.core.store import DamageError
from fila_worker.log.records import BATCH_BYTES_MAX, Before, LogRecord, RecordKind, bad_record, encode, split

LOST_ADVICE: Final = (
    "the log has lost records; stop all hosts of this shard, keep their copies, and continue with the one that is furthest "
    "(docs/checkpoints.md)"
)


class LostError(DamageError):
    """Records that were in the log are not there any more. ``details`` has the ``offset`` where that shows."""


class FencedError(Exception):
    """Another writer has taken over. This one must end; it has promised only what it has confirmed."""

    def __init__(self, epoch: int, marker: int) -> None:
        super().__init__(f"the writer of epoch {epoch} was replaced by the marker at offset {marker}: it must end")
        self.epoch, self.marker = epoch, marker


class UnknownOutcomeError(Exception):
    """An append may be in the log or not. The writer must end its process at once, without a tidy close."""

    def __init__(self, epoch: int, number: int, reason: str) -> None:
        super().__init__(
            f"whether number {number} of epoch {epoch} is in the log is unknown ({reason}): its writer must end at once"
        )
        self.epoch, self.number = epoch, number


class Position(NamedTuple):
    """The last record of something that counts. A reader that has applied all up to it can begin again here."""

    offset: int = -1
    epoch: int = -1
    number: int = 0
    before: Before = Before()
    """The last numbered record that counted before the epoch's marker."""


START: Final = Position()
"""Before the first record."""


class RecordVerdict(Enum):
    """Whether a record counts, and why not."""

    COUNTS = auto()
    STALE = auto()
    """It is of an older epoch: its writer was replaced."""
    REPEATED = auto()
    """It is in the log twice."""
    TRANSFER_REQUEST = auto()
    """A request to the leader, of no epoch."""


def judge(last: Position, offset: int, record: LogRecord) -> RecordVerdict:
    """Return whether the record at ``offset`` counts behind ``last``, the last one that did. Raise :class:`LostError`."""
    if record.kind is RecordKind.MARKER:
        return RecordVerdict.COUNTS
    if record.kind is RecordKind.TRANSFER_REQUEST:
        return RecordVerdict.TRANSFER_REQUEST
    if record.epoch < last.epoch:
        return RecordVerdict.STALE
    if record.epoch > last.epoch:
        raise _lost(
            offset, f"it is of epoch {record.epoch}, but no marker was read at that offset; the last one was at {last.epoch}"
        )
    if record.number <= last.number:
        return RecordVerdict.REPEATED
    if record.number != last.number + 1:
        raise _lost(
            offset, f"it has number {record.number} of epoch {record.epoch}, but {last.number + 1} is missing before it"
        )
    if record.number == 1 and record.before != last.before:
        raise _lost(
            offset,
            f"its writer has read up to {_named(record.before)} before it began, but here that was {_named(last.before)}",
        )
    return RecordVerdict.COUNTS


def advance(last: Position, offset: int, record: LogRecord) -> Position:
    """Return the position of a record that counts behind ``last``."""
    if record.kind is not RecordKind.MARKER:
        return Position(offset, last.epoch, record.number, last.before)
    return Position(offset, offset, 0, Before(last.epoch, last.number) if last.number else last.before)


def _named(before: Before | None) -> str:
    return f"number {before.number} of epoch {before.epoch}" if before and before.number else "the beginning of the log"


def _lost(offset: int, problem: str) -> LostError:
    return LostError(f"the record at offset {offset} of the log: {problem}: {LOST_ADVICE}", details={"offset": offset})


class Counted(NamedTuple):
    """A record that counts, or a whole batch: a marker, a beat, a leave, or a batch with all its parts."""

    position: Position
    kind: RecordKind
    body: bytes
    """Of a batch: the pieces of its parts, for :func:`fila_worker.log.records.decode_changes`."""


class Rule:
    """The reader's half. It takes each record from ``next_offset`` on, in order, and returns what counts.

    After an error it is where it was before, and the same record raises the same error.

    A reader that begins again reads the record of its position once more. If there is another one, the log has lost records:
    :class:`LostError`. Begin again after each error of the log's client: the log may be another one then.

    It keeps the parts of one batch, at most ``batch_bytes_max`` bytes of them.
    """

    def __init__(self, position: Position = START, *, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        self.position = position
        """The end of the last whole thing that counts. It is stored with that."""
        self.next_offset = max(position.offset, 0)
        """The least offset that may come next."""
        self._last = position
        self._found = position == START
        self._pieces: list[bytes] = []
        self._parts, self._bytes, self._bytes_max = 0, 0, batch_bytes_max

    def read(self, offset: int, record: LogRecord) -> Counted | None:
        """Return what counts from this record on; None if nothing counts yet.

        Raise :class:`LostError`, or :class:`fila_worker.log.records.RecordError` for a part that does not follow its batch.
        """
        if not self._found:
            self._find(offset, record)
            return None
        if offset < self.next_offset:
            raise _lost(offset, f"the log goes back: offset {self.next_offset} or a later one must come here")
        counts = judge(self._last, offset, record) is RecordVerdict.COUNTS
        body = self._joined(offset, record) if counts else None
        self.next_offset = offset + 1
        if not counts:
            return None
        self._last = advance(self._last, offset, record)
        if body is None:
            return None
        self.position = self._last
        return Counted(self.position, record.kind, body)

    def _find(self, offset: int, record: LogRecord) -> None:
        """Check that the record of the position is still there."""
        place = self.position
        expected = (place.offset, place.epoch, place.number)
        found = (offset, offset, 0) if record.kind is RecordKind.MARKER else (offset, record.epoch, record.number)
        if found != expected:
            was = f"number {place.number} of epoch {place.epoch}" if place.number else "a marker"
            raise _lost(offset, f"a copy of the shard ends with {was} at offset {place.offset}, and another record is here")
        self._found, self.next_offset = True, offset + 1

    def _joined(self, offset: int, record: LogRecord) -> bytes | None:
        """Return the body with this record, None if more parts have to come."""
        if record.kind is RecordKind.MARKER:  # the batch of another writer stays unfinished for ever
            self._pieces, self._bytes = [], 0
            return record.body
        expected = (len(self._pieces), self._parts if self._pieces else record.parts)
        if (record.part, record.parts) != expected:  # other records have part 0 of 1
            found = f"it is a {record.kind.name} with part {record.part + 1} of {record.parts}"
            raise bad_record(offset, f"{found}, but part {expected[0] + 1} of {expected[1]} of a batch must come here")
        if record.parts == 1:
            return record.body
        if self._bytes + len(record.body) > self._bytes_max:
            raise bad_record(offset, f"the parts of its batch are longer than {self._bytes_max:,} bytes together")
        self._pieces.append(record.body)
        self._parts, self._bytes = record.parts, self._bytes + len(record.body)
        if record.part + 1 < record.parts:
            return None
        body = b"".join(self._pieces)
        self._pieces, self._bytes = [], 0
        return body


class Writer:
    """The writer's half: it gives the numbers of one epoch, and judges the report of each append.

    Append the returned records in their order. Call :meth:`report` for each report, in any order. While ``read_from`` is not
    None, read the log from there before anything else: call :meth:`read` for each record until ``read_from`` is None, and
    :meth:`reached_end` where the log ends. Effects of a turn may leave the process once ``confirmed`` has reached its last
    number.

    After any error the process must end: no error can be undone.
    """

    def __init__(self, marker: Position, record_bytes_max: int) -> None:
        """``marker``: the position of a :class:`Rule` that has just read this writer's own marker."""
        assert marker.number == 0, f"{marker} is not a marker"
        self.epoch = marker.epoch
        self.appended = 0
        """The last number that was given."""
        self.position = marker
        """The end of the last whole turn that counts: a :class:`Rule` may begin there."""
        self._last = marker
        self._judged = marker.offset
        self._unfinished: set[int] = set()
        """Numbers of parts that end no turn, until they count."""
        self._before, self._record_bytes_max = marker.before, record_bytes_max
        self._wanted: int | None = None
        self._reported: int | None = None

    @property
    def confirmed(self) -> int:
        """The last number that counts."""
        return self._last.number

    @property
    def read_from(self) -> int | None:
        """The offset from which the log must be read; None: it need not be read."""
        return None if self._wanted is None else self._judged + 1

    def batch(self, batch: bytes) -> list[bytes]:
        """Return the records of a turn. Its last number is ``appended`` then."""
        records = split(self.epoch, self.appended + 1, batch, self._first(), self._record_bytes_max)
        self._unfinished.update(range(self.appended + 1, self.appended + len(records)))
        self.appended += len(records)
        return records

    def beat(self, body: bytes = b"") -> bytes:
        """Return the record of a beat."""
        return self._single(RecordKind.BEAT, body)

    def leaves(self, body: bytes = b"") -> bytes:
        """Return the last record of this epoch."""
        return self._single(RecordKind.LEAVES, body)

    def _single(self, kind: RecordKind, body: bytes) -> bytes:
        record = encode(LogRecord(kind, self.epoch, self.appended + 1, body, self._first()))
        self.appended += 1
        return record

    def _first(self) -> Before | None:
        return None if self.appended else self._before

    def report(self, number: int, offset: int | None) -> None:
        """Note that a record is in the log; ``offset`` None: unknown. Raise :class:`LostError` if the log has gone back."""
        assert self._wanted is None, f"read the log from {self.read_from} first"
        assert 0 < number <= self.appended, f"number {number} was not given, {self.appended} was the last"
        if number <= self.confirmed:
            return  # the log was read meanwhile
        if offset is not None and offset <= self._judged:
            raise _lost(
                offset, f"number {number} of epoch {self.epoch} was appended there, but up to {self._judged} the log was full"
            )
        if (number, offset) == (self.confirmed + 1, self._judged + 1):
            self._judged += 1
            self._confirm(self._last._replace(offset=self._judged, number=number))
        else:
            self._wanted, self._reported = number, offset

    def _confirm(self, last: Position) -> None:
        self._last = last
        if last.number in self._unfinished:
            self._unfinished.discard(last.number)
        else:
            self.position = last

    def failed(self, number: int, reason: str) -> NoReturn:
        """Note that an append failed, or that no report will come: a failed append may be in the log."""
        raise UnknownOutcomeError(self.epoch, number, reason)

    def read(self, offset: int, record: LogRecord) -> None:
        """Judge a record from ``read_from`` on. The caller reads a TRANSFER_REQUEST.

        Raise :class:`FencedError` at another writer's marker, :class:`LostError`, and :class:`UnknownOutcomeError` if the
        record is not where it was reported.
        """
        assert self._wanted is not None, "there is nothing to be read for"
        assert offset > self._judged, f"offset {offset} was judged before"
        if record.kind is RecordKind.MARKER:
            raise FencedError(self.epoch, offset)
        if judge(self._last, offset, record) is RecordVerdict.COUNTS:
            self._confirm(advance(self._last, offset, record))
        self._judged = offset
        if self._reported is not None and offset < self._reported:
            return  # in the log twice, and the second place was reported: read the first one's repetition too
        if self.confirmed >= self._wanted:
            self._wanted = self._reported = None
        elif self._reported is not None:
            self.failed(self._wanted, f"it was reported at offset {self._reported}, and is not there")

    def reached_end(self) -> None:
        """Note that the log ends behind the last record. Raise :class:`UnknownOutcomeError` if the record can't come any
        more.

        If it was reported at a later offset, it is about to come: read on.
        """
        if self._wanted is not None and self._reported is None:
            self.failed(self._wanted, "it was reported without an offset, and is not in the log")
