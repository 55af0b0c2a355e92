"""One ``consume()`` of a queue with several partitions.

Each partition has a *member*: a subscription for no messages, whose heartbeats show that the consumer lives, renew its leases,
and restore it after a restart. Messages come only when they are asked for, with a Receive, and only as many as the consumer
may hold in all: so a prefetch of 1 leases one message, however many partitions there are.

A partition that has nothing ready is *watched*: a Receive for no messages, which is answered as soon as there is something. When
messages are settled, their number is dealt among the ready partitions (:mod:`shares`), which are then asked. So an idle queue
costs its heartbeats, and a watch for each partition that begins anew now and then.

What is lost is asked again: a Receive whose answer does not come is cancelled, which gives its messages back, and its number is
dealt again. A partition that is down is watched again after a pause, and the others go on. An error that lasts has the
partition's heartbeat sent at once: its answer says whether the queue is gone, or has other partitions.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from fila_cluster.client.protocol.lease import ClientLease
from fila_cluster.client.protocol.partitions.shares import Shares
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import PendingCall, StartCall
from fila_proto_zmq import commands
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX
from fila_proto_zmq.partitions import Plan

if TYPE_CHECKING:
    from random import Random

WATCH_S: Final = 20.0
"""How long a watch waits before it begins anew."""
FIRST_LOOK_S: Final = 1.0
"""How long the first messages wait until all partitions have answered: one may be at a worker that hangs."""
ANSWER_S: Final = 5.0
"""How long its answer may take beyond that."""
PAUSE_S: Final = 0.25
"""How long a partition that answered with an error, or had nothing after all, is left alone."""
CHUNK_SHARE: Final = 2
"""A part of the prefetch: so much is asked for together, unless nothing else is there."""


class FeedConsumption(Protocol):
    """The consumption's interface for a feed."""

    now: float
    due_at: float

    def open_member(self, subscription: ClientSubscription, queue: str, partitions: int) -> ClientSubscription:
        """Open the subscription for a partition."""

    def close_member(self, member: ClientSubscription) -> PendingCall | None:
        """End the subscription for a partition; return the call that confirms it."""

    def fed(self, member: ClientSubscription, delivered: commands.Delivered) -> list[ClientLease]:
        """Take in deliveries of a partition, and return their leases."""

    def take_no_answer(self, call: PendingCall) -> None:
        """Cancel a Receive, and give back the messages of its answer."""

    def give_back(self, queue: str, batches: list[commands.LeaseBatch]) -> None:
        """Give back messages that no caller waits for."""

    def beat_soon(self, member: ClientSubscription) -> None:
        """Send the heartbeat of a member with the next flush."""


