"""The futures of producers: for asyncio, and for threads.

A future that fails and that is not looked at must not be lost. This shows when it is garbage-collected, as with asyncio's own
"exception was never retrieved". A dropped future ends as soon as its result is there, so ``on_error`` is called at once then.

Futures are resolved outside of the client's lock: their callbacks, and ``on_error``, may use the client. In a blocking client
that happens in the threads that use the producer, and in a thread of its own, which also waits for the broker's answers while
no other thread does. So a slow callback delays other callbacks, never a heartbeat.
"""

import asyncio
import atexit
import concurrent.futures
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeAlias

from fila_cluster.client.io.link import leave_to_the_parent
from fila_cluster.client.io.pump import HeartbeatThread, Pump
from fila_cluster.client.io.reactor import Reactor
from fila_cluster.client.protocol.pipelining import Pipeline, Pipelines, Receipt
from fila_cluster.client.protocol.tracer import EnqueueTrace
from fila_cluster.client.requests.call import Pending
from fila_proto_zmq.errors import FilaError

_log = logging.getLogger("fila_cluster.producer")

LOG_S_MIN = 1.0
"""How often errors that are not looked at are logged: an outage fails thousands of messages."""
IDLE_S = 3600.0
ENDING_S_MAX = 1.0
"""How long closing waits for a thread that may be in a callback of the user."""


class Unseen:
    """The errors of one producer that are not looked at: they go to ``on_error``, or else to the log, a line a second."""

    def __init__(self, on_error: Callable[[FilaError], object] | None, confirmer: "LoopConfirmer | ThreadConfirmer") -> None:
        self._on_error = on_error
        self._post = weakref.WeakMethod(confirmer.post)
        self._logged_at = -LOG_S_MIN
        self._more = 0
        """The errors since the last line."""

    def post(self, error: FilaError) -> None:
        """Report one error. Called at any time: a garbage collection may come while the client's lock is held."""
        post = self._post()
        if post is None:  # the client is gone
            self.report(error)
        else:
            post(self, error)

    def report(self, error: FilaError) -> None:
        """Report one error, outside of the client's lock."""
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                _log.exception("on_error of a producer raised an exception; the message's own error: %s", error)
            return
        self._more += 1
        now = time.monotonic()
        if now - self._logged_at >= LOG_S_MIN:
            self._logged_at = now
            self.log(error)

    def log(self, error: FilaError | None = None) -> None:
        """Log the errors that are not logged yet."""
        count, self._more = self._more, 0
        if count:
            last = "" if error is None else f"; the last error: {error}"
            _log.error(
                "%d %s not enqueued, and no one looked at the result%s",
                count,
                "message was" if count == 1 else "messages were",
                last,
            )


Trace: TypeAlias = tuple[EnqueueTrace, tuple[Any, ...]]
"""A traced enqueue, and its options."""


def _end_trace(trace: Trace, result: str | FilaError) -> None:
    if isinstance(result, str):
        trace[0].accepted(result, trace[1])
    else:
        trace[0].failed(result)


class AsyncConfirmation(asyncio.Future[str]):
    """The id of a message, once it is durable, or its error.

    A future that fails changes its class: only those have a finalizer in Python. The constructor is the base class's for
    the same reason: each would double the cost of a future.
    """

    _unseen: Unseen
    _trace: Trace | None = None

    def joins(self, receipt: Receipt, place: int) -> None:
        """Take the result from no receipt: the base class is made in C, and asks for none."""

    def conclude(self, result: str | FilaError) -> None:
        """Take in the result."""
        if self._trace is not None:
            _end_trace(self._trace, result)
        if isinstance(result, str):
            if not self.done():
                self.set_result(result)
        elif self.done():  # a caller that was cancelled has cancelled it
            self._unseen.post(result)
        else:
            self.__class__ = _AsyncFailure
            self.set_exception(result)

    def disown(self, error: FilaError) -> None:
        """Fail, in the child of a fork: the message is the parent's."""
        if not self.done():
            self.set_exception(error)
            self._log_traceback = False


class _AsyncFailure(AsyncConfirmation):
    """The error of a message."""

    def __del__(self) -> None:
        if self._log_traceback:
            self._log_traceback = False
            error = self.exception()
            if isinstance(error, FilaError):
                self._unseen.post(error)


class _Witness:
    """Reports the error of a future that ends without having been looked at. Only failed futures have one, and pay for it."""

    __slots__ = ("_error", "_unseen", "seen")

    def __init__(self, error: FilaError, unseen: Unseen) -> None:
        self._error = error
        self._unseen = unseen
        self.seen = False

    def __del__(self) -> None:
        if not self.seen:
            self._unseen.post(self._error)


_making = threading.Lock()
"""Held while a future gets its condition."""
_WITH_CONDITION = ("_condition", "_waiters", "_done_callbacks")


