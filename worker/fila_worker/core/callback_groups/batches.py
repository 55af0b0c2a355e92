"""Batches: the commands of clients, and the messages between the owner of a batch and the shards of its members.

The owner is the shard of the callback's queue. So the callback is enqueued in the turn that ends its batch, and a deleted
queue takes its callbacks' batches with it. A shard that gets the first member of a batch for a queue asks the owner (*join*),
so the owner has each queue with members before there are any. When the batch is sealed, the owner sends *seal* to the shards
of these queues. From then on they take no more members, and their counts become final when the last one is done. They report
final counts until the owner confirms them (*forget*). When all are there the owner enqueues the callback, and forgets the
batch, in one turn.

Every message may be lost, come twice, or late. Joins and seals are repeated until they are answered, reports until their part
is forgotten. A late answer to a join has the ticket of a closed question. An unknown batch is over, so a part is forgotten
when its owner does not have the batch. A shard asks about a part that was never sealed when its batch's time is over: its
client may have ended.

While all shards are cut for a backup only joins are sent: a part that is forgotten or final after the one cut must not be
missing in the other.

The callback is checked when the batch is opened, and enqueued when it ends. It takes the normal enqueue path (the queue's
hook decides), but no limit of the queue refuses it: it was accepted when the batch was opened.

Rejected: the shard of the batch's id as owner (the callback would need a transfer of its own, and its queue could be gone);
members that are counted by the client (an enqueue whose answer is lost would make the count wrong); a report for each
settlement (the owner's answer would depend on the order of frames, and a batch of 10,000 would cost as many).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from msgspec.structs import replace

from fila_proto_zmq.codec import from_fault, to_fault
from fila_proto_zmq.commands import (
    AbandonBatch,
    BatchJoined,
    BatchOpened,
    Command,
    Done,
    ForgetParts,
    JoinBatch,
    OpenBatch,
    PartName,
    PartReport,
    ReportParts,
    SealBatch,
    SealParts,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError
from fila_proto_zmq.ids import low_half
from fila_proto_zmq.limits import HEADERS_BYTES_MAX, QUEUE_NAME_BYTES_MAX
from fila_proto_zmq.names import BATCH_TOKEN_BYTES, batch_id, shard_of
from fila_proto_zmq.record import headers_length, open_envelope, seal_envelope
from fila_worker.core.callback_group_parts import PartPlace, sealed_error
from fila_worker.core.callback_groups.owned import BatchName, OwnedBatch, OwnedBatches, callback_key, decode_callback
from fila_worker.core.due_time import AT_ONCE, NEVER
from fila_worker.core.effects import Post
from fila_worker.core.enqueue import insert, quotas
from fila_worker.core.enqueue.enqueue import id_high, known_queue
from fila_worker.core.enqueue.one_by_one import check_enqueue, incoming_single
from fila_worker.core.keys import FIRST, LAST, lane_of
from fila_worker.core.model.component import Component, InvariantBroken, PeerVerb, Steps
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.lanes import tokens_of
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Enqueue
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

NAME_BYTES_MAX: Final = 200

HEADER_ID: Final = "fila-batch"
HEADER_NAME: Final = "fila-batch-name"
HEADER_TOTAL: Final = "fila-batch-total"
HEADER_ACKED: Final = "fila-batch-acked"
HEADER_DEAD: Final = "fila-batch-dead"
HEADER_REMOVED: Final = "fila-batch-removed"
"""The headers that the broker adds to a callback."""

_ADDED_BYTES_MAX: Final = QUEUE_NAME_BYTES_MAX + 2 * BATCH_TOKEN_BYTES + NAME_BYTES_MAX + 256
"""The bytes of these headers: names, values, and their lengths."""


def check_callback(state: "State", callback: "Enqueue", name: str, now_ms: int) -> None:
    """Raise the error for a callback that could not be enqueued later, or for a batch's name."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise InvalidArgumentError(f"a batch's name of {len(name.encode())} bytes: use at most {NAME_BYTES_MAX}")
    if len(callback.envelopes) != 1:
        raise InvalidArgumentError(f"{len(callback.envelopes)} callbacks: a batch has one")
    if callback.dedup_id not in ("", [""]):
        raise InvalidArgumentError("a batch's callback has a dedup_id: leave it out, a callback is enqueued once in any case")
    if callback.batch:
        raise InvalidArgumentError("a batch's callback is a member of a batch: callbacks are in no batch")
    check_enqueue(callback, state.settings.max_payload_bytes, now_ms)
    envelope = callback.envelopes[0]
    most = HEADERS_BYTES_MAX - _ADDED_BYTES_MAX
    if headers_length(envelope) > most:
        raise InvalidArgumentError(
            f"headers of {headers_length(envelope)} bytes: those of a batch's callback may have {most}, because the broker "
            "adds some"
        )
    open_envelope(envelope)


