"""Consume the queues of an app until asked to stop: slots, reconnecting, drain.

A handler has ``concurrency`` slots. A slot takes a delivery, has it handled and settled, and takes the next. At most
``prefetch`` messages of a queue are leased to a process; by default as many as there are slots, so that no message waits for
another one's work while a different process is idle.

In a drain, consumers are closed, which gives back messages that no slot has taken. Slots finish their messages. After the
grace time they are cancelled, and their messages go back when the client closes.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from fila_cluster.app.handlers import Handler
from fila_cluster.app.telemetry import instruments
from fila_cluster.app.work import Work
from fila_cluster.client.asynchronous.client import AsyncClient
from fila_cluster.client.asynchronous.consumer import AsyncConsumer
from fila_cluster.client.calls.request import Request
from fila_cluster.client.protocol.delivery import AsyncDelivery
from fila_proto_zmq.commands import DescribeQueue
from fila_proto_zmq.errors import FilaError, QueueNotFoundError

PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between tries to consume a queue that cannot be consumed now; the last one again and again."""

END_S: Final = 6.0
"""How long cancelled handlers may take to end: a little more than one call has to."""

_log = logging.getLogger("fila_cluster.app")


def is_made_later(error: FilaError) -> bool:
    """Return whether a queue does not exist yet, but its first message makes it by a template."""
    return isinstance(error, QueueNotFoundError) and "template" in error.details


class StuckError(Exception):
    """All slots of a handler are taken by calls over their time limit: this process can do no more for its queue."""


