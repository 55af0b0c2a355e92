"""The answers to deferrals, which wait until all workers have parked the throttle keys.

A deferral stops its throttle keys in the whole cluster. Its answer must not be faster than that, or the client could get a message
with one of these keys from another worker after it. A worker hears of parked keys through the router, and of its clients directly,
and nothing orders the two; so the router confirms when all have heard.
"""

from typing import Final

from fila_proto_zmq.commands import Park, Settle
from fila_worker.core.effects import Answer, Effect, Post

WAIT_MS_MAX: Final = 1000
"""How long an answer waits. The router may be away; the keys are then parked elsewhere when this worker registers again."""


class Deferrals:
    """Answers that wait, by the request to the router."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[int, list[Effect]]] = {}
        """``(until when, answers)``."""

    @property
    def waiting(self) -> bool:
        """Whether answers wait."""
        return bool(self._waiting)

    def hold(self, effects: list[Effect], request: int, now_ms: int) -> list[Effect]:
        """Keep the answers to settlements among a turn's effects, and the parking itself; return the others.

        ``request`` is the one by which the router is asked to park the turn's keys.
        """
        held: list[Effect] = []
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Answer) and effect.opcode == Settle.opcode:
                held.append(effect)
            elif not (isinstance(effect, Post) and isinstance(effect.command, Park)):
                others.append(effect)
        self._waiting[request] = now_ms + WAIT_MS_MAX, held
        return others

    def release(self, confirmed: list[int], now_ms: int) -> list[Effect]:
        """Return the answers that may go: those of requests that are confirmed, and those that have waited for too long."""
        if not self._waiting:
            return []
        over = [request for request, (until_ms, _) in self._waiting.items() if until_ms <= now_ms]
        return [effect for request in {*confirmed, *over} for effect in self._waiting.pop(request, (0, []))[1]]


def parked_by(effects: list[Effect]) -> dict[str, int]:
    """Return the throttle keys that a turn parks on all shards, each until when, Unix ms."""
    keys: dict[str, int] = {}
    for effect in effects:
        if isinstance(effect, Post) and isinstance(effect.command, Park):
            keys |= effect.command.parks
    return keys
