"""One process's part in a replicated shard: its copy, its place in the log, and its role.

A follower reads the log into its copy. A leader appends the commits of the shard, and confirms them by the reports. A member
carries out the decisions of :class:`~fila_worker.log.leadership.Leadership`. Its owner recovers, serves and stops the shard.

The owner calls :meth:`Member.step` in each turn before it takes any work, and then reads the member's state::

    member.step(now_ms)
    member.ended                    # not empty: end the process at once, without a tidy close
    member.leads                    # the copy is the shard's store: recover the shard, then call recovered()
    member.serves                   # whether the shard may take work
    member.leaves                   # end all turns, then call stopped()

All times are of a steady clock.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from fila_proto_zmq.commands import HostCopy, LogReplicas
from fila_proto_zmq.commands.hosts import CLAIMS, FOLLOWS, LEADS, LEAVES, RECOVERS, WAITS
from fila_proto_zmq.errors import StorageError
from fila_worker.core.measures import CountedHistogram
from fila_worker.core.store import Store
from fila_worker.log.bodies import Figures, Marker, Node, decode_body
from fila_worker.log.leadership import (
    Action,
    Append,
    AskEnd,
    End,
    Follow,
    Leadership,
    LeadershipLimits,
    LeadershipState,
    Recover,
    Serve,
    StopServing,
)
from fila_worker.log.partition import AppendReport, LogEntry, Partition, Tail
from fila_worker.log.records import LogRecord, RecordKind, decode, encode
from fila_worker.log.rule import Counted, FencedError, Position, Rule, UnknownOutcomeError, Writer

RECORD_BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest record; a larger batch is split."""
READ_MAX: Final = 64
"""Records that are read in one step."""
READ_BYTES_MAX: Final = 1024 * 1024
"""Bytes of records that are applied in one step, some 10 ms. The turns of other shards wait meanwhile."""
READ_AT_ONCE: Final = 4
"""Records that are read before their bytes are counted."""


class Copy(Store, Protocol):
    """The copy of a shard; see :class:`fila_worker.storage.replica.Replica`."""

    position: Position
    marker: bytes
    """The body of the last marker."""

    @property
    def confirm_ns(self) -> CountedHistogram:
        """How long commits took to be confirmed."""

    @property
    def wants_pause(self) -> bool:
        """Whether nothing should be committed or applied until this is False, so that it can flush."""

    def apply(self, counted: Counted) -> None:
        """Take in what counts in the log."""

    def lead(self, append: Callable[[bytes], int]) -> None:
        """Be the store of the shard."""

    def follow(self) -> None:
        """Lead no more. Raise :class:`StorageError` if something is unconfirmed."""

    def confirm(self, position: Position) -> None:
        """Note that all is confirmed up to a position."""

    def tend(self, now_ms: int) -> None:
        """Go on with flushes."""


class _Look:
    """A reader for the reports that are not what the writer expects."""

    def __init__(self, tail: Tail, offset: int) -> None:
        self.tail = tail
        self.next_offset = offset
        tail.ask()

    @property
    def is_at_end(self) -> bool:
        """Whether all was read that was there when the look began."""
        return self.tail.asked_ms is not None and self.tail.end is not None and self.next_offset >= self.tail.end


class _Term:
    """The state of a leader."""

    def __init__(self, writer: Writer, appends_before: int) -> None:
        self.writer = writer
        self.appends_before = appends_before
        """The appends of this appender before the writer's number 1."""
        self.reports: deque[AppendReport] = deque()
        """Those that were not judged yet."""
        self.look: _Look | None = None


