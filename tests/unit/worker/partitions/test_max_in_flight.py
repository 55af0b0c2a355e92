"""``max_in_flight`` of a queue with partitions: at no moment are more of its messages leased, in all partitions together."""

from collections.abc import Callable
from random import Random

import pytest

from fila_proto_zmq.commands import (
    Command,
    GrantPlaces,
    ListThrottles,
    Pause,
    Receive,
    ReportPlaces,
    SetConfig,
    Verb,
)
from fila_proto_zmq.names import partition_name
from fila_proto_zmq.partitions import places_of
from fila_worker.core.effects import ClientCall
from fila_worker.core.held_places import HOLD_MS_MAX
from fila_worker.core.manage.throttles import list_throttles
from fila_worker.core.metrics.meter import report
from fila_worker.core.places.bank import PlaceBank
from tests.support.shard.explained import first, these, why
from tests.support.shard.partitioned import ORDERS, PartitionedShards, key_of
from tests.support.shard.shard import ADMIN, Got

PLACES = places_of(ORDERS)


class LimitedShards(PartitionedShards):
    """A queue with a ``max_in_flight``, and a consumer for each partition."""

    def __init__(self, most: int | None, *, total: int = 4, partitions: int = 4, **options: object) -> None:
        super().__init__(total)
        self.partitions = partitions
        self.define(partitions=partitions, max_in_flight=most, **options)
        self.carry()

    def limit(self, most: int | None, **options: object) -> None:
        self.update(max_in_flight=most, **options)
        self.carry()

    def fill(self, *partitions: int, count: int = 10, **columns: object) -> None:
        for partition in partitions:
            self.enqueue(partition, *[b"x"] * count, key=key_of(partition, self.partitions), **columns)
        self.carry()

    def consume(self, *partitions: int, prefetch: int = 100) -> None:
        """Let the consumers of partitions take what they can get from now on."""
        for partition in partitions:
            self.of(partition).subscribe(prefetch, partition_name(ORDERS, partition), client=b"consumer %d" % partition)
        self.carry()

    def taken(self, partition: int) -> list[Got]:
        """What the consumer of a partition got since the last call."""
        return self.of(partition).take_pushed(b"consumer %d" % partition)

    def settle(self, partition: int, got: list[Got], verb: Verb = Verb.ACK, **columns: object) -> None:
        self.of(partition).settle(verb, got, partition_name(ORDERS, partition), **columns)  # type: ignore[arg-type]
        self.carry()

    def leased_in(self, partition: int) -> int:
        return self.counts(partition)[1]

    def leased(self) -> int:
        """How many messages are leased in all partitions that exist."""
        return sum(
            queue.in_flight
            for station in self.stations.values()
            for queue in station.shard.queues.values()
            if not queue.is_dead_letter
        )

    @property
    def bank(self) -> PlaceBank:
        return self[0].shard.part(PlaceBank)


def limited(most: int | None, *partitions: int, **options: object) -> LimitedShards:
    """A queue with messages and a consumer in some of its four partitions."""
    cluster = LimitedShards(most, **options)  # type: ignore[arg-type]
    cluster.fill(*partitions)
    cluster.consume(*partitions)
    return cluster


# --- what counts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 3, 7, 39])
def test_at_most_so_many_are_leased_in_all_partitions_together(most: int) -> None:
    assert limited(most, 0, 1, 2, 3).leased() == most


def test_one_partition_may_have_them_all() -> None:
    cluster = limited(6, 2)
    assert (cluster.leased_in(2), len(cluster.taken(2))) == (6, 6)


def test_partitions_on_one_shard_share_them() -> None:
    cluster = LimitedShards(5, total=2, partitions=8)
    for partition in range(8):
        cluster.fill(partition)
        cluster.consume(partition)
    assert cluster.leased() == 5


def test_what_is_delivered_at_most_once_has_no_place() -> None:
    cluster = limited(1, 0, 1, delivery="at_most_once")
    assert [len(cluster.taken(partition)) for partition in (0, 1)] == [10, 10]


def test_dead_letters_have_no_limit() -> None:
    cluster = limited(1, 1)
    for _ in range(3):
        cluster.settle(1, cluster.taken(1), Verb.FAIL)
    assert cluster.dead_counts(1)[0] == 3
    assert len(cluster.receive(1, name="orders.dlq")) == 3
    assert cluster.leased_in(1) == 1


def test_another_queue_has_places_of_its_own() -> None:
    cluster = limited(1, 1)
    cluster.define("others", max_in_flight=2)
    cluster.enqueue(1, *[b"x"] * 5, key=key_of(1), name="others")
    queue = partition_name("others", 1)
    cluster.of(1, "others").subscribe(9, queue, client=b"c")
    cluster.carry()
    assert cluster.counts(1, "others")[1] == 2


