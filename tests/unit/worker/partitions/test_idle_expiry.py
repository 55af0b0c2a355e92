"""Queues with partitions that delete themselves: all of it or nothing, when all partitions are idle, and with no message in them."""

from collections import defaultdict, deque
from contextlib import suppress
from random import Random

import pytest

from fila_proto_zmq.commands import (
    ChangesByBroker,
    Command,
    DescribeQueue,
    Enqueue,
    Enqueued,
    PartitionIdle,
    PartitionsClosed,
    Pause,
    PutConfig,
    QueueOptions,
    Receive,
    UpdatePartitioned,
    Verb,
)
from fila_proto_zmq.errors import FilaError, PartitionedError, QueueNotFoundError, ShardUnavailableError
from fila_proto_zmq.names import partition_name, shard_of
from fila_proto_zmq.partitions import Definition
from fila_proto_zmq.record import seal_envelope as sealed
from fila_worker.core.enqueue.enqueue import enqueue_one
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.partitioned import ORDERS, TOTAL, PartitionedShards, key_of, payloads

IDLE_MS = 10_000
HOME = shard_of(ORDERS, TOTAL)


@pytest.fixture
def cluster() -> PartitionedShards:
    cluster = PartitionedShards()
    cluster.define(idle_expiry_ms=IDLE_MS)
    cluster.settle_down()
    return cluster


def definition_of(cluster: PartitionedShards, shard: int = 0) -> Definition | None:
    return cluster[shard].shard.runtime.definitions.find(ORDERS)


def is_there(cluster: PartitionedShards) -> bool:
    """Whether all shards have the queue; none has it otherwise, nor anything of it."""
    there = {definition_of(cluster, index) is not None for index in range(cluster.total)}
    assert len(there) == 1
    if there == {False}:
        assert not any(station.shard.queues.by_id or station.shard.closing for station in cluster.stations.values())
    return there.pop()


def use(cluster: PartitionedShards, partition: int) -> None:
    """Put a message into a partition, and take it out."""
    cluster.enqueue(partition, b"x", key=key_of(partition))
    cluster.of(partition).settle(Verb.ACK, cluster.receive(partition), partition_name(ORDERS, partition))


def test_one_that_was_never_used_goes(cluster: PartitionedShards) -> None:
    cluster.pass_time(IDLE_MS - 1_000)
    assert is_there(cluster)
    cluster.pass_time(3_000)
    assert not is_there(cluster)
    with pytest.raises(QueueNotFoundError):
        cluster[HOME].stats(ORDERS)


def test_none_goes_while_one_is_used(cluster: PartitionedShards) -> None:
    for partition in range(4):
        use(cluster, partition)
    cluster.of(2).ask(Pause(paused=True), partition_name(ORDERS, 2))
    for _ in range(8):
        use(cluster, 1)
        cluster.pass_time(IDLE_MS - 2_000)
        assert sum("@" in name for station in cluster.stations.values() for name in station.shard.queues) == 8
    assert cluster.of(2).shard.queues[partition_name(ORDERS, 2)].paused
    assert not any(station.shard.closing for station in cluster.stations.values())
    cluster.pass_time(2 * IDLE_MS)
    assert not is_there(cluster)


def test_idle_partitions_tell_it_ever_more_seldom_while_another_is_used(cluster: PartitionedShards) -> None:
    for partition in range(4):
        use(cluster, partition)
    cluster.enqueue(1, b"x", key=key_of(1))
    cluster.pass_time(64 * IDLE_MS)
    told = [each.partition for each in cluster.seen if isinstance(each, PartitionIdle)]
    assert set(told) == {0, 2, 3}
    assert len(told) <= 3 * 7
    assert len([each for each in cluster.seen if isinstance(each, PartitionsClosed)]) <= TOTAL + 1, "it is tried once"


@pytest.mark.parametrize("what", ["message", "dead letter", "consumer", "delayed"])
def test_what_is_in_a_partition_keeps_the_queue(cluster: PartitionedShards, what: str) -> None:
    shard, name = cluster.of(3), partition_name(ORDERS, 3)
    if what == "consumer":
        shard.begin(Receive(1, 10 * IDLE_MS), name)
    else:
        cluster.enqueue(3, b"x", key=key_of(3), delay_ms=8 * IDLE_MS if what == "delayed" else 0)
    if what == "dead letter":
        shard.settle(Verb.FAIL, cluster.receive(3), name, error="boom")
    cluster.pass_time(2 * IDLE_MS + 2_000)
    assert is_there(cluster)
    assert not any(station.shard.closing for station in cluster.stations.values())


