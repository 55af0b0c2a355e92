"""Commands that were at work when their shard failed, so that none makes it fail for ever.

Which command of a turn is to blame is not known, so all of it are *suspects*: each gets a turn of its own when it comes again.
The one that fails there again is *convicted*, and refused from then on; the others are acquitted. A command is known by what it
asks (command, queue), not by who asks: a poison is a poison from any client.

A command that goes on in steps is to blame for its own steps only, and it is not acquitted before its last one.

A conviction ends after a while, because what a command does depends on the state too. Then it is a suspect again.
"""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import Command

Name: TypeAlias = bytes
"""What a command is known by."""

SUSPECTS_MAX: Final = 1024
"""Beyond, the oldest are forgotten: at worst they make their shard fail twice once more."""

REFUSE_MS: Final = 600_000


def name_of(command: Command, queue: str) -> Name:
    """What a command is known by: packed anew, so that it does not matter how its client packs it."""
    digest = blake2b(queue.encode(), digest_size=16, salt=command.opcode.to_bytes(2, "big"))
    digest.update(encode_body(command))
    return digest.digest()


@dataclass(slots=True)
class _File:
    failure: str
    """The id of the last failure that it was part of."""
    refused_until_ms: int = 0


class Suspects:
    """Suspects and convicted ones. False while there are none, which is nearly always: then no frame needs a name."""

    def __init__(self, suspects_max: int = SUSPECTS_MAX, refuse_ms: int = REFUSE_MS) -> None:
        self._suspects_max = suspects_max
        self._refuse_ms = refuse_ms
        self._files: OrderedDict[Name, _File] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._files)

    def __contains__(self, name: Name) -> bool:
        return name in self._files

    def conviction(self, name: Name, now_ms: int) -> str | None:
        """The id of the failure for which a command is refused; None if it is not."""
        file = self._files.get(name)
        return None if file is None or file.refused_until_ms <= now_ms else file.failure

    def accuse(self, name: Name, failure: str) -> None:
        """A command was part of a turn that failed."""
        self._files[name] = _File(failure)
        self._files.move_to_end(name)
        while len(self._files) > self._suspects_max:
            self._files.popitem(last=False)

    def convict(self, name: Name, failure: str, now_ms: int) -> None:
        """A suspect's shard failed again, in a turn with nothing else."""
        self._files[name] = _File(failure, now_ms + self._refuse_ms)
        self._files.move_to_end(name)

    def acquit(self, name: Name) -> None:
        """A suspect's own turn went well."""
        self._files.pop(name, None)
