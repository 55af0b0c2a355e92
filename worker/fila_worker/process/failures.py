"""Failures of shards: the memory of a failed shard is dropped, the failure is noted, and the command to blame is found."""

from typing import TYPE_CHECKING

from fila_proto_zmq import outages
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import CommandRefused, CopyBeginning, ProcessFailed, ShardFailed, ShardQuarantined, StorageFailed
from fila_worker.core.effects import ClientCall
from fila_worker.core.store import UnfitStoreError
from fila_worker.process.slots import Frame, Patience, Slot
from fila_worker.process.suspects import Suspects

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Command
    from fila_worker.process.shard_process import ShardProcess


class ShardFailures:
    """The handling of failures, of one process. ``process`` is set by the process."""

    process: "ShardProcess"

    def __init__(self, patience: Patience | None = None, suspects: Suspects | None = None) -> None:
        self.suspects = suspects or Suspects()
        self._patience = patience or Patience()
        self._count = 0

    def fail(self, slot: Slot, error: Exception, now_ms: int) -> None:
        """Handle a shard's failure. Raise ``error`` if the process cannot have the shard's store at all."""
        process = self.process
        self._count += 1
        failure = f"{process.metrics.started_ms:x}-{slot.index}-{self._count}"
        if isinstance(error, UnfitStoreError) and not slot.opened_once:
            raise error  # another process has the store, or it is of another cluster: the start was a mistake
        was_open = slot.shard is not None
        blameless = isinstance(error, StorageError) or not self._blame(slot, failure, now_ms)
        described = ProcessFailed.of(error)
        reason = described.reason or f"failure {failure} ({described.error}) in its worker's log"
        before = slot.outage
        outage = slot.fail(error, reason, self._patience, now_ms, blameless=blameless)
        if outage.state == outages.BEGINNING:
            self.note_beginning(slot)
        elif isinstance(error, StorageError):
            if outage != before:
                process.notes.append(StorageFailed(slot.index, failure, reason))
        else:
            process.notes.append(ShardFailed(slot.index, failure, described.error, described.reason, described.trace))
        if outage.state == outages.QUARANTINED:
            process.notes.append(ShardQuarantined(slot.index, failure, reason))
        _forget_frames(error)
        if was_open:
            process.put_down(slot)
        elif outage != before:
            process.offers += 1

    def apply(self, slot: Slot, call: ClientCall, command: "Command", frame: Frame) -> None:
        """Carry out a command while there are suspects: a suspect gets a turn of its own; a command to blame is refused."""
        process = self.process
        name = self.suspects.examine(call, command, slot.index)
        if name is None:
            process.apply(slot, call, command, frame)
            return
        process.end_turn(slot, call.now_ms, process.held.answers)
        if slot.shard is None:
            return  # it failed because of an earlier command
        process.apply(slot, call, command, frame)
        process.end_turn(slot, call.now_ms, process.held.answers)
        if slot.shard is not None:
            self.suspects.on_trial[name] = slot, call
            self.suspects.acquit_done()

    def note_beginning(self, slot: Slot) -> None:
        """Note that a copy of a shard begins again, if it does."""
        if slot.outage is not None and slot.outage.state == outages.BEGINNING:
            self.process.notes.append(CopyBeginning(slot.index, slot.outage.reason))

    def _blame(self, slot: Slot, failure: str, now_ms: int) -> bool:
        """Find out which command made a shard fail. Return whether one is refused from now on."""
        convicted = self.suspects.blame(slot, failure, now_ms)
        if convicted is None:
            return False
        command, queue = convicted
        slot.forgive()
        self.process.notes.append(CommandRefused(slot.index, failure, type(command).__name__, queue))
        return True


def _forget_frames(error: BaseException) -> None:
    """Clear the tracebacks of an error: they keep all of the failed shard in memory, and iterators that lock its store."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