def enqueue_callback(state: "State", queue: "Queue", owned: "OwnedBatch", callback: "Enqueue", now_ms: int) -> None:
    """Enqueue the callback of a batch whose members are all done."""
    headers, payload = open_envelope(callback.envelopes[0])
    total = owned.record.counts
    headers |= {
        HEADER_ID: str(owned.name),
        HEADER_TOTAL: str(total.added),
        HEADER_ACKED: str(total.acked),
        HEADER_DEAD: str(total.dead),
        HEADER_REMOVED: str(total.removed),
    }
    if owned.record.name:
        headers[HEADER_NAME] = owned.record.name
    callback.envelopes[0] = seal_envelope(payload, headers)
    state.counters.sequence += 1
    low = low_half(state.counters.sequence)
    insert.take_in(state, queue, incoming_single(callback, id_high(state, now_ms), low, now_ms), now_ms)


T = TypeVar("T")

JOIN_COST = 3
END_COST = 20
"""The effort to answer a join, and to end a batch."""


# --- commands of clients ----------------------------------------------------------------------------------------------


def open_batch(state: "State", call: "ClientCall", command: OpenBatch) -> BatchOpened:
    """Open a batch. If it is open already, the command is a repeated one."""
    queue = known_queue(state, call.queue, call.now_ms)
    if len(command.token) != BATCH_TOKEN_BYTES:
        raise InvalidArgumentError(f"a batch's token of {len(command.token)} bytes: use {BATCH_TOKEN_BYTES} random ones")
    name, owned = BatchName(_first_name(state, call.queue), command.token), state.part(OwnedBatches)
    known = owned.find(*name)
    if known is None:
        if name in owned.ended:
            raise InvalidArgumentError(f"batch {str(name)!r} has ended: open another one, with another token")
        if state.disk_is_full:
            raise quotas.disk_full(state)
        check_callback(state, command.callback, command.name, call.now_ms)
        if queue is None:
            state.queue_by_template(call.queue, call.now_ms)
        known = owned.open(name, command.name, command.callback, call.now_ms, state.batch)
    return BatchOpened(max(0, known.record.until_ms - call.now_ms))


def seal_batch(state: "State", call: "ClientCall", command: SealBatch) -> Done:
    """Seal a batch. If it is sealed or has ended already, the command is a repeated one."""
    owned, name = state.part(OwnedBatches), BatchName(_first_name(state, call.queue), command.token)
    known = owned.find(*name)
    if known is not None:
        owned.seal(known, state.batch)
    elif name not in owned.ended:
        raise unknown(call.queue, command.token)
    return Done()


def abandon_batch(state: "State", call: "ClientCall", command: AbandonBatch) -> Done:
    """Forget an open batch. Its members stay in their queues."""
    owned = state.part(OwnedBatches)
    known = owned.find(_first_name(state, call.queue), command.token)
    if known is not None:
        if known.sealed:
            raise InvalidArgumentError(f"batch {str(known.name)!r} is sealed: it can't be abandoned any more")
        _forget(state, known, call.now_ms)
    return Done()


def _first_name(state: "State", name: str) -> str:
    """Return the first name of a queue of this shard: batches that were opened then have it."""
    queue = state.queues.get(name)
    return name if queue is None else queue.counted_as


