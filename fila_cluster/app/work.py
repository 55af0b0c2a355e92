"""One delivery, from its handler to its settlement, without a consumer."""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, cast

from structlog.contextvars import bound_contextvars

from fila_cluster.app.calling import HandlerTimeoutError, Overrides, Threads, Values, call
from fila_cluster.app.decisions import ACK, Defer, Fail, RetryAfter, Verdict, in_dead_letter_queue, judge
from fila_cluster.app.handlers import Call, Handler, Middleware
from fila_cluster.app.payloads import PayloadError
from fila_cluster.app.telemetry import instruments, span_of
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.protocol.settling import Settlement
from fila_proto_zmq.commands import Verb
from fila_proto_zmq.errors import AlreadySettledError, FilaError, LeaseExpiredError
from fila_proto_zmq.names import is_dead_letter

_log = logging.getLogger("fila_cluster.app")

PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Between tries while the broker is away; the last one again and again, until the lease has ended."""

Sleep = Callable[[float], Awaitable[Any]]


async def settle(delivery: Delivery, verdict: Verdict, sleep: Sleep = asyncio.sleep) -> bool:
    """Settle; return whether it is confirmed. A repeated try may find the lease ended by the first one. Raises nothing."""
    tries, what = 0, (delivery.id, delivery.queue, verdict.verb.name.lower())
    while True:
        try:
            await _say(delivery, verdict)
        except (LeaseExpiredError, AlreadySettledError) as error:
            unless = "it is delivered again, unless an earlier try counted"
            _log.warning("message %s of %r: its lease had ended before the %s (%s); %s", *what, error, unless)
            return False
        except FilaError as error:
            if not error.retryable:
                _log.error("message %s of %r: the broker refused the %s: %s", *what, error)
                return False
            if tries == 0:
                _log.warning("message %s of %r: the %s is not confirmed yet (%s); trying again", *what, error)
            await sleep(PAUSES_S[min(tries, len(PAUSES_S) - 1)])
            tries += 1
        else:
            return True


async def _say(delivery: Delivery, verdict: Verdict) -> None:
    said: Any
    match verdict.verb:
        case Verb.ACK:
            said = delivery.ack()  # type: ignore[func-returns-value]  # an awaitable, of an asyncio client
        case Verb.NACK:
            said = delivery.nack(verdict.error)  # type: ignore[func-returns-value]
        case Verb.RETRY:
            said = delivery.retry(verdict.after_s, verdict.error)  # type: ignore[func-returns-value]
        case Verb.FAIL:
            said = delivery.fail(verdict.error)  # type: ignore[func-returns-value]
        case _:
            said = delivery.defer(verdict.after_s)  # type: ignore[func-returns-value]
    if inspect.isawaitable(said):
        await said


class ThreadDelivery(Delivery):
    """An asyncio client's delivery in a thread: its verbs block until the loop has the broker's answer."""

    _of: Delivery | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def extend(self, seconds: float) -> None:
        """Extend the lease until ``seconds`` from now."""
        assert self._of is not None
        of = self._of
        self._wait(lambda: of.extend(seconds))

    def _price(self, cost: float | None) -> None:
        assert self._of is not None
        super()._price(cost)
        self._of.actual_cost = self.actual_cost

    def _settle(self, how: Settlement) -> None:
        assert self._of is not None
        of = self._of
        self._wait(lambda: of._settle(how))

    def _wait(self, verb: Callable[[], Any]) -> None:
        assert self._loop is not None

        async def awaited() -> None:
            await verb()

        asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()

    def __del__(self) -> None:
        """Report nothing: the delivery that this one is a view of does."""


class AwaitedDelivery(AsyncDelivery):
    """A blocking client's delivery for a coroutine: its verbs are awaited, and block the loop for the broker's answer."""

    _of: Delivery | None = None

    async def extend(self, seconds: float) -> None:  # type: ignore[override]  # as of every AsyncDelivery
        """Extend the lease until ``seconds`` from now."""
        assert self._of is not None
        self._of.extend(seconds)

    def _price(self, cost: float | None) -> None:
        assert self._of is not None
        super()._price(cost)
        self._of.actual_cost = self.actual_cost

    def _settle(self, how: Settlement) -> None:
        assert self._of is not None
        of = self._of

        async def settled() -> None:
            of._settle(how)

        return cast(None, settled())  # AsyncDelivery says what it is

    def __del__(self) -> None:
        """Report nothing: the delivery that this one is a view of does."""


def for_thread(delivery: Delivery) -> Delivery:
    """Return a delivery for a function that runs in a thread, beside the loop that runs now."""
    if not isinstance(delivery, AsyncDelivery):
        return delivery
    view = ThreadDelivery(delivery._lease, delivery._index, delivery._packed, _of=delivery)
    view._loop, view._trace, view._cost_milli = asyncio.get_running_loop(), delivery._trace, delivery._cost_milli
    return view


def for_coroutine(delivery: Delivery) -> Delivery:
    """Return a delivery for a coroutine."""
    if isinstance(delivery, AsyncDelivery):
        return delivery
    view = AwaitedDelivery(delivery._lease, delivery._index, delivery._packed, _of=delivery)
    view._trace, view._cost_milli = delivery._trace, delivery._cost_milli
    return view


OURS = "fila_cluster.app."
"""The package whose frames a traceback leaves out."""


class Work:
    """Handlers with their app-wide dependencies. ``threads`` None: functions are called in the loop's thread."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        middleware: Sequence[Middleware],
        shared: Values,
        overrides: Overrides,
        threads: Threads | None,
    ) -> None:
        self._handlers = handlers
        self._middleware = middleware
        self._shared = shared
        self._overrides = overrides
        self._threads = threads

    async def handle(self, delivery: Delivery) -> Verdict | None:
        """Handle and settle a delivery; return how. None: its handler has settled it, or could not (at most once).

        Raises no error of the handler. :class:`LookupError` if its queue has no handler. A call that runs on after its time
        limit is left alone; :meth:`serve` returns it.
        """
        verdict, _ = await self.serve(delivery)
        return verdict

    async def serve(self, delivery: Delivery) -> "tuple[Verdict | None, list[asyncio.Future[Any]]]":
        """Do the same as :meth:`handle`; return also the calls that still run. Middleware may have made several."""
        handler = self._handlers.get(delivery.queue)
        if handler is None:
            known = ", ".join(self._handlers) or "no queue"
            raise LookupError(f"no handler for queue {delivery.queue!r}: this app works on {known}")
        tally, meters, labels = handler.tally, instruments(), handler.labels
        began = time.monotonic()
        tally.in_hand += 1
        meters.in_hand.add(1, labels)
        outcome = "given_back"
        going_on: list[asyncio.Future[Any]] = []
        try:
            with bound_contextvars(message_id=delivery.id, queue=handler.queue, handler=handler.name):
                judged, error = await self._outcome(handler, delivery, going_on)
                verdict = None if delivery._settled else judged
                if verdict is None:  # by the handler, or it was delivered at most once
                    outcome = "own"
                    _tell_of_own(handler, delivery, error)
                else:
                    _tell(handler, delivery, verdict, error)
                    outcome = verdict.verb.name.lower() if await settle(delivery, verdict) else "lost"
        finally:
            tally.in_hand -= 1
            meters.in_hand.add(-1, labels)
            setattr(tally, outcome, getattr(tally, outcome) + 1)
            ended = labels | {"outcome": outcome}
            meters.messages.add(1, ended)
            meters.seconds.record(time.monotonic() - began, ended)
        return verdict, going_on

    async def _outcome(
        self, handler: Handler, delivery: Delivery, going_on: "list[asyncio.Future[Any]]"
    ) -> tuple[Verdict, BaseException | None]:
        try:
            with span_of(handler, delivery):
                await self._through_middleware(handler, delivery, going_on)
        except BaseException as error:
            if not self._is_an_answer(error):
                raise
            verdict = judge(error, delivery.attempts, handler.retry)
            return in_dead_letter_queue(verdict) if is_dead_letter(handler.queue) else verdict, error
        return ACK, None

    def _is_an_answer(self, error: BaseException) -> bool:
        """Return whether an error is the outcome of a message. Extensions raise ones that are not ``Exception`` (pyo3 for a
        panic in Rust), and those must not end the process either. In a test pytest does, to end it."""
        if isinstance(error, asyncio.CancelledError):  # of a task that the handler awaited; or somebody cancels ours
            task = asyncio.current_task()
            return task is None or task.cancelling() == 0
        if isinstance(error, (Exception, SystemExit)):
            return True
        return self._threads is not None and not isinstance(error, (KeyboardInterrupt, GeneratorExit))

    async def _call(self, handler: Handler, delivery: Delivery, going_on: "list[asyncio.Future[Any]]") -> Any:
        if handler.is_coroutine:
            given = for_coroutine(delivery)
        else:
            given = delivery if self._threads is None else for_thread(delivery)
        return await call(handler, given, self._shared, self._overrides, self._threads, going_on)

    async def _through_middleware(self, handler: Handler, delivery: Delivery, going_on: "list[asyncio.Future[Any]]") -> Any:
        if not self._middleware:
            return await self._call(handler, delivery, going_on)

        async def last(of: Call) -> Any:
            return await self._call(handler, delivery, going_on)

        step = last
        for middleware in reversed(self._middleware):

            async def step(of: Call, middleware: Middleware = middleware, following: Any = step) -> Any:
                return await middleware(of, following)

        return await step(Call(handler, for_coroutine(delivery)))