class Member:
    """A copy of one shard, on one partition of the log."""

    def __init__(
        self,
        partition: Partition,
        copy: Copy,
        node: Node,
        now_ms: int,
        *,
        limits: LeadershipLimits | None = None,
        record_bytes_max: int = RECORD_BYTES_MAX,
        read_max: int = READ_MAX,
    ) -> None:
        self.copy = copy
        self.ended = ""
        """Why the process must end at once; empty: it may continue."""
        self.may_give: Callable[[str, int], bool] = lambda host, now_ms: True
        """Whether the shard may go to a host that asks for it, now. If so, it goes."""
        last = decode_body(copy.marker, Marker)
        self.leadership = Leadership(node, now_ms, limits, copy.position.epoch, last.node if last else None)
        self._partition = partition
        self._record_bytes_max, self._read_max = record_bytes_max, read_max
        self._now_ms = now_ms
        self._rule = Rule(copy.position)
        self._tail = partition.tail(self._rule.next_offset)
        self._appender = partition.appender()
        self._appends = 0
        """The last append of this appender."""
        self._marker: int | None = None
        """The append of the marker."""
        self._answered_ms = now_ms
        """When the last answered question for the end was asked; before the first one, when this began to follow."""
        self._term: _Term | None = None
        self._reads_on = False

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether the copy is the shard's store."""
        return self._term is not None

    @property
    def serves(self) -> bool:
        """Whether the shard may take work."""
        return self.leadership.serves

    @property
    def pauses(self) -> bool:
        """Whether the shard should commit nothing for the moment."""
        return self.copy.wants_pause

    @property
    def leaves(self) -> bool:
        """Whether the shard is to end all turns, because another host shall lead it."""
        return self.leadership.state is LeadershipState.LEAVES

    @property
    def reads_on(self) -> bool:
        """Whether more records may wait than a follower has read in its last step."""
        return self._term is None and self._reads_on

    @property
    def behind(self) -> int | None:
        """How many records the copy is behind the log; None: unknown."""
        end = self._tail.end
        return None if end is None else max(0, end - self._rule.next_offset)

    @property
    def end(self) -> int | None:
        """The offset behind the last record, as last answered; None: unknown, or it leads."""
        return self._tail.end if self._term is None else None

    @property
    def replicas(self) -> LogReplicas | None:
        """The last report of the log on its own copies; None: too old."""
        return self._partition.replicas

    def unanswered_ms(self, now_ms: int) -> int:
        """Return how long the partition has not answered a follower."""
        return now_ms - self._answered_ms if self._term is None else 0

    @property
    def figures(self) -> Figures:
        """The figures in the shard's beats."""
        return self.leadership.figures

    @figures.setter
    def figures(self, figures: Figures) -> None:
        self.leadership.figures = figures

    def next_due(self, now_ms: int) -> int | None:
        """Return when :meth:`step` has something to do even if nothing arrives; None: never."""
        return self.leadership.next_due(now_ms)

    # --- calls of the owner --------------------------------------------------------------------------------------------

    def recovered(self, now_ms: int) -> None:
        """Note that the shard is ready to serve."""
        self.leadership.recovered(now_ms)
        self.step(now_ms)

    def stopped(self, now_ms: int) -> None:
        """Note that no turn will come any more, after ``leaves``."""
        self.leadership.stopped(now_ms)
        self.step(now_ms)

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> None:
        """Take in what has arrived and do what is due. Raise :class:`StorageError` if the copy or the log is damaged."""
        self._now_ms = now_ms
        self._carry_out(self.leadership.step(now_ms))  # first: after a pause it may stop serving
        if self.ended:
            return
        try:
            if self._term is None:
                self._follow(now_ms)
            else:
                self._lead(self._term, now_ms)
        except FencedError as error:
            self.leadership.fenced(str(error), now_ms)
        except UnknownOutcomeError as error:
            self.leadership.failed(str(error))
        while not self.ended and (actions := self.leadership.step(now_ms)):
            self._carry_out(actions)
        if not self.ended:
            self.copy.tend(now_ms)

    def _follow(self, now_ms: int) -> None:
        request_failed = False
        for report in self._appender.reports():
            if report.append == self._marker:
                self._take_marker(report, now_ms)
            else:
                request_failed = request_failed or bool(report.error)
        if request_failed and self._marker is None:  # or the next claim would fail with it
            self._renew_appender()
        self._reads_on = not self.copy.wants_pause and self._read_on(now_ms)
        self._answered_ms = max(self._answered_ms, self._tail.asked_ms or 0)
        self.leadership.tail(self._rule.next_offset, self._tail.end, self._tail.asked_ms, now_ms)

    def _read_on(self, now_ms: int) -> bool:
        """Apply what has arrived, as far as one step goes. Return whether more may wait."""
        records, size_bytes = 0, 0
        while records < self._read_max and size_bytes < READ_BYTES_MAX and not self.copy.wants_pause:
            wanted = min(READ_AT_ONCE, self._read_max - records)
            entries = self._tail.read(wanted)
            self._apply(entries, now_ms)
            if len(entries) < wanted:
                return False
            records += wanted
            size_bytes += sum(len(entry.data) for entry in entries)
        return True

    def _apply(self, entries: list[LogEntry], now_ms: int) -> None:
        for entry in entries:
            counted = self._rule.read(entry.offset, decode(entry.data, entry.offset))
            if counted is not None:
                self.copy.apply(counted)
                self.leadership.read(counted, now_ms)

    def _take_marker(self, report: AppendReport, now_ms: int) -> None:
        self._marker = None
        if report.error:
            self.leadership.mark_failed(report.error, now_ms)
            self._renew_appender()
        else:
            self.leadership.marked(report.offset, now_ms)

    def _lead(self, term: _Term, now_ms: int) -> None:
        writer = term.writer
        term.reports += self._appender.reports()
        while True:
            if writer.read_from is not None and not self._look(term, writer.read_from, now_ms):
                break
            if not term.reports:
                break
            report = term.reports.popleft()
            number = report.append - term.appends_before
            if number < 1:
                continue  # a transfer request of before
            if report.error:
                writer.failed(number, report.error)
            writer.report(number, report.offset)
        if writer.position != self.copy.position:
            self.copy.confirm(writer.position)
        self.leadership.confirmed(writer.confirmed, now_ms)

    def _look(self, term: _Term, offset: int, now_ms: int) -> bool:
        """Read what the writer has to judge. Return whether that is done."""
        writer = term.writer
        look = term.look = term.look or _Look(self._partition.tail(offset), offset)
        for entry in look.tail.read(self._read_max):
            record = decode(entry.data, entry.offset)
            look.next_offset = entry.offset + 1
            requester = (
                self.leadership.requested_transfer(record.body) if record.kind is RecordKind.TRANSFER_REQUEST else None
            )
            if requester is not None and self.may_give(requester, now_ms):
                self.leadership.leave(requester, now_ms)
            if writer.read_from is not None:
                writer.read(entry.offset, record)
        if writer.read_from is not None and look.is_at_end:
            writer.reached_end()
            look.tail.ask()
        if writer.read_from is not None:
            return False
        look.tail.close()
        term.look = None
        return True

    # --- what is decided ----------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, AskEnd):
                self._tail.ask()
            elif isinstance(action, Append):
                self._append(action.kind, action.body)
            elif isinstance(action, Recover):
                self._begin_term()
            elif isinstance(action, Follow):
                self._end_term(action.reason)
            elif isinstance(action, End):
                self.ended = action.reason
            else:
                assert isinstance(action, (Serve, StopServing)), action  # the owner sees them: serves, leaves

    def _append(self, kind: RecordKind, body: bytes) -> None:
        if self._term is None:
            append = self._appender.append(encode(LogRecord(kind, 0, 0, body)))
            self._appends = append
            if kind is RecordKind.MARKER:
                self._marker = append
            return
        writer = self._term.writer
        self._appends = self._appender.append(writer.beat(body) if kind is RecordKind.BEAT else writer.leaves(body))
        self.leadership.appended(writer.appended, self._now_ms, turn=False)

    def _append_batch(self, batch: bytes) -> int:
        """Append a commit of the shard; return its last number."""
        assert self._term is not None
        writer = self._term.writer
        for record in writer.batch(batch):
            self._appends = self._appender.append(record)
        self.leadership.appended(writer.appended, self._now_ms)
        return writer.appended

    def _begin_term(self) -> None:
        self._tail.close()
        self._term = _Term(Writer(self._rule.position, self._record_bytes_max), self._appends)
        self.copy.lead(self._append_batch)

    def _end_term(self, reason: str) -> None:
        """Follow again, from where the copy stands."""
        if self._term is None:
            return
        if self._term.look is not None:
            self._term.look.tail.close()
        self._term = None
        try:
            self.copy.follow()
        except StorageError as error:
            self.ended = f"{reason}: {error}"
            return
        self._renew_appender()
        self._answered_ms = self._now_ms
        self._rule = Rule(self.copy.position)
        self._tail = self._partition.tail(self._rule.next_offset)

    def _renew_appender(self) -> None:
        self._appender.close()
        self._appender, self._appends = self._partition.appender(), 0

    def close(self) -> None:
        """Leave the log and close the copy, which stays as far as it is confirmed."""
        if self._term is not None and self._term.look is not None:
            self._term.look.tail.close()
        if self._term is None:
            self._tail.close()
        self._appender.close()
        self.copy.close()


