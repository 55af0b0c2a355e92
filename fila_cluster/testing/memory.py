"""A broker in memory on a clock of its own: the real router core, shard and Lua, without sockets, files and processes.

The threads of its clients carry out its turns, each in its own call, so an answer is there when the call sends its request.
The clock advances only

- when :meth:`MemoryBroker.advance` is called;
- when the thread that made the broker waits in a call, and no other thread uses the broker: it jumps to the next date of the
  broker or of a client, repeatedly, until the call has its answer or is out of time;
- when a wait of another thread, or a timer of an event loop, has taken its real time.

At each date on its way the broker and all clients do their due work, in order: heartbeats, renewals of leases, expiries,
delayed messages, tokens.
"""

import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from fila_cluster.client.io import inside
from fila_cluster.client.io.inside import InsideLink
from fila_cluster.embedded.joined import Joined, Joint
from fila_cluster.testing.story import Story
from fila_proto_zmq.errors import InvalidArgumentError
from fila_worker.core.settings import ShardSettings
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore

TURNS_MAX: Final = 1_000_000
"""Turns without a pause and without an advance of time that show a fault: 10,000 messages need some hundreds."""
OTHERS_MAX: Final = 1000
"""Threads that are remembered before those that have ended are forgotten."""
WORKER: Final = "worker-0"


class MemoryBroker:
    """One broker, found by clients as ``memory://NAME`` until it is closed."""

    keeps_time = True

    def __init__(self, name: str, settings: ShardSettings) -> None:
        self.name = name
        self._keeper = threading.get_ident()
        self._lock = threading.RLock()
        """Held while the broker works. A finalizer may come in the middle of that, in the same thread, and use a client."""
        self._works = False
        self._moving = threading.RLock()
        """Held while time advances. Its holder may take ``_lock`` and the locks of clients, never the other way round."""
        self._others: set[int] = set()
        """Threads, other than the one that keeps the clock, that have used the broker."""
        self._began = max(time.monotonic(), inside.earliest())
        self._began_ms = self._now_ms = time.time_ns() // 1_000_000
        store = MemoryStore()
        slot = Slot(0, 1, settings, compile_hooks, lambda: store)
        self._joined = Joined(ShardProcess([slot], 1, self._now_ms, WORKER), settings, 1, WORKER)
        self.story = Story(self._now_ms, lambda: self._now_ms)
        self._joined.watcher = self.story
        self.serve()
        if not self._joined.is_ready:
            raise RuntimeError(f"the broker of memory://{name} does not serve: {self._joined.host.slots.outages}")
        inside.enter(name, self)

    def close(self) -> None:
        """End it with its contents. Its clients' calls end with an error."""
        inside.leave(self.name, self)
        with self._lock:
            self._joined.close()

    # --- for clients --------------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return monotonic seconds."""
        return self._began + (self._now_ms - self._began_ms) / 1000

    def connect(self, link: InsideLink) -> Joint:
        """Open a connection."""
        with self._lock:
            return self._joined.connect(link.ring)

    def serve(self) -> None:
        """Carry out sent frames, and due work."""
        thread = threading.get_ident()
        if thread != self._keeper:
            self._others.add(thread)
            if len(self._others) > OTHERS_MAX:
                self._has_company()
        with self._lock:
            if self._works:  # in a finalizer: what was sent is carried out before the turns end
                return
            self._works = True
            try:
                self._work()
            finally:
                self._works = False

    def _work(self) -> None:
        for _ in range(TURNS_MAX):
            self._joined.turn(self._now_ms)
            if self._joined.next_due(self._now_ms) != 0:
                return
        raise RuntimeError(f"the broker of memory://{self.name} does not come to rest")

    def rest(self, until: float) -> bool:
        """Advance the clock to the next date, at most to ``until``; return False if this thread may not move it."""
        if threading.get_ident() != self._keeper or self._has_company():
            return False
        with self._moving:
            self._tick_all()
            self._step(self._ms_of(until))
        return True

    def reach(self, until: float) -> None:
        """Advance the clock to ``until``, unless it is past that or another thread moves it."""
        if until == math.inf or not self._moving.acquire(blocking=False):
            return
        try:
            self._go_on(self._ms_of(until))
        finally:
            self._moving.release()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def now_at(self) -> datetime:
        """The time by its clock."""
        return datetime.fromtimestamp(self._now_ms / 1000, UTC)

    @property
    def age(self) -> float:
        """Its age in seconds, by its clock."""
        return (self._now_ms - self._began_ms) / 1000

    def advance(self, duration_ms: int) -> None:
        """Advance the clock, and do all work that is due by then."""
        with self._moving:
            self._go_on(self._now_ms + duration_ms)

    def _go_on(self, target_ms: int) -> None:
        self._tick_all()
        while self._now_ms < target_ms:
            self._step(target_ms)

    def _step(self, target_ms: int) -> None:
        """Advance to the next date, at most to ``target_ms``, and do its due work. Nothing is due now."""
        due_ms = min(self._next_ms(), target_ms)
        if due_ms > self._now_ms:
            self._now_ms = due_ms
        elif self._now_ms < target_ms:
            self._now_ms += 1  # a client that can't do what is due, such as one whose event loop is busy
        self._tick_all()

    def _tick_all(self) -> None:
        self.serve()
        inside.tick_all(self.name)

    def _next_ms(self) -> int:
        with self._lock:
            due = self._joined.next_due(self._now_ms)
        soonest = math.inf if due is None else self._now_ms + due
        for inhabitant in inside.inhabitants(self.name):
            due_at = inhabitant.due_at()
            if due_at < math.inf:
                soonest = min(soonest, self._ms_of(due_at))
        return self._now_ms + 3_600_000 if soonest == math.inf else int(soonest)

    def _ms_of(self, moment: float) -> int:
        """Return the first millisecond that is not before a moment."""
        return self._began_ms + math.ceil((moment - self._began) * 1000 - 1e-6)

    def _has_company(self) -> bool:
        """Return whether other threads use the broker. Threads that clients made for themselves do not count."""
        if self._others:
            self._others &= {thread.ident for thread in threading.enumerate() if thread.ident is not None}
        return bool(self._others)


