"""The answers to deferrals, which wait until all workers have parked the throttle keys.

A deferral stops its throttle keys in the whole cluster. Its answer must not be faster than that, or the client could get a message
with one of these keys from another worker after it. A worker hears of parked keys through the router, and of its clients directly,
and nothing orders the two; so a router confirms when all have heard, and a client may be at any router.
"""

from collections.abc import Collection
from typing import Final, NamedTuple, TypeAlias

from fila_proto_zmq.commands import Park, Settle
from fila_worker.core.effects import Answer, Effect, Post

WAIT_MS_MAX: Final = 1000
"""How long an answer waits. A router may be away; the keys are then parked elsewhere when this worker registers again."""


Asked: TypeAlias = tuple[int, int]
"""A request to a router: the number of its link, and of the request there."""


class _Waiting(NamedTuple):
    until_ms: int
    awaited: set[Asked]
    """The routers that have not confirmed yet."""
    answers: list[Effect]


class Deferrals:
    """Answers that wait for the routers, in order."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    @property
    def waiting(self) -> bool:
        """Whether answers wait."""
        return bool(self._waiting)

    def hold(self, effects: list[Effect], awaited: set[Asked], now_ms: int) -> list[Effect]:
        """Keep the answers to settlements among a turn's effects, and the parking itself; return the others.

        ``awaited``: the requests by which the routers are asked to park the turn's keys.
        """
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
        if not self._waiting:
            return []
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


def parked_by(effects: list[Effect]) -> dict[str, int]:
    """Return the throttle keys that a turn parks on all shards, each until when, Unix ms."""
    keys: dict[str, int] = {}
    for effect in effects:
        if isinstance(effect, Post) and isinstance(effect.command, Park):
            keys |= effect.command.parks
    return keys
