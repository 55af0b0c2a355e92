"""Views: snapshots of queues, open over many turns, for readers of whole queues.

To open a view takes many turns, too: first until a pin would hold little memory, then to copy the state of that moment
(:class:`core.inspect.snapshot.SnapshotBuilder`). Requests for the same view wait for it.

The disk space that a view pins can't be reclaimed while the view is open, and its copies of lanes and leases take memory. So
few views are open at a time. A view without reads is closed: after its idle time, or sooner if another view needs the room.
Clients need not close views: the readers are many tasks on many machines, and any of them may run again. Views end with their
worker.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import BrowseView, OpenView, ViewBrowsed, ViewedQueue, ViewOpened
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError, QueueNotFoundError
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX, VIEW_BYTES_MAX, VIEW_IDLE_MS_MAX, VIEW_IDLE_MS_MIN, VIEW_QUEUES_MAX
from fila_worker.core.due_time import DueTime
from fila_worker.core.inspect.browse import STATES
from fila_worker.core.inspect.snapshot import QueueSnapshot, SnapshotBuilder, read_page
from fila_worker.core.jobs import REST
from fila_worker.core.model.component import Component, InvariantBroken
from fila_worker.core.settings import Limits

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.state import State
    from fila_worker.core.store import Pin

NEEDED_MS: Final = 60_000
"""A view that was opened or read within this time is not closed to make room..."""

AT_REST_MS: Final = 5_000
"""... unless all reads of it that began came to their end, and this time has passed since."""


class View:
    """A snapshot of some queues. ``begun``: whether it was ever read; ``under_way``: the reads that have not ended."""

    def __init__(
        self, queues: dict[str, QueueSnapshot], viewed: list[ViewedQueue], pin: "Pin", command: OpenView, now_ms: int
    ) -> None:
        self.queues = queues
        self.pin = pin
        self.asked = frozenset(command.queues)
        self.idle_ms = command.idle_ms
        self.used_ms = now_ms
        self.begun = False
        self.under_way = 0
        self.opened = ViewOpened(viewed)

    @property
    def needed_until_ms(self) -> int:
        """When the view may be closed to make room, Unix ms."""
        if self.begun and not self.under_way:
            return self.used_ms + AT_REST_MS
        return self.used_ms + NEEDED_MS

    def count_page(self, *, first: bool, last: bool) -> None:
        """Count a page that was read; it may be the first or the last one of a read."""
        self.begun = True
        self.under_way = max(0, self.under_way + first - last)  # a page may be requested again


class Views:
    """The open views of a shard, by name: ``Limits.views_max`` at most, with those that are being opened."""

    def __init__(self, limits: Limits) -> None:
        self._count_max = limits.views_max
        self.by_name: dict[str, View] = {}
        self.opening: set[str] = set()
        """The names of the views that are being opened."""
        self.timer = DueTime()

    def use(self, name: str, now_ms: int) -> View | None:
        """Return an open view and note that it is being read; None if it is not open."""
        view = self.by_name.get(name)
        if view is not None:
            view.used_ms = now_ms
        return view

    def make_room(self, now_ms: int) -> None:
        """Make room for one more view; raise :class:`OverloadedError` if all open ones are being read."""
        if len(self.by_name) + len(self.opening) < self._count_max:
            return
        needed = {name: view.needed_until_ms for name, view in self.by_name.items()}
        name = min(needed, key=needed.__getitem__, default="")
        needed_ms = needed.get(name, now_ms + AT_REST_MS) - now_ms
        if needed_ms > 0:
            raise OverloadedError(
                f"{self._count_max} views of this shard's queues are open and being read: try again in {needed_ms} ms",
                retry_after=needed_ms / 1000,
                details={"views": self._count_max, "refused": True},
            )
        self.close(name)

    def close_idle(self, now_ms: int) -> None:
        """Close the views without a read for their idle time."""
        for name in [name for name, view in self.by_name.items() if view.used_ms + view.idle_ms <= now_ms]:
            self.close(name)

    def close(self, name: str) -> None:
        """Forget a view and release its disk space."""
        self.by_name.pop(name).pin.close()

    def next_due(self) -> int | None:
        """Return when the first view may have to be closed, Unix ms."""
        return min((view.used_ms + view.idle_ms for view in self.by_name.values()), default=None)


def open_view(state: "State", call: "ClientCall", command: OpenView) -> "Work":
    """Open a view of some queues; if a view of this name is open, return that one."""
    _check_opening(command)
    views, now_ms = state.part(Views), call.now_ms
    while command.view in views.opening:
        now_ms = yield REST
    view = views.use(command.view, now_ms)
    if view is not None:
        if view.asked != frozenset(command.queues):  # what it shows may be hidden from who asks for others
            raise InvalidArgumentError(f"view {command.view!r} is open with other queues: use another name")
        return view.opened
    if not any(name in state.queues for name in command.queues):
        return ViewOpened([])
    views.make_room(now_ms)
    views.opening.add(command.view)
    yield from _until_little_is_pinned(state, now_ms)
    queues = [state.queues[name] for name in dict.fromkeys(command.queues) if name in state.queues]
    if not queues:
        views.opening.remove(command.view)
        return ViewOpened([])
    freezer = SnapshotBuilder(state, queues)
    frozen, viewed = yield from freezer.freeze(command)
    now_ms = yield 1
    views.opening.remove(command.view)
    view = views.by_name[command.view] = View(frozen, viewed, freezer.pin, command, now_ms)
    views.timer.by(now_ms + command.idle_ms)
    return view.opened


def _until_little_is_pinned(state: "State", now_ms: int) -> "Generator[int, int, None]":
    """Rest while write buffers are flushed, but not for longer than ``view_wait_ms_max``: a disk may be slow."""
    families = state.store.families
    until_ms = now_ms + state.settings.limits.view_wait_ms_max
    while not state.store.ready_to_pin([families.messages, families.delayed, families.leases]) and now_ms < until_ms:
        now_ms = yield REST


def _check_opening(command: OpenView) -> None:
    if not 1 <= len(command.view.encode()) <= VIEW_BYTES_MAX:
        raise InvalidArgumentError(f"view={command.view!r}: a view's name has 1 to {VIEW_BYTES_MAX} bytes")
    if not VIEW_IDLE_MS_MIN <= command.idle_ms <= VIEW_IDLE_MS_MAX:
        raise InvalidArgumentError(f"idle_ms={command.idle_ms}: use {VIEW_IDLE_MS_MIN} to {VIEW_IDLE_MS_MAX}")
    if len(command.queues) > VIEW_QUEUES_MAX:
        raise InvalidArgumentError(f"a view of {len(command.queues)} queues: use at most {VIEW_QUEUES_MAX}")
    if command.range_messages < 1:
        raise InvalidArgumentError(f"range_messages={command.range_messages}: use 1 or more")


def browse_view(state: "State", call: "ClientCall", command: BrowseView) -> ViewBrowsed:
    """Return a page of a queue as it was when the view was opened."""
    if not 1 <= command.limit <= BROWSE_MESSAGES_MAX:
        raise InvalidArgumentError(f"a page of {command.limit} messages: use 1 to {BROWSE_MESSAGES_MAX}")
    unknown = sorted(set(command.states or ()) - set(STATES))
    if unknown:
        raise InvalidArgumentError(f"state {unknown[0]!r}: use one of {', '.join(STATES)}")
    view = state.part(Views).use(command.view, call.now_ms)
    if view is None:
        raise InvalidArgumentError(
            f"no view {command.view!r} is open: it was not read for longer than its idle time, its shard ran out of room, or "
            f"its worker was restarted; open a new one (in Spark: load the DataFrame again)",
            details={"view": command.view},
        )
    queue = view.queues.get(call.queue)
    if queue is None:
        raise QueueNotFoundError(f"queue {call.queue!r} is not in view {command.view!r}: the view was opened without it")
    page, effort = read_page(queue, command, view.pin, state.store.families, state.settings.limits)
    state.jobs.charge(effort)
    view.count_page(first=command.start is None, last=page.next is None)
    return page


class OpenViews(Component):
    """The commands that open views of a shard's queues and read them."""

    verbs: ClassVar = {OpenView: open_view, BrowseView: browse_view}

    def __init__(self, state: "State") -> None:
        self._views = state.keep(Views(state.settings.limits))
        super().__init__(state, self._views.timer)

    def tick(self, now_ms: int) -> int | None:
        """Close the idle views."""
        self._views.close_idle(now_ms)
        return self._views.next_due()

    def check(self) -> None:
        """Check that lanes are copied only while a view is being opened."""
        if self.state.ledger.watches and not self._views.opening:
            raise InvariantBroken("lanes are copied, but no view is being opened")
