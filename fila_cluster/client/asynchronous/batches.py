"""The iterator that ``consume_batches()`` returns, and its batches.

A settlement is sent at once. It is confirmed when the next batch is taken; with large batches, while settlements succeed
and full batches are ready, one step later, so that the broker settles one batch while the caller works on the next.
Without that, one of the two would always wait for the other.
"""

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

from fila_cluster.client.calls import messages
from fila_cluster.client.protocol import tracer
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_cluster.client.protocol.settling import ACK, Run, Settlement, Settling, runs_of, settlement
from fila_cluster.client.protocol.subscription import ClientSubscription
from fila_cluster.client.protocol.tracer import SettleTrace
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import BatchError, FilaError

if TYPE_CHECKING:
    from fila_cluster.client.asynchronous.consuming import AsyncConsuming

_log = logging.getLogger("fila_cluster.batches")

SETTLED_AHEAD = 1
"""Settlements that may be under way while a full batch is handed over."""
LARGE_BATCH_MESSAGES_MIN = 100
"""With smaller batches, each settlement is waited for: that costs a round trip, and shows a failure one step earlier."""

Outcome: TypeAlias = str | tuple[str, str | float]
"""How a delivery ends: ``"ack"``, ``"nack"``, ``"retry"``, ``"fail"``, or a pair with the verb's argument."""


class AsyncBatch(Sequence[AsyncDelivery]):
    """Deliveries that are settled together, or one by one: a sequence.

    Each method sends at once and does not wait. An error that is known at once, as for a delivery that was settled before,
    is raised at once as a :class:`BatchError`; the others are sent. Any other failure is raised by the step to a later
    batch, or on leaving the iterator.
    """

    def __init__(self, consumer: "AsyncBatchConsumer", deliveries: list[AsyncDelivery], runs: Sequence[Run]) -> None:
        self._consumer = consumer
        self._deliveries = deliveries
        self._runs = runs

    def __len__(self) -> int:
        return len(self._deliveries)

    @overload
    def __getitem__(self, index: int) -> AsyncDelivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[AsyncDelivery]: ...

    def __getitem__(self, index: int | slice) -> AsyncDelivery | list[AsyncDelivery]:
        return self._deliveries[index]

    def __iter__(self) -> Iterator[AsyncDelivery]:
        return iter(self._deliveries)

    def __repr__(self) -> str:
        return f"<AsyncBatch of {len(self)} deliveries>"

    async def ack(self) -> None:
        """Acknowledge the deliveries that are not settled yet."""
        await self._consumer._settle([(ACK, *self._unsettled())])

    async def nack(self, error: str = "") -> None:
        """Fail the deliveries that are not settled yet: each counts an attempt, and its queue decides what is next.

        Args:
            error: Why, for the next attempt and for people; the last 4 KiB are kept.
        """
        await self._consumer._settle([(settlement(Verb.NACK, error), *self._unsettled())])

    async def settle(self, outcomes: "Mapping[AsyncDelivery, Outcome]") -> None:
        """Settle each delivery in its own way. Deliveries that are not named stay leased.

        Args:
            outcomes: By delivery, ``"ack"``, ``"nack"``, ``"retry"`` or ``"fail"``, or a pair of a verb and its argument:
                ``("nack", error)``, ``("fail", error)``, ``("retry", after)`` or ``("defer", retry_after)``, both in
                seconds.

        Raises:
            InvalidArgumentError: One of them is not a settlement. Then nothing is sent.
        """
        by_manner: dict[Settlement, list[AsyncDelivery]] = {}
        for delivery, outcome in messages.outcomes_of(outcomes):
            by_manner.setdefault(messages.settlement_of(outcome), []).append(delivery)
        await self._consumer._settle((how, deliveries, ()) for how, deliveries in by_manner.items())

    def _unsettled(self) -> tuple[list[AsyncDelivery], Sequence[Run]]:
        """Return the deliveries that may be settled; of a queue that delivers at most once, all: the error explains it."""
        if not any(1 in lease.settled[first : first + count] for lease, first, count in self._runs):
            return self._deliveries, self._runs
        return [each for each in self._deliveries if not each._settled or each._lease.at_most_once], ()


class _Sent:
    """One settlement, made before it is sent: ``known`` are the errors that need no answer of the broker."""

    __slots__ = ("known", "settling", "trace")

    def __init__(self, settling: Settling, trace: SettleTrace | None) -> None:
        self.settling = settling
        self.trace = trace
        self.known = dict(settling.errors)

    def known_results(self) -> list[FilaError | None]:
        """Return the known error of each delivery."""
        return [self.known.get(position) for position in range(len(self.settling.deliveries))]

    def failure(self) -> BatchError | None:
        """Return the error of a settlement that is confirmed; None if nothing new has failed."""
        errors = {position: error for position, error in self.settling.errors.items() if position not in self.known}
        if not errors:
            return None
        deliveries = self.settling.deliveries
        results = [errors.get(position) for position in range(len(deliveries))]
        return messages.failure_among(results, [deliveries[position].id for position in sorted(errors)])