def _tell(handler: Handler, delivery: Delivery, verdict: Verdict, error: BaseException | None) -> None:
    """Log an outcome other than an ack. Texts of payload errors stay out of the log: they may quote a payload."""
    if error is None:
        return
    verb = {Verb.NACK: "nacked", Verb.FAIL: "dead-lettered"}.get(verdict.verb) or f"again in {verdict.after_s:g} s"
    said = "message %s of %r, attempt %d: %s"
    what = delivery.id, handler.queue, delivery.attempts + 1, verb
    if isinstance(error, PayloadError):
        _log.error(f"{said}: its payload is not what %s takes; the message's error says where", *what, handler.name)
    elif isinstance(error, (RetryAfter, Defer)):
        _log.info(f"{said}, as %s asks", *what, handler.name)
    elif isinstance(error, (Fail, HandlerTimeoutError)):
        _log.error(f"{said}: %s: %s", *what, handler.name, error)
    else:
        level = logging.ERROR if verdict.verb is Verb.FAIL else logging.WARNING
        _log.log(level, f"{said}: %s raised", *what, handler.name, exc_info=_of_the_handler(error))


def _tell_of_own(handler: Handler, delivery: Delivery, error: BaseException | None) -> None:
    if error is not None:
        _log.error(
            "message %s of %r: %s raised after the message was settled: nothing follows from it",
            delivery.id,
            handler.queue,
            handler.name,
            exc_info=_of_the_handler(error),
        )


def _of_the_handler(error: BaseException) -> BaseException:
    """Return an error whose traceback begins with the application's own code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(OURS):
        trace = trace.tb_next
    return error if trace is None else error.with_traceback(trace)
