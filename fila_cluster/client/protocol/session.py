"""The client's side of the protocol, without I/O: frames and requests in, frames and results out.

A shell (blocking or asyncio) owns the socket and the clock and does this, whenever something happens:

1. give every frame that arrived to :meth:`ClientSession.arrived`, a dropped link to :meth:`ClientSession.disconnected`;
2. call :meth:`ClientSession.flush`: it sends the collected requests, expires and retries calls, and sends heartbeats;
3. send everything in :attr:`ClientSession.outgoing`, in order;
4. connect and close the direct ways that :attr:`ClientSession.routes` wants and does not want, and send the outgoing
   frames of the others;
5. come back when a frame arrives, when a caller asks for something, or at :meth:`ClientSession.next_deadline`.

A call that is alone may go past all of this: :mod:`short_calls`.

``now`` is monotonic seconds everywhere. Results appear in the :class:`Pending` that each request returned.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from fila_cluster.client.protocol.consuming import Consumption
from fila_cluster.client.protocol.encoding import Row
from fila_cluster.client.protocol.lease import LeaseOwner
from fila_cluster.client.protocol.loose import Make
from fila_cluster.client.protocol.ordering import Chunk, Surroundings
from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.client.protocol.partitions.sending import QueueSender
from fila_cluster.client.protocol.pipelining import Pipelines
from fila_cluster.client.protocol.producing import SingleEnqueues
from fila_cluster.client.protocol.receiving import Receiving
from fila_cluster.client.protocol.settling import Settlement, Settler, Settling
from fila_cluster.client.protocol.short_calls import ShortCalls
from fila_cluster.client.protocol.subscription import ClientSubscription, Gathering
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_cluster.client.requests.connection import PIPE_BYTES_MAX, BrokerConnection
from fila_cluster.client.requests.open_calls import KEPT_BYTES_MAX
from fila_cluster.client.requests.routes import DirectWay, Way
from fila_proto_zmq import commands
from fila_proto_zmq.codec import decode_body, from_fault
from fila_proto_zmq.errors import FilaError, InvalidFrameError
from fila_proto_zmq.frames import ERROR, REPLY, Header, pack_header, unpack_header
from fila_proto_zmq.version import VERSION

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_proto_zmq.stream import Parts

CLIENT_VERSION = f"python/{VERSION}"
"""The name of this library in the greeting and in traces."""

_OF_THE_LINK = frozenset({commands.CLOSED, commands.MARK, commands.PLACEMENT, commands.WORKER_BANNER})
"""Pushes that are about the connection itself."""

_PUSH = pack_header(commands.DELIVERY)
"""The header of a push, as workers send it."""
GREETING_LOOK_S = 0.05
"""How often to look for the answer to a greeting when no caller waits for an answer."""


class ClientSession:
    """Joins connection, production, settlement and consumption of one client.

    Methods that only collect may be used in any thread: :meth:`enqueue`, :meth:`settle`, and the deques :attr:`forgotten` and
    :attr:`abandoned`, where finalizers leave leases and subscriptions. Everything else needs the session
    for itself.
    """

    def __init__(
        self,
        endpoint: str,
        owner: LeaseOwner,
        make: Make,
        *,
        timeout_s: float,
        client_version: str,
        random: Random,
        api_key: str = "",
        direct: bool = False,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        pipe_bytes_max: int = PIPE_BYTES_MAX,
    ) -> None:
        self.timeout_s = timeout_s
        self._now = 0.0
        self._connection = BrokerConnection(
            endpoint,
            client_version,
            self._welcomed,
            self._moved,
            random,
            api_key=api_key,
            direct=direct,
            kept_bytes_max=kept_bytes_max,
            pipe_bytes_max=pipe_bytes_max,
        )
        self._calls = self._connection.calls
        self._singles = SingleEnqueues(self._start)
        self.timers = Timers()
        self.plans = Plans(random)
        self._calls.judge = self.plans.judged
        self._around = Surroundings(self._start, self.timers, random, timeout_s, lambda: self._now)
        self.pipelines = Pipelines(self._around, self.plans)
        self._settler = Settler(owner, self._start, lambda: self._now, timeout_s)
        self._consumption = Consumption(owner, make, self._start, timeout_s, self.timers, self.plans, random)
        self.outgoing: deque[list[bytes]] = self._connection.router.outgoing
        self.routes = self._connection.routes
        self.enqueue: Callable[[str, Row], Pending[str]] = self._singles.enqueue
        self.settle = self._settler.settle
        self.forgotten = self._consumption.forgotten
        self.abandoned = self._consumption.abandoned
        collected = (self._singles.collected, self._settler.collected, self.forgotten, self.abandoned)
        self.short = ShortCalls(self._connection, self._consumption, self.timers, collected, timeout_s)

    # --- events -------------------------------------------------------------------------------------------------------

    def connect(self, now: float) -> None:
        """Greet the broker, as the socket is there."""
        self._at(now)
        self._connection.greet()

    def disconnected(self, now: float) -> None:
        """Note that the link dropped; the socket reconnects by itself."""
        self._at(now)
        self._consumption.disconnected(self._by_router)
        self._connection.disconnected()

    def refused_link(self, why: str, *, final: bool) -> None:
        """Note that the server refused a connection before any frame was sent. ``final``: the link will not try again."""
        self._connection.refused_link(why, final=final)

    @property
    def has_refusal(self) -> bool:
        """Whether every call ends with an error, because no broker lets this client in."""
        return self._connection.refusal is not None

    @property
    def greeted(self) -> bool:
        """Whether the router has answered this client's greeting."""
        return self.routes.router.greeting is None

    def _by_router(self, queue: str) -> bool:
        """Return whether pushes of a queue come through the router."""
        shard = self.routes.shard(queue)
        return shard is None or shard.used in {None, self.routes.router}

    def lost(self, way: DirectWay, now: float) -> None:
        """Note that a direct connection is gone, or that none could be made."""
        self._at(now)
        self._connection.lost(way)

    def arrived(self, parts: "Parts | Sequence[bytes]", now: float, way: Way | None = None) -> None:
        """Take in one frame, from the router or on a direct way. A frame that is not of this protocol is dropped."""
        self._now = self._consumption.now = self._calls.now = now
        try:
            if parts[0] == _PUSH:
                self._consumption.pushed(str(parts[1], "utf-8"), decode_body(commands.Delivered, parts[2]))
                return
            header = unpack_header(parts[0])
            key, body = str(parts[1], "utf-8"), parts[2]
            if header.opcode == commands.DELIVERY and not header.flags & REPLY:
                self._consumption.pushed(key, decode_body(commands.Delivered, body))
                return
            if self.short.way is not None:
                if self.short.answered_with(header, body):
                    return
                self.short.widen()
            if header.opcode in _OF_THE_LINK and not header.flags & REPLY:
                self._arrived_of_link(header.opcode, body, way)
            elif not self._calls.answer(header, body, way or self.routes.router):
                self._give_back(header, key, body)
        except (InvalidFrameError, IndexError, UnicodeDecodeError):
            return

    def _arrived_of_link(self, opcode: int, body: bytes | memoryview, way: Way | None) -> None:
        if opcode == commands.PLACEMENT:
            self._connection.placed(decode_body(commands.Placement, body))
        elif opcode == commands.WORKER_BANNER and isinstance(way, DirectWay):
            self._connection.at_door(way, decode_body(commands.WorkerBanner, body).door)
        elif opcode == commands.CLOSED and way is None:
            self.disconnected(self._now)  # as if the connection were a new one
        # else a mark: it only shows the broker that this client reads frames

    def flush(self, now: float) -> None:
        """Send collected requests, and do the work that is due."""
        self._at(now)
        self.timers.tick(now)
        if self._singles.collected:
            self._singles.flush()
        if self._settler.collected:
            self._settler.flush()
        if self._calls.due_at <= now:
            self._calls.tick()
        if self._connection.reachable:
            self._consumption.tick()
        elif self._consumption.holds_anything and (refusal := self._connection.admission_error()) is not None:
            self._consumption.refused(refusal)

    @property
    def collected(self) -> int:
        """How many calls were collected since the last flush."""
        return len(self._singles.collected) + len(self._settler.collected)

    def next_deadline(self) -> float:
        """Return when to call :meth:`flush` at the latest."""
        return min(self._calls.due_at, self.heartbeat_at, self.timers.due_at)

    @property
    def heartbeat_at(self) -> float:
        """When the next heartbeat is due, also if no caller waits; while greeting, when to look for the answer."""
        if self._connection.reachable:
            due_at = self._consumption.due_at
            return min(due_at, self._now + GREETING_LOOK_S) if self.routes.opening else due_at
        return self._now + GREETING_LOOK_S if self._consumption.holds_anything else math.inf

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(
        self,
        key: str,
        command: commands.Command,
        now: float,
        then: Callable[[PendingCall], None] | None = None,
        *,
        ends_at: float | None = None,
        is_last: bool = True,
    ) -> PendingCall:
        """Send a command that is neither collected nor kept alive.

        ``ends_at``: when the caller waits no longer; None: after the client's timeout. Unless it is the last one that the
        caller sends, it may take half of the time that is left: so a shard that is down leaves time for the others.
        """
        self._at(now)
        left = self.timeout_s if ends_at is None else max(0.0, ends_at - now)
        return self._start(key, command, then, timeout=left if is_last else left / 2)

    def sender(self, queue: str) -> QueueSender:
        """Return a sender of enqueues, which keeps their order."""
        return QueueSender(queue, self._around, self.plans)

    def send(self, sender: QueueSender, chunk: Chunk, now: float) -> Chunk:
        """Send a chunk of enqueues through its sender."""
        self._at(now)
        return sender.send(chunk)

    def receive(self, queues: Mapping[str, int], wait_ms: int, now: float, *, whole: bool = True) -> Receiving:
        """Ask queues, each for so many messages, until there are some; the result is a list. See :class:`Receiving`."""
        self._at(now)
        return Receiving(self, queues, wait_ms, self.timeout_s, whole=whole)

    def give_up(self, receiving: Receiving, now: float) -> None:
        """Give back the messages of a receive whose caller is gone."""
        self._at(now)
        receiving.give_up()

    def extend(self, delivery: "Delivery", duration_ms: int, now: float) -> PendingCall:
        """Renew one delivery's lease."""
        self._at(now)
        lease = delivery._lease
        command = commands.Extend([(lease.id, [delivery._index])], duration_ms)
        return self._start(lease.queue, command, partial(_extended, delivery, duration_ms))

    def subscribe(self, queue: str, prefetch: int, now: float, *, auto_extend: bool) -> ClientSubscription:
        """Open a subscription."""
        self._at(now)
        return self._consumption.subscribe(queue, prefetch, auto_extend=auto_extend)

    def set_prefetch(self, subscription: ClientSubscription, prefetch: int, now: float) -> None:
        """Give a subscription another credit, with the next flush."""
        self._at(now)
        self._consumption.set_prefetch(subscription, prefetch)

    def gather(
        self, subscription: ClientSubscription, count: int, max_wait_s: float, now: float, timeout_s: float = math.inf
    ) -> Gathering:
        """Wait for a batch of deliveries, ``timeout_s`` at most."""
        self._at(now)
        gathering = Gathering(subscription, count, max_wait_s, self.timers, self._around.now, timeout_s)
        gathering.look()
        return gathering

    def unsubscribe(self, subscription: ClientSubscription, now: float) -> PendingCall | None:
        """End a subscription; the call that confirms it, None if it had ended before."""
        self._at(now)
        return self._consumption.unsubscribe(subscription)

    def abandon(self, settling: Settling, now: float) -> None:
        """Allow deliveries to be settled again, because their caller waits no longer."""
        self._at(now)
        self._settler.abandon(settling)

    def hand_over(self, delivery: "Delivery") -> None:
        """Ack, with the next flush, an at-most-once delivery. No caller waits for the answer.

        Raises the error of :meth:`goodbye`, if that came in between: then the message went back, and another client gets it.
        """
        if self._calls.farewell is not None:
            raise copy(self._calls.farewell)
        self._settler.hand_over(delivery)

    def ack_soon(self, deliveries: "Sequence[Delivery]") -> Settling:
        """Ack with the next flush, and again until it is confirmed. Raises the error of an earlier :meth:`goodbye`."""
        if self._calls.farewell is not None:
            raise copy(self._calls.farewell)
        return self._settler.ack_soon(deliveries)

    def goodbye(self, now: float, error: FilaError) -> list[PendingCall]:
        """End everything in good order; return the calls that confirm it, none if no broker is there.

        Later calls end with ``error``: no client would give back what the broker leased after the farewell.
        """
        self._at(now)
        self._settler.flush()  # or messages that were just acked would be given back
        self._consumption.end_all()
        calls = [] if not self._connection.reachable else self._consumption.goodbye(self._settler.handed_over)
        self._calls.farewell = error
        return calls

    def disown(self, error: FilaError) -> None:
        """Give out no deliveries that the parent has prefetched, in the child of a fork."""
        self._consumption.disown(error)

    def leave_untaken(self) -> None:
        """Mark prefetched deliveries as settled: the client is gone without a farewell."""
        self._consumption.leave_untaken()

    def fail_all(self, error: FilaError) -> None:
        """End every call, now."""
        self._singles.fail_all(error)
        self._settler.fail_all(error)
        self._calls.fail_all(error)
        self.pipelines.fail_all(error)
        for sender in list(self._around.senders):
            sender.fail_all(error)

    @property
    def kept_bytes(self) -> int:
        """The size of what is kept for the broker: unanswered calls, and frames that may lie in the socket's pipe."""
        return self._calls.kept_bytes

    @property
    def has_left(self) -> bool:
        """Whether :meth:`goodbye` was called."""
        return self._calls.farewell is not None

    # --- the ReceiveSession -------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The time of the last call."""
        return self._now

    @property
    def farewell(self) -> FilaError | None:
        """The error of :meth:`goodbye`; None if it was not called."""
        return self._calls.farewell

    def ask_for(
        self,
        queue: str,
        count: int,
        wait_ms: int,
        then: Callable[[PendingCall], None],
        *,
        timeout: float,
        persistent: bool = True,
        partitions: int = 0,
    ) -> PendingCall:
        """Ask a queue once for messages."""
        received = partial(self._received, then)
        command = commands.Receive(count, wait_ms, partitions=partitions)
        call = self._start(queue, command, received, timeout=timeout, persistent=persistent)
        self._consumption.expect(call)
        return call

    def hurry(self, call: PendingCall, within_s: float) -> None:
        """Move the deadline of a receive forward."""
        if not call.sent:
            self._calls.forget(call)
            return
        if isinstance(call.command, commands.Receive) and call.command.wait_ms:
            self._start(call.key, commands.CancelReceive(call.request), persistent=False)
        self._calls.hasten(call, self._now + within_s)

    def let_go(self, call: PendingCall) -> None:
        """Stop waiting for a receive."""
        self._calls.forget(call)

    def release(self, deliveries: "Sequence[Delivery]") -> None:
        """Give back deliveries that no caller has seen."""
        self._settler.settle(deliveries, Settlement(commands.Verb.RELEASE))
        self._settler.flush()

    def _at(self, now: float) -> None:
        self._now = self._consumption.now = self._calls.now = now

    def _start(
        self,
        key: str,
        command: commands.Command,
        then: Callable[[PendingCall], None] | None = None,
        *,
        timeout: float | None = None,
        persistent: bool = True,
    ) -> PendingCall:
        timeout_s = self.timeout_s if timeout is None else timeout
        return self._calls.start(PendingCall(key, command, self._now, timeout_s, then=then, persistent=persistent))

    def _welcomed(self, welcome: commands.Welcome) -> None:
        self._consumption.welcomed(welcome.consumer_timeout_ms / 1000)

    def _moved(self, number: int) -> None:
        """Send heartbeats for the subscriptions of a shard: pushes may have been lost between two ways."""
        self._consumption.moved(lambda queue: (shard := self.routes.shard(queue)) is not None and shard.number == number)

    def _received(self, then: Callable[[PendingCall], None], call: PendingCall) -> None:
        self._consumption.expect_no_more(call)
        if call.error is None:
            call.weight, call.strays = call.value.weight, call.value.strays
            call.value = self._consumption.received(call.key, call.value)
        elif call.may_be_done and call.error.retryable and not self.has_left:
            self._consumption.take_no_answer(call)
        then(call)

    def _give_back(self, header: Header, key: str, body: bytes | memoryview) -> None:
        if header.opcode == commands.Receive.opcode and not header.flags & ERROR:
            self._consumption.give_back(key, decode_body(commands.Delivered, body).batches)


def _extended(delivery: "Delivery", duration_ms: int, call: PendingCall) -> None:
    if call.error is not None:
        return
    if call.value.faults:
        call.error = from_fault(call.value.faults[0][2])
        return
    delivery._expires_ms = call.value.expires_ms
    delivery._lease.renewal_ms = max(delivery._lease.renewal_ms, duration_ms)
