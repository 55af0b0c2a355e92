"""Leases without a subscription, waiting receives, and frames that must reach the broker: what a client keeps alive by itself."""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, repeat
from typing import TypeAlias

from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.lease import NO_LEASE, ClientLease, LeaseOwner
from fila_cluster.client.protocol.settling import Indexes, fences_of, in_frames
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.requests.call import PendingCall, StartCall
from fila_proto_zmq import commands
from fila_proto_zmq.limits import FENCES_MAX
from fila_proto_zmq.names import root_name

HEARTBEAT_S_MAX = 2.0
"""How long an idle consumer may take to notice that its worker was restarted."""
HEARTBEAT_S_MIN = 0.05
OWED_MAX = 1000
"""Owed frames; beyond it the oldest is dropped: then leases run out."""

Make: TypeAlias = Callable[[ClientLease, int, bytes], Delivery]


class LooseLeases:
    """The part of a :class:`~consuming.Consumption` that needs no subscription. The times are its."""

    def __init__(
        self, owner: LeaseOwner, make: Make, send: StartCall, call_timeout_s: float, leaving_timeout_s: float
    ) -> None:
        self.now = 0.0
        self.timeout_s = math.inf
        self.due_at = math.inf
        self.subscriptions: dict[int, ClientSubscription] = {}
        self._owner = owner
        self._make = make
        self._send = send
        self._call_timeout_s = call_timeout_s
        self._leaving_timeout_s = leaving_timeout_s
        self._loose: defaultdict[str, dict[int, ClientLease]] = defaultdict(dict)
        self._loose_beat_at = math.inf
        self._lapsing: dict[str, float] = {}
        """The queues with loose leases of which nothing can be settled any more, each with the end of its last one."""
        self._receives: set[PendingCall] = set()
        self._beating: set[tuple[str, int, int]] = set()
        """The heartbeats and extensions without an answer yet, by queue, duration and place."""
        self._roots: set[str] = set()
        self._owed: deque[tuple[str, commands.Command]] = deque(maxlen=OWED_MAX)

    def take_no_answer(self, call: PendingCall) -> None:
        """Give back the messages of a receive that ended without its answer, those under way included."""
        self._owe(call.key, commands.CancelReceive(call.request, release=True))

    def expect(self, call: PendingCall) -> None:
        """Note that a receive waits for messages: its client needs heartbeats meanwhile."""
        self._roots.add(root_name(call.key))
        if not call.done:
            self._receives.add(call)
            self._schedule_loose()

    def expect_no_more(self, call: PendingCall) -> None:
        """Note that a receive is over."""
        self._receives.discard(call)

    def received(self, queue: str, delivered: commands.Delivered) -> list[Delivery]:
        """Return the deliveries of a receive."""
        deliveries = self._take(queue, delivered.batches, self._loose[queue], renewed=False)
        self._schedule_loose()
        return deliveries

    def give_back(self, queue: str, batches: Iterable[commands.LeaseBatch]) -> None:
        """Give back messages that no caller waits for, except those of an answer that came twice."""
        unwanted = (batch.lease for batch in batches if batch.lease not in self._loose[queue])
        fences: commands.Fences = [(lease, []) for lease in unwanted if lease != NO_LEASE]
        if fences:
            self._send(queue, commands.Settle(commands.Verb.RELEASE, fences))

    def _take(
        self, queue: str, batches: Iterable[commands.LeaseBatch], group: dict[int, ClientLease], *, renewed: bool
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        leases = [ClientLease(queue, batch, self._owner, renewed=renewed) for batch in batches]  # first: a bad one spoils all
        for lease in leases:
            lease.hold(group)
            records, lease.terms.records = lease.terms.records, []
            if lease.size == 1:
                deliveries.append(self._make(lease, 0, records[0]))
            else:
                deliveries += map(self._make, repeat(lease), count(), records)
        return deliveries

    def _beat_loose(self) -> None:
        owed = list(self._owed)
        self._owed.clear()
        for queue, command in owed:
            self._owe(queue, command)
        # Groups of queues without leases would get heartbeats for ever.
        self._loose = defaultdict(dict, {queue: group for queue, group in self._loose.items() if group})
        subscribed = {root_name(subscription.queue) for subscription in self.subscriptions.values()}
        waiting = {call.key for call in self._receives}
        # A subscription's heartbeat keeps the client alive on the shard of its root: that needs no other.
        self._lapsing = {queue: until for queue, until in self._lapsing.items() if until > self.now}
        for root in set(map(root_name, waiting | self._loose.keys() | self._lapsing.keys())) - subscribed:
            self._beat_once(root, commands.Heartbeat())
        for queue, group in self._loose.items():
            self._extend(queue, [lease for lease in group.values() if lease.renewed])
        self._loose_beat_at = math.inf
        if self._loose or self._receives or self._lapsing:
            self._schedule_loose(lease.terms for group in self._loose.values() for lease in group.values() if lease.renewed)

    def _extend(self, queue: str, leases: Sequence[ClientLease]) -> None:
        durations: defaultdict[int, commands.Fences] = defaultdict(list)
        for lease in leases:
            durations[lease.renewal_ms].append((lease.id, []))
        for duration_ms, fences in durations.items():
            for start in range(0, len(fences), FENCES_MAX):
                self._beat_once(queue, commands.Extend(fences[start : start + FENCES_MAX], duration_ms), start)

    def _beat_once(self, queue: str, command: commands.Heartbeat | commands.Extend, start: int = 0) -> None:
        """Keep something alive, unless the last heartbeat for it has no answer yet."""
        beat = queue, command.duration_ms if isinstance(command, commands.Extend) else 0, start
        if beat not in self._beating:
            self._beating.add(beat)
            then = lambda call: self._beating.discard(beat)  # noqa: E731
            self._send(queue, command, then, timeout=self._call_timeout_s, persistent=False)

    def _owe(self, queue: str, command: commands.Command, timeout: float | None = None) -> PendingCall:
        """Send a frame, and repeat it until the broker has confirmed it."""
        return self._send(queue, command, partial(self._confirmed, queue, command), timeout=timeout)

    def _confirmed(self, queue: str, command: commands.Command, call: PendingCall) -> None:
        if call.error is not None and call.error.retryable:
            self._owed.append((queue, command))
            self._schedule_loose()

    def _schedule_loose(self, to_renew: Iterable[commands.LeaseBatch] = ()) -> None:
        self._loose_beat_at = min(self._loose_beat_at, self.now + self._interval_s(to_renew))
        self.due_at = min(self.due_at, self._loose_beat_at)

    def _interval_s(self, to_renew: Iterable[commands.LeaseBatch]) -> float:
        interval_s = min(HEARTBEAT_S_MAX, self.timeout_s / 3)
        for batch in to_renew:
            third_s = (batch.expires_ms - batch.leased_ms) / 3000
            interval_s = min(interval_s, third_s)
        return max(HEARTBEAT_S_MIN, interval_s)

    def release(self, queue: str, leases: Indexes) -> PendingCall | None:
        """Give back messages that nobody has seen; return the call that confirms it."""
        ended = {lease: indexes for lease, indexes in leases.items() if lease.id != NO_LEASE}
        call = None
        for piece in in_frames(ended):
            call = self._owe(queue, commands.Settle(commands.Verb.RELEASE, fences_of(piece)), self._leaving_timeout_s)
        return call  # the last one: a link keeps its order
