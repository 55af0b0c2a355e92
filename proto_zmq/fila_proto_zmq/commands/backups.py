"""Cuts of all shards at one moment, for backups. A client asks for one in this order:

:class:`BeginBackup` until all shards are ready, :class:`CutBackup` until all are cut, :class:`KeepBackup` now and then while
it copies the files, and once with 0 at the end. Each request may be repeated.
"""

from typing import ClassVar

from fila_proto_zmq.commands.structs import Command, Reply, Struct


class ShardCut(Struct):
    """One shard's part of a backup."""

    shard: int
    epoch: int
    """Of the opening in which the backup began."""
    ready: bool
    """Its transfers to other shards rest, and it can be cut without a long turn."""
    rested: bool
    """Its transfers have rested since the backup began; false: this backup may lack messages, begin another one."""
    path: str = ""
    """The directory of its checkpoint, on the worker's host; empty: not cut yet."""
    size_bytes: int = 0


class BackupParts(Reply):
    """The parts of a backup. The router asks all workers and joins their answers."""

    shards: list[ShardCut]
    hosts: list[str]
    """The hosts of the workers that answered."""


class BeginBackup(Command):
    """Stop transfers between shards, and prepare for the cut. They continue if this is not repeated for 5 s."""

    opcode: ClassVar[int] = 64
    reply: ClassVar[type[Reply]] = BackupParts
    backup: str
    """A name that no other backup has: 8 to 64 of ``A-Z a-z 0-9 -``."""


class CutBackup(Command):
    """Make a checkpoint of each shard. Ask for it when all shards of the cluster are ready."""

    opcode: ClassVar[int] = 65
    reply: ClassVar[type[Reply]] = BackupParts
    backup: str


class KeepBackup(Command):
    """Resume transfers, and keep the checkpoints for a time from now on.

    The first answer says whether all shards ``rested`` until then. Only then is the backup whole.
    """

    opcode: ClassVar[int] = 66
    reply: ClassVar[type[Reply]] = BackupParts
    backup: str
    for_ms: int
    """At most 60,000; 0: remove them now."""