class Confirmation(concurrent.futures.Future[str]):
    """The id of a message, once it is durable, or its error. A message can't be called back: :meth:`cancel` has no effect.

    Most futures are never waited for, or only when their message is in. So a future costs little until then: it finds its
    id in the receipt of its batch, and the condition of the base class is made when it is first needed (``__getattr__``).
    A future with a condition asks for a result of its own, because a thread may wait for it.
    """

    _state = "PENDING"
    _result: str | None = None
    _exception: BaseException | None = None
    _witness: "_Witness | None" = None
    _receipt = Receipt()
    _place = 0

    def __init__(self, unseen: Unseen, trace: Trace | None) -> None:  # not of the base class: see above
        self._unseen = unseen
        self._trace = trace

    def joins(self, receipt: Receipt, place: int) -> None:
        """Note where the id will be."""
        self._receipt = receipt
        self._place = place
        if self._trace is not None:
            receipt.asked.append((place, self))

    def __getattr__(self, name: str) -> Any:
        if name not in _WITH_CONDITION:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _making:
            self._add_condition()
        return self.__dict__[name]

    def conclude(self, result: str | FilaError) -> None:
        """Take in the result."""
        if self._trace is not None:
            _end_trace(self._trace, result)
        if isinstance(result, str):
            with suppress(concurrent.futures.InvalidStateError):  # again, after an interrupt
                self.set_result(result)
        else:
            self._witness = _Witness(result, self._unseen)
            with suppress(concurrent.futures.InvalidStateError):
                self.set_exception(result)

    def done(self) -> bool:
        """Return whether there is an id or an error."""
        return self._receipt.accepted is not None or super().done()

    def cancel(self) -> bool:
        """Return False: the message is on its way."""
        return False

    def result(self, timeout: float | None = None) -> str:
        """Return the id, or raise the error; ``TimeoutError`` if there is none after ``timeout`` seconds."""
        if self._receipt.accepted is not None:
            return self._receipt.id_of(self._place)
        try:
            return super().result(timeout)
        finally:
            self._note_look()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, None if there is an id; ``TimeoutError`` if there is neither after ``timeout`` seconds."""
        if self._receipt.accepted is not None:
            return None
        try:
            return super().exception(timeout)
        finally:
            self._note_look()

    def disown(self, error: FilaError) -> None:
        """Fail, in the child of a fork: the message is the parent's. Another thread may have had the lock at the fork."""
        self._add_condition()
        self._condition = threading.Condition()
        if not self.done():
            self.set_exception(error)
        self._note_look()

    def _note_look(self) -> None:
        if self._witness is not None and self.done():
            self._witness.seen = True

    def _add_condition(self) -> None:
        if "_condition" in self.__dict__:
            return
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []
        receipt = self._receipt
        if receipt.accepted is None:
            receipt.asked.append((self._place, self))
        if receipt.accepted is not None:  # also if the answer has come since
            self._result = receipt.id_of(self._place)
            self._state = "FINISHED"
        self._condition = threading.Condition()  # last: it says that the others are there


def _unlock() -> None:
    """Make another lock in the child of a fork: a thread of the parent may have held it."""
    global _making  # noqa: PLW0603
    _making = threading.Lock()


os.register_at_fork(after_in_child=_unlock)


def _report_all(reports: "deque[tuple[Unseen, FilaError]]") -> None:
    while reports:
        unseen, error = reports.popleft()
        unseen.report(error)