@pytest.mark.parametrize("queue", [ORDERS, "orders@0", "orders@2", "orders.dlq", "orders.dlq@3"])
def test_a_call_about_any_part_keeps_it(cluster: PartitionedShards, queue: str) -> None:
    for _ in range(6):
        cluster.pass_time(IDLE_MS - 2_000)
        shard = cluster[shard_of(queue, TOTAL)]
        number = shard.send(DescribeQueue(), queue)
        assert isinstance(shard.late.pop(number), PartitionedError) == ("@" not in queue)
    assert is_there(cluster)
    cluster.pass_time(2 * IDLE_MS)
    assert not is_there(cluster)


def test_an_option_that_comes_later_counts(cluster: PartitionedShards) -> None:
    cluster.update(idle_expiry_ms=None)
    cluster.pass_time(3 * IDLE_MS)
    assert is_there(cluster)
    cluster.update(idle_expiry_ms=IDLE_MS)
    cluster.pass_time(IDLE_MS - 1_000)
    assert is_there(cluster)
    cluster.pass_time(3_000)
    assert not is_there(cluster)


# --- while it is closing ----------------------------------------------------------------------------------------------


def close(cluster: PartitionedShards) -> int:
    """Let it be closing, with all promises lost. Return the version that does it."""
    for partition in range(4):
        use(cluster, partition)
    cluster.copies = lambda command: not isinstance(command, PartitionsClosed)
    cluster.pass_time(IDLE_MS + 2_000)
    definition = definition_of(cluster)
    assert definition is not None
    assert definition.closing
    cluster.copies = lambda command: 1
    return definition.closing


def is_refused(cluster: PartitionedShards, partition: int) -> bool:
    shard, name = cluster.of(partition), partition_name(ORDERS, partition)
    number = shard.send(Enqueue([sealed(b"needed", {})], key_of(partition)), name)
    answer = shard.late.pop(number)
    return isinstance(answer, ShardUnavailableError) and answer.details == {"refused": True}


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("partition", range(4))
def test_who_needs_it_is_refused_for_a_moment_and_it_stays(
    cluster: PartitionedShards, partition: int, restarts: bool
) -> None:
    close(cluster)
    if restarts:
        cluster.of(partition).restart()
    assert is_refused(cluster, partition)
    cluster.carry()
    assert not is_refused(cluster, partition)
    cluster.pass_time(3 * IDLE_MS)
    assert is_there(cluster)
    assert payloads(cluster.receive(partition)) == [b"needed"]


def test_lost_promises_are_asked_for_again(cluster: PartitionedShards) -> None:
    close(cluster)
    cluster.pass_time(3 * IDLE_MS)
    assert not is_there(cluster)


def test_after_a_restart_of_shard_0_it_is_open_again(cluster: PartitionedShards) -> None:
    close(cluster)
    cluster[0].restart()
    cluster.settle_down()
    definition = definition_of(cluster)
    assert definition is not None
    assert not definition.closing
    assert not any(is_refused(cluster, partition) for partition in range(4))


def test_an_earlier_promise_does_not_count(cluster: PartitionedShards) -> None:
    closing = close(cluster)
    old = [PartitionsClosed(0, index, ORDERS, closing) for index in range(TOTAL)]
    assert is_refused(cluster, 1)
    cluster.carry()
    cluster.enqueue(1, b"x", key=key_of(1))
    for promise in old:
        cluster.deliver(promise)
    assert is_there(cluster)
    assert cluster.counts(1)[0] == 1


@pytest.mark.parametrize("by", ["update", "delete"])
def test_a_command_of_its_own_ends_it(cluster: PartitionedShards, by: str) -> None:
    close(cluster)
    if by == "update":
        cluster.change(UpdatePartitioned(ORDERS, QueueOptions(max_attempts=3), ["max_attempts"]))
        assert not is_refused(cluster, 2)
    else:
        cluster.delete()
        cluster.settle_down()
        assert not is_there(cluster)
        cluster.define()
        assert not is_refused(cluster, 2)


def test_what_the_broker_itself_sends_waits_too(cluster: PartitionedShards) -> None:
    close(cluster)
    shard, command = cluster.of(1), Enqueue([sealed(b"x", {})], key_of(1))
    with pytest.raises(ShardUnavailableError):
        enqueue_one(shard.shard, partition_name(ORDERS, 1), command, shard.now_ms)
    shard.turn()
    cluster.carry()
    enqueue_one(shard.shard, partition_name(ORDERS, 1), command, shard.now_ms)
    shard.turn()
    assert cluster.counts(1)[0] == 1