class AsyncBatchConsumer:
    """Batches of deliveries of one queue as they come, until it is closed. Several tasks may take from the same one.

    Leaving it, for any reason, gives back the deliveries that were not handed over, and confirms the settlements.
    """

    def __init__(
        self, client: "AsyncConsuming", subscription: ClientSubscription, max_messages: int, max_wait_s: float
    ) -> None:
        self._client = client
        self._io = client._io
        self._subscription = subscription
        self._max_messages = max_messages
        self._max_wait_s = max_wait_s
        self._unconfirmed: deque[list[_Sent]] = deque()
        """The settlements under way, one for each call."""
        self._failed: list[BatchError] = []
        """Failures that are still to be raised."""
        self._ahead = 0
        """How many settlements may be under way while a full batch is handed over. The first one is waited for."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncBatch:
        ready, subscription = self._subscription.ready, self._subscription
        while True:
            full = len(ready) >= self._max_messages
            await self._confirm(self._ahead if full else 0)
            if not full:
                await self._client._gather(subscription, self._max_messages, self._max_wait_s)
            batch = self._take()
            if batch:
                return batch
            if subscription.ended:
                if subscription.error is not None:
                    raise subscription.failure()
                raise StopAsyncIteration

    async def close(self) -> None:
        """Give back at once the deliveries that were not handed over, and wait for the confirmation of the settlements.

        Raises:
            BatchError: Settlements failed, and that was not raised yet.
        """
        try:
            await self._client._unsubscribe(self._subscription)
        finally:
            await self._confirm(0)

    aclose = close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except FilaError as failure:
            if error is None:
                raise
            error.add_note(f"besides, on leaving consume_batches: {failure}")

    def __del__(self) -> None:
        if not self._subscription.ended:
            self._client._abandon(self._subscription)
        for group in self._unconfirmed:
            self._note(group)
        if self._failed:
            _log.error("consume_batches was dropped before it could raise this: %s", self._failure())

    async def _settle(self, manners: "Iterable[tuple[Settlement, list[AsyncDelivery], Sequence[Run]]]") -> None:
        """Send settlements of one batch."""
        sent = [self._send(*manner) for manner in manners if manner[1]]
        if sent:
            self._unconfirmed.append(sent)
        if any(each.known for each in sent):
            raise messages.failure_among([result for each in sent for result in each.known_results()])

    def _send(self, how: Settlement, deliveries: list[AsyncDelivery], runs: Sequence[Run]) -> _Sent:
        trace = None if (installed := tracer.installed) is None else installed.settling(deliveries, how)
        settle = self._client._session.settle
        return self._io.ask(lambda _: _Sent(settle(deliveries, how, runs), trace))

    async def _confirm(self, under_way: int) -> None:
        """Wait until so few settlements are under way. Raise the failures, also of those that need not be waited for."""
        while len(self._unconfirmed) > under_way or (
            self._unconfirmed and all(sent.settling.done for sent in self._unconfirmed[0])
        ):
            try:
                group = self._unconfirmed.popleft()  # before the waiting: no other task may wait for it, too
            except IndexError:
                break
            try:
                for sent in group:
                    await self._io.wait(sent.settling)
            except BaseException:
                self._unconfirmed.appendleft(group)
                raise
            if self._max_messages >= LARGE_BATCH_MESSAGES_MIN:
                self._ahead = SETTLED_AHEAD
            self._note(group)
        if self._failed:
            self._ahead = 0
            raise self._failure()

    def _note(self, group: list[_Sent]) -> None:
        """Take in the answers to a settlement."""
        for sent in group:
            if sent.trace is not None:
                sent.trace.ended(sent.settling)
            failure = sent.failure()
            if failure is not None:
                self._failed.append(failure)

    def _failure(self) -> BatchError:
        """Return one error for all that has failed and was not raised."""
        failed, self._failed = self._failed, []
        if len(failed) == 1:
            return failed[0]
        results = [result for each in failed for result in each.results]
        return messages.failure_among(results, [message_id for each in failed for message_id in each.details["message_ids"]])

    def _hand_over(self, deliveries: list[AsyncDelivery]) -> None:
        for delivery in deliveries:
            self._client._session.hand_over(delivery)

    def _take(self) -> AsyncBatch:
        """Hand over the deliveries that are ready."""
        ready = self._subscription.ready
        deliveries: list[Any] = []  # of the class that the session makes
        with suppress(IndexError):  # another task takes, too
            deliveries.extend(map(deque.popleft, repeat(ready, min(len(ready), self._max_messages))))
        runs = runs_of(deliveries)
        if any(lease.at_most_once for lease, _, _ in runs):
            once = [each for each in deliveries if each._lease.at_most_once]
            self._io.ask(lambda _: self._hand_over(once))
        if (installed := tracer.installed) is not None:
            installed.handed_over(deliveries)
        return AsyncBatch(self, deliveries, runs)