class LoopConfirmer:
    """Makes the futures of an asyncio client, and resolves them in its event loop."""

    def __init__(self, io: Reactor, pipelines: Pipelines) -> None:
        self._io = io
        self._pipelines = pipelines
        self._watching = False
        self._resolving = False
        self._reports: deque[tuple[Unseen, FilaError]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        leave_to_the_parent(self)

    def future(self, unseen: Unseen, trace: Trace | None) -> AsyncConfirmation:
        """Return a future."""
        loop = self._loop = asyncio.get_running_loop()
        future = AsyncConfirmation(loop=loop)
        future._unseen = unseen
        if trace is not None:
            future._trace = trace
        return future

    def post(self, unseen: Unseen, error: FilaError) -> None:
        """Report an error that is not looked at: soon, or with the others that are resolved now."""
        self._reports.append((unseen, error))
        if not self._resolving:
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self.resolve)
            except RuntimeError:  # it is closed
                self.resolve()

    def tend(self, pipe: Pipeline) -> None:
        """Send the full batches of a producer, and resolve the futures when there are answers."""
        self._io.ask(pipe.tend)
        self._watch()

    async def breathe(self) -> None:
        """Yield to the loop, which sends a batch before the next one is made."""
        await asyncio.sleep(0)

    def resolve(self) -> None:
        """Resolve the futures of all messages that are confirmed, and report the errors that are not looked at."""
        self._resolving = True
        try:
            self._pipelines.resolve()
            _report_all(self._reports)
        finally:
            self._resolving = False

    def close(self) -> None:
        """Resolve the futures that the end of the client has ended. In a closed loop nobody waits."""
        if self._loop is None or not self._loop.is_closed():
            self.resolve()

    def disown(self, error: FilaError) -> None:
        """Fail the futures in the child of a fork."""
        for future in self._pipelines.unresolved():
            with suppress(RuntimeError):  # its loop is closed
                future.disown(error)

    def _watch(self) -> None:
        if not self._watching:
            news = self._pipelines.want_news()
            if news is not None:
                self._watching = True
                news.wake = self._on_news
                if news.done:
                    self._on_news()

    def _on_news(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            asyncio.get_running_loop().call_soon(self._resolve_news)

    def _resolve_news(self) -> None:
        self._watching = False
        self.resolve()
        self._watch()


class ThreadConfirmer:
    """Makes the futures of a blocking client, and resolves them in threads that use it, and in one of its own.

    That thread lives while messages are unconfirmed, and then sleeps. ``_awake`` is changed with the pump's lock held;
    meanwhile a client that the user has dropped is kept, because its futures may be waited for.
    """

    _all_awake: ClassVar["set[ThreadConfirmer]"] = set()

    def __init__(self, io: Pump, pipelines: Pipelines) -> None:
        self._io = io
        self._pipelines = pipelines
        pipelines.gives_receipts = True
        self._resolving = threading.RLock()
        """Held while futures are resolved, so that none is left when :meth:`resolve` returns."""
        self._resolver: int | None = None
        """The thread that resolves futures, and reports errors when it is done."""
        self._reports: deque[tuple[Unseen, FilaError]] = deque()
        self._thread = HeartbeatThread(self)
        self._awake = False
        self._disowned = False
        leave_to_the_parent(self)

    def future(self, unseen: Unseen, trace: Trace | None) -> Confirmation:
        """Return a future."""
        return Confirmation(unseen, trace)

    def tend(self, pipe: Pipeline) -> None:
        """Send the full batches of a producer, and resolve the futures that have an answer.

        It also reads the frames that have come: the thread that waits for answers gets the interpreter only every few
        milliseconds while this one is busy, and the next batches are sent when earlier ones are confirmed.
        """
        self._io.ask(lambda now: self._tend(pipe, now), None)
        if self._pipelines.completed and self._resolving.acquire(blocking=False):
            try:
                self.resolve()
            finally:
                self._resolving.release()

    def breathe(self) -> None:
        """Do nothing: other threads run without help."""

    def resolve(self) -> None:
        """Resolve the futures of all messages that are confirmed, and report the errors that are not looked at."""
        with self._resolving:
            outer, self._resolver = self._resolver, threading.get_ident()
            try:
                self._pipelines.resolve()
                _report_all(self._reports)
            finally:
                self._resolver = outer

    def post(self, unseen: Unseen, error: FilaError) -> None:
        """Report an error that is not looked at: soon, or with the others that this thread resolves now."""
        self._reports.append((unseen, error))
        if self._resolver == threading.get_ident():
            return
        if not self._io.closed:
            with suppress(RuntimeError):  # the interpreter ends, and begins no thread
                self._thread.wake_at(-math.inf)
                return
        _report_all(self._reports)

    def close(self) -> None:
        """Resolve the futures that the end of the client has ended, and end the thread. It does both itself if the client
        is closed later."""
        if not (self._disowned or self._io.closes_later):
            self.resolve()
            self._thread.stop(ENDING_S_MAX)

    def finish(self) -> None:
        """Send the collected messages, and return when all are confirmed or have failed, within the client's timeout."""
        with suppress(FilaError):  # closed
            for pipe in self._pipelines.busy:
                self._io.wait(self._io.ask(partial(pipe.flush, timeout_s=None)))
        self.resolve()

    def disown(self, error: FilaError) -> None:
        """Fail the futures in the child of a fork, where the thread is not."""
        self._disowned = True
        self._all_awake.discard(self)
        self._resolving = threading.RLock()
        for future in self._pipelines.unresolved():
            future.disown(error)

    def keep(self) -> float | None:
        """Wait for answers, and resolve futures, until there is nothing more to wait for: one round of the thread."""
        try:
            while True:
                self.resolve()
                news = self._io.ask(self._next_news)
                if news is None:
                    return IDLE_S
                self._io.wait(news)
        except FilaError:  # closed
            self.resolve()
            self._all_awake.discard(self)
            return None

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.wake()

    @classmethod
    def finish_all(cls) -> None:
        """Finish all, in a program that ends without having left its producers."""
        for confirmer in list(cls._all_awake):
            confirmer.finish()

    def _tend(self, pipe: Pipeline, now: float) -> None:
        pipe.tend(now)
        if not self._awake:
            self._awake = True
            self._all_awake.add(self)
            self._thread.wake_at(now)

    def _next_news(self, now: float) -> Pending[None] | None:
        news = self._pipelines.want_news()
        if news is None:
            self._awake = False
            self._all_awake.discard(self)
        return news


atexit.register(ThreadConfirmer.finish_all)
