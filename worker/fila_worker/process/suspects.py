"""The commands that may have made a shard fail. Each gets a turn of its own, and is refused if the shard fails again."""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

from fila_proto_zmq.codec import decode_command, encode_body
from fila_proto_zmq.commands import Command
from fila_proto_zmq.errors import InternalError
from fila_proto_zmq.frames import unpack_header
from fila_worker.core.effects import ClientCall
from fila_worker.process.slots import Slot

Name: TypeAlias = bytes
"""Identifies a command."""

SUSPECTS_MAX: Final = 1024
"""Above this the oldest are forgotten: at worst they make their shard fail twice once more."""

REFUSE_MS: Final = 600_000


def name_of(command: Command, queue: str) -> Name:
    """Return the identity of a command. It is packed again, because clients may pack in other ways."""
    digest = blake2b(queue.encode(), digest_size=16, salt=command.opcode.to_bytes(2, "big"))
    digest.update(encode_body(command))
    return digest.digest()


@dataclass(slots=True)
class _File:
    failure: str
    """The id of the last failure that it was part of."""
    refused_until_ms: int = 0


class Suspects:
    """Suspects and convicted commands. ``files`` is empty nearly always: then no frame needs a name."""

    def __init__(self, suspects_max: int = SUSPECTS_MAX, refuse_ms: int = REFUSE_MS) -> None:
        self._suspects_max = suspects_max
        self._refuse_ms = refuse_ms
        self.files: OrderedDict[Name, _File] = OrderedDict()
        self.on_trial: dict[Name, tuple[Slot, ClientCall]] = {}
        """Those whose work continues in later turns."""

    def __contains__(self, name: Name) -> bool:
        return name in self.files

    def examine(self, call: ClientCall, command: Command, shard: int) -> Name | None:
        """Return the name of a suspected command; None for another. Raise :class:`InternalError` for a convicted one."""
        name = name_of(command, call.queue)
        failure = self.conviction(name, call.now_ms)
        if failure is not None:
            raise InternalError(
                f"{type(command).__name__} of {call.queue!r} made shard {shard} fail twice and is refused: "
                f"look for failure {failure} in the worker's log, and report it",
                details={"failure": failure, "refused": True},
            )
        return name if name in self.files else None

    def conviction(self, name: Name, now_ms: int) -> str | None:
        """Return the id of the failure for which a command is refused; None if it is not refused."""
        file = self.files.get(name)
        return None if file is None or file.refused_until_ms <= now_ms else file.failure

    def acquit_done(self) -> None:
        """Acquit those on trial that are done: a command of many turns may fail in a later one."""
        for name, (slot, call) in list(self.on_trial.items()):
            if slot.shard is None or not slot.shard.jobs.has(call):
                del self.on_trial[name]
                self.acquit(name)

    def blame(self, slot: Slot, failure: str, now_ms: int) -> tuple[Command, str] | None:
        """Accuse the commands that may have made a shard fail. If there is only one, and it was accused before, convict it.

        Return the convicted command and its queue.
        """
        names = {name_of(command, queue): (command, queue) for command, queue in _at_work(slot)}
        for name in names:
            self.on_trial.pop(name, None)
        if len(names) == 1:
            ((name, blamed),) = names.items()
            if name in self.files:
                self.convict(name, failure, now_ms)
                return blamed
        for name in names:
            self.accuse(name, failure)
        return None

    def accuse(self, name: Name, failure: str) -> None:
        """Note that a command was part of a turn that failed."""
        self.files[name] = _File(failure)
        self.files.move_to_end(name)
        while len(self.files) > self._suspects_max:
            self.files.popitem(last=False)

    def convict(self, name: Name, failure: str, now_ms: int) -> None:
        """Note that a suspect's shard failed again, in a turn with nothing else."""
        self.files[name] = _File(failure, now_ms + self._refuse_ms)
        self.files.move_to_end(name)

    def acquit(self, name: Name) -> None:
        """Note that a suspect's own turn went well."""
        self.files.pop(name, None)


def _at_work(slot: Slot) -> list[tuple[Command, str]]:
    """Return the commands that a failing shard was carrying out, with their queues.

    If a job was taking a step, this is the job's command; else all commands of the turn.
    """
    job = slot.shard.jobs.stepping if slot.shard is not None else None
    if job is None:
        return [
            (decode_command(unpack_header(raw), body), bytes(key).decode(errors="replace"))
            for _, raw, key, body in slot.frames
        ]
    return [] if job.call is None or job.command is None else [(job.command, job.call.queue)]
