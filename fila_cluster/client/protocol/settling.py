"""Settlements on their way: many deliveries, few frames.

The settlements between two flushes go out as one ``Settle`` frame per queue and manner (verb, error, metadata,
delay). A lease whose deliveries are all in the frame travels as its number alone.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fila_cluster.client import checks
from fila_cluster.client.protocol.lease import ClientLease, LeaseOwner
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_proto_zmq.codec import from_fault
from fila_proto_zmq.commands import Fault, Fences, Settle, Settled, Verb
from fila_proto_zmq.errors import AlreadySettledError, FilaError, InvalidArgumentError
from fila_proto_zmq.limits import FENCES_MAX

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery

Indexes: TypeAlias = dict[ClientLease, list[int]]
Run: TypeAlias = tuple[ClientLease, int, int]
"""A lease, the index of the first of some deliveries of it, and their number."""
Costs: TypeAlias = dict[ClientLease, dict[int, int]]
"""What deliveries really cost, in thousandths, by index."""

NACKED_MAX: Final = 100
"""Deliveries of a frame of nacks. Each may run a hook for milliseconds, and the broker answers when all of them are done."""
PROGRESS_SHARE: Final = 0.1
"""The share of the timeout after which an answer to a frame of nacks extends the time of the next ones again."""


class Settlement(NamedTuple):
    """How deliveries end."""

    verb: Verb
    error: str = ""
    metadata: bytes | None = None
    after_ms: int = 0


ACK = Settlement(Verb.ACK)
RELEASE = Settlement(Verb.RELEASE)
"""Back to its queue, as if it had not been delivered."""


def settlement(verb: Verb, error: object = "", metadata: object = None, after_ms: int = 0) -> Settlement:
    """Return a settlement of a caller's arguments, checked."""
    return Settlement(verb, checks.error_text(error), checks.metadata_bytes(metadata), after_ms)


class Settling(Pending[None]):
    """One caller's deliveries. Done when every frame with some of them is answered."""

    __slots__ = ("abandoned", "costs", "deliveries", "errors", "frames_left")

    def __init__(self, deliveries: "Sequence[Delivery]") -> None:
        super().__init__()
        self.deliveries = deliveries
        self.costs: Costs | None = None
        self.errors: dict[int, FilaError] = {}
        """The errors, by position in ``deliveries``."""
        self.frames_left = 0
        self.abandoned = False
        """Its caller waits no longer, and may settle its deliveries again."""

    def abandon(self) -> None:
        """Allow unconfirmed deliveries to be settled again: the caller waits no longer, and their state is unknown."""
        mine = [each for position, each in enumerate(self.deliveries) if position not in self.errors]
        self.deliveries = [delivery for delivery in mine if not delivery._lease.at_most_once]
        self.errors = {}
        self.abandoned = True
        for delivery in self.deliveries:
            delivery._settled = False

    def leave_to_others(self, leases: Indexes) -> None:
        """Take in the answer to the frame with ``leases``, for deliveries that the caller has not settled again since."""
        mine: list[Delivery] = []
        for delivery in self.deliveries:
            if delivery._index not in leases.get(delivery._lease, ()):
                mine.append(delivery)  # of another frame
            elif delivery._settled:
                leases[delivery._lease].remove(delivery._index)
            else:
                delivery._settled = True
                mine.append(delivery)
        self.deliveries = mine

    def refused(
        self, leases: "Mapping[ClientLease, Collection[int]]", error_of: Callable[[ClientLease, int], FilaError | None]
    ) -> None:
        """Note the errors that ``error_of`` finds for the deliveries of ``leases``."""
        for position, delivery in enumerate(self.deliveries):
            if position in self.errors or delivery._index not in leases.get(delivery._lease, ()):
                continue
            error = error_of(delivery._lease, delivery._index)
            if error is not None:
                self.errors[position] = copy(error)
                delivery._settled = not error.retryable

    def frame_answered(self) -> None:
        """Count an answered frame; the last one completes."""
        self.frames_left -= 1
        if self.frames_left <= 0:
            self.finish()


class _Handing(Settling):
    """The ack of deliveries that no caller waits for; ``then`` gets the error that failed it, None when it is confirmed."""

    __slots__ = ("error_of_all", "leases", "then")

    def __init__(self, leases: Indexes, then: Callable[["_Handing", FilaError | None], None]) -> None:
        super().__init__(())
        self.leases = leases
        self.then = then
        self.error_of_all: FilaError | None = None

    def refused(
        self, leases: "Mapping[ClientLease, Collection[int]]", error_of: Callable[[ClientLease, int], FilaError | None]
    ) -> None:
        """Note an error that may pass: any other one means that the lease has ended."""
        errors = (error_of(lease, index) for lease, indexes in self.leases.items() for index in indexes)
        self.error_of_all = next((error for error in errors if error is not None and error.retryable), None)

    def frame_answered(self) -> None:
        """Complete it: it travels in one frame."""
        self.then(self, self.error_of_all)