def unknown(queue: str, token: bytes) -> InvalidArgumentError:
    """Return the error for a batch that is not known."""
    return InvalidArgumentError(
        f"batch {batch_id(queue, token)!r} is not known: it was abandoned, it was open for too long, or its callback's "
        "queue was deleted; open another one"
    )


def _forget(state: "State", owned: OwnedBatch, now_ms: int) -> None:
    """Forget a batch without a callback. Its parts get one message; those that miss it ask when the batch's time is over."""
    names = [(owned.name.queue, owned.name.token, queue) for queue in owned.parts]
    state.part(OwnedBatches).forget(owned, state.batch)
    if not state.outbox.rests(now_ms):
        _tell(state, ForgetParts, names, now_ms)


# --- messages to the owner --------------------------------------------------------------------------------------------


def join(state: "State", command: JoinBatch, now_ms: int) -> None:
    """Answer whether a queue may get members of a batch."""
    owned = state.part(OwnedBatches)
    known = owned.find(_first_name(state, command.owner), command.token)
    until_ms, fault = 0, None
    try:
        if known is None:
            raise unknown(command.owner, command.token)
        owned.join(known, command.queue, state.batch)
        until_ms = known.record.until_ms
    except FilaError as error:
        fault = to_fault(error)
    state.jobs.charge(JOIN_COST)
    _send(
        state,
        BatchJoined(
            command.from_shard, state.index, command.ticket, command.owner, command.token, command.queue, until_ms, fault
        ),
        now_ms,
    )


def take_reports(state: "State", command: ReportParts, now_ms: int) -> None:
    """Take in counts of parts, and have those forgotten that are final or of batches that are over."""
    if state.outbox.rests(now_ms):
        return
    owned = state.part(OwnedBatches)
    over: list[PartName] = []
    for report in command.parts:
        known = owned.find(_first_name(state, report.owner), report.token)
        if known is None or (command.sealed and owned.add_report(known, report, state.batch)):
            over.append((report.owner, report.token, report.queue))
    state.jobs.charge(JOIN_COST * len(command.parts))
    if over:
        _send(state, ForgetParts(command.from_shard, state.index, over), now_ms)


# --- messages to the shard of members ---------------------------------------------------------------------------------


def joined(state: "State", command: BatchJoined, now_ms: int) -> None:
    """Begin a part, or refuse the enqueues that wait for it."""
    parts, place = state.batch_parts, PartPlace(command.queue, command.token)
    waiting = parts.take_ask(place, command.ticket)
    if not waiting:
        return  # they have waited for too long, or the part was sealed meanwhile
    error = None if command.fault is None else from_fault(command.fault)
    if error is None:
        try:
            parts.begin(place, command.owner, command.until_ms, state.batch)
        except FilaError as refusal:
            error = refusal
    for call, enqueue in waiting:
        if error is None:
            state.apply(replace(call, now_ms=now_ms), enqueue)
        else:
            state.conclude(call, enqueue, error)


def seal_parts(state: "State", command: SealParts, now_ms: int) -> None:
    """Take no more members into some parts, and report their counts."""
    if state.outbox.rests(now_ms):
        return
    parts, reports = state.batch_parts, []
    for owner, token, queue in command.parts:
        place = PartPlace(queue, token)
        for call, enqueue in parts.take_ask(place):
            state.conclude(call, enqueue, sealed_error(owner, token))
        part = parts.seal(place, owner, state.batch)
        reports.append(PartReport(owner, token, queue, part.added, part.acked, part.dead, part.removed))
    state.jobs.charge(JOIN_COST * len(reports))
    if reports:
        _send(state, ReportParts(command.from_shard, state.index, True, reports), now_ms)


def forget_parts(state: "State", command: ForgetParts, now_ms: int) -> None:
    """Forget parts whose owner needs them no more."""
    if state.outbox.rests(now_ms):
        return
    for _, token, queue in command.parts:
        state.batch_parts.forget(PartPlace(queue, token), state.batch)
    state.jobs.charge(JOIN_COST * len(command.parts))


# --- sending ----------------------------------------------------------------------------------------------------------