WAIT_S_MAX: Final = 30.0
"""The longest wait on a real broker."""
ADVANCE_S_MAX: Final = 10 * 365 * 86_400.0
"""Ten years: more is a mistake in the unit."""


class Clock(Protocol):
    """The time of the broker of a test."""

    def advance(self, seconds: float) -> None:
        """Advance by so many seconds; the broker and its clients do the work that is due by then."""

    def now(self) -> datetime:
        """Return the time, in UTC."""


class VirtualClock:
    """The clock of a broker in memory. It begins at the present time, and only the test moves it."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    def advance(self, seconds: float) -> None:
        """Advance by so many seconds at once; the broker and its clients do the due work in order."""
        self._broker.advance(round(1000 * checked("advance", seconds)))

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return self._broker.now_at

    def __repr__(self) -> str:
        return f"<VirtualClock, {self._broker.age:g} s after its start>"


class RealClock:
    """The time of a broker outside: :meth:`advance` waits."""

    def __init__(self, too_long: Callable[[str], object], wait_s_max: float = WAIT_S_MAX) -> None:
        """``too_long(why)`` is called instead of a longer wait than ``wait_s_max``."""
        self._too_long = too_long
        self._wait_s_max = wait_s_max

    def advance(self, seconds: float) -> None:
        """Wait for so many seconds."""
        if checked("advance", seconds) > self._wait_s_max:
            self._too_long(
                f"clock.advance({seconds:g}) would wait for longer than {self._wait_s_max:g} s on a real broker "
                "(--fila-wait-max)"
            )
            return
        time.sleep(seconds)

    def now(self) -> datetime:
        """Return the time, in UTC."""
        return datetime.now(UTC)


def checked(name: str, seconds: Any) -> float:
    """Return a number of seconds; raise :class:`InvalidArgumentError` if it is not one."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        raise InvalidArgumentError(f"{name}: {seconds!r} is not a number of seconds")
    if not 0 <= seconds <= ADVANCE_S_MAX:
        raise InvalidArgumentError(f"{name}: {seconds:g} is not from 0 to {ADVANCE_S_MAX:g} s (ten years)")
    return float(seconds)