ENDINGS: dict[str, Callable[[LimitedShards, list[Got]], object]] = {
    "ack": lambda cluster, got: cluster.settle(1, got),
    "nack": lambda cluster, got: cluster.settle(1, got, Verb.NACK),
    "fail": lambda cluster, got: cluster.settle(1, got, Verb.FAIL),
    "release": lambda cluster, got: cluster.settle(1, got, Verb.RELEASE),
    "retry": lambda cluster, got: cluster.settle(1, got, Verb.RETRY, after_ms=60_000),
    "goodbye": lambda cluster, got: cluster.of(1).goodbye(b"consumer 1"),
    "expiry": lambda cluster, got: (cluster.pass_time(9_000), cluster.of(2).heartbeat(b"waits"), cluster.pass_time(7_000)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_lease_ends_its_place_goes_to_another_partition(ending: str) -> None:
    cluster = limited(2, 1)
    got = cluster.taken(1)
    cluster.of(1).heartbeat(b"consumer 1")
    cluster.fill(2)
    cluster.of(2).begin(Receive(9, 3_600_000), partition_name(ORDERS, 2), client=b"waits")
    cluster.carry()
    assert (len(got), cluster.counts(2)) == (2, (10, 0, 0))
    ENDINGS[ending](cluster, got)
    cluster.carry()
    assert cluster.leased_in(2) >= 1
    assert cluster.leased() <= 2


def test_places_go_to_the_partitions_by_the_weights_that_wait_there() -> None:
    cluster = LimitedShards(4)
    cluster.fill(1, count=300)
    cluster.fill(2, count=300, weight=3)
    cluster.consume(1, 2)
    seen = {1: 0, 2: 0}
    while sum(seen.values()) < 200:
        for partition in seen:
            got = cluster.taken(partition)
            seen[partition] += len(got)
            cluster.settle(partition, got)
    assert 2 <= seen[2] / seen[1] <= 4


def test_a_receive_that_does_not_wait_gets_the_answer_of_the_bank() -> None:
    cluster = limited(1)
    cluster.fill(1, 2)
    seen = []
    for partition in (1, 2):
        shard = cluster.of(partition)
        number = shard.begin(Receive(9, 0), partition_name(ORDERS, partition), client=b"c")
        cluster.carry()
        shard.pass_time(0)
        seen.append(sum(len(batch.records) for batch in shard.late.pop(number).batches))
    assert seen == [1, 0]


def test_one_that_only_looks_is_answered_when_there_is_a_place() -> None:
    cluster = LimitedShards(1)
    cluster.fill(1, count=1)
    cluster.consume(1)
    cluster.fill(2)
    number = cluster.of(2).begin(Receive(0, 60_000), partition_name(ORDERS, 2), client=b"looks")
    cluster.carry()
    assert number not in cluster.of(2).late
    cluster.settle(1, cluster.taken(1))
    assert number in cluster.of(2).late
    assert len(cluster.receive(2)) == 1


def test_a_place_waits_for_who_has_looked_and_then_goes_to_another_partition() -> None:
    cluster = LimitedShards(1)
    cluster.fill(2)
    cluster.of(2).begin(Receive(0, 60_000), partition_name(ORDERS, 2), client=b"looks")
    cluster.carry()
    cluster.fill(1)
    cluster.consume(1)
    cluster.pass_time(1000)
    assert cluster.taken(1) == []
    cluster.pass_time(HOLD_MS_MAX)
    assert len(cluster.taken(1)) == 1


def test_a_receive_that_comes_again_finds_the_place_for_which_the_last_one_did_not_wait() -> None:
    cluster = LimitedShards(1)
    cluster.fill(1)
    shard, queue = cluster.of(1), partition_name(ORDERS, 1)
    number = shard.begin(Receive(1, 0), queue, client=b"c")
    cluster.collect()
    shard.pass_time(200)
    assert shard.late.pop(number).batches == []  # the bank has not answered yet
    cluster.carry()
    cluster.pass_time(500)
    assert len(shard.receive(1, queue, client=b"c")) == 1


def test_throttle_keys_hold_beside_it() -> None:
    cluster = LimitedShards(3)
    cluster.change(SetConfig("throttle:k:concurrency", "2"))
    cluster.fill(1, 2, throttle_keys=[["k"]])
    cluster.consume(1, 2)
    assert cluster.leased() == 2
    cluster.change(SetConfig("throttle:k:concurrency", "9"))
    cluster.pass_time(100)
    assert cluster.leased() == 3


def test_both_limits_are_used_up_by_messages_of_several_partitions() -> None:
    cluster = LimitedShards(3)
    cluster.change(SetConfig("throttle:k:concurrency", "3"))
    cluster.fill(0, 1, 2, 3, count=50, throttle_keys=[["k"]])
    cluster.consume(0, 1, 2, 3, prefetch=2)
    settled = 0
    for _ in range(200):
        for partition in range(4):
            got = cluster.taken(partition)
            settled += len(got)
            if got:
                cluster.settle(partition, got)
        cluster.pass_time(5)
    assert settled == 200


def test_without_a_limit_nobody_asks_for_places() -> None:
    cluster = limited(None, 0, 1, 2, 3)
    assert cluster.leased() == 40
    assert not any(isinstance(command, ReportPlaces | GrantPlaces) for command in cluster.seen)


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_raised_limit_holds_at_once() -> None:
    cluster = limited(1, 1, 2)
    for most, leased in ((6, 6), (None, 20)):
        cluster.limit(most)
        assert cluster.leased() == leased


def test_a_lowered_limit_takes_back_no_lease() -> None:
    cluster = limited(6, 1, 2)
    cluster.limit(2)
    got = {partition: cluster.taken(partition) for partition in (1, 2)}
    assert sum(map(len, got.values())) == 6
    settled = 0
    for partition in (1, 2):
        for each in got[partition]:
            cluster.settle(partition, [each])
            settled += 1
            assert cluster.leased() == max(2, 6 - settled)


def test_a_new_limit_counts_what_is_leased_already() -> None:
    cluster = limited(None, 1, 2)
    got = cluster.taken(1)
    cluster.fill(3)
    cluster.limit(12)
    cluster.consume(3)
    assert (cluster.leased(), cluster.leased_in(3)) == (20, 0)
    cluster.settle(1, got)
    assert (cluster.leased(), cluster.leased_in(3)) == (12, 2)


def test_a_limit_that_is_set_again_counts_them_too() -> None:
    cluster = limited(3, 1)
    for most in (None, 3):
        cluster.limit(most)
    cluster.fill(2)
    cluster.consume(2)
    assert (cluster.leased(), cluster.leased_in(2)) == (10, 0)
    cluster.settle(1, cluster.taken(1)[:8])
    assert cluster.leased() == 3


def test_a_limit_that_ends_lets_everything_go() -> None:
    cluster = limited(1, 1, 2)
    cluster.limit(None)
    assert cluster.leased() == 20
    assert not cluster.bank.keys


def test_delivery_at_most_once_ends_it_and_at_least_once_begins_it_again() -> None:
    cluster = limited(1, 1, 2)
    cluster.update(delivery="at_most_once")
    cluster.settle_down()
    assert sum(len(cluster.taken(partition)) for partition in (1, 2)) == 20
    cluster.update(delivery="at_least_once")
    cluster.settle_down()
    cluster.fill(1, 2)
    assert sum(len(cluster.taken(partition)) for partition in (1, 2)) <= 1


def test_a_queue_that_is_deleted_and_made_anew_has_all_places() -> None:
    cluster = limited(2, 1)
    cluster.delete()
    cluster.define(max_in_flight=2)
    cluster.settle_down()
    cluster.fill(2)
    cluster.consume(2)
    assert cluster.leased_in(2) == 2


def test_places_of_a_partition_that_is_gone_are_free() -> None:
    cluster = limited(2, 1)
    old = dict(cluster[0].shard.config)
    cluster.delete(unseen=range(1, 4))
    cluster.define(max_in_flight=2, unseen=range(1, 4))
    assert old != dict(cluster[0].shard.config)
    for index in range(1, 4):
        cluster.catch_up(index)
    cluster.settle_down()
    cluster.fill(2)
    cluster.consume(2)
    assert cluster.leased_in(2) == 2


def test_a_paused_partition_keeps_no_place() -> None:
    cluster = limited(1, 1)
    cluster.of(1).ask(Pause(), partition_name(ORDERS, 1), ADMIN)
    cluster.settle(1, cluster.taken(1))
    cluster.fill(2)
    cluster.consume(2)
    assert (cluster.leased_in(1), cluster.leased_in(2)) == (0, 1)
    cluster.of(1).ask(Pause(paused=False), partition_name(ORDERS, 1), ADMIN)
    cluster.settle(2, cluster.taken(2))
    assert cluster.leased() == 1


# --- what fails -------------------------------------------------------------------------------------------------------


def test_a_restarted_shard_has_its_leases_counted() -> None:
    cluster = limited(3, 1)
    cluster.of(1).restart()
    cluster.fill(2)
    cluster.consume(2)
    assert (cluster.leased_in(1), cluster.leased_in(2)) == (3, 0)


def test_a_new_bank_grants_nothing_that_an_old_one_has_granted() -> None:
    cluster = limited(3, 1)
    cluster[0].restart()
    cluster.fill(2, 3)
    cluster.consume(2, 3)
    cluster.pass_time(3000)
    assert cluster.leased() == 3


class RandomShards(LimitedShards):
    """Partitions with consumers, frames that are lost, repeated and reordered, and shards that restart."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.calm = True
        self.most: int | None = 3
        super().__init__(3, total=3, partitions=5)
        self.held: dict[int, list[Got]] = {partition: [] for partition in range(5)}
        self.consume(*range(5), prefetch=4)
        self.calm = False
        self.copies = lambda command: 1 if self.calm else self.random.choice([0, 1, 1, 1, 2])

    def collect(self) -> None:
        super().collect()
        if not self.calm:
            commands = list(self.road)
            self.random.shuffle(commands)
            self.road.clear()
            self.road.extend(commands)

    def deliver(self, command: Command) -> None:
        before = self.outstanding()
        super().deliver(command)
        now = self.outstanding()
        if self.most is not None and now is not None:
            assert self.leased() <= now <= max(self.most, now if before is None else before)

    def outstanding(self) -> int | None:
        """The places that the bank counts; None: it does not know all shards yet."""
        key = self.bank.keys.get(PLACES)
        return None if key is None or len(key.known) < self.total else key.outstanding

    def step(self) -> None:
        random = self.random
        partition = random.randrange(5)
        match random.randrange(8):
            case 0 | 1:
                self.fill(partition, count=random.choice([1, 3]))
            case 2 | 3 | 4:
                self.settle_some(partition)
            case 5:
                self.most = random.choice([None, 1, 2, 4])
                self.limit(self.most)
            case 6:
                shard = random.randrange(3)
                self[shard].restart()
                for each in [each for each in range(5) if self.of(each) is self[shard]]:
                    self.held[each] = []
                    self.consume(each, prefetch=4)
            case 7:
                self.pass_time(random.choice([10, 300, 2000]))
        for each in range(5):
            self.held[each] += self.taken(each)
            self.of(each).heartbeat(b"consumer %d" % each)

    def settle_some(self, partition: int) -> None:
        held = self.held[partition] + self.taken(partition)
        count = self.random.randint(0, len(held))
        self.held[partition] = held[count:]
        if count:
            self.settle(partition, held[:count])


@pytest.mark.parametrize("seed", range(25))
def test_the_limit_holds_whatever_happens_and_all_messages_come_in_the_end(seed: int) -> None:
    cluster = RandomShards(seed)
    for _ in range(120):
        cluster.step()
    cluster.calm = True
    for _ in range(200):
        cluster.pass_time(1000)
        for partition in range(5):
            cluster.of(partition).heartbeat(b"consumer %d" % partition)
            got, cluster.held[partition] = cluster.held[partition] + cluster.taken(partition), []
            if got:
                cluster.settle(partition, got)  # those of an earlier life of the shard may be refused
        if all(cluster.counts(partition) == (0, 0, 0) for partition in range(5)):
            return
    raise AssertionError([cluster.counts(partition) for partition in range(5)])


# --- what operators see -----------------------------------------------------------------------------------------------


def test_why_names_the_whole_queue_and_the_longest_holder() -> None:
    cluster = limited(3, 1)
    cluster.fill(1, count=1)
    cluster.pass_time(1000)
    told = why(cluster.of(1), queue=partition_name(ORDERS, 1))
    details = first(told, "concurrency")
    assert these(details, ["queue", "limit", "in_use"]) == [ORDERS, 3, 3]
    assert len(details["holders"]) == 3


def test_why_in_a_partition_that_has_none_of_them() -> None:
    cluster = limited(3, 1)
    cluster.fill(2)
    cluster.consume(2)
    told = why(cluster.of(2), queue=partition_name(ORDERS, 2))
    assert these(first(told, "concurrency"), ["queue", "limit", "in_use", "holders"]) == [ORDERS, 3, 3, []]


def test_its_places_are_no_throttle_key() -> None:
    cluster = limited(3, 1, 2)
    for index in range(4):
        shard = cluster[index]
        call = ClientCall(ADMIN, 1, "", shard.now_ms)
        assert list_throttles(shard.shard, call, ListThrottles()).throttles == []
        assert list_throttles(shard.shard, call, ListThrottles(PLACES, exact=True)).waiters == []
        assert report(shard.shard, shard.now_ms).places == []