def _send(state: "State", command: "JoinBatch | BatchJoined | SealParts | ReportParts | ForgetParts", now_ms: int) -> None:
    """Send a message to a shard; to this one directly."""
    if command.to_shard == state.index:
        _PEER_VERBS[type(command)](state, command, now_ms)
    else:
        state.effects.append(Post(command))


def _tell(state: "State", kind: "type[SealParts | ForgetParts]", names: Iterable[PartName], now_ms: int) -> None:
    """Send the names of parts to the shards of their queues."""
    by_shard: defaultdict[int, list[PartName]] = defaultdict(list)
    for name in names:
        by_shard[shard_of(name[2], state.shards)].append(name)
    for to_shard, of_shard in by_shard.items():
        for some in _pieces(of_shard, state.settings.limits.batch_parts_at_once):
            _send(state, kind(to_shard, state.index, some), now_ms)


def _report(state: "State", places: Iterable[PartPlace], now_ms: int, *, sealed: bool) -> None:
    """Send the counts of parts to the owners of their batches."""
    by_shard: defaultdict[int, list[PartReport]] = defaultdict(list)
    for place in places:
        part = state.batch_parts.parts[place]
        report = PartReport(part.owner, place.token, place.queue, part.added, part.acked, part.dead, part.removed)
        by_shard[shard_of(part.owner, state.shards)].append(report)
    for to_shard, reports in by_shard.items():
        for some in _pieces(reports, state.settings.limits.batch_parts_at_once):
            _send(state, ReportParts(to_shard, state.index, sealed, some), now_ms)


