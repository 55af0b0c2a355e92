"""Effects that are held until the commits that they depend on are confirmed.

An effect must not leave the process while it depends on a commit that may be lost: an answer, a delivery, a message to
another shard. A read-only answer may show unconfirmed changes, so it waits for the shard's last commit, too.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from fila_admission.refusals import unavailable
from fila_proto_zmq.commands import ConfigTaken, Done
from fila_proto_zmq.errors import FilaError
from fila_worker.core.effects import Answer, Effect
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store

LOG_SLOW_MS: Final = 1000
"""How long effects may be held before the shard's leases wait too."""


def is_confirmed(store: Store) -> bool:
    """Return whether all that was committed is durable."""
    return store.confirmed == store.committed


class _Entry(NamedTuple):
    committed: int
    since_ms: int
    effects: list[Effect]


class HeldEffects:
    """The effects of one shard, in the order of its commits."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def hold(self, store: Store, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Return the effects of the last commit if they may be sent now, else hold them."""
        if not self._entries and is_confirmed(store):
            return effects
        if effects:
            self._entries.append(_Entry(store.committed, now_ms, effects))
        return []

    def release(self, store: Store) -> list[Effect]:
        """Return the effects that are confirmed by now."""
        released: list[Effect] = []
        number = store.confirmed
        while self._entries and self._entries[0].committed <= number:
            released += self._entries.popleft().effects
        return released

    def wait_long(self, now_ms: int) -> bool:
        """Return whether some wait for so long that clients can't be expected to have acted by them in time."""
        return bool(self._entries) and now_ms - self._entries[0].since_ms > LOG_SLOW_MS

    def clear(self) -> list[Effect]:
        """Drop all, because the shard has failed, and return it."""
        dropped = [effect for entry in self._entries for effect in entry.effects]
        self._entries.clear()
        return dropped


class HeldForAll:
    """Answers of a process itself. They may depend on any of its shards."""

    def __init__(self) -> None:
        self.answers: list[Effect] = []
        """Those of this turn. They wait until all that was committed by its end is confirmed."""
        self.at_once: list[Effect] = []
        """Those that wait for nothing: figures, and refusals of what no shard has begun."""
        self.entries: deque[tuple[list[tuple[Shard, int]], list[Effect]]] = deque()
        """Those of earlier turns, in order, each with the commits that they wait for."""

    def take(self, shards: Iterable[Shard]) -> list[Effect]:
        """Return the answers of this turn that may be sent at its end; hold the others."""
        answers, self.answers = self.answers, []
        at_once, self.at_once = self.at_once, []
        return at_once + self.hold(shards, answers) if answers else at_once

    def hold(self, shards: Iterable[Shard], effects: list[Effect]) -> list[Effect]:
        """Return effects if they may be sent now, else hold them until all that the shards have committed is confirmed."""
        waiting = [(shard, shard.store.committed) for shard in shards if not is_confirmed(shard.store)]
        if not waiting and not self.entries:
            return effects
        self.entries.append((waiting, effects))
        return []

    def release(self, shards: Iterable[Shard]) -> list[Effect]:
        """Return the effects that may be sent by now. ``shards``: the open ones.

        The commits of other shards may be lost, and this process cannot find out. So an answer that may show them becomes an
        error, and a message about their logs is dropped.
        """
        released: list[Effect] = []
        is_open = {id(shard): shard for shard in shards}
        while self.entries:
            waiting, effects = self.entries[0]
            if any(id(shard) in is_open and shard.store.confirmed < number for shard, number in waiting):
                break
            self.entries.popleft()
            gone = {shard.index for shard, _ in waiting if id(shard) not in is_open}
            released += _without(effects, gone) if gone else effects
        return released


def _without(effects: list[Effect], gone: set[int]) -> list[Effect]:
    """Return effects without what they may show of shards that are gone."""
    left: list[Effect] = []
    for effect in effects:
        if not isinstance(effect, Answer) or isinstance(effect.reply, (Done, FilaError)):
            left.append(effect)
        elif not isinstance(effect.reply, ConfigTaken):
            left.append(replace(effect, reply=unavailable(min(gone))))
        elif gone.isdisjoint(effect.reply.shards):
            left.append(effect)
    return left
