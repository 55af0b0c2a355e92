"""Cuts of two shards at different moments, while messages travel between them both ways: each message is in the restored pair once.

Dead letters go from ``SOURCE`` to ``TARGET`` and are sent back. Frames arrive late, twice or never.
"""

from random import Random

import pytest

from fila_proto_zmq.commands import Redrive
from fila_worker.core.recovery import begin_anew
from tests.support.external.power_cut import RestoredStore
from tests.support.shard.linked_shards import TARGET, LinkedShards, dead_letters_elsewhere, fail
from tests.support.shard.shard import SHARDS

pytestmark = pytest.mark.whole

SEEDS = range(60)
PAIR = (3, 5)
LATER_MS = 10_000


class Run:
    """Two shards, a road with faults, and what was confirmed before the cut of the shard that takes messages in."""

    def __init__(self, seed: int) -> None:
        self.choice = Random(seed)
        self.linked = dead_letters_elsewhere()
        self.linked.copies = lambda command: self.choice.choice((0, 1, 1, 1, 2))
        self.ids: set[str] = set()

    def some_steps(self) -> None:
        for _ in range(self.choice.randrange(12)):
            self.choice.choice((self.fail_some, self.redrive, self.carry_one, self.carry_one, self.carry_one, self.wait))()

    def fail_some(self) -> None:
        self.ids.update(fail(self.linked, *[b"x"] * self.choice.randint(1, 3)))

    def redrive(self) -> None:
        self.linked[5].send(Redrive(self.choice.randrange(3)), TARGET)

    def wait(self) -> None:
        for station in self.linked.stations.values():
            station.pass_time(self.choice.randrange(1500))

    def carry_one(self) -> None:
        self.linked.collect()
        if self.linked.road:
            self.linked.deliver(self.linked.road.popleft())

    def cut_both(self, *, resting: bool) -> tuple[dict[int, RestoredStore], set[str]]:
        """Copies of both stores, and the ids that were confirmed before the copy of the source's shard."""
        copies, ids = {}, set[str]()
        for index in self.choice.sample(PAIR, 2):
            if resting:
                self.linked[index].shard.rest_transfers(1 << 60)
            self.some_steps()
        for index in self.choice.sample(PAIR, 2):
            self.some_steps()
            copies[index] = copied(self.linked, index)
            ids = set(self.ids) if index == 3 else ids
        self.some_steps()
        for index in PAIR:
            self.linked[index].shard.rest_transfers(0)
        return copies, ids


def copied(linked: LinkedShards, index: int) -> RestoredStore:
    store = RestoredStore()
    for family, original in zip(store.families, linked[index].store.families, strict=True):
        family.update(original)
    begin_anew(store, index, SHARDS)
    return store


def ids_in(linked: LinkedShards) -> list[str]:
    """The ids of all messages, when nothing is on its way any more."""
    linked.copies = lambda command: 1
    linked.pass_time(LATER_MS)
    queues = {index: list(linked[index].shard.queues) for index in PAIR}
    return [got.id for index in PAIR for queue in queues[index] for got in linked[index].receive(999, queue)]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_message_is_in_the_restored_pair_once(seed: int) -> None:
    run = Run(seed)
    run.some_steps()
    copies, ids = run.cut_both(resting=True)
    assert sorted(ids_in(LinkedShards(*PAIR, stores=copies))) == sorted(ids)
    run.some_steps()
    assert sorted(ids_in(run.linked)) == sorted(run.ids), "the cluster itself lost one, or has one twice"


def test_cuts_without_the_rest_lose_messages_and_have_some_twice() -> None:
    """Else the test above would prove nothing."""
    lost = twice = 0
    for seed in SEEDS:
        run = Run(seed)
        run.some_steps()
        copies, ids = run.cut_both(resting=False)
        found = ids_in(LinkedShards(*PAIR, stores=copies))
        lost += len(ids - set(found))
        twice += len(found) - len(set(found))
    assert lost > 0
    assert twice > 0