def _pieces(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


_PEER_VERBS: "Mapping[type[Command], PeerVerb]" = {
    JoinBatch: join,
    BatchJoined: joined,
    SealParts: seal_parts,
    ReportParts: take_reports,
    ForgetParts: forget_parts,
}


class Batches(Component):
    """Batches of this shard, and the members of others."""

    verbs: ClassVar = {OpenBatch: open_batch, SealBatch: seal_batch, AbandonBatch: abandon_batch}
    peer_verbs: ClassVar = _PEER_VERBS

    def __init__(self, state: "State") -> None:
        self._parts = state.batch_parts
        self._owned = state.keep(OwnedBatches(state.store.families, state.settings.limits, self._parts.timer))
        self._repeat_ms = state.settings.limits.transfer_repeat_ms
        super().__init__(state, self._parts.timer)

    def recover(self, now_ms: int) -> Steps:
        """Read the batches and the parts."""
        step = self.state.settings.limits.recovery_records_max
        for records in (self._owned.recover(self.state.store), self._parts.recover(self.state.store)):
            while list(islice(records, step)):
                yield

    def tick(self, now_ms: int) -> int | None:
        """Ask, report, seal and end what is due."""
        self._ask(now_ms)
        for owned in self._owned.too_old(now_ms):
            _forget(self.state, owned, now_ms)
        self._owned.seal_again(now_ms)
        if not self.state.outbox.rests(now_ms):
            self._report(now_ms)
            self._seal(now_ms)
        self._end(now_ms)
        return self._next_due(now_ms)

    def _next_due(self, now_ms: int) -> int:
        """Return when to look again. What was sent is repeated after a second, as long as it is not answered."""
        if self._owned.complete or (self._has_more(now_ms) and not self.state.outbox.rests(now_ms)):
            return AT_ONCE
        waits = self._parts.asks or self._parts.complete or self._owned.sealing
        repeated_ms = now_ms + self._repeat_ms if waits else NEVER
        return min(repeated_ms, self._parts.check_ms, self._owned.check_ms, self._owned.seal_again_ms)

    def _due(self, now_ms: int) -> Iterator[PartPlace]:
        """Yield the parts whose final counts are to be reported now."""
        for place, sent_ms in self._parts.complete.items():
            if sent_ms is None or sent_ms + self._repeat_ms <= now_ms:
                yield place

    def _has_more(self, now_ms: int) -> bool:
        """Return whether this turn has left messages to send."""
        batches = (self._owned.batches[name] for name in self._owned.sealing)
        unsaid = (each for each in batches if each.sent_ms is None or each.sent_ms + self._repeat_ms <= now_ms)
        return next(self._due(now_ms), None) is not None or next(unsaid, None) is not None

    def _ask(self, now_ms: int) -> None:
        for call, command, error in self._parts.overdue(now_ms):
            self.state.conclude(call, command, error)
        for place, ask in list(self._parts.asks.items()):
            if ask.sent_ms is None or ask.sent_ms + self._repeat_ms <= now_ms:
                ask.sent_ms = now_ms
                to_shard = shard_of(ask.owner, self.state.shards)
                question = JoinBatch(to_shard, self.state.index, ask.ticket, ask.owner, place.token, place.queue)
                _send(self.state, question, now_ms)

    def _report(self, now_ms: int) -> None:
        """Report final counts, and ask about parts that are open for too long; a bounded number of each in a turn."""
        parts = self._parts
        due = list(islice(self._due(now_ms), self.state.settings.limits.batch_parts_at_once))
        parts.complete.update(dict.fromkeys(due, now_ms))
        _report(self.state, due, now_ms, sealed=True)
        _report(self.state, parts.stale(now_ms), now_ms, sealed=False)

    def _seal(self, now_ms: int) -> None:
        """Send seals to parts, those of a bounded number of batches in a turn."""
        names: list[PartName] = []
        for name in self._owned.sealing:
            owned = self._owned.batches[name]
            if owned.sent_ms is None or owned.sent_ms + self._repeat_ms <= now_ms:
                self._owned.seals_sent(owned, now_ms)
                names += [(*name, queue) for queue in owned.to_be_sealed]
                if len(names) >= self.state.settings.limits.batch_parts_at_once:
                    break
        _tell(self.state, SealParts, names, now_ms)

    def _end(self, now_ms: int) -> None:
        """Enqueue the callbacks of batches whose members are all done, a bounded number a turn."""
        state, owned = self.state, self._owned
        if not owned.complete:
            return
        state.settle_writes()  # the callbacks are read from disk
        for name in list(islice(owned.complete, state.settings.limits.batch_ends_at_once)):
            batch, queue = owned.batches[name], state.entrance(name.queue, now_ms)
            if queue is None:
                raise DamageError(f"batch {str(name)!r} is of a queue that does not exist")
            callback = state.store.get(callback_key(name), state.store.families.state)
            if callback is None:
                raise DamageError(f"batch {str(name)!r} has no callback")
            enqueue_callback(state, queue, batch, decode_callback(callback), now_ms)
            owned.end(batch, now_ms, state.batch)
            state.jobs.charge(END_COST)  # its parts are all gone by now
            if state.jobs.full:
                return

    def check(self) -> None:
        """Compare the counts of parts with the messages that are stored."""
        state = self.state
        if not self._parts.parts:
            return
        kept = {place: part.open for place, part in self._parts.parts.items() if part.open}
        found = dict.fromkeys(kept, 0)
        for queue, token in _members(state):
            place = PartPlace(queue, token)
            if place in found:
                found[place] += 1
            elif place in self._parts.parts:
                raise InvariantBroken(f"a message of {queue!r} is a member of a batch whose members there are all done")
        if kept != found:
            raise InvariantBroken(f"members of batches that are not done: kept {kept!r}, derived {found!r}")


def _members(state: "State") -> Iterator[tuple[str, bytes]]:
    """Yield the queue and the token of each stored message that is a member of a batch and not acked."""
    families = state.store.families
    for key, record in state.store.scan(FIRST, LAST, families.messages):
        lane = state.find_lane(lane_of(key))
        if lane is not None and not lane.key.queue.gone and key not in lane.acked:
            yield from ((lane.key.queue.counted_as, token) for token in tokens_of([record]).values())
    for key, value in state.store.scan(FIRST, LAST, families.delayed):
        lane = state.find_lane(lane_of(key))
        if lane is not None and not lane.key.queue.gone:
            yield from ((lane.key.queue.counted_as, token) for token in tokens_of([parse_delayed(value).record]).values())
