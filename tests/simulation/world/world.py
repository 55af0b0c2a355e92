"""The virtual world: time, the order in which things happen, and the processes that live in it.

A process of the cluster (router, worker) runs its real loop in a greenlet; a client runs on an event loop of its own. Both come to
rest only where a real process would wait for the kernel, and there the world decides what happens next. Nothing reads a real
clock and nothing draws numbers but from the world's seed, so one seed is one run, to the byte.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from traceback import extract_tb
from typing import Any

from greenlet import getcurrent, greenlet

from fila_proto_zmq.errors import StorageError

STORY_LINES_MAX = 200_000
"""Lines of a story that are kept: a run that tells more has run away."""

EVENTS_MAX = 3_000_000


class Killed(BaseException):
    """Raised inside a process at the moment of its death. Nothing in the product catches it."""


class Stuck(AssertionError):  # noqa: N818
    """A process does not come to rest, or the world does not."""


class World:
    """Virtual time in microseconds, and everything that is due at some time."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.pauses: list[tuple[str, int, int]] = []
        """Which process of the cluster stood still, and from when until when."""
        self.current: Any = None
        """The process or client whose code runs now."""
        self.story: list[str] = []
        self.told = 0
        self.hub = getcurrent()
        self.fail: Callable[[str, str], object] = lambda checker, what: None
        """Note that something is wrong."""
        self._due: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._made = 0
        self._streams: dict[str, Random] = {}

    def random(self, name: str) -> Random:
        """A stream of numbers of its own for each purpose, so that one of them does not disturb another."""
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = Random(f"{self.seed} {name}")
        return stream

    def at(self, when_us: int, event: Callable[..., object], *arguments: Any) -> None:
        """Let something happen then. What is due at the same time happens in the order in which it was asked for."""
        self._made = made = self._made + 1
        heappush(self._due, (when_us if when_us > self.now_us else self.now_us, made, event, arguments))

    def after(self, span_us: int, event: Callable[..., object], *arguments: Any) -> None:
        """Let something happen in a while."""
        self._made = made = self._made + 1
        heappush(self._due, (self.now_us + span_us if span_us > 0 else self.now_us, made, event, arguments))

    def run_until(self, end_us: int) -> None:
        """Let everything happen that is due up to a time."""
        due = self._due
        while due and due[0][0] <= end_us:
            self.now_us, number, event, arguments = heappop(due)
            event(*arguments)
            if number > EVENTS_MAX:
                raise Stuck(f"{number} events: something does not come to rest")
        self.now_us = max(self.now_us, end_us)

    @property
    def events_waiting(self) -> int:
        """How many events are due at some time."""
        return len(self._due)

    def tell(self, who: str, what: str) -> None:
        """Add a line to the story."""
        self.told += 1
        if self.told > STORY_LINES_MAX:
            raise Stuck(f"the story has {self.told} lines: something runs away")
        self.story.append(f"{self.now_us / 1e6:11.6f}  {who:<12} {what}")


