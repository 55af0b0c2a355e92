"""Schedules on their way through a reshard: each goes on where it was, and each due time has one message."""

from collections import Counter
from random import Random
from typing import Any

import pytest

from fila_proto_zmq.commands import CreateQueue, DeleteSchedule, Enqueue, ListSchedules, PutSchedule, QueueOptions
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.settings import ShardSettings
from fila_worker.process.cron import CALENDAR
from fila_worker.storage.memory import MemoryStore
from tests.property.replication.test_reshard import resharded
from tests.support.shard.linked_shards import LinkedShards
from tests.support.shard.random_cluster import copied
from tests.support.shard.shard import limited

QUEUES = [f"q{number}" for number in range(4)]
NAMES = [f"s{number}" for number in range(8)]
START_MS = 1_700_000_000_000


def opened(stores: list[Any], now_ms: int, settings: ShardSettings) -> LinkedShards:
    total = len(stores)
    return LinkedShards(*range(total), settings=settings, stores=dict(enumerate(stores)), total=total, now_ms=now_ms)


def ask(linked: LinkedShards, name: str, command: Any) -> Any:
    station = linked[shard_of(name, len(linked.stations))]
    answer = station.ask(command, name)
    linked.carry()
    return answer


def taken(linked: LinkedShards) -> Counter[tuple[str, str]]:
    """The due times of all pending messages, which are acked."""
    seen: Counter[tuple[str, str]] = Counter()
    for queue in QUEUES:
        station = linked[shard_of(queue, len(linked.stations))]
        while got := station.receive(500, queue):
            station.ack(got, queue)
            seen.update((each.headers["fila-schedule"], each.headers["fila-due-at"]) for each in got)
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_each_due_time_has_one_message_over_reshards(seed: int) -> None:
    chance = Random(seed)
    settings = ShardSettings(max_queue_messages=8, limits=limited(transfer_messages_max=2).limits)
    linked = opened([MemoryStore() for _ in range(3)], START_MS, settings)
    for queue in QUEUES:
        ask(linked, queue, CreateQueue(QueueOptions()))
    for name in NAMES:
        message = Enqueue([seal_envelope(name.encode())])
        ask(linked, name, PutSchedule(chance.choice(QUEUES), message, every_ms=1000, catch_up="all"))
    seen: Counter[tuple[str, str]] = Counter()
    for after in (5, 2):
        for _ in range(6):  # some queues fill up, some shards are away, some frames are lost
            linked.stopped = {chance.randrange(len(linked.stations))} if chance.random() < 0.5 else set()
            linked.copies = lambda command: chance.choice((0, 1, 1))
            linked.pass_time(chance.choice((500, 1000)))
            if chance.random() < 0.3:
                seen += taken(linked)
        stores = [copied(station.store) for station in linked.stations.values()]
        now_ms = linked[0].now_ms
        linked = opened(list(resharded(stores, after, now_ms, chance, kills=chance.choice((0, 4)))), now_ms, settings)
        for station in linked.stations.values():
            station.shard.check()
    listed = [each.name for index in range(2) for each in ask_list(linked, index)]
    assert sorted(listed) == NAMES
    for _ in range(60):
        linked.pass_time(1000)
        seen += taken(linked)
        if linked[0].now_ms >= START_MS + 30_000:
            break
    for name in NAMES:
        ask(linked, name, DeleteSchedule())
    for _ in range(40):
        linked.pass_time(1000)
        seen += taken(linked)
    assert {due: count for due, count in seen.items() if count > 1} == {}
    for name in NAMES:
        times = sorted(due for each, due in seen if each == name)
        assert len(times) > 3, (name, times)
        assert times == [iso(START_MS + number * 1000) for number in range(1, len(times) + 1)], name


def ask_list(linked: LinkedShards, index: int) -> Any:
    return linked[index].ask(ListSchedules(), "").schedules  # type: ignore[attr-defined]


def iso(time_ms: int) -> str:
    return CALENDAR.iso(time_ms)
