"""The process that copies shards, seen from outside."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fila_cluster.run.supervisor import CannotStartError


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks during a reshard.

    ``shard(index, messages)``: the copy of an old shard begins, which has so many messages. ``copied(messages)``: so many more
    were copied, or had been. ``step(name)``: something is about to change on disk, or has changed; tests end the process there.
    """

    shard: Callable[[int, int], None] = lambda index, messages: None
    copied: Callable[[int], None] = lambda messages: None
    step: Callable[[str], None] = lambda name: None


def run_copy(job: dict[str, Any], lock: int, progress: Progress) -> dict[str, int]:
    """Copy shards in a process that ends with this one; return the totals. ``lock``: the data directory's, which it shares.

    Raise :class:`CannotStartError` if a shard can't be read or written.
    """
    command = [sys.executable, "-P", "-m", "fila_worker.reshard"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[lock]) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.close()
        last: list[Any] = []
        try:
            for line in child.stdout:
                last = json.loads(line)
                if last[0] == "shard":
                    progress.shard(last[1], last[2])
                elif last[0] == "copied":
                    progress.copied(last[1])
        except BaseException:
            child.kill()
            raise
    match last:
        case ["done", dict(totals)] if child.returncode == 0:
            return totals
        case ["failed", str(text)]:
            raise CannotStartError(f"{text}; the old shards are as they were, and the same command goes on where it was")
    raise CannotStartError(f"the copy ended with exit code {child.returncode}: run the same command again")
