"""The answers to deferrals, which wait until all workers have parked the throttle keys.

A deferral stops its throttle keys in the whole cluster. Its answer must not be faster, or the client could get a message with
one of these keys from another worker after it: parks come to a worker through the router, requests of clients come directly,
and the two have no order. So a router confirms when all its workers have parked the keys. The worker asks all routers,
because clients may be at any of them.
"""

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol, TypeAlias

from fila_proto_zmq.commands import Park, Settle
from fila_worker.core.effects import Answer, Effect, Post
from fila_worker.process.feature import ProcessFeature

WAIT_MS_MAX: Final = 1000
"""The longest wait of an answer. If a router is away, the keys are parked there when this worker registers again."""


Asked: TypeAlias = tuple[int, int]
"""A request to a router: the number of its link, and of the request there."""


class _Waiting(NamedTuple):
    until_ms: int
    awaited: set[Asked]
    """The routers that have not confirmed yet."""
    answers: list[Effect]


class Routers(Protocol):
    """The links to all routers."""

    def park(self, parks: dict[str, int], now_ms: int) -> set[Asked]:
        """Ask all routers to have throttle keys parked everywhere. Return the requests that they are to confirm."""

    def take_confirmed(self) -> list[Asked]:
        """Return the requests to park that were confirmed, once."""


class Deferrals(ProcessFeature):
    """Answers that wait for the routers, in order."""

    def __init__(self, routers: Routers) -> None:
        super().__init__()
        self._routers = routers
        self._waiting: list[_Waiting] = []
        self._parked: dict[str, int] = {}
        """The throttle keys that this turn parks on all shards, each until when, Unix ms."""
        self.acts = False
        """Whether the effects of this turn have to pass through :meth:`sift`."""

    def on_post(self, post: Post) -> bool:
        """Note what is parked on all shards, if other workers have some of them."""
        if isinstance(post.command, Park) and not self.process.is_alone:
            self._parked |= post.command.parks
            self.acts = True
        return False

    def sift(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Return the effects of a turn and of earlier turns that may be sent now; hold the others."""
        released = self.release(self._routers.take_confirmed(), now_ms) if self._waiting else []
        if self._parked:
            parked, self._parked = self._parked, {}
            effects = self.hold(effects, self._routers.park(parked, now_ms), now_ms)
        self.acts = self.process.answers_wait = bool(self._waiting)
        return released + effects

    def hold(self, effects: list[Effect], awaited: set[Asked], now_ms: int) -> list[Effect]:
        """Keep the answers to settlements and the parks among effects; return the others. ``awaited``: requests to park."""
        held: list[Effect] = []
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Answer) and effect.opcode == Settle.opcode:
                held.append(effect)
            elif not (isinstance(effect, Post) and isinstance(effect.command, Park)):
                others.append(effect)
        self._waiting.append(_Waiting(now_ms + WAIT_MS_MAX, awaited, held))
        return others

    def release(self, confirmed: Collection[Asked], now_ms: int) -> list[Effect]:
        """Return the answers that may go: those that all routers have confirmed, and those that have waited for too long."""
        left: list[_Waiting] = []
        released: list[Effect] = []
        for waiting in self._waiting:
            waiting.awaited.difference_update(confirmed)
            if waiting.awaited and now_ms < waiting.until_ms:
                left.append(waiting)
            else:
                released += waiting.answers
        self._waiting = left
        return released