@dataclass(slots=True)
class _Frame:
    """The deliveries of one frame, and the settlings that they belong to."""

    leases: Indexes = field(default_factory=dict)
    members: list[Settling] = field(default_factory=list)
    costs: list[tuple[int, int, int]] = field(default_factory=list)
    """As :attr:`fila_proto_zmq.commands.Settle.costs`."""
    named: int = 0
    """The number of deliveries in it."""

    def has_room(self, lease: ClientLease, count: int, deliveries_max: int) -> bool:
        """Return whether so many deliveries of a lease may join, by the bounds of a frame."""
        return (lease in self.leases or len(self.leases) < FENCES_MAX) and self.named + count <= deliveries_max

    def add(self, settling: Settling, lease: ClientLease, indexes: list[int]) -> None:
        self.named += len(indexes)
        if settling.costs is not None:
            costs = settling.costs.get(lease, {})
            self.costs += [(lease.id, index, costs[index]) for index in indexes if index in costs]
        known = self.leases.get(lease)
        if known is None:
            self.leases[lease] = indexes
        else:
            known.extend(indexes)
        if not self.members or self.members[-1] is not settling:
            self.members.append(settling)
            settling.frames_left += 1


class LoneAck:
    """The ack of one delivery, which its caller has claimed, by a short call. ``settling``: what it is since it was widened."""

    __slots__ = ("_abandoned", "_done", "delivery", "settling")

    def __init__(self, delivery: "Delivery") -> None:
        self.delivery = delivery
        self.settling: Settling | None = None
        self._abandoned = self._done = False

    def command(self) -> Settle:
        """Return the request."""
        lease = self.delivery._lease
        return Settle(Verb.ACK, [(lease.id, [self.delivery._index] if lease.size > 1 else [])])

    def widened(self, call: PendingCall) -> None:
        """Become the only settling of a frame."""
        frame, self.settling = _Frame(), Settling((self.delivery,))
        frame.add(self.settling, self.delivery._lease, [self.delivery._index])
        call.then = partial(_answered, frame)
        self.settling.abandoned = self._abandoned

    def answered(self, reply: Settled) -> None:
        """Take in the answer to the short call."""
        if reply.faults:
            call = PendingCall("", self.command(), 0.0, 0.0)
            self.widened(call)
            call.finish(reply)
        else:
            self._done = True
            self.delivery._lease.ended(1)

    def abandon(self) -> None:
        """Allow the delivery to be settled again, unless it is: nothing was sent, or the caller waits no longer."""
        if self._done or (self.settling is not None and self.settling.done):
            return
        self._abandoned, self.delivery._settled = True, False
        if self.settling is not None:
            self.settling.abandon()


@dataclass(slots=True)
class _Nacks:
    """The frames of nacks of one queue that are under way: ``calls`` and their places among all that were ``sent``."""

    progress_at: float
    calls: dict[PendingCall, int] = field(default_factory=dict)
    sent: int = 0


