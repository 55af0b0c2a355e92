"""One ``receive`` or ``receive_any``: asks queues at the same time, and loses no message that they lease.

1. Several queues are first asked for messages that are ready now; a single one is asked at once to wait for the next ones.
2. If none was ready, all queues are asked again, to answer as soon as they have one.
3. As soon as one has messages, or an error, the others are hurried: their waiting ends at the broker, and messages that they
   leased by then count, too. A queue that does not answer within ``HURRY_S`` is dropped; its later messages go back when they
   arrive.

A queue may have more messages ready than one frame carries: then it is asked for the rest. If there are messages, a retryable
error is ignored; any other error (no such queue) is raised, and the messages of the other queues are given back.

If the client is closed meanwhile, its goodbye gives back all that is leased, so the caller gets none of it.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from fila_cluster.client.protocol.lease import NO_LEASE
from fila_cluster.client.protocol.partitions.plans import Plans, pauses
from fila_cluster.client.protocol.partitions.receiving import PartitionedAsk
from fila_cluster.client.protocol.timers import Timers
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_proto_zmq.errors import FilaError, PartitionedError, QueueNotFoundError, RequestTimeoutError
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX, DELIVERY_MESSAGES_MAX
from fila_proto_zmq.partitions import Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from fila_cluster.client.protocol.delivery import Delivery

HURRY_S = 1.0
"""How long messages of some queues wait for queues that have not answered yet."""


class ReceiveSession(Protocol):
    """The session's interface for a receiving."""

    @property
    def now(self) -> float:
        """Monotonic seconds."""

    @property
    def farewell(self) -> FilaError | None:
        """The error of all calls since the client has said goodbye; None if it has not."""

    def ask_for(
        self,
        queue: str,
        count: int,
        wait_ms: int,
        then: "Callable[[PendingCall], None]",
        *,
        timeout: float,
        persistent: bool = True,
        partitions: int = 0,
    ) -> PendingCall:
        """Ask a queue for messages. ``then`` finds a list of deliveries, or an error."""

    def hurry(self, call: PendingCall, within_s: float) -> None:
        """Move the deadline of a call that :meth:`ask_for` started forward."""

    @property
    def timers(self) -> Timers:
        """What is to be done at a time."""

    @property
    def plans(self) -> Plans:
        """What is known of queues with several partitions."""

    def let_go(self, call: PendingCall) -> None:
        """Stop waiting for a call that :meth:`ask_for` started; its messages go back."""

    def release(self, deliveries: "Sequence[Delivery]") -> None:
        """Give deliveries back that no caller has seen."""