class PartitionFeed:
    """The partitions of one ``consume()``. ``held``: how many messages are leased to it."""

    def __init__(
        self,
        consumption: FeedConsumption,
        send: StartCall,
        timers: Timers,
        subscription: ClientSubscription,
        plan: Plan,
        random: "Random",
    ) -> None:
        self.subscription = subscription
        self.plan = plan
        self.held = 0
        self._consumption = consumption
        self._send = send
        self._timers = timers
        self._shares = Shares(len(plan.all), random)
        self._asked = 0
        self._calls: dict[PendingCall, int] = {}
        self._watched: set[int] = set()
        self._going_on = False
        self.closed = False
        self.members: list[ClientSubscription] = []
        self._unknown = set(range(len(plan.all)))
        """Partitions that were not looked at yet. Until then, or a moment, none is asked: the first one would get it all."""

    def open(self) -> None:
        """Open the members, and look at each partition. A client that has taken leave ends it at once."""
        self.subscription.hungry = self.look_again
        for name in self.plan.names(self.subscription.queue):
            if not self.closed:
                self.members.append(self._consumption.open_member(self.subscription, name, len(self.plan.all)))
        self._timers.at(self._consumption.now + FIRST_LOOK_S, self._know)
        for partition in range(len(self.plan.all)):
            self._watch(partition, 0.0)

    def follow(self, plan: Plan) -> None:
        """Have other partitions. What is leased, or was asked for and comes, stays: the order of a key would suffer."""
        if plan == self.plan:
            return
        before, held = len(self.plan.all), len(plan.all)
        self.plan = plan
        self._shares.resize(held)
        for member in self.members[held:]:
            self._consumption.close_member(member)
        del self.members[held:]
        for call in [call for call, partition in self._calls.items() if partition >= held]:
            self._consumption.take_no_answer(call)
        for member in self.members:
            member.partitions = held
            self._consumption.beat_soon(member)
        for name in plan.names(self.subscription.queue)[len(self.members) :]:
            self.members.append(self._consumption.open_member(self.subscription, name, held))
        self._watched = {each for each in self._watched if each < held}
        self._unknown = {each for each in self._unknown if each < held}
        for partition in range(before, held):
            self._watch(partition, 0.0)

    def take_over(self, leases: Iterable[ClientLease]) -> None:
        """Count leases that the consumer got before its queue had these partitions."""
        for lease in leases:
            if lease.unsettled:
                lease.feed = self
                self.held += lease.unsettled

    def freed(self, count: int) -> None:
        """Take back credit: messages are settled, or their leases have ended."""
        self.held -= count
        self.look_again()

    def look_again(self) -> None:
        """Have :meth:`go_on` called with the next flush, if it has something to do: there is more room, or a caller waits."""
        if self._is_wanting():
            self._consumption.due_at = self._consumption.now

    def go_on(self) -> None:
        """Ask for as many messages as the consumer may still hold."""
        if self._going_on or not self._is_wanting():
            return
        self._going_on = True
        try:
            for partition, count in self._shares.deal(self._room).items():
                for start in range(0, count, DELIVERY_MESSAGES_MAX):
                    self._ask(partition, min(count - start, DELIVERY_MESSAGES_MAX))
        finally:
            self._going_on = False

    def _is_wanting(self) -> bool:
        """Return whether to ask for more: for much together, or for little if nothing is asked for and it is needed now."""
        free = self._room
        if free <= 0 or self.closed or self._unknown or not self._shares.ready:
            return False
        return free >= self._few or not (self._asked or (self.subscription.ready and not self.subscription.waiting))

    @property
    def _room(self) -> int:
        return self.subscription.prefetch - self.held - self._asked

    @property
    def _few(self) -> int:
        return max(1, self.subscription.prefetch // CHUNK_SHARE)

    def close(self) -> list[PendingCall]:
        """End it; return the calls that confirm it."""
        self.closed = True
        self.subscription.hungry = None
        calls, self._calls = self._calls, {}
        for call in calls:
            if not call.done:
                self._consumption.take_no_answer(call)
        ended = [self._consumption.close_member(member) for member in self.members]
        return [call for call in ended if call is not None]

    def _ask(self, partition: int, count: int) -> None:
        self._asked += count
        then = partial(self._answered, partition, count, self._shares.weight(partition))
        ask = commands.Receive(count, 0, leased=True, partitions=len(self.plan.all))
        self._receive(partition, ask, then, ANSWER_S)

    def _watch(self, partition: int, wait_s: float = WATCH_S) -> None:
        if self.closed or partition in self._watched or partition >= len(self.members):
            return
        self._watched.add(partition)
        look = commands.Receive(0, round(wait_s * 1000), partitions=len(self.plan.all))
        self._receive(partition, look, partial(self._looked, partition), wait_s + ANSWER_S)

    def _know(self) -> None:
        """Begin to ask."""
        if self._unknown:
            self._unknown.clear()
            self.go_on()

    def _receive(
        self, partition: int, command: commands.Receive, then: Callable[[PendingCall], None], timeout_s: float
    ) -> None:
        call = self._send(self.members[partition].queue, command, then, timeout=timeout_s, persistent=False)
        if not call.done:
            self._calls[call] = partition

    def _looked(self, partition: int, call: PendingCall) -> None:
        self._calls.pop(call, None)
        self._watched.discard(partition)
        self._unknown.discard(partition)
        if self.closed or partition >= len(self.members):
            return
        if call.error is not None:
            self._failed(partition, call.error)
        else:
            self._shares.note(partition, call.value.weight)
            if partition not in self._shares.ready:
                self._watch(partition)
        self.go_on()

    def _answered(self, partition: int, count: int, weight: int, call: PendingCall) -> None:
        if self.closed or partition >= len(self.members):
            self._calls.pop(call, None)
            self._asked -= count
            if call.error is None:
                self._consumption.give_back(call.key, call.value.batches)
            return
        # First: what can't be read is an error of the call, which comes here then.
        leases = [] if call.error is not None else self._consumption.fed(self.members[partition], call.value)
        self._calls.pop(call, None)
        self._asked -= count
        if call.error is not None:
            if call.may_be_done and call.error.details.get("refused") is not True:
                self._consumption.take_no_answer(call)
            self._shares.take_back(partition, count, weight)
            self._shares.note(partition, 0)
            self._failed(partition, call.error)
            self.go_on()
            return
        delivered: commands.Delivered = call.value
        taken = 0
        for lease in leases:
            taken += lease.size
            if lease.group is not None:
                self.held += lease.unsettled
                lease.feed = self
        if taken < count:
            self._shares.take_back(partition, count - taken, weight)
        self._shares.note(partition, delivered.weight)
        if taken == 0 and delivered.weight:  # another consumer was faster, or it may deliver nothing after all
            self._shares.note(partition, 0)
            self._later(partition)
        elif partition not in self._shares.ready:
            self._watch(partition)
        if taken:
            self.subscription.wake()
        self.go_on()

    def _failed(self, partition: int, error: FilaError) -> None:
        if not error.retryable:
            self._consumption.beat_soon(self.members[partition])
        self._later(partition)

    def _later(self, partition: int) -> None:
        self._timers.at(self._consumption.now + PAUSE_S, lambda: self._watch(partition))
