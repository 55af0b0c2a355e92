"""A walk over the messages of a queue that takes some of them out, in bounded steps: of a redrive, or of a move.

Leased messages stay. A walk goes lane by lane, in line order. One command takes a bounded number of messages, so that no turn
is long, and reads a bounded number of others in each lane. Callers repeat it until nothing remains.
"""

from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING, Final

from fila_worker.core.keys import after
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.walking import VIEWS_AT_ONCE, again, pieces

if TYPE_CHECKING:
    from fila_worker.core.model.due_index import Delayed
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State
    from fila_worker.core.walking import View

READ_MESSAGES: Final = 50
"""Messages that are read at once."""

MOVE_COST: Final = 5
"""Cost of moving a message, without its queue's hook."""

READ_COST: Final = 3
"""Cost of starting a read somewhere."""


class BacklogWalk:
    """One command. A subclass says which messages may go, and where to."""

    takes_delayed = False
    """Whether delayed messages are taken, too."""

    def __init__(self, state: "State", queue: "Queue", now_ms: int) -> None:
        self.moved = 0
        """The messages that were taken out."""
        self.over = False
        """Whether a message could not go, and so the walk ends."""
        self._state, self._queue, self._now_ms = state, queue, now_ms
        self._limits = state.settings.limits
        self._step = self._limits.step_effort

    def may_go(self, record: bytes) -> bool:
        """Return whether a message may be taken."""
        raise NotImplementedError

    def take_pending(self, lane: "Lane", message_key: bytes, record: bytes) -> None:
        """Take out a message that may go, and count it. The walk corrects the activity of its lane."""
        raise NotImplementedError

    def take_delayed(self, lane: "Lane", message_key: bytes, delayed: "Delayed") -> None:
        """Do the same for a delayed message."""
        raise NotImplementedError

    def first_ones(self, count: int, key_name: str | None) -> "Generator[int, int, None]":
        """Take the first messages that may go, of all keys or of one, at most ``count``."""
        effort = 0
        for views in pieces(self._state, self._queue, self._step, key_name):
            for each in views:
                effort = yield from self._empty(each, self._pending_of, count, effort)
                if self.takes_delayed:
                    effort = yield from self._empty(each, self._delayed_of, count, effort)
            if self.over or self.moved >= count:
                return
            self._now_ms = yield effort + 1 + len(views) // VIEWS_AT_ONCE
            effort = 0

    def _empty(
        self, each: "View", some_of: "Callable[[Lane, bytes, int], tuple[bytes | None, int]]", count: int, effort: int
    ) -> "Generator[int, int, int]":
        """Take messages of one state out of a lane. Return the effort since the last step."""
        view, cursor, looks_left = again(self._state, each), b"", self._limits.redrive_look_messages_max
        while view is not None and looks_left > 0 and self.moved < count and not self.over:
            if not (view.active if some_of == self._pending_of else view.delayed):
                break
            if effort == 0:
                self._state.settle_writes()  # a message that moves meanwhile is not read again
            before = self.moved
            following, read = some_of(view.warm(), cursor, min(count - before, READ_MESSAGES))
            looks_left -= read - (self.moved - before)
            effort += READ_COST + read + MOVE_COST * (self.moved - before)
            if effort >= self._step or self._state.jobs.full:
                self._now_ms = yield effort
                effort = 0
                view = again(self._state, each)
            if following is None:
                break
            cursor = following
        return effort

    def _pending_of(self, lane: "Lane", cursor: bytes, count: int) -> tuple[bytes | None, int]:
        """Take up to ``count`` messages of a lane; return where to continue (None: at the end), and how many were read."""
        state = self._state
        begin = max(cursor, _first_pending(lane))
        found = list(islice(state.store.scan(begin, lane.end, state.store.families.messages), count))
        claimed = lane.claimed
        for read, (message_key, record) in enumerate(found):
            if (state.jobs.full and read) or self.over:
                return cursor, read  # the hooks took the rest of the turn
            cursor = after(message_key)
            if message_key not in claimed and self.may_go(record):
                self.take_pending(lane, message_key, record)
                state.thin_out(lane)
        return (cursor if len(found) == count else None), len(found)

    def _delayed_of(self, lane: "Lane", cursor: bytes, count: int) -> tuple[bytes | None, int]:
        """Do the same for its delayed messages."""
        state = self._state
        begin = max(cursor, lane.prefix)
        found = list(islice(state.store.scan(begin, lane.end, state.store.families.delayed), count))
        for read, (message_key, value) in enumerate(found):
            if (state.jobs.full and read) or self.over:
                return cursor, read
            cursor = after(message_key)
            delayed = parse_delayed(value)
            if self.may_go(delayed.record):
                self.take_delayed(lane, message_key, delayed)
        return (cursor if len(found) == count else None), len(found)


def _first_pending(lane: "Lane") -> bytes:
    """Return a key from which a scan meets no tombstones of messages that were consumed."""
    head = lane.peek()
    return min(each for each in (head[0] if head else None, lane.tail, lane.end) if each is not None)