def test_an_enqueue_that_is_not_done_yet_keeps_it() -> None:
    """Its hook takes time, and the idle expiry is shorter."""
    cluster = PartitionedShards()
    cluster.define(idle_expiry_ms=1, on_enqueue=on_enqueue("return {}"))
    shard, name = cluster.of(1), partition_name(ORDERS, 1)
    many = [sealed(b"%d" % number, {}) for number in range(400)]
    shard.begin(Enqueue(many[:1], key_of(1)), name)
    number = shard.begin(Enqueue(many, key_of(1)), name)
    for _ in range(50):
        cluster.collect()
        for index in range(TOTAL):
            cluster[index].now_ms += 2
            cluster[index].turn()
        cluster.carry()
    assert isinstance(shard.late[number], Enqueued)
    assert cluster.counts(1)[0] == 401


# --- whatever happens -------------------------------------------------------------------------------------------------


class Scattered(PartitionedShards):
    """Changes of the config come to each shard at another time, and shards are restarted meanwhile."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.puts: defaultdict[int, deque[PutConfig]] = defaultdict(deque)
        self.confirmed: list[bytes] = []
        self.number = 0

    def deliver(self, command: Command) -> None:
        if not isinstance(command, ChangesByBroker):
            super().deliver(command)
            return
        with suppress(FilaError):
            change = self[0].shard.set_config(command, self[0].now_ms)
            if change.changes:
                for index in range(1, TOTAL):
                    self.puts[index].append(PutConfig(change.version, change.changes))
        self[0].turn()

    def step(self) -> None:
        """Something happens."""
        match self.random.choice(["frame"] * 5 + ["put"] * 5 + ["enqueue", "time", "time", "restart", "lost"]):
            case "frame" if self.road:
                self.random.shuffle(self.road)
                self.deliver(self.road.popleft())
            case "lost" if self.road:
                self.road.popleft()
            case "put" if some := [index for index, puts in self.puts.items() if puts]:
                self.put(self.random.choice(some))
            case "enqueue" if self.random.random() < (0.5 if self.is_closing else 0.05):
                self.try_to_enqueue(self.random.randrange(4))
            case "time":
                for station in self.stations.values():
                    station.now_ms += self.random.choice([0, 1, 200])
                    station.turn()
            case "restart" if self.random.random() < (0.5 if self.is_closing else 0.1):
                self[self.random.randrange(TOTAL)].restart()
        self.collect()

    @property
    def is_closing(self) -> bool:
        """Whether a shard has promised to take nothing in."""
        return any(station.shard.closing for station in self.stations.values())

    def put(self, index: int) -> None:
        self.tell(index, self.puts[index].popleft())
        if self[index].shard.to_be_registered:
            self[index].shard.to_be_registered = False
            self.puts[index].clear()
            self.catch_up(index)

    def try_to_enqueue(self, partition: int) -> None:
        self.number += 1
        shard, payload = self.of(partition), b"%d" % self.number
        number = shard.send(Enqueue([sealed(payload, {})], key_of(partition)), partition_name(ORDERS, partition))
        if isinstance(shard.late.pop(number), Enqueued):
            self.confirmed.append(payload)

    def rest(self) -> None:
        """Everything arrives."""
        while self.road or any(self.puts.values()):
            for index in range(1, TOTAL):
                while self.puts[index]:
                    self.put(index)
            if self.road:
                self.deliver(self.road.popleft())
            self.collect()

    def take_out(self) -> list[bytes]:
        got: list[bytes] = []
        for partition in range(4) if definition_of(self) is not None else ():
            name = partition_name(ORDERS, partition)
            if name in self.of(partition).shard.queues and not self.of(partition).shard.closing:
                some = self.receive(partition)
                self.of(partition).settle(Verb.ACK, some, name)
                got += payloads(some)
        return got


@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_was_confirmed_is_lost_whatever_happens(seed: int) -> None:
    cluster = Scattered(Random(seed))
    cluster.define(idle_expiry_ms=300)
    got: list[bytes] = []
    for number in range(400):
        cluster.step()
        if number % 10 == 9:
            got += cluster.take_out()
    cluster.rest()
    for _ in range(3):
        cluster.pass_time(300)
        cluster.rest()
        got += cluster.take_out()
    assert sorted(got) == sorted(cluster.confirmed)
    for _ in range(8):
        cluster.pass_time(1_000)
        cluster.rest()
    assert not is_there(cluster)