CAUSES: Final = "no quorum of its brokers, or they can't be reached"

_ROLES: Final = {
    LeadershipState.FOLLOWS: FOLLOWS,
    LeadershipState.CLAIMS: CLAIMS,
    LeadershipState.LEAVES: LEAVES,
    LeadershipState.ENDED: LEAVES,
}


def has_proof(member: Member, now_ms: int) -> bool:
    """Return whether a leader has confirmed anything lately, so that it may serve."""
    proof_ms = member.leadership.proof_ms
    return proof_ms is not None and now_ms - proof_ms < member.leadership.limits.proof_ms_max


def problem(member: Member, now_ms: int) -> str:
    """Return what is wrong with the log, for people; empty: nothing."""
    limits, proof_ms = member.leadership.limits, member.leadership.proof_ms
    if proof_ms is not None:
        silent_ms = now_ms - proof_ms
        what, patience_ms = "the log has confirmed nothing", 3 * limits.beat_ms
    else:
        silent_ms = member.unanswered_ms(now_ms)
        what, patience_ms = "the log's partition has not answered", 2 * limits.ask_idle_ms + limits.answer_ms_max
    return f"{what} for {silent_ms / 1000:.1f} s: {CAUSES}" if silent_ms > patience_ms else ""


def copy_view(member: Member, shard: int, now_ms: int, *, is_open: bool, queues: int) -> HostCopy:
    """Return a member's copy as operators see it. ``is_open``: whether the shard is recovered here."""
    leadership, copy = member.leadership, member.copy
    role = _ROLES.get(leadership.state)
    if role is None:
        role = RECOVERS if has_proof(member, now_ms) else WAITS
        if is_open and member.serves:
            role = LEADS
    behind, end = 0 if member.leads else member.behind, member.end
    proof_ms = leadership.proof_ms
    return HostCopy(
        shard,
        role,
        leadership.epoch,
        copy.position.offset,
        -1 if end is None else max(end, copy.position.offset + 1),
        -1 if behind is None else behind,
        copy.unconfirmed_bytes,
        -1 if proof_ms is None else now_ms - proof_ms,
        queues,
        problem(member, now_ms),
        copy.confirm_ns.wire() if any(copy.confirm_ns.counts) else None,
        member.replicas,
    )
