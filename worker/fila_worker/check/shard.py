"""The check of one shard: every family, record by record, and whether the families agree with each other.

Families are read in the order of their keys and compared while they are read, so memory does not grow with the messages: it
holds the queues, the counts of the last ledger entries, and the keys of messages in flight, as a running shard does.
"""

from collections.abc import Callable, Iterator
from typing import Final, cast

from fila_proto_zmq.errors import FilaError, StorageError
from fila_worker.check import batches, dedup, leases, lines, queues, schedule, singles
from fila_worker.check.findings import Finding
from fila_worker.check.reading import Reading
from fila_worker.core.hooks import no_hooks
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store

PARTS: Final = (
    ("identity", singles.check_identity),
    ("state", singles.check_state),
    ("queues", queues.check_queues),
    ("ledger", queues.check_ledger),
    ("leases", leases.check_leases),
    ("messages", lines.check_lines),
    ("counts", queues.check_totals),
    ("batches", batches.check_batches),
    ("schedule", schedule.check_schedule),
    ("dedup", dedup.check_dedup),
    ("config", singles.check_config),
    ("outbox", singles.check_outbox),
)
"""The parts in their order: later ones use what earlier ones have read."""

Progress = Callable[[str, int], None]


def check_shard(store: Store, index: int, shards: int, progress: Progress | None = None) -> Iterator[Finding]:
    """Yield what is wrong with shard ``index`` of ``shards``. ``progress`` gets a part's name and how many records were read.

    A part that cannot be read to its end yields a finding that names the file. What other parts would derive from it is then
    not compared.
    """
    reading = Reading(store, index, shards, progress)
    failed = False
    for name, check in PARTS:
        reading.part = name
        try:
            for finding in check(reading):
                failed = True
                yield finding
        except StorageError as error:
            failed = True
            reading.incomplete.add(name)
            yield unreadable(error, name)
    if not failed:
        yield from _recovered(store, index, shards)


def unreadable(error: StorageError, part: str = "") -> Finding:
    """Return the finding for stored data that cannot be read."""
    file = error.details.get("file") if error.details else None
    where = f"while reading {part}: " if part else ""
    return Finding("damaged", f"{where}{error}", file=file if isinstance(file, str) else None)


def _recovered(store: Store, index: int, shards: int) -> Iterator[Finding]:
    """Let the core recover the shard in memory, which compares more than can be compared record by record."""
    try:
        recover(cast("Store", _OneWay(store)), ShardSettings(), no_hooks, index=index, shards=shards, now_ms=0)
    except FilaError as error:
        yield Finding("contradiction", f"a worker would refuse the shard: {error}")


class _OneWay:
    """A store whose commits are dropped. All other methods are those of the store behind it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def commit(self, batch: object, *, sync: bool = False) -> None:
        """Drop a batch."""
