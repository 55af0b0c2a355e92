"""Many threads, one socket, and no other thread between a call and the wire.

Leader and followers: the first thread that waits for an answer leads, that is, it sleeps on the socket's descriptor and
takes in frames for all threads; the others sleep on a lock of their own until their answer is there. A leader whose
answer has come passes the lead on. Sending needs no lead: the socket is touched only under the lock, for microseconds, and
the leader sleeps outside of it (on the descriptor, not in ZeroMQ). So a lone call costs no switch of threads, and the
frames of many threads travel together while they wait for the lock.

While no thread waits, there is no leader; then a :class:`HeartbeatThread`, which starts with the first lease, sends the
heartbeats.
"""

import math
import select
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from fila_cluster.client.io.inside import InsideTime
from fila_cluster.client.io.link import Bell, leave_to_the_parent
from fila_cluster.client.io.links import ClientLinks
from fila_cluster.client.protocol.receiving import Receiving
from fila_cluster.client.protocol.session import ClientSession
from fila_cluster.client.protocol.short_calls import AfterShort
from fila_cluster.client.requests.call import Pending, PendingCall
from fila_cluster.client.requests.endpoints import EndpointRounds
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import FilaError


class HasHeartbeat(Protocol):
    """The pump, as this thread needs it."""

    def keep(self) -> float | None:
        """Send the heartbeats that are due; return the seconds until the next time, or None to end the thread."""


class HeartbeatThread:
    """A daemon thread for what must be sent in time while no caller waits. Starts on need; does not keep its pump alive.

    An interrupt (Ctrl-C) may hit a caller's thread at any moment, and a finalizer may run in any. So both use only primitives
    that are one call into C: ``threading.Event`` keeps its lock for ever if an interrupt hits it while it takes the lock, and
    ``Thread.start`` then raises RuntimeError ("release unlocked lock") or leaves a thread that never runs.
    """

    def __init__(self, pump: HasHeartbeat) -> None:
        self.wakes_at = math.inf
        self._pump = weakref.ref(pump)
        self._alarm: SimpleQueue[None] = SimpleQueue()
        self._running = threading.Lock()
        """The thread holds it while it runs. A second thread, which an interrupt may cause, ends at once."""
        self._ident: int | None = None

    def wake_at(self, when: float) -> None:
        """Wake the thread then, or earlier. Called with the pump's lock held."""
        self.wakes_at = when
        if self._running.locked():
            self._alarm.put(None)
        else:
            start_new_thread(self._run, ())

    def wake(self) -> None:
        """Wake the thread: it looks whether it is to end. Safe in a finalizer."""
        self._alarm.put(None)

    def stop(self, wait_s: float = -1) -> None:
        """End the thread of a closed pump, and wait until it has ended; -1: for as long as it takes."""
        self._alarm.put(None)
        if self._ident != threading.get_ident() and self._running.acquire(timeout=wait_s):
            self._running.release()

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return
        self._ident = threading.get_ident()
        try:
            while True:
                pump = self._pump()
                sleep_s = None if pump is None else pump.keep()
                if sleep_s is None:
                    return
                del pump  # so that the pump can be collected during the sleep
                with suppress(Empty):
                    self._alarm.get(timeout=sleep_s)
        finally:
            self._ident = None
            self._running.release()


T = TypeVar("T")

EVENTS: Final = (select.POLLIN, select.POLLIN | select.POLLOUT)
"""The events to look for at a descriptor, by whether it is to take something. epoll has the same numbers."""

_SLEEP_S_MAX = 3600.0
"""The longest single sleep: poll() takes an int of milliseconds."""