class Stop:
    """A request to stop. Asked once: drain. Asked again: at once. Made anywhere; asked in the event loop. After a drain that
    began by itself (a stuck handler, a lost supervisor) the first request does not hurry it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.hurried = asyncio.Event()
        self._was_asked = False

    def ask(self) -> None:
        """Ask to stop; a second time: to give back messages in hand, too."""
        (self.hurried if self._was_asked else self.asked).set()
        self._was_asked = True


class HandlerSlots:
    """The slots of one handler, and the consumer that they share. A consumer that fails is replaced, after a pause."""

    def __init__(
        self, client: AsyncClient, handler: Handler, work: Work, stop: Stop, stuck: Callable[[Handler], None]
    ) -> None:
        self.handler = handler
        self._client = client
        self._work = work
        self._stop = stop
        self._stuck = stuck
        self._consumer: AsyncConsumer | None = None
        self._replacing = asyncio.Lock()
        self._failures = 0
        self._closed = False
        self.waiting: set[asyncio.Task[Any]] = set()
        """Slots whose call runs on after its time limit: they have nothing to settle."""
        self.left: list[AsyncDelivery] = []
        """Deliveries in hand when their slots were cancelled. Kept until the client has given them back."""

    async def check(self) -> None:
        """Return once the queue, or a template that will make it, exists. Raises lasting errors, as a missing permission."""
        failures = 0
        while not self._stop.asked.is_set():
            try:
                await self._client.request(Request(self.handler.queue, DescribeQueue()))
            except FilaError as error:
                if is_made_later(error):
                    return
                if not error.retryable:
                    raise
                await self._pause(failures, error)
                failures += 1
            else:
                return

    async def slot(self) -> None:
        """Handle one delivery after the other, until asked to stop."""
        while not self._stop.asked.is_set():
            consumer = await self._current()
            if consumer is None:
                return
            try:
                delivery = await anext(consumer)
            except StopAsyncIteration:  # closed, by the drain or with its client
                await self._replace(consumer, FilaError("its consumer was closed"))
                continue
            except FilaError as error:
                await self._replace(consumer, error)
                continue
            self._failures = 0
            await self._serve(delivery)

    async def close(self) -> None:
        """Give back messages that no slot has taken, and stop waiting for calls that have nothing to settle."""
        for task in self.waiting:
            task.cancel()
        async with self._replacing:
            self._closed = True
            if self._consumer is not None:
                await self._consumer.close()

    async def _serve(self, delivery: AsyncDelivery) -> None:
        try:
            _, going_on = await self._work.serve(delivery)
        except asyncio.CancelledError:
            self.left.append(delivery)
            raise
        if going_on:
            await self._outlast(going_on)

    async def _outlast(self, going_on: "list[asyncio.Future[Any]]") -> None:
        """Keep this slot taken until calls have ended whose message is settled."""
        handler, task = self.handler, asyncio.current_task()
        assert task is not None
        handler.tally.overdue += 1
        instruments().overdue.add(1, handler.labels)
        self.waiting.add(task)
        if len(self.waiting) == handler.concurrency:
            self._stuck(handler)
        try:
            if not self._stop.asked.is_set():
                await asyncio.wait(going_on)
        finally:
            self.waiting.discard(task)
            handler.tally.overdue -= 1
            instruments().overdue.add(-1, handler.labels)

    async def _current(self) -> AsyncConsumer | None:
        """Return the consumer, a new one after a failure; None in a drain."""
        async with self._replacing:
            if self._closed:
                return None
            if self._consumer is None:
                self._consumer = self._client.consume(self.handler.queue, prefetch=self.handler.prefetch)
            return self._consumer

    async def _replace(self, failed: AsyncConsumer, error: FilaError) -> None:
        """Drop a consumer that failed; the first slot that notices waits, the others wait for it."""
        async with self._replacing:
            if self._consumer is failed and not self._closed:
                await self._pause(self._failures, error)
                self._failures += 1
                self._consumer = None

    async def _pause(self, failures: int, error: FilaError) -> None:
        seconds = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        if not is_made_later(error):
            _log.warning("queue %r cannot be consumed now: %s; trying again in %g s", self.handler.queue, error, seconds)
        elif failures == 0:
            _log.info(
                "queue %r does not exist yet: its first message makes it, and is then taken within %g s",
                self.handler.queue,
                PAUSES_S[-1],
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.asked.wait()


async def serve(
    client: AsyncClient,
    handlers: Sequence[Handler],
    work: Work,
    stop: Stop,
    *,
    grace_s: float,
    ready: Callable[[], None] = lambda: None,
    end_when_stuck: bool = False,
) -> "list[AsyncDelivery]":
    """Consume until asked to stop, then drain; return the deliveries that are still in hand, for the client to give back.
    ``ready`` is called when all queues were checked. ``end_when_stuck``: raise :class:`StuckError` then; else it is
    logged."""
    stuck: list[Handler] = []

    def note_stuck(handler: Handler) -> None:
        _log.error(
            "queue %r: all %d slots of %s are taken by calls over their time limit: it gets no more messages here",
            handler.queue,
            handler.concurrency,
            handler.name,
        )
        if end_when_stuck:
            stuck.append(handler)
            stop.asked.set()

    lines = [HandlerSlots(client, handler, work, stop, note_stuck) for handler in handlers]
    await _check(lines)
    slots = {asyncio.create_task(line.slot()) for line in lines for _ in range(line.handler.concurrency)}
    if not stop.asked.is_set():
        ready()
    try:
        await _until_asked(slots, stop)
    finally:
        stop.asked.set()
        await _drain(lines, slots, stop, grace_s)
    if stuck:
        raise StuckError(f"the handler of queue {stuck[0].queue!r} is stuck: {stuck[0].name}")
    return [delivery for line in lines for delivery in line.left]


async def _check(lines: Sequence[HandlerSlots]) -> None:
    checks = [asyncio.create_task(line.check()) for line in lines]
    try:
        await asyncio.gather(*checks)
    finally:
        for check in checks:
            check.cancel()


async def _until_asked(slots: "set[asyncio.Task[None]]", stop: Stop) -> None:
    """Wait until asked to stop. No slot ends before that, unless it fails: a fault of ours, raised after the drain."""
    asked = asyncio.create_task(stop.asked.wait())
    try:
        done, _ = await asyncio.wait({asked, *slots}, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {asked}:
            task.result()
    finally:
        asked.cancel()


async def _drain(lines: Sequence[HandlerSlots], slots: "set[asyncio.Task[None]]", stop: Stop, grace_s: float) -> None:
    """Wait until slots have finished their messages, the grace time is over, or the second request to stop comes."""
    hurried = asyncio.create_task(stop.hurried.wait())
    finished = asyncio.ensure_future(asyncio.wait(slots))
    try:
        await asyncio.gather(*(line.close() for line in lines))
        await asyncio.wait({finished, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (hurried, finished, *slots):
            task.cancel()
    await asyncio.wait(slots, timeout=END_S)
