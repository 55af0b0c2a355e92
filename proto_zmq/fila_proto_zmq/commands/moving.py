"""Shards that go from one worker to another while the cluster runs.

::

    client ── MoveShard ──▶ router ── PrepareShard ──▶ the worker that has it     flushes what is in memory, and serves on
                            router ── ReleaseShard ──▶                            answers what is open, names the next worker, closes
                            router ── AdoptShards ───▶ the next worker            opens it, and registers it
    client ◀─── Done ────── router
"""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command


class MoveShard(Command):
    """Have another worker host a shard, and wait until it serves there.

    Both workers use the same data directory. The command may be repeated: a shard that is there already stays there.
    """

    opcode: ClassVar[int] = 68
    shard: int
    worker: str


class DrainWorker(Command):
    """Move all shards of a worker to the others of its data directory, one after the other, and give it no shard until this is undone.

    The answer comes before the shards have moved: :class:`ClusterStatus` shows what is left. A restart of the worker ends it, too.
    """

    opcode: ClassVar[int] = 69
    worker: str
    undo: bool = False


class PrepareShard(Command):
    """Write what a shard has in memory to its files, while it serves. Answered when that is done."""

    opcode: ClassVar[int] = 94
    shard: int


class ReleaseShard(Command):
    """Close a shard for another worker of the same data directory. The router sends no more requests for it after this one.

    Answered when everything else is answered, and the shard's next host is on disk.
    """

    opcode: ClassVar[int] = 95
    shard: int
    worker: str
    """The next host."""


class AdoptShards(Command):
    """Look for shards that other workers have released for this one. Not answered: the worker registers them."""

    opcode: ClassVar[int] = 96


class PutDraining(Command):
    """Tell a worker whether it is drained: it says so whenever it registers. Not answered."""

    opcode: ClassVar[int] = 97
    draining: bool
