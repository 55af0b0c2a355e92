"""The copy as a process of its own: ``python -m fila_worker.reshard``, with its job as a line of JSON on standard input.

A closed database may still write to its path while something refers to it, so the names of shards may be exchanged only after
the end of the process that had them open. That process writes lines of JSON: ``["shard", index, messages]``, ``["copied",
messages]``, and at the end ``["done", totals]`` or ``["failed", text]``.
"""

import os
import secrets
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from fila_proto_zmq.errors import StorageError
from fila_worker.reshard.copying import ReshardProgress, Shards, copy_all
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.rocks import RocksStore

PRIVATE: Final = 0o077


class ReshardJob(msgspec.Struct):
    """The folders of the old and the new shards, and how many there are."""

    old: str
    new: str
    before: int
    after: int


def main() -> None:
    """Copy the shards."""
    os.umask(PRIVATE)
    job = msgspec.json.decode(sys.stdin.readline(), type=ReshardJob)
    memory = SharedMemory()

    def opener(folder: str, index: int) -> RocksStore:
        return RocksStore(Path(folder) / f"shard-{index:04d}", memory=memory)

    shards = Shards(job.before, job.after, lambda index: opener(job.old, index), lambda index: opener(job.new, index))
    progress = ReshardProgress(
        lambda index, messages: _say("shard", index, messages), lambda messages: _say("copied", messages)
    )
    try:
        totals = copy_all(shards, time.time_ns() // 1_000_000, lambda: secrets.randbits(64), progress)
    except StorageError as error:
        _say("failed", str(error))
    else:
        _say("done", totals)


def _say(*words: object) -> None:
    """Write a line. Without a reader the reshard was killed: then end this process. The next run continues."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(words) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main()
