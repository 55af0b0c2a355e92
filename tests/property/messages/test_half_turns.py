"""A turn may be committed in parts: a crash after any of them leaves every message in one place, and none is lost.

The commands of :mod:`tests.property.messages.test_backlog`, with a store that keeps what it was after each commit. From each of those a shard
is recovered, its invariants are checked, and it has what was there before and after the command.
"""

from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

from hypothesis import settings
from hypothesis.stateful import invariant

from fila_proto_zmq.record import ID_AT
from fila_worker.core.keys import FIRST, LAST
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.recovery import recover
from fila_worker.core.store import Families, StoreBatch
from fila_worker.storage.memory import MemoryStore
from tests.property.messages.test_backlog import FEW, HERE, BacklogMachine
from tests.support.shard.shard import SHARDS


class RememberingStore(MemoryStore):
    """Keeps what was committed, commit by commit."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[Families] = []

    def commit(self, batch: StoreBatch, *, sync: bool = False) -> None:
        super().commit(batch, sync=sync)
        self.states.append(Families(*(family.copy() for family in self.families)))


def messages(store: MemoryStore) -> Counter[bytes]:
    """The ids of all messages in a store, and how often they are there."""
    families = store.families
    stored = (record for _, record in store.scan(FIRST, LAST, families.messages))
    delayed = (parse_delayed(value).record for _, value in store.scan(FIRST, LAST, families.delayed))
    return Counter(record[ID_AT] for records in (stored, delayed) for record in records)


class HalfTurns(BacklogMachine):
    store_of = RememberingStore

    def __init__(self) -> None:
        super().__init__()
        self.before: Counter[bytes] = Counter()

    @invariant()
    def every_part_of_a_turn_is_whole(self) -> None:
        store = self.harness.store if hasattr(self, "harness") else RememberingStore()
        assert isinstance(store, RememberingStore)
        after = self.recovered(store.states[-1]) if store.states else self.before
        for state in store.states[:-1]:
            found = self.recovered(state)
            assert max(found.values(), default=1) == 1
            assert (self.before & after) - found == Counter()
            assert found - (self.before | after) == Counter()
        self.before = after
        store.states.clear()

    def recovered(self, state: Families) -> Counter[bytes]:
        store = MemoryStore()
        store.families = Families(*(family.copy() for family in state))
        harness = self.harness
        shard = recover(
            store, harness.settings, harness.compile_hooks, index=HERE, shards=SHARDS, now_ms=harness.now_ms
        )  # fmt: skip
        shard.check()
        return messages(store)


class TestHalfTurns(HalfTurns.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=30, stateful_step_count=25)

    def runTest(self) -> None:  # noqa: N802
        with ExitStack() as stack:
            for (module, name), value in FEW.items():
                stack.enter_context(patch.object(module, name, value))
            super().runTest()
