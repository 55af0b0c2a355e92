"""The log of a shard's commits, as a port: when a batch is durable.

Batches are appended in order, and confirmed in order, perhaps later. The owner of a shard sends nothing that depends on a
batch before that batch is confirmed. Turns continue meanwhile.
"""

from typing import Protocol

from fila_proto_zmq.errors import StorageError


class Log(Protocol):
    """The log of one opening of a shard's store. Its batches have the numbers 1, 2, 3 …"""

    appended: int
    """The number of the last batch."""

    @property
    def confirmed(self) -> int:
        """The last batch that is durable, with all before it."""

    @property
    def failure(self) -> StorageError | None:
        """Why some batch will never be confirmed: the shard must be dropped. None: each will be."""

    @property
    def unconfirmed_bytes(self) -> int:
        """The size of the batches that are not confirmed."""

    def append(self, size: int, *, sync: bool) -> None:
        """Append the next batch, of ``size`` bytes. Does not wait. ``sync``: it must survive a power cut in any case."""

    def push(self) -> bool:
        """Confirm all batches, now or soon. Call it after a turn's last batch. Return whether all are confirmed."""

    def close(self) -> None:
        """Confirm what can be confirmed, and end."""
