"""One queue with several partitions in a ``receive``: asks its partitions one after the other.

They are asked for messages that are ready now, each for its share of what is wanted, the one that is furthest behind first, until
there are enough or none has more. If many messages are wanted, all partitions are first looked at, at the same time, and then
asked at the same time. If none had any, all of them are watched until one has, or the time is up. A partition that
does not answer is left out; its error counts only if nothing comes of the others.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from fila_cluster.client.protocol.partitions.shares import Shares
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_cluster.client.protocol.receiving import ReceiveSession

Outcome: TypeAlias = "Callable[[Sequence[Delivery], FilaError | None], None]"


class PartitionedAsk:
    """``then`` is called once, with the messages, or with an error and none."""

    def __init__(
        self,
        asking: "ReceiveSession",
        names: Sequence[str],
        shares: Shares,
        count: int,
        wait_until: float,
        deadline: float,
        then: Outcome,
    ) -> None:
        self._asking = asking
        self._names = names
        self._shares = shares
        self._count = count
        self._wait_until = wait_until
        self._deadline = deadline
        self._then = then
        self._got: list[Delivery] = []
        self._error: FilaError | None = None
        self._candidates = set(range(len(names)))
        self._calls: dict[int, PendingCall] = {}
        self._watching = False
        self._hurried = False
        self._over = False
        self._starting = False
        self._again = False
        self._looking = 0
        """Looks under way whose answers are waited for."""

    def start(self) -> None:
        """Ask the first partition, or look at all."""
        if self._count >= len(self._names):
            self._looking = len(self._names)
            for partition in range(len(self._names)):
                self._ask(partition, 0, 0, partial(self._seen, partition))
        else:
            self._go_on()

    def _seen(self, partition: int, call: PendingCall) -> None:
        """Take in a look; after the last one ask all that have something."""
        self._calls.pop(partition, None)
        self._looking -= 1
        if self._over:
            return
        if call.error is not None:
            self._fail(partition, call.error)
        else:
            self._shares.note(partition, call.weight)
        if self._over or self._looking:
            return
        self._candidates &= self._shares.ready
        self._starting = True  # until all are asked
        for each, count in self._shares.deal(self._count).items():
            if each in self._candidates:
                self._ask(each, count, 0, partial(self._answered, each, count))
        self._starting = False
        if not self._calls:
            self._go_on()

    def hurry(self, within_s: float) -> None:
        """Wait no longer than this for what is asked."""
        self._hurried = True
        for call in list(self._calls.values()):
            self._asking.hurry(call, within_s)

    def let_go(self) -> None:
        """Stop waiting, and give everything back, now and when more comes."""
        self._over = True
        for call in list(self._calls.values()):
            self._asking.let_go(call)
        self._asking.release(self._got)

    def _go_on(self) -> None:
        """Take the next step. A call may be answered while it is started: so this is a loop."""
        self._again = True
        if self._starting:
            return
        self._starting = True
        while self._again and not self._over:
            self._again = False
            left = self._count - len(self._got)
            if left > 0 and self._candidates:
                partition, share = self._shares.first(self._candidates, left, self._asking.now)
                share = min(share, DELIVERY_MESSAGES_MAX)
                self._ask(partition, share, 0, partial(self._answered, partition, share))
            elif self._got or self._hurried or self._asking.now >= self._wait_until:
                self._finish()
            else:
                self._watch()
        self._starting = False

    def _ask(self, partition: int, count: int, wait_ms: int, then: Callable[[PendingCall], None]) -> None:
        timeout_s = self._deadline - self._asking.now
        call = self._asking.ask_for(
            self._names[partition],
            count,
            wait_ms,
            then,
            timeout=timeout_s,
            persistent=self._watching,
            partitions=len(self._names),
        )
        if not call.done:
            self._calls[partition] = call

    def _answered(self, partition: int, count: int, call: PendingCall) -> None:
        self._calls.pop(partition, None)
        if self._over:
            return
        if call.error is not None:
            self._fail(partition, call.error)
        else:
            self._got += call.value
            self._shares.take_back(partition, count - len(call.value))
            self._shares.note(partition, call.weight)
            if not call.value or not call.weight:
                self._candidates.discard(partition)
        if not self._calls:
            self._go_on()

    def _fail(self, partition: int, error: FilaError) -> None:
        self._error = error
        self._candidates.discard(partition)
        if not error.retryable:
            self._finish()

    def _watch(self) -> None:
        self._watching = True
        wait_ms = max(1, round(1000 * (self._wait_until - self._asking.now)))
        for partition in range(len(self._names)):
            if self._watching and not self._over:
                self._ask(partition, 0, wait_ms, partial(self._looked, partition))

    def _looked(self, partition: int, call: PendingCall) -> None:
        self._calls.pop(partition, None)
        if self._over or not self._watching:
            return
        if call.error is not None:
            self._error = call.error
        elif call.weight:
            self._watching = False
            for other in list(self._calls.values()):
                self._asking.let_go(other)
            self._calls.clear()
            self._candidates = {partition}
            self._go_on()
            return
        if not self._calls:
            self._finish()

    def _finish(self) -> None:
        if self._over:
            return
        self._over = True
        error, got = self._error, self._got
        if got and error is not None and not error.retryable:
            self._asking.release(got)
            got = []
        self._then(got, None if got or error is None else copy(error))