class Process:
    """A process of the cluster: its real code in a greenlet, through all its lives.

    It may be paused or killed wherever it touches the outside: before it sends a frame, before and after a commit, and while it waits.
    """

    def __init__(self, world: World, name: str, work_us: tuple[int, int]) -> None:
        self.world = world
        self.name = name
        self.address = "10.0.1.1"
        self.lives = 0
        self.alive = False
        self.away = False
        """Nothing may start it."""
        self.sockets: list[Any] = []
        self.stop_wanted = False
        self.started_us = 0
        self.died_us = 0
        self.paused_until_us = 0
        self.on_death: Callable[[str], object] = lambda why: None
        self._work_min_us, self._work_span_us = work_us[0], work_us[1] - work_us[0]
        self._draw = world.random(f"work of {name}").random
        """How long it takes until it goes on is drawn where it is needed: that is the simulation's hottest path."""
        self._greenlet: greenlet | None = None
        self._wake = 0
        self._waits_for: Any = None
        self._woken = False
        self._doom: tuple[int, str, int] | None = None
        """What is to happen at which of its next touches: ``(touches left, "die" or "pause", microseconds)``."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life."""
        assert not self.alive, self.name
        self.lives += 1
        self.alive = True
        self.stop_wanted = False
        self.started_us = self.world.now_us
        self.paused_until_us = 0
        self._doom = None
        self.sockets = []
        self._greenlet = greenlet(self._live, self.world.hub)
        self.world.tell(self.name, f"starts (life {self.lives})")
        self._resume(None)

    def run(self) -> str:
        """What it does; returns how it ended."""
        raise NotImplementedError

    def noted(self, event: Any) -> None:
        """It has noted an event in its log."""

    def _live(self, _: object) -> None:
        try:
            why = self.run()
        except Killed:
            why = "killed"
        except Stuck:
            raise
        except StorageError as error:
            why = f"cannot open its store: {error}"
        except Exception as error:  # a bug while it starts: the loops themselves catch what comes later
            why = repr(error)
            self.world.fail("crash", f"{self.name} cannot start: {error!r} at {_last_line(error)}")
        self._ended(why)

    def _ended(self, why: str) -> None:
        self.alive = False
        self.died_us = self.world.now_us
        self._wake += 1
        self._waits_for = None
        for socket in self.sockets:
            socket.owner_died()
        self.world.tell(self.name, f"ended: {why}")
        self.on_death(why)

    @property
    def resting(self) -> bool:
        """Whether it waits for the next thing, and is not in the middle of one."""
        return self.alive and self._waits_for is not None

    def kill(self) -> None:
        """End it now, wherever it is."""
        if not self.alive:
            return
        body, self._greenlet = self._greenlet, None
        if body is None or body.dead:
            self._ended("killed")
            return
        previous, self.world.current = self.world.current, self
        try:
            body.throw(Killed)
        finally:
            self.world.current = previous

    def doom(self, touches: int, fate: str, span_us: int = 0) -> None:
        """Let it die or pause at one of its next touches of the outside."""
        if touches <= 0:
            self._meet(fate, span_us)
        else:
            self._doom = (touches, fate, span_us)

    def _meet(self, fate: str, span_us: int) -> None:
        if fate == "die":
            self.kill()
        else:
            self.pause(span_us)

    def pause(self, span_us: int) -> None:
        """Let it do nothing for a while."""
        if self.alive:
            self.paused_until_us = max(self.paused_until_us, self.world.now_us + span_us)
            self.world.pauses.append((self.name, self.world.now_us, self.paused_until_us))
            self.world.tell(self.name, f"is paused for {span_us / 1e6:.3f} s")

    def stop(self) -> None:
        """Ask it to end in good order."""
        if self.alive and not self.stop_wanted:
            self.stop_wanted = True
            self.world.tell(self.name, "is asked to stop")
            self.notice(None)

    # --- inside its code ----------------------------------------------------------------------------------------------

    def touch(self, what: str) -> None:
        """It is about to touch the outside: it may die here, or be paused in the middle of what it does."""
        if self._doom is not None:
            touches, fate, span_us = self._doom
            if touches > 1:
                self._doom = (touches - 1, fate, span_us)
                return
            self._doom = None
            self.world.tell(self.name, f"{fate}s before: {what}")
            if fate == "die":
                raise Killed
            self.paused_until_us = self.world.now_us + span_us
            self.world.pauses.append((self.name, self.world.now_us, self.paused_until_us))
        if self.paused_until_us > self.world.now_us:
            self._sleep_until(self.paused_until_us)

    def wait(self, sources: Any, timeout_ms: float | None) -> Any:
        """Sleep until one of ``sources`` is ready, or until the time is up; what is ready."""
        world = self.world
        switch = world.hub.switch
        self._waits_for = sources
        self._woken = False
        if sources.any_ready(self):
            self._wake_after(self._work_min_us + int(self._work_span_us * self._draw()))
        elif timeout_ms is not None:
            work_us, wait_us = self._work_min_us + int(self._work_span_us * self._draw()), round(timeout_ms * 1000)
            self._wake_after(work_us if work_us > wait_us else wait_us, False)
        while True:
            switch()
            if self.paused_until_us > world.now_us:
                self._wake_after(self.paused_until_us - world.now_us)
                continue
            self._waits_for = None
            return sources.ready(self)

    def notice(self, source: Any) -> None:
        """Something became ready. Called from outside."""
        if self._woken:
            return
        waits_for = self._waits_for
        if waits_for is not None and (source is None or waits_for.has(source)):
            self._wake_after(self._work_min_us + int(self._work_span_us * self._draw()))

    def _sleep_until(self, when_us: int) -> None:
        while self.world.now_us < when_us:
            self._waits_for = None
            self._wake_after(when_us - self.world.now_us)
            self.world.hub.switch()
            when_us = max(when_us, self.paused_until_us)

    def _wake_after(self, span_us: int, final: bool = True) -> None:
        """``final``: nothing that becomes ready meanwhile wakes it sooner."""
        self._wake = wake = self._wake + 1
        self._woken = final
        self.world.after(span_us, self._resume, wake)

    def _resume(self, wake: int | None) -> None:
        if (wake is not None and wake != self._wake) or self._greenlet is None:
            return
        world = self.world
        previous, world.current = world.current, self
        try:
            self._greenlet.switch(None)
        finally:
            world.current = previous


def _last_line(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    return " < ".join(f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} {frame.name}" for frame in frames[:-6:-1])