class Pump:
    """Moves a session's frames for any number of threads.

    A signal handler may close it, also when it interrupts one of its own calls in the middle of a change: then that call
    closes it as soon as the change is done. Anything else that a handler asks for there is an error.
    """

    is_alone: Final = True
    """Whether a call may be a short one: any may, that has no others beside it."""
    INTERRUPTION: Final = BaseException
    """The exceptions that end a wait early: an interrupt, or an exception of a signal handler."""

    def __init__(self, session: ClientSession, rounds: EndpointRounds, server_keys: tuple[str, ...]) -> None:
        self._session = session
        self._lock = threading.RLock()
        # threading.Condition asks its lock the same.
        self._puts: Callable[[], bool] = session.pipelines.lock._is_owned  # type: ignore[attr-defined]
        """Whether this thread is in the middle of putting something into the session."""
        self._leader: int | None = None
        self._lead_depth = 0
        """How many calls of the leader's thread are waiting: more than one if a signal handler closes the client."""
        self._leader_wakes_at = -math.inf
        """When a leader that sleeps wakes up by itself; -inf if none sleeps."""
        self._followers: dict[_Follower, None] = {}
        self._no_leader = threading.Event()
        self._refusal: FilaError | None = None
        self._close_with: FilaError | None = None
        """Why it is to be closed by the call that a signal handler has interrupted."""
        self._inside = InsideTime(rounds.inside) if rounds.inside else None
        """The time of a broker in this process."""
        self._now = time.monotonic if self._inside is None else self._inside.now
        self._links = ClientLinks(rounds, server_keys, self)
        self._bell = Bell()
        self._poller = self._new_poller()
        self._heartbeat = HeartbeatThread(self)
        self._links.connect(session, self._now())
        leave_to_the_parent(self)

    @property
    def closed(self) -> bool:
        """Whether it can't be used any more."""
        return self._refusal is not None or self._close_with is not None

    @property
    def closes_later(self) -> bool:
        """Whether it is to be closed by the call that a signal handler has interrupted."""
        return self._close_with is not None

    def prepare(self) -> None:
        """Prepare to collect requests: a pump needs no preparation."""

    def ask(self, start: Callable[[float], T], ready: Collection[int] | None = ()) -> T:
        """Call ``start(now)``, which asks the session for something, and send it. Does not wait for the answer.

        ``ready``: as in :meth:`ClientLinks.exchange`; None also reads the frames that have come.
        """
        self._enter()
        try:
            with self._lock:
                self._check_open()
                now = self._now()
                asked = start(now)
                self._exchange(now, ready)
        except FilaError:
            raise
        except BaseException:  # an interrupt, perhaps in the middle of a change
            self._links.distrust()
            raise
        return asked

    note = ask
    """Call ``start(now)``, which notes something in the session that sends nothing by itself."""

    def collect(self, put: Callable[..., T], *arguments: Any) -> T:
        """Call ``put``, which is safe in any thread: it collects something in the session that is sent later."""
        if self._puts() or self._close_with is not None or self._refusal is not None:
            self._enter()
        return put(*arguments)

    def short(self, key: str, make: Callable[[], Command], then: AfterShort | None = None) -> Any:
        """Carry out a command as a short call, if now is the time for one. Return its reply, None if nothing was done.

        A call that was widened is returned itself, when it is done.
        """
        if self._leader is not None or self._close_with is not None or self._is_changing():
            return None
        lock, short = self._lock, self._session.short
        try:
            if not lock.acquire(blocking=False):  # calls of several threads travel together
                return None
            now, is_free = self._now(), self._leader is None and self._refusal is None
            wire = self._links.send_short(self._session, key, make, now, then) if is_free else None
            if wire is not None:
                self._leader, self._lead_depth, self._leader_wakes_at = threading.get_ident(), 1, short.due_at
            lock.release()
            if wire is None:
                return None
            self._close_late()
            ready = self._poller.poll(math.ceil(1000 * (short.due_at - now)))
            with lock:
                if short.way is not None and ready == [(wire.descriptor, select.POLLIN)]:
                    reply = self._links.receive_short(self._session, wire, now)
                    if reply is not None:
                        self._pass_on()
                        if self._links.has_news:
                            self._exchange(now)
                        return reply
                self._leader_wakes_at = -math.inf
                if self._refusal is None:
                    self._exchange(self._now(), [descriptor for descriptor, _ in ready])
                call = self._usual_call()
        except BaseException:  # an interrupt: another thread must lead
            if self._is_changing():
                lock.release()
            with lock:
                self._widen()
                if self._leader == threading.get_ident():
                    self._pass_on()
            raise
        self._lead(call, 0)
        return call

    def complete(self, pending: Pending[Any]) -> None:
        """Send the requests that the session has collected, and wait for ``pending``, which is one of them."""
        self._enter()
        with self._lock:
            self._check_open()
            now = self._now()
            self._exchange(now)
            if pending.done:
                return
            place = self._take_place(pending, now)
        self._sleep(pending, place)

    def wait(self, pending: Pending[Any]) -> None:
        """Return when ``pending`` is done."""
        self._check_free()
        with self._lock:
            if pending.done:
                return
            place = self._take_place(pending, self._now())
        self._sleep(pending, place)

    def push(self) -> None:
        """Send the collected requests, unless a thread has the lock, perhaps this one. For finalizers."""
        if self.closed or self._links.closed or self._is_changing():
            return
        if self._lock.acquire(blocking=False):
            try:
                self._exchange(self._now())
            finally:
                self._lock.release()

    def close(self, error: FilaError) -> None:
        """Take leave of the broker (a second at most), then end every call with ``error`` and close the socket."""
        if self._is_changing():
            self._close_with = error
            return
        self._close_with = None
        with self._lock:
            if self._refusal is not None:
                return
            now = self._now()
            goodbyes = self._session.goodbye(now, error)
            self._exchange(now)
        try:
            for call in goodbyes:
                self.wait(call)
        finally:  # an interrupt may end the waiting, not the closing
            self._shut(error)

    def _shut(self, error: FilaError) -> None:
        with self._lock:
            if self._refusal is not None:
                return
            self._widen()
            self._refusal = error
            self._session.fail_all(error)
            self._no_leader.clear()
            another_leads = self._leader not in (None, threading.get_ident())
            self._wake_leader()  # also one whose call an interrupt has left out of the failed ones
        if another_leads:
            self._no_leader.wait()
        self._heartbeat.stop()
        self._release()

    def _release(self) -> None:
        self._links.close()
        self._bell.close()

    def __del__(self) -> None:
        keeper = getattr(self, "_heartbeat", None)  # None if the endpoint would not do
        if keeper is not None:
            keeper.wake()
            self._session.leave_untaken()
            self._release()

    def disown(self, error: FilaError) -> None:
        """Leave the socket to the parent, in the child of a fork."""
        self._lock = threading.RLock()
        self._refusal = self._refusal or error
        self._links.disown()
        self._session.disown(error)

    def tick(self) -> None:
        """Read the frames that have come, and do the work that is due, for a broker in this process."""
        with suppress(FilaError):  # closed
            self.ask(_nothing, None)

    def due_at(self) -> float:
        """Return when the session has something to do by itself."""
        return math.inf if self.closed else self._session.next_deadline()

    def keep(self) -> float | None:
        """Do one round of the heartbeat thread; return how long it may sleep, None once it is to end."""
        with self._lock:
            if self._refusal is not None:
                return None
            now = self._now()
            self._heartbeat.wakes_at = -math.inf
            self._exchange(now, None)
            self._heartbeat.wakes_at = self._session.next_deadline()
            return max(0.0, min(_SLEEP_S_MAX, self._heartbeat.wakes_at - now))

    # --- signal handlers ----------------------------------------------------------------------------------------------

    def _is_changing(self) -> bool:
        """Return whether a signal handler has interrupted this thread in the middle of a change."""
        return self._puts() or bool(self._lock._is_owned())  # type: ignore[attr-defined]

    def _check_free(self) -> None:
        if self._is_changing():
            raise FilaError(
                "a signal handler has interrupted this client in the middle of a call: only close() may be called there"
            )

    def _close_late(self) -> None:
        if self._close_with is not None:
            self.close(self._close_with)

    def _enter(self) -> None:
        self._check_free()
        self._close_late()
        self._check_open()

    # --- inside: all of it under the lock, except for the sleeping ----------------------------------------------------

    def _new_poller(self) -> "select.poll":
        poller = select.poll()
        poller.register(self._bell.descriptor, select.POLLIN)
        for descriptor, writable in self._links.descriptors:
            poller.register(descriptor, EVENTS[writable])
        return poller

    def watch(self, descriptor: int, *, writable: bool) -> None:
        """Look at a descriptor from now on; a leader that sleeps begins its sleep again."""
        self._poller.register(descriptor, EVENTS[writable])
        self._wake_leader()

    def unwatch(self, descriptor: int) -> None:
        """Do not look at a descriptor any more."""
        with suppress(KeyError):  # again, after an interrupt
            self._poller.unregister(descriptor)
        self._wake_leader()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise type(self._refusal)(self._refusal.message)

    def _widen(self) -> None:
        """Let the general code go on with the short call, if one is under way."""
        if self._session.short.way is not None:
            try:
                self._session.short.widen().wake = self._wake_leader
            except BaseException:  # an interrupt, in the middle of a change
                self._links.distrust()
                raise

    def _usual_call(self) -> PendingCall:
        """Return what has become of the leader's short call."""
        call, self._session.short.usual = self._session.short.usual, None
        if call is None:
            self._check_open()
        assert call is not None, "only the child of a fork has a short call that nobody has widened, and is closed"
        call.wake = self._wake_leader
        return call

    def _exchange(self, now: float, ready: Collection[int] | None = ()) -> None:
        self._widen()
        while self._links.exchange(self._session, now, ready):
            now, ready = self._now(), None
        if self._leader_wakes_at > -math.inf and self._session.next_deadline() < self._leader_wakes_at:
            self._bell.ring()
        ticked = self._inside is not None and self._inside.is_kept
        if self._session.heartbeat_at < self._heartbeat.wakes_at and not ticked:
            self._heartbeat.wake_at(self._session.heartbeat_at)

    def _take_place(self, pending: Pending[Any], now: float) -> "int | _Follower":
        """Follow the thread that leads, or lead from now on; a leader sleeps for the returned milliseconds first."""
        me = threading.get_ident()
        if self._leader is not None and self._leader != me:
            return _Follower(pending, self._followers)
        self._leader = me
        self._lead_depth += 1
        pending.wake = self._wake_leader
        return self._sleep_ms(now)

    def _sleep(self, pending: Pending[Any], place: "int | _Follower") -> None:
        if isinstance(place, int):
            self._lead(pending, place)
        else:
            self._follow(place)

    def _lead(self, pending: Pending[Any], sleep_ms: int) -> None:
        began = 0.0 if self._inside is None else self._inside.now()
        try:
            while True:
                self._close_late()
                poller = self._poller if self._lead_depth == 1 else self._new_poller()  # one can't be used within itself
                ready = [descriptor for descriptor, _ in self._poll(poller, sleep_ms, pending, began)]
                with self._lock:
                    now = self._now()
                    self._leader_wakes_at = -math.inf
                    if self._refusal is None:
                        self._bell.silence()
                        self._exchange(now, ready)
                    if pending.done:
                        self._pass_on()
                        return
                    self._check_open()
                    sleep_ms = self._sleep_ms(now)
        except BaseException:  # an interrupt: another thread must lead
            with self._lock:
                if self._leader == threading.get_ident():
                    self._pass_on()
            raise

    def _poll(self, poller: "select.poll", sleep_ms: int, pending: Pending[Any], began: float) -> list[tuple[int, int]]:
        if self._inside is None:
            return poller.poll(sleep_ms)
        return self._inside.poll(poller, sleep_ms, began, ends=isinstance(pending, Receiving))

    def _sleep_ms(self, now: float) -> int:
        self._leader_wakes_at = due = self._session.next_deadline()
        return math.ceil(max(0.0, min(_SLEEP_S_MAX, due - now)) * 1000)

    def _pass_on(self) -> None:
        self._leader_wakes_at = -math.inf
        if self._lead_depth > 1:  # return to the call that a signal handler interrupted
            self._lead_depth -= 1
            return
        self._lead_depth = 0  # this first: after an interrupt it is done again as long as there is a leader
        self._leader = None
        if self._followers:
            follower = next(iter(self._followers))
            self._leader = follower.thread
            self._lead_depth = 1
            follower.promote(self._wake_leader)
        elif self._refusal is not None:
            self._no_leader.set()

    def _follow(self, follower: "_Follower") -> None:
        try:
            self._close_late()
            follower.sleep()
        except BaseException:  # an interrupt: no thread must wait for this one
            with self._lock:
                follower.leave()
                if follower.promoted:
                    self._pass_on()
            raise
        if follower.promoted:
            self._lead(follower.pending, 0)

    def _wake_leader(self) -> None:
        if self._leader not in {None, threading.get_ident()}:
            self._bell.ring()


def _nothing(now: float) -> None:
    """Ask for nothing."""


class _Follower:
    """A thread that waits while another one leads."""

    def __init__(self, pending: Pending[Any], followers: "dict[_Follower, None]") -> None:
        self.pending = pending
        self.thread = threading.get_ident()
        self.promoted = False
        self._followers = followers
        self._gate = threading.Lock()
        self._gate.acquire()
        followers[self] = None
        pending.wake = self.leave

    def sleep(self) -> None:
        """Sleep until the answer is there, or this thread is to lead."""
        self._gate.acquire()

    def leave(self) -> None:
        """Wait no longer."""
        if self._followers.pop(self, self) is None:
            self._gate.release()

    def promote(self, wake: Callable[[], object]) -> None:
        """Wake this thread, which leads from now on."""
        self.promoted = True
        self.pending.wake = wake
        self.leave()
