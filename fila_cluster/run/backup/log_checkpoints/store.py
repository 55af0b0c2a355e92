"""The checkpoints of one shard at a target.

::

    checkpoints/LOG/shard-0003/checkpoints/OFFSET.json    the manifest of a checkpoint, written last
    checkpoints/LOG/shard-0003/files/AB/ABCDEF…           the files of this shard's checkpoints by their SHA-256
    checkpoints/LOG/shard-0003/writing/…                  the host that writes now

Each shard has a folder of its own, because each is written by another host: the one that leads it. Each log has one, because the offsets of a
topic that was made anew mean something else.
"""

import re
from datetime import datetime
from typing import Final

import msgspec

from fila_cluster.run.backup.manifest import StoredFile, refuse_foreign
from fila_cluster.run.backup.repository import Store
from fila_cluster.run.backup.target import Target, Within
from fila_proto_zmq.errors import StorageError

FORMAT: Final = 1
KEEP: Final = 2
"""How many checkpoints of a shard stay at the target. The log is kept from the older one on, so that a copy can begin from each."""
_DIGITS: Final = 20


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of one shard. Its copy has what counts in the log up to ``offset``."""

    format: int = FORMAT
    log: str
    shard: int
    shards: int
    offset: int
    epoch: int
    number: int
    made_at: datetime
    host: str
    """The machine whose files they are."""
    version: str
    """Of fila-cluster."""
    files: list[StoredFile]
    copied_bytes: int = 0
    """What was not at the target before."""

    @property
    def id(self) -> str:
        """Its name, which sorts by the offset."""
        return f"{self.offset:0{_DIGITS}d}"

    @property
    def every_file(self) -> list[StoredFile]:
        """All files."""
        return self.files

    @property
    def size_bytes(self) -> int:
        """The size of a copy that begins from it."""
        return sum(file.size_bytes for file in self.files)


class CheckpointStore(Store[Checkpoint]):
    """The checkpoints of one shard of one log."""

    what, folder, names = "checkpoint", "checkpoints", re.compile(rf"\d{{{_DIGITS}}}")

    def __init__(self, target: Target, log: str, shard: int) -> None:
        super().__init__(Within(target, f"checkpoints/{log}/shard-{shard:04d}"))

    def offsets(self) -> list[int]:
        """Return where the checkpoints are, rising."""
        return [int(name) for name in self.ids()]

    def at(self, offset: int) -> Checkpoint:
        """Return the checkpoint at an offset."""
        return self.manifest(f"{offset:0{_DIGITS}d}")

    def _decode(self, content: bytes, name: str) -> Checkpoint:
        try:
            checkpoint = msgspec.json.decode(content, type=Checkpoint)
        except msgspec.MsgspecError as cause:
            raise StorageError(f"the manifest {name} is damaged: {cause}; remove it, a new checkpoint will be made") from None
        if checkpoint.format != FORMAT:
            raise StorageError(
                f"the manifest {name} has format {checkpoint.format}, this version reads {FORMAT}: upgrade this host"
            )
        refuse_foreign(checkpoint.files, name)
        return checkpoint

    def _encode(self, manifest: Checkpoint) -> bytes:
        return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
