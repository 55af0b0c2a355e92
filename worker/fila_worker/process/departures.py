"""Shards that leave this worker for another one, and shards that arrive.

A shard leaves in two steps, and the router asks for each. In the first step its memtables are flushed in the background, so that
closing it here and opening it there are quick. In the second step it takes in no more requests. Once it has answered those that it
has, the next worker is named on disk and the database is closed. Receives that wait for messages are interrupted, and their clients
ask again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fila_proto_zmq import outages
from fila_proto_zmq.commands import Done, PrepareShard, ReleaseShard
from fila_proto_zmq.errors import FilaError, InvalidArgumentError
from fila_worker.core.effects import Answer, Call, Effect, answer
from fila_worker.core.shard import Shard
from fila_worker.process.backup_cuts import BUFFERED_BYTES_MAX, Checkpointed
from fila_worker.process.slots import Slot
from fila_worker.storage.residence import Residence

WORK_MS_MAX: Final = 2_000
"""How long a leaving shard may work on the requests that it has. Longer work is dropped, as at a restart."""


@dataclass(slots=True)
class _Departure:
    """``turned``: whether the turn with the shard's last request has ended, and its effects were sent."""

    call: Call
    command: ReleaseShard
    until_ms: int
    turned: bool = False


class Departures:
    """The shards of one host that come and go. ``make_slot``: returns the slot of a shard that was moved here."""

    def __init__(self, residence: Residence, make_slot: Callable[[int], Slot]) -> None:
        self._residence = residence
        self._make_slot = make_slot
        self._named: set[int] = set()
        """The shards that were moved here, as of the last call of :meth:`arrivals`."""
        self._flushing: dict[int, tuple[Call, PrepareShard]] = {}
        self._leaving: dict[int, _Departure] = {}
        self._left: list[Effect] = []
        """Answers for the shards that were closed in the last turn. They are sent a turn later, because RocksDB's lock is held as long
        as an object in memory refers to the database. The owner frees those objects at the end of the turn."""

    @property
    def home(self) -> str:
        """The name of the data directory, as in :attr:`Residence.home`."""
        return self._residence.home

    # --- requests -----------------------------------------------------------------------------------------------------

    def prepare(self, call: Call, command: PrepareShard, slots: Mapping[int, Slot]) -> None:
        """Begin to flush a shard. :meth:`flushed` has the answer. Raise the error that refuses it."""
        store = _checkpointed(_open_shard(slots, command.shard))
        if store is not None and not store.flushing and store.buffered_bytes > BUFFERED_BYTES_MAX:
            store.flush()
        self._flushing[command.shard] = call, command

    def release(self, call: Call, command: ReleaseShard, slots: Mapping[int, Slot], now_ms: int) -> None:
        """Let a shard take in no more requests, and have it closed soon. :meth:`left` has the answer. Raise the error that refuses it."""
        _open_shard(slots, command.shard)
        slots[command.shard].leaving = True
        self._leaving[command.shard] = _Departure(call, command, now_ms + WORK_MS_MAX)

    # --- turns --------------------------------------------------------------------------------------------------------

    def arrivals(self, slots: Mapping[int, Slot], *, asked: bool) -> list[Slot]:
        """Return slots for the shards that were moved here and have none yet. Raise :class:`StorageError`.

        ``asked``: the router asks for it, because their last hosts have closed them. Otherwise only those are taken that the last
        call has found as well, so that their last hosts had the time to close them.
        """
        named_before, self._named = self._named, set(self._residence.arrived())
        ready = self._named if asked else self._named & named_before
        return [self._make_slot(shard) for shard in sorted(ready) if shard not in slots]

    def flushed(self, slots: Mapping[int, Slot]) -> list[Effect]:
        """Return the answers for the shards that are flushed."""
        answers: list[Effect] = []
        for index, (call, command) in list(self._flushing.items()):
            slot = slots.get(index)
            store = None if slot is None or slot.shard is None else _checkpointed(slot.shard)
            if store is None or not store.flushing:
                del self._flushing[index]
                answers.append(answer(call, command, Done()))
        return answers

    def ready(self, slots: Mapping[int, Slot], now_ms: int, *, answers_wait: bool) -> list[tuple[Slot, Call, ReleaseShard]]:
        """Return the shards to close now. Call it before the shards' turns, when the effects of the last turn were sent.

        ``answers_wait``: whether answers of earlier turns were not sent yet.
        """
        done = []
        for index, departure in list(self._leaving.items()):
            shard = slots[index].shard
            unsent = answers_wait or bool(slots[index].held)
            busy = shard is not None and (shard.jobs.open > 0 or unsent) and now_ms < departure.until_ms
            if departure.turned and not busy:
                del self._leaving[index]
                done.append((slots[index], departure.call, departure.command))
            departure.turned = True
        return done

    def close(self, slot: Slot, call: Call, command: ReleaseShard) -> bool:
        """Name a shard's next host and close it; :meth:`left` has the answer. Return False if it stays here."""
        slot.leaving = False
        try:
            if slot.outage is not None:  # it has failed meanwhile
                raise outages.unavailable(slot.outage)
            self._residence.give(slot.index, command.worker)
        except FilaError as error:
            self._left.append(Answer(call, command.opcode, error))
            return False
        slot.leave()
        self._left.append(answer(call, command, Done()))
        return True

    def left(self) -> list[Effect]:
        """Return the answers for the shards that were closed in the last turn, once."""
        left, self._left = self._left, []
        return left

    @property
    def looks_again(self) -> bool:
        """Whether there is something to look at soon."""
        return bool(self._flushing or self._leaving or self._left)


def _checkpointed(shard: Shard) -> Checkpointed | None:
    """Return the store of a shard if it has memtables to flush."""
    store: object = shard.store
    return store if isinstance(store, Checkpointed) else None


def _open_shard(slots: Mapping[int, Slot], index: int) -> Shard:
    slot = slots.get(index)
    if slot is None:
        raise InvalidArgumentError(f"shard {index} is not here")
    if slot.shard is None:
        assert slot.outage is not None
        raise outages.unavailable(slot.outage)
    return slot.shard
