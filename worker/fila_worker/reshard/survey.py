"""The single values of all old shards: the highest counters, the runtime config, parks, and arrived transfers."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from fila_proto_zmq.commands import EnqueueOutcome
from fila_worker.core.model.ledger import Counters, Generation, Ledger, stored_generations
from fila_worker.core.model.runtime_config import RuntimeConfig, stored_edits
from fila_worker.core.model.shard_transfers import InboxCursor, ShardTransfers
from fila_worker.core.recovery import read_identity
from fila_worker.core.settings import DEFAULTS
from fila_worker.core.store import Store, WrongStoreError

_NO_STREAM: Final = b""
_RECORDS_AT_ONCE: Final = 10_000


@dataclass(slots=True)
class Survey:
    """Facts about all old shards. Times are Unix ms."""

    shards: int
    epoch: int = 0
    sequence: int = 0
    clock_ms: int = 0
    earlier: list[Generation] = field(default_factory=list)
    config_version: int = -1
    config: dict[str, str] = field(default_factory=dict)
    config_edits: dict[bytes, bytes] = field(default_factory=dict)
    """The remembered changes of the runtime config, as they are stored."""
    parks: dict[str, int] = field(default_factory=dict)
    """Throttle keys that deliver nothing, with the latest end of their parks."""
    taken: list[dict[int, dict[bytes, InboxCursor]]] = field(default_factory=list)
    """The streams of the others that each shard has taken in, by sender and stream."""

    @property
    def generations(self) -> list[Generation]:
        """The numbers of shards so far, the oldest first. A generation that gave out no number is left out."""
        last = self.earlier[-1].last if self.earlier else 0
        return [*self.earlier, *([Generation(self.sequence, self.shards)] if self.sequence > last else [])]

    def arrived(self, from_shard: int, to_shard: int, stream: bytes, number: int) -> bool:
        """Return whether a message between two old shards has arrived and was not refused."""
        cursor = self.taken[to_shard].get(from_shard, {}).get(stream)
        return cursor is not None and cursor.stored(number)

    def outcome(self, from_shard: int, to_shard: int, stream: bytes, number: int) -> EnqueueOutcome | None:
        """Return the outcome of an enqueue by the broker from one old shard to another; None: nothing is stored."""
        cursor = self.taken[to_shard].get(from_shard, {}).get(stream)
        if cursor is None:
            return None
        known = (each for each in cursor.outcomes if each.number == number)
        return next(known, EnqueueOutcome(number) if cursor.stored(number) else None)


def survey(open_store: Callable[[int], Store], shards: int) -> Survey:
    """Read the single values of all old shards. Raise the errors of :func:`fila_worker.core.recovery.recover`."""
    found = Survey(shards)
    for index in range(shards):
        store = open_store(index)
        try:
            _add(found, store, index)
        finally:
            store.close()
    return found


def _add(found: Survey, store: Store, index: int) -> None:
    identity = read_identity(store)
    if identity is not None and (identity.shard, identity.shards) != (index, found.shards):
        raise WrongStoreError(
            f"the data of shard {index} of {found.shards} is of shard {identity.shard} of {identity.shards}: "
            "bring the directories together that belong together"
        )
    counters, config = Counters(), RuntimeConfig(store.families)
    _all(Ledger(store.families, counters, DEFAULTS).replay(store, {}))
    parks = _all(config.recover(store, _RECORDS_AT_ONCE)) or {}
    outbox = ShardTransfers(index, _NO_STREAM, store.families, DEFAULTS)
    outbox.recover(store, store.new_batch())  # the batch is dropped: nothing is written
    found.taken.append(outbox.taken)
    found.epoch = max(found.epoch, identity.epoch if identity else 0)
    found.earlier = max(found.earlier, stored_generations(store), key=len)
    found.sequence = max(found.sequence, counters.sequence)
    found.clock_ms = max(found.clock_ms, counters.clock_ms)
    if config.version > found.config_version:
        found.config_version, found.config = config.version, config.values
    found.config_edits.update(stored_edits(store))
    for key, until_ms in parks.items():
        found.parks[key] = max(until_ms, found.parks.get(key, 0))


def _all(steps: "Generator[None, int | None, dict[str, int] | object]") -> "dict[str, int] | None":
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value if isinstance(done.value, dict) else None
