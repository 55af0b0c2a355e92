"""One queue with several partitions in a ``receive``: asks its partitions one after the other.

They are asked for messages that are ready now, each for its share of what is wanted, the one that is furthest behind first, until
there are enough or none has more. If many messages are wanted, all partitions are first looked at, at the same time, and then
asked at the same time. If none had any, all of them are watched until one has, or the time is up. A message may be on its way from
one partition to another, and be in neither look: so all are looked at again if one of them says that there are or were such
messages. A partition that
does not answer is left out; its error counts only if nothing comes of the others. One that was refused is asked again then, as
other calls are, until its time is up, unless other queues have messages (``insists``). An error that lasts ends it at once, and
what the others gave goes back, except for what was delivered at most once.
"""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from fila_cluster.client.protocol.lease import NO_LEASE
from fila_cluster.client.protocol.partitions.shares import Shares
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq.errors import FilaError

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_cluster.client.protocol.receiving import ReceiveSession

LOOK_S: Final = 1.0
"""How long messages of some partitions wait for a look at the others."""

STRAYS_S: Final = 1.0
"""How long to wait for messages on their way between partitions, after there is nothing else to wait for."""

STRAYS_LOOK_MS: Final = 20
"""How long to watch all partitions meanwhile, until one is asked whether there still are such messages."""

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
        *,
        insists: bool,
    ) -> None:
        self._asking = asking
        self._names = names
        self._shares = shares
        self._count = count
        self._wait_until = wait_until
        self._deadline = deadline
        self._then = then
        self._insists = insists
        self._got: list[Delivery] = []
        self._error: FilaError | None = None
        self._candidates = set(range(len(names)))
        self._calls: dict[int, PendingCall] = {}
        self._watching = False
        self._strays = dict(shares.strays)
        """As known when all partitions were looked at last."""
        self._moving = False
        """Whether a message may have been on its way from a partition to another while all were looked at."""
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
                if not self._over:
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
            self._note(partition, call)
            if call.weight:
                self._look_no_longer()
        if self._over or self._looking:
            return
        self._candidates &= self._shares.ready
        self._starting = True  # until all are asked
        for each, count in self._shares.deal(self._count).items():
            if self._over or each not in self._candidates or self._asking.now >= self._deadline:
                self._shares.take_back(each, count, self._shares.weight(each))
            else:
                self._ask_for(each, count)
        self._starting = False
        if not self._calls:
            self._go_on()

    def _look_no_longer(self) -> None:
        """Wait a moment for the other looks, as there is something to ask for: one may be at a worker that hangs."""
        for call in [call for call in self._calls.values() if call.sent]:
            self._asking.hurry(call, LOOK_S)

    def hurry(self, within_s: float) -> None:
        """Wait no longer than this for what is asked."""
        self._hurried = True
        self._deadline = min(self._deadline, self._asking.now + within_s)
        for call in list(self._calls.values()):
            self._asking.hurry(call, within_s)

    def let_go(self) -> None:
        """Stop waiting, and give everything back, now and when more comes."""
        self._end()
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
            if left > 0 and self._candidates and self._asking.now < self._deadline:
                partition, share = self._shares.first(self._candidates, left, self._asking.now)
                self._ask_for(partition, share)
            elif self._got or self._hurried or not (self._asking.now < self._wait_until or self._may_insist()):
                self._conclude()
            else:
                self._watch(max(1, round(1000 * (self._wait_until - self._asking.now))))
        self._starting = False

    def _may_insist(self) -> bool:
        """Return whether to ask again, once, because a partition was refused before any work."""
        insists, self._insists = self._insists, False
        return insists and self._error is not None and self._error.details.get("refused") is True

    def _ask_for(self, partition: int, count: int) -> None:
        self._ask(partition, count, 0, partial(self._answered, partition, count, self._shares.weight(partition)))

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

    def _answered(self, partition: int, count: int, weight: int, call: PendingCall) -> None:
        self._calls.pop(partition, None)
        self._shares.take_back(partition, count - (0 if call.error is not None else len(call.value)), weight)
        if self._over:
            return
        if call.error is not None:
            self._fail(partition, call.error)
        else:
            self._got += call.value
            self._note(partition, call)
            if not call.value or not call.weight:
                self._candidates.discard(partition)
        if not self._calls:
            self._go_on()

    def _note(self, partition: int, call: PendingCall) -> None:
        """Take in what a partition says of itself."""
        self._shares.note(partition, call.weight)
        if not call.value and (call.strays & 1 or call.strays != self._strays.get(partition, 0)):
            self._moving = True
            self._strays[partition] = self._shares.strays[partition] = call.strays

    def _fail(self, partition: int, error: FilaError) -> None:
        self._error = error
        self._candidates.discard(partition)
        self._shares.note(partition, 0)
        if not error.retryable:
            self._finish()

    def _watch(self, wait_ms: int) -> None:
        self._watching = True
        self._moving = False
        self._error = None
        for partition in range(len(self._names)):
            if self._watching and not self._over:
                self._ask(partition, 0, wait_ms, partial(self._looked, partition))

    def _looked(self, partition: int, call: PendingCall) -> None:
        self._calls.pop(partition, None)
        if self._over or not self._watching:
            return
        if call.error is not None:
            self._fail(partition, call.error)
        elif call.weight:
            self._watching = False
            self._note(partition, call)
            self._moving = bool(self._strays)  # the others are not looked at
            for other in list(self._calls.values()):
                self._asking.let_go(other)
            self._calls.clear()
            self._candidates = {partition}
            self._go_on()
            return
        else:
            self._note(partition, call)
        if not self._calls:
            self._conclude()

    def _conclude(self) -> None:
        """End it, unless nothing came and a message may have been on its way: then look at all partitions again."""
        until = min(self._deadline, self._wait_until + STRAYS_S)
        if self._moving and not (self._got or self._hurried or self._error) and self._asking.now < until:
            self._watch(STRAYS_LOOK_MS if any(each & 1 for each in self._strays.values()) else 1)
        else:
            self._finish()

    def _end(self) -> None:
        self._over = True
        for call in list(self._calls.values()):
            self._asking.let_go(call)

    def _finish(self) -> None:
        if self._over:
            return
        self._end()
        error, got = self._error, self._got
        if got and error is not None and not error.retryable:
            self._asking.release([each for each in got if each._lease.id != NO_LEASE])
            got = [each for each in got if each._lease.id == NO_LEASE]
        self._then(got, None if got or error is None else copy(error))