class Settler:
    """Collects settlements and sends them. :meth:`settle` may be called in any thread, the rest belongs to the session.

    The broker works off the frames of a queue one after the other: the time of a frame of nacks begins anew when an
    earlier one is done.
    """

    def __init__(
        self,
        owner: LeaseOwner,
        send: Callable[[str, Settle, "Callable[[PendingCall], None]"], PendingCall],
        now: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._owner = owner
        self._send = send
        self._now = now
        self._timeout_s = timeout_s
        self._nacks: dict[str, _Nacks] = {}
        """Those under way, by queue."""
        self.collected: deque[tuple[Settling, Settlement, Indexes]] = deque()
        self._handing: dict[_Handing, None] = {}

    def settle(self, deliveries: "Sequence[Delivery]", how: Settlement, runs: Iterable[Run] = ()) -> Settling:
        """Claim deliveries for a settlement that goes out with the next flush. ``runs``: what they are, if that is known."""
        settling = Settling(deliveries)
        leases: Indexes = {}
        claimed = 0
        for lease, first, count in runs:
            end, ones = first + count, b"\1" * count
            if lease in leases or lease.priced or 1 in lease.settled[first:end]:
                break
            lease.settled[first:end] = ones  # no thread comes in between: there is no call
            leases[lease] = [*range(first, end)]
            claimed += count
        owner, before = self._owner, None
        for position, delivery in enumerate(islice(deliveries, claimed, None), claimed):
            lease, index = delivery._lease, delivery._index
            if lease.settled[index] or lease.owner is not owner:
                self._unclaimable(settling, position, how)
                continue
            lease.settled[index] = 1
            if lease is not before:
                before, indexes = lease, leases.setdefault(lease, [])
            indexes.append(index)
            if delivery._cost_milli is not None:
                _note_cost(settling, delivery, delivery._cost_milli)
        if leases:
            self.collected.append((settling, how, leases))
        else:
            settling.finish()
        return settling

    def abandon(self, settling: Settling) -> None:
        """End the waiting of a caller of :meth:`settle`. Settlements that were not sent yet are dropped."""
        if not settling.done:
            settling.abandon()
            for _ in range(len(self.collected)):  # in place: others may append meanwhile
                entry = self.collected.popleft()
                if entry[0] is not settling:
                    self.collected.append(entry)

    def hand_over(self, delivery: "Delivery") -> None:
        """Ack an at-most-once delivery with the next flush, and again until the broker has confirmed it."""
        self._insist({delivery._lease: [delivery._index]})

    def ack_soon(self, deliveries: "Sequence[Delivery]") -> Settling:
        """Claim deliveries, and ack them until the broker has confirmed it. Done at once; with errors, nothing is claimed."""
        settling = Settling(deliveries)
        for position, delivery in enumerate(deliveries):
            if delivery._settled or delivery._lease.owner is not self._owner:
                self._unclaimable(settling, position, ACK)
        if not settling.errors:
            leases: Indexes = {}
            for delivery in deliveries:
                if not delivery._settled:  # at most once, or named twice
                    delivery._settled = True
                    leases.setdefault(delivery._lease, []).append(delivery._index)
                    if delivery._cost_milli is not None:
                        _note_cost(settling, delivery, delivery._cost_milli)
            for lease, indexes in leases.items():  # each travels in one frame
                self._insist({lease: indexes}, settling.costs)
        settling.finish()
        return settling

    @property
    def handed_over(self) -> dict[str, Fences]:
        """Deliveries that no caller will settle again, and whose acks are not confirmed, by queue."""
        fences: defaultdict[str, Fences] = defaultdict(list)
        for handing in self._handing:
            for lease, indexes in handing.leases.items():
                fences[lease.queue].append((lease.id, indexes))
        return fences

    def _insist(self, leases: Indexes, costs: Costs | None = None) -> None:
        handing = _Handing(leases, self._handed)
        handing.costs = costs
        self._handing[handing] = None
        # Copies, because frames add to these lists.
        self.collected.append((handing, ACK, {lease: [*indexes] for lease, indexes in leases.items()}))

    def _handed(self, handing: "_Handing", error: FilaError | None) -> None:
        del self._handing[handing]
        if error is not None and error.retryable:
            self._insist(handing.leases, handing.costs)

    def flush(self) -> None:
        """Send the settlements since the last flush."""
        frames: defaultdict[tuple[str, Settlement], list[_Frame]] = defaultdict(list)
        while self.collected:
            settling, how, leases = self.collected.popleft()
            deliveries_max = NACKED_MAX if how.verb is Verb.NACK else FENCES_MAX
            for lease, indexes in leases.items():
                open_to = frames[lease.queue, how]
                for start in range(0, len(indexes), deliveries_max):
                    part = indexes[start : start + deliveries_max]
                    if not open_to or not open_to[-1].has_room(lease, len(part), deliveries_max):
                        open_to.append(_Frame())
                    open_to[-1].add(settling, lease, part)
        for (queue, how), frame in [(kind, frame) for kind, each in frames.items() for frame in each]:
            command = Settle(how.verb, fences_of(frame.leases), how.error, how.metadata, how.after_ms, frame.costs)
            if how.verb is not Verb.NACK:
                self._send(queue, command, partial(_answered, frame))
                continue
            nacks = self._nacks.setdefault(queue, _Nacks(self._now()))
            call = self._send(queue, command, partial(self._nacked, queue, nacks, frame))
            if not call.done:
                nacks.calls[call] = nacks.sent = nacks.sent + 1

    def _nacked(self, queue: str, nacks: _Nacks, frame: _Frame, call: PendingCall) -> None:
        place = nacks.calls.pop(call, 0)
        now = self._now()
        if call.error is None and now - nacks.progress_at >= PROGRESS_SHARE * self._timeout_s:
            nacks.progress_at = now
            for later, its_place in reversed(nacks.calls.items()):
                if its_place < place:
                    break
                later.deadline = max(later.deadline, now + self._timeout_s)
        if not nacks.calls and self._nacks.get(queue) is nacks:
            del self._nacks[queue]
        _answered(frame, call)

    def fail_all(self, error: FilaError) -> None:
        """Fail the settlements that were not sent yet."""
        while self.collected:
            settling, _, leases = self.collected.popleft()
            settling.refused(leases, lambda lease, index: error)
            settling.finish()

    def _unclaimable(self, settling: Settling, position: int, how: Settlement) -> None:
        delivery = settling.deliveries[position]
        if delivery._lease.owner is not self._owner:
            text = f"{delivery!r} was received by another client: settle it there"
            settling.errors[position] = InvalidArgumentError(text)
        elif not delivery._lease.at_most_once:
            settling.errors[position] = AlreadySettledError(f"{delivery!r} was settled before: settle each delivery once")
        elif how.verb is not Verb.ACK:
            text = f"{delivery!r} was delivered at most once, it is gone from its queue: there is nothing to settle"
            settling.errors[position] = AlreadySettledError(text)


def runs_of(deliveries: "Sequence[Delivery]") -> list[Run]:
    """Return the runs of deliveries that are in the order in which they came. It looks at the ends of each only."""
    runs: list[Run] = []
    at = 0
    while at < len(deliveries):
        lease, first = deliveries[at]._lease, deliveries[at]._index
        count = min(lease.size - first, len(deliveries) - at)
        last = deliveries[at + count - 1]
        if last._lease is not lease or last._index != first + count - 1:
            count = 1  # some of its neighbours were taken by another thread, or are lost
        runs.append((lease, first, count))
        at += count
    return runs


def _note_cost(settling: Settling, delivery: "Delivery", cost_milli: int) -> None:
    if settling.costs is None:
        settling.costs = {}
    settling.costs.setdefault(delivery._lease, {})[delivery._index] = cost_milli


def in_frames(leases: Indexes) -> Iterator[Indexes]:
    """Yield the same in pieces, each of which a frame may carry."""
    piece: Indexes = {}
    named = 0
    for lease, indexes in leases.items():
        if len(piece) == FENCES_MAX or named + len(indexes) > FENCES_MAX:
            yield piece
            piece, named = {}, 0
        piece[lease] = indexes
        named += len(indexes)
    if piece:
        yield piece


def pieces_of(fences: Fences) -> list[Fences]:
    """Return the same in pieces, each of which a frame may carry; at least one."""
    pieces: list[Fences] = [[]]
    named = 0
    for lease, indexes in fences:
        if len(pieces[-1]) == FENCES_MAX or named + len(indexes) > FENCES_MAX:
            pieces.append([])
            named = 0
        pieces[-1].append((lease, indexes))
        named += len(indexes)
    return pieces


def fences_of(leases: Indexes) -> Fences:
    """Return deliveries as they travel."""
    return [(lease.id, [] if len(indexes) == lease.size else indexes) for lease, indexes in leases.items()]


def _answered(frame: _Frame, call: PendingCall) -> None:
    for settling in frame.members:
        if settling.abandoned:
            settling.leave_to_others(frame.leases)
    if call.error is not None:
        error = call.error
        _refuse(frame, lambda lease, index: error)
    elif call.value.faults:
        _refuse(frame, _finder(call.value.faults))
    else:
        for lease, indexes in frame.leases.items():
            lease.ended(len(indexes))
    for settling in frame.members:
        settling.frame_answered()


def _refuse(frame: _Frame, error_of: Callable[[ClientLease, int], FilaError | None]) -> None:
    leases = {lease: frozenset(indexes) for lease, indexes in frame.leases.items()}
    for settling in frame.members:
        settling.refused(leases, error_of)
    for lease, indexes in frame.leases.items():
        errors = (error_of(lease, index) for index in indexes)
        lease.ended(sum(error is None or not error.retryable for error in errors))


def _finder(faults: Sequence[tuple[int, int, Fault]]) -> Callable[[ClientLease, int], FilaError | None]:
    """Return a function that finds errors by lease and index; index -1 is the whole lease's."""
    known = {(lease, index): from_fault(fault) for lease, index, fault in faults}
    return lambda lease, index: known.get((lease.id, index)) or known.get((lease.id, -1))
