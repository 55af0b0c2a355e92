"""Shards that leave this worker for another one, and shards that arrive.

A shard leaves in two steps, and the router asks for each. First its memtables are flushed in the background, so that it is
closed here and opened there quickly. Then it refuses new requests. Once it has answered the others, the next worker is named
on disk and the database is closed. Waiting receives are interrupted, and their clients ask again.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fila_proto_zmq import outages
from fila_proto_zmq.commands import AdoptShards, Done, PrepareShard, ReleaseShard
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, StorageError
from fila_proto_zmq.events import ShardReleased
from fila_worker.core.due_time import AT_ONCE
from fila_worker.core.effects import Answer, ClientCall, Effect, answer
from fila_worker.core.shard import Shard
from fila_worker.process.backup_cuts import BUFFERED_BYTES_MAX, Checkpointed
from fila_worker.process.feature import ProcessFeature
from fila_worker.process.slots import Slot
from fila_worker.storage.residence import Residence

if TYPE_CHECKING:
    from fila_worker.process.shard_process import ShardProcess

ARRIVALS_MS: Final = 1000
"""How often to look for shards that were moved here."""

LOOK_MS: Final = 2
"""How often to check whether a leaving shard is flushed, or has done its work."""

WORK_MS_MAX: Final = 2_000
"""How long a leaving shard may work on the requests that it has. Longer work is dropped, as at a restart."""


@dataclass(slots=True)
class _Departure:
    """``turned``: whether the turn with the shard's last request has ended, and its effects were sent."""

    call: ClientCall
    command: ReleaseShard
    until_ms: int
    turned: bool = False


class Departures(ProcessFeature):
    """The shards of one process that come and go. ``make_slot``: returns the slot of a shard that was moved here."""

    def __init__(self, residence: Residence, make_slot: Callable[[int], Slot]) -> None:
        super().__init__()
        self.commands = {PrepareShard: self._prepare, ReleaseShard: self._release}
        self.messages = {AdoptShards: lambda command, now_ms: self.look_for_arrivals(asked=True)}
        self._residence = residence
        self._make_slot = make_slot
        self._named: set[int] = set()
        """The shards that were moved here, as of the last look for arrivals."""
        self._look_ms = 0
        """When to look for arrivals again."""
        self._flushing: dict[int, tuple[ClientCall, PrepareShard]] = {}
        self._leaving: dict[int, _Departure] = {}
        self._left: list[Effect] = []
        """Answers for the shards that were closed in the last turn. They are sent a turn later, because RocksDB's lock is
        held as long as an object in memory refers to the database. The owner frees those objects at the end of the turn."""

    def attach(self, process: "ShardProcess", now_ms: int) -> None:
        """Name the data directory, and look for arrivals from the first turn on."""
        super().attach(process, now_ms)
        process.home = self._residence.home
        self.timer.by(AT_ONCE)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _prepare(self, call: ClientCall, command: PrepareShard) -> None:
        """Begin to flush a shard. The answer comes when that is done. Raise the error that refuses it."""
        store = _checkpointed(self._open_shard(command.shard))
        if store is not None and not store.flushing and store.buffered_bytes > BUFFERED_BYTES_MAX:
            store.flush()
        self._flushing[command.shard] = call, command
        self.timer.by(AT_ONCE)

    def _release(self, call: ClientCall, command: ReleaseShard) -> Done | None:
        """Take in no more requests for a shard, and close it soon. The answer comes then. Raise the error that refuses it."""
        shard = command.shard
        if shard in self._leaving:
            self._leaving[shard].call = call  # asked again
            return None
        if shard not in self.process.slots and self._residence.host_of(shard) == command.worker:
            return Done()  # asked again, after it was closed: the answer was lost
        self._open_shard(shard)
        self.process.slots[shard].leaving = True
        self._leaving[shard] = _Departure(call, command, call.now_ms + WORK_MS_MAX)
        self.timer.by(AT_ONCE)
        return None

    def _open_shard(self, index: int) -> Shard:
        slot = self.process.slots.get(index)
        if slot is None:
            raise InvalidArgumentError(f"shard {index} is not here")
        if slot.shard is None:
            assert slot.outage is not None
            raise outages.unavailable(slot.outage)
        return slot.shard

    # --- turns --------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> int | None:
        """Look for arrivals once a second, and close the shards that are to leave and have done their work."""
        if now_ms >= self._look_ms:
            self._look_ms = now_ms + ARRIVALS_MS
            with suppress(StorageError):  # the next look follows in a second
                self.look_for_arrivals()
        if self._left:  # the router gets them with the next registration, too
            self.process.held.at_once += self._left
            self._left = []
            self.process.offers += 1
        if self._flushing:
            self._answer_flushed()
        if self._leaving:
            self._close_ready(now_ms)
        return now_ms + LOOK_MS if self._flushing or self._leaving or self._left else self._look_ms

    def look_for_arrivals(self, *, asked: bool = False) -> None:
        """Begin to open the shards that other workers have released for this one. Raise :class:`StorageError`.

        ``asked``: at the router's request, because their last hosts have closed them. Else only those that the last look has
        found, too, so that their last hosts had time to close them. A request may be lost, so both ways are needed.
        """
        named_before, self._named = self._named, set(self._residence.arrived())
        ready = self._named if asked else self._named & named_before
        for index in sorted(ready.difference(self.process.slots)):
            self.process.enter(self._make_slot(index))

    def _answer_flushed(self) -> None:
        """Answer for the shards that are flushed."""
        for index, (call, command) in list(self._flushing.items()):
            shard = self.process.shards.get(index)
            store = None if shard is None else _checkpointed(shard)
            if store is None or not store.flushing:
                del self._flushing[index]
                self.process.held.at_once.append(answer(call, command, Done()))

    def _close_ready(self, now_ms: int) -> None:
        """Close the shards that have done their work. All effects of the last turn were sent."""
        for index, departure in list(self._leaving.items()):
            slot = self.process.slots[index]
            unsent = self.process.answers_wait or bool(slot.held)
            busy = slot.shard is not None and (slot.shard.jobs.open > 0 or unsent) and now_ms < departure.until_ms
            if departure.turned and not busy:
                del self._leaving[index]
                self._close(slot, departure.call, departure.command)
            departure.turned = True

    def _close(self, slot: Slot, call: ClientCall, command: ReleaseShard) -> None:
        """Name a shard's next host and close it, unless it has failed meanwhile: then it stays here."""
        slot.leaving, shard = False, slot.shard
        try:
            if slot.outage is not None:
                raise outages.unavailable(slot.outage)
            self._residence.give(slot.index, command.worker)
        except FilaError as error:
            self._left.append(Answer(call, command.opcode, error))
            return
        assert shard is not None
        slot.leave()
        self._left.append(answer(call, command, Done()))
        self.process.remove(slot)
        self.process.notes.append(ShardReleased(slot.index, shard.epoch, command.worker))


def _checkpointed(shard: Shard) -> Checkpointed | None:
    """Return the store of a shard if it has memtables to flush."""
    store: object = shard.store
    return store if isinstance(store, Checkpointed) else None