class Receiving(Pending["list[Delivery]"]):
    """Done when there are messages, or none within the time, or an error. ``queues``: how many messages of which queue.

    Without ``whole`` it takes what one frame of each queue carries: then its size is bounded, however large messages are.
    """

    __slots__ = (
        "_asking",
        "_deadline",
        "_errors",
        "_got",
        "_hurried",
        "_open",
        "_pauses",
        "_wait_until",
        "_waits",
        "_wanted",
        "_whole",
    )

    def __init__(
        self, asking: ReceiveSession, queues: Mapping[str, int], wait_ms: int, timeout_s: float, *, whole: bool = True
    ) -> None:
        super().__init__()
        self._asking = asking
        self._wanted = queues
        self._wait_until = asking.now + wait_ms / 1000
        self._deadline = self._wait_until + timeout_s
        self._waits = len(queues) == 1
        self._whole = whole
        self._hurried = False
        self._pauses = pauses(timeout_s)
        """Before a queue is asked anew because its partitions are other ones."""
        self._got: dict[str, list[Delivery]] = {queue: [] for queue in queues}
        self._errors: dict[str, FilaError] = {}
        self._open: dict[str, PendingCall | PartitionedAsk | None] = {}
        self._ask_all()

    def give_up(self) -> None:
        """End it, because the caller is gone: give everything back, now and when more comes."""
        if not self.done:
            still_open, self._open = self._open, {}
            self.finish(self._messages(), RequestTimeoutError("given up by its caller"))
            for call in [each for each in still_open.values() if each is not None]:
                self._let_go(call)
        self._asking.release(self.value or [])

    def _let_go(self, call: PendingCall | PartitionedAsk) -> None:
        if isinstance(call, PartitionedAsk):
            call.let_go()
        else:
            self._asking.let_go(call)

    def _hurry(self, call: PendingCall | PartitionedAsk) -> None:
        if isinstance(call, PartitionedAsk):
            call.hurry(HURRY_S)
        else:
            self._asking.hurry(call, HURRY_S)

    def _ask_all(self) -> None:
        self._errors.clear()
        self._open = dict.fromkeys(self._wanted)  # all of them, before the first answers
        for queue in self._wanted:
            self._ask(queue, self._wait_ms())

    def _wait_ms(self) -> int:
        """Return how long the next receive may wait at its shard."""
        return round(1000 * max(0.0, self._wait_until - self._asking.now)) if self._waits else 0

    def _ask(self, queue: str, wait_ms: int) -> None:
        """``_waits``: a refused call is repeated. Before the waiting that would only hold up messages of other queues."""
        self._open[queue] = None
        count = self._wanted[queue] - len(self._got[queue])
        plan = self._asking.plans.get(queue)
        if plan is not None:
            self._ask_partitions(queue, plan, count, self._asking.now + wait_ms / 1000)
            return
        timeout_s = self._deadline - self._asking.now
        then = partial(self._answered, queue)
        call = self._asking.ask_for(queue, count, wait_ms, then, timeout=timeout_s, persistent=self._waits)
        if not call.done:
            self._open[queue] = call

    def _ask_partitions(self, queue: str, plan: Plan, count: int, wait_until: float) -> None:
        shares, then = self._asking.plans.shares(queue, plan), partial(self._collected, queue)
        ask = PartitionedAsk(
            self._asking, plan.names(queue), shares, count, wait_until, self._deadline, then, insists=self._waits
        )
        self._open[queue] = ask
        ask.start()

    def _collected(self, queue: str, deliveries: "Sequence[Delivery]", error: FilaError | None) -> None:
        """Take in what the partitions of a queue gave."""
        self._open.pop(queue, None)
        self._got[queue] += deliveries
        if error is not None and not self._got[queue]:
            is_elsewhere = isinstance(error, (PartitionedError, QueueNotFoundError))
            if is_elsewhere and (pause_s := next(self._pauses, None)) is not None:
                self._asking.plans.learn(queue, error)
                self._open[queue] = None
                if pause_s:
                    self._asking.timers.at(self._asking.now + pause_s, partial(self._ask_again, queue))
                else:
                    self._ask_again(queue)
                return
            self._errors[queue] = error
        self._advance()

    def _ask_again(self, queue: str) -> None:
        if not self.done:
            self._ask(queue, self._wait_ms())

    def _answered(self, queue: str, call: PendingCall) -> None:
        if self.done:  # given up
            return
        if isinstance(call.error, PartitionedError) and self._asking.plans.learn(queue, call.error) is not None:
            self._ask(queue, self._wait_ms())
            return
        del self._open[queue]
        if call.error is None:
            self._got[queue] += call.value
            if self._whole and len(self._got[queue]) < self._wanted[queue] and may_be_cut(call.value):
                self._ask(queue, 0)
        elif not self._got[queue]:
            # If there are messages, the call only asked for the rest. They are leased, and are handed over without the error.
            self._errors[queue] = call.error
        self._advance()

    def _advance(self) -> None:
        if not self._open:
            self._conclude()
        elif not self._hurried and self._has_news():
            self._hurried = True
            for call in [each for each in self._open.values() if each is not None]:
                self._hurry(call)

    def _conclude(self) -> None:
        messages = self._messages()
        if (farewell := self._asking.farewell) is not None:
            self._keep_what_is_gone(messages, farewell)
            return
        lasting = next((error for error in self._errors.values() if not error.retryable), None) if self._errors else None
        if lasting is not None and all(delivery._lease.id != NO_LEASE for delivery in messages):
            self._asking.release(messages)
            self.finish(error=lasting)
        elif messages:
            self.finish(messages)
        elif self._has_news():
            self.finish(error=next(iter(self._errors.values())))
        elif not self._waits and (self._errors or self._asking.now < self._wait_until):
            self._waits = True
            self._ask_all()
        else:
            self.finish(messages)

    def _keep_what_is_gone(self, messages: "Sequence[Delivery]", farewell: FilaError) -> None:
        """Hand over only what was delivered at most once; the rest is given back by the goodbye of its client."""
        for delivery in messages:
            delivery._settled = True
        gone = [delivery for delivery in messages if delivery._lease.id == NO_LEASE]
        self.finish(gone, None if gone else copy(farewell))

    def _messages(self) -> "list[Delivery]":
        lists = self._got.values()
        return next(iter(lists)) if len(lists) == 1 else list(chain.from_iterable(lists))

    def _has_news(self) -> bool:
        """Return whether there is a result for the caller. Queues that refused before the waiting are asked again first."""
        if self._errors and (self._waits or any(error.details.get("refused") is not True for error in self._errors.values())):
            return True
        return any(self._got.values())


def may_be_cut(deliveries: "Sequence[Delivery]") -> bool:
    """Return whether a queue may have given less than asked for because one frame carries no more."""
    if len(deliveries) < DELIVERY_MESSAGES_MAX:
        return sum(len(delivery._packed) for delivery in deliveries) >= DELIVERY_BYTES_MAX
    return True
