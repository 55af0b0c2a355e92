"""Another number of partitions: each message comes to its new place once, and the order of each key holds."""

from collections import defaultdict
from contextlib import suppress
from random import Random

import pytest

from fila_proto_zmq.commands import (
    Carried,
    Enqueue,
    Enqueued,
    MessagesTransferred,
    OpenBatch,
    Pause,
    Receive,
    SealBatch,
    TransferMessages,
    Verb,
)
from fila_proto_zmq.errors import OverloadedError, PartitionedError, QueueNotFoundError, ShardUnavailableError
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.names import batch_id, dead_letter_name, partition_name, shard_of
from fila_proto_zmq.partitions import partition_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.manage.strays import FORWARD_MS
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.partitioned import ORDERS, TOTAL, PartitionedShards, key_of, payloads
from tests.support.shard.shard import limited

HOME = shard_of(ORDERS, TOTAL)


@pytest.fixture
def cluster() -> PartitionedShards:
    return PartitionedShards()


def key_that_moves(before: int, after: int, to: int | None = None) -> str:
    """A key that has another partition than before."""
    return next(
        key
        for number in range(10_000)
        if partition_of(key := f"k{number}", before) != (place := partition_of(key, after)) and to in {None, place}
    )


def key_that_stays(before: int, after: int) -> str:
    return next(key for number in range(10_000) if partition_of(key := f"k{number}", before) == partition_of(key, after))


def put(cluster: PartitionedShards, key: str, partitions: int, *sent: bytes, **columns: object) -> list[str]:
    return cluster.enqueue(partition_of(key, partitions), *sent, key=key, **columns)


def put_again(cluster: PartitionedShards, key: str, partitions: int, dedup_id: str, **columns: object) -> list[str]:
    """Enqueue a message with a dedup id that is known; the id of the first one."""
    partition = partition_of(key, partitions)
    command = Enqueue([seal_envelope(b"x")], fairness_key=key, dedup_id=[dedup_id], **columns)  # type: ignore[arg-type]
    answer = cluster.of(partition).ask(command, partition_name(ORDERS, partition))
    assert isinstance(answer, Enqueued)
    return [format_id(high, low) for _, high, low in answer.known]


def everything(cluster: PartitionedShards, partitions: int) -> list[bytes]:
    return [each for partition in range(partitions) for each in payloads(cluster.receive(partition))]


def is_moving(cluster: PartitionedShards) -> bool:
    definition = cluster[0].shard.runtime.definitions.find(ORDERS)
    return definition is not None and definition.move is not None


def settle(cluster: PartitionedShards) -> None:
    cluster.settle_down()
    cluster.pass_time(3 * FORWARD_MS)


# --- from one number to another ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 8), (2, 3), (8, 3), (4, 1), (3, 8)])
def test_all_messages_come_to_their_new_places_once_in_the_order_of_their_keys(cluster, before, after) -> None:
    cluster.define(partitions=before)
    keys = [f"k{number}" for number in range(30)]
    for key in keys:
        put(cluster, key, before, *(f"{key} {number}".encode() for number in range(5)))
    cluster.update(partitions=after)
    for key in keys:
        put(cluster, key, after, *(f"{key} {number}".encode() for number in range(5, 8)))
    settle(cluster)
    assert not is_moving(cluster)
    for partition in range(after):
        got = defaultdict(list)
        for each in cluster.receive(partition, 999):
            got[each.key].append(each.payload)
        mine = [key for key in keys if partition_of(key, after) == partition]
        assert got == {key: [f"{key} {number}".encode() for number in range(8)] for key in mine}
    held = {name for station in cluster.stations.values() for name in station.shard.queues if not name.endswith(".dlq")}
    assert held >= {partition_name(ORDERS, each) for each in range(after)}
    assert not held & {partition_name(ORDERS, each) for each in range(after, before)}


def test_a_queue_without_partitions_gets_some(cluster: PartitionedShards) -> None:
    cluster[HOME].create(ORDERS)
    moves, stays = key_that_moves(1, 4), key_that_stays(1, 4)
    cluster[HOME].enqueue(b"a", b"b", queue=ORDERS, key=moves)
    cluster[HOME].enqueue(b"c", queue=ORDERS, key=stays)
    (leased,) = cluster[HOME].receive(1, ORDERS)
    cluster.convert(4)
    assert ORDERS not in cluster[HOME].shard.queues
    cluster[HOME].ack([leased], ORDERS)
    put(cluster, moves, 4, b"d")
    settle(cluster)
    assert sorted([leased.payload, *everything(cluster, 4)]) == [b"a", b"b", b"c", b"d"]
    cluster[HOME].restart()
    assert partition_name(ORDERS, 0) in cluster[HOME].shard.queues


def test_who_waits_at_a_queue_without_partitions_is_told_of_them(cluster: PartitionedShards) -> None:
    cluster[HOME].create(ORDERS)
    number = cluster[HOME].begin(Receive(1, 60_000), ORDERS)
    cluster.convert(4)
    cluster[HOME].finish()
    answer = cluster[HOME].late[number]
    assert isinstance(answer, PartitionedError)
    assert answer.details["partitions"] == 4


def test_newer_messages_wait_until_the_earlier_ones_have_come(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    key = key_that_moves(2, 3, to=2)
    put(cluster, key, 2, b"old 1", b"old 2")
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.update(partitions=3)
    put(cluster, key, 3, b"new")
    other = key_of(2, 3, "new only ")
    put(cluster, other, 3, b"of another key")
    settle(cluster)
    assert everything(cluster, 3) == []
    cluster.copies = lambda _: 1
    settle(cluster)
    got = cluster.receive(2)
    assert [each.payload for each in got if each.key == key] == [b"old 1", b"old 2", b"new"]
    assert [each.payload for each in got if each.key == other] == [b"of another key"]


def test_what_comes_back_is_before_what_came_after_the_change(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    key = key_that_moves(2, 3, to=2)
    place = partition_of(key, 2)
    put(cluster, key, 2, b"old 1", b"old 2")
    (leased,) = cluster.receive(place, 1)
    cluster.update(partitions=3)
    put(cluster, key, 3, b"new")
    settle(cluster)
    cluster.of(place).settle(Verb.RELEASE, [leased], partition_name(ORDERS, place))
    settle(cluster)
    assert payloads(cluster.receive(2)) == [b"old 1", b"old 2", b"new"]


def test_with_a_limit_for_each_key_the_leased_ones_are_awaited(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2, max_in_flight_per_key=1)
    key = key_that_moves(2, 3, to=2)
    place = partition_of(key, 2)
    put(cluster, key, 2, b"old 1", b"old 2")
    (leased,) = cluster.receive(place, 1)
    cluster.update(partitions=3)
    settle(cluster)
    assert is_moving(cluster)
    assert cluster.receive(2) == []
    cluster.of(place).ack([leased], partition_name(ORDERS, place))
    settle(cluster)
    assert not is_moving(cluster)
    assert payloads(cluster.receive(2)) == [b"old 2"]


@pytest.mark.parametrize("after_ms", [0, 5000])
def test_what_waits_for_its_next_attempt_is_the_next_one_at_its_new_place(cluster: PartitionedShards, after_ms: int) -> None:
    cluster.define(partitions=2, max_in_flight_per_key=1)
    key = key_that_moves(2, 3, to=2)
    place = partition_of(key, 2)
    put(cluster, key, 2, b"first")
    got = cluster.receive(place, 1)
    put(cluster, key, 2, b"urgent", priority=-5)
    cluster.of(place).settle(Verb.RETRY, got, partition_name(ORDERS, place), after_ms=after_ms)
    cluster.update(partitions=3)
    settle(cluster)
    if after_ms:
        assert cluster.receive(2) == []
        cluster.of(2).restart()
        assert cluster.receive(2) == []
        cluster.pass_time(after_ms)
    for payload in b"first", b"urgent":
        got = cluster.receive(2)
        assert payloads(got) == [payload]
        cluster.of(2).ack(got, partition_name(ORDERS, 2))


def test_a_stray_key_whose_partition_is_here_now_is_sent_nowhere() -> None:
    cluster = PartitionedShards(settings=limited(redrive_messages_max=1))
    cluster.define(partitions=2, on_enqueue=on_enqueue("return {}"))
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.enqueue(0, b"1", b"2", key=key_of(1, 2))
    assert cluster.counts(0)[0] == 1
    cluster.update(partitions=1)
    cluster.copies = lambda _: 1
    settle(cluster)
    assert not is_moving(cluster)
    assert sorted(payloads(cluster.receive(0))) == [b"1", b"2"]


@pytest.mark.parametrize("hook", [None, on_enqueue("return {}")])
def test_clients_with_the_earlier_number_are_refused(cluster: PartitionedShards, hook: str | None) -> None:
    cluster.define(partitions=2, on_enqueue=hook)
    key = key_that_moves(2, 3)
    put(cluster, key, 2, b"old")
    change = cluster.update(partitions=3)
    for columns in {}, {"delay_ms": 5}:
        command = Enqueue([seal_envelope(b"x"), seal_envelope(b"y")], fairness_key=["other", key], **columns)
        with pytest.raises(PartitionedError) as refusal:
            cluster.of(partition_of(key, 2)).ask(command, partition_name(ORDERS, partition_of(key, 2)))
        assert refusal.value.details == {"partitions": 3, "spread": "key", "earlier": 2, "held": 2, "version": change.version}


def test_the_number_changes_again_only_when_all_have_moved(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    put(cluster, key_that_moves(2, 3), 2, b"x")
    cluster.copies = lambda command: not isinstance(command, (TransferMessages, MessagesTransferred))
    cluster.update(partitions=3)
    with pytest.raises(OverloadedError, match="still moving from 2 to 3 partitions") as refusal:
        cluster.update(partitions=4)
    assert refusal.value.details["refused"] is True
    cluster.update(max_attempts=7)  # other options may change
    cluster.copies = lambda _: 1
    settle(cluster)
    cluster.update(partitions=4)
    settle(cluster)
    assert everything(cluster, 4) == [b"x"]
    assert not is_moving(cluster)


def test_defaults_are_no_change(cluster: PartitionedShards) -> None:
    cluster.define(partitions=None)
    cluster.update(partitions=1, spread="key")
    assert not is_moving(cluster)


def test_a_shard_that_learns_it_late_takes_early_messages_then(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    to = next(partition for partition in (2, 3) if cluster.of(partition).index != 0)
    key, late = key_that_moves(2, 4, to=to), cluster.of(to).index
    put(cluster, key, 2, b"old 1", b"old 2")
    cluster.update(partitions=4, unseen={late})
    cluster.unseen = {late}
    settle(cluster)
    assert is_moving(cluster)
    cluster.unseen = set()
    cluster.catch_up(late)
    put(cluster, key, 4, b"new")
    settle(cluster)
    assert payloads(cluster.receive(to)) == [b"old 1", b"old 2", b"new"]


# --- what goes with the messages --------------------------------------------------------------------------------------


def test_dead_letters_of_a_partition_that_is_no_more_move(cluster: PartitionedShards) -> None:
    cluster.define(partitions=4, max_attempts=1)
    key = key_that_moves(4, 1)
    place = partition_of(key, 4)
    ids = put(cluster, key, 4, b"dead")
    cluster.of(place).nack(cluster.receive(place), "boom", partition_name(ORDERS, place))
    assert cluster.dead_counts(place) == (1, 0, 0)
    cluster.update(partitions=1)
    settle(cluster)
    assert not is_moving(cluster)
    assert [each.id for each in cluster.of(0).receive(9, dead_letter_name(partition_name(ORDERS, 0)))] == ids


def test_a_partition_stays_as_long_as_it_has_leased_messages(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    key = key_of(1, 2)
    put(cluster, key, 2, b"x")
    got = cluster.receive(1)
    cluster.update(partitions=1)
    settle(cluster)
    assert is_moving(cluster)
    cluster.of(1).ack(got, partition_name(ORDERS, 1))
    settle(cluster)
    assert not is_moving(cluster)
    assert partition_name(ORDERS, 1) not in cluster.of(1).shard.queues


@pytest.mark.parametrize("after", [2, 4])
def test_the_number_may_change_again_while_messages_of_earlier_partitions_are_leased(
    cluster: PartitionedShards, after: int
) -> None:
    cluster.define(partitions=4)
    key = key_of(3, 4)
    put(cluster, key, 4, b"x")
    got = cluster.receive(3)
    cluster.update(partitions=1)
    settle(cluster)
    cluster.update(partitions=after)
    settle(cluster)
    assert is_moving(cluster) == (after == 2)
    cluster.of(3).settle(Verb.RELEASE, got, partition_name(ORDERS, 3))
    settle(cluster)
    assert not is_moving(cluster)
    assert payloads(cluster.receive(partition_of(key, after))) == [b"x"]
    assert (partition_name(ORDERS, 3) in cluster.of(3).shard.queues) == (after == 4)


def test_members_of_a_batch_stay_until_they_are_done(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    name, token, owner = partition_name(ORDERS, 1), b"t" * 16, partition_name(ORDERS, 0)
    cluster.of(0).ask(OpenBatch(token, Enqueue([seal_envelope(b"done")], fairness_key=key_of(0, 1))), owner)
    key = key_of(1, 2)
    cluster.of(1).send(Enqueue([seal_envelope(b"x")], fairness_key=key, batch=batch_id(owner, token)), name)
    cluster.settle_down()
    cluster.of(0).ask(SealBatch(token), owner)
    cluster.update(partitions=1)
    settle(cluster)
    got = cluster.receive(1)
    assert payloads(got) == [b"x"]
    cluster.of(1).ack(got, name)
    settle(cluster)
    assert not is_moving(cluster)
    assert payloads(cluster.receive(0)) == [b"done"]


def test_batches_go_on_over_the_change_of_a_queue_without_partitions(cluster: PartitionedShards) -> None:
    shard = cluster[HOME]
    shard.create(ORDERS)
    token = b"t" * 16
    shard.ask(OpenBatch(token, Enqueue([seal_envelope(b"done")], fairness_key=key_of(0, 4))), ORDERS)
    shard.send(Enqueue([seal_envelope(b"x")], fairness_key=key_of(0, 4), batch=batch_id(ORDERS, token)), ORDERS)
    cluster.settle_down()
    cluster.convert(4)
    settle(cluster)
    first = partition_name(ORDERS, 0)
    shard.send(Enqueue([seal_envelope(b"y")], fairness_key=key_of(0, 4), batch=batch_id(first, token)), first)
    settle(cluster)
    shard.restart()
    shard.ask(SealBatch(token), first)
    got = shard.receive(9, first)
    assert payloads(got) == [b"x", b"y"]
    shard.ack(got, first)
    settle(cluster)
    assert payloads(cluster.receive(0)) == [b"done"]


@pytest.mark.parametrize("paused", ["queue", "key"])
def test_what_is_paused_stays_paused(cluster: PartitionedShards, paused: str) -> None:
    cluster.define(partitions=2)
    key = key_that_moves(2, 3, to=2)
    for partition in range(2):
        pause = Pause(True) if paused == "queue" else Pause(True, key)
        if paused == "queue" or partition == partition_of(key, 2):
            cluster.of(partition).ask(pause, partition_name(ORDERS, partition))
    put(cluster, key, 2, b"old")
    cluster.update(partitions=3)
    put(cluster, key, 3, b"new")
    settle(cluster)
    assert everything(cluster, 3) == []
    cluster.of(2).restart()
    cluster.of(2).ask(Pause(False) if paused == "queue" else Pause(False, key), partition_name(ORDERS, 2))
    assert payloads(cluster.receive(2)) == [b"old", b"new"]


@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (1, 4)])
def test_a_message_that_comes_again_after_the_change_is_known(cluster: PartitionedShards, before: int, after: int) -> None:
    cluster.define(partitions=before)
    keys = [f"k{number}" for number in range(20)]
    ids = {key: put(cluster, key, before, b"x", dedup_id=key) for key in keys}
    gone = cluster.receive(partition_of(keys[0], before), 1)
    cluster.of(partition_of(keys[0], before)).ack(gone, partition_name(ORDERS, partition_of(keys[0], before)))
    cluster.update(partitions=after)
    settle(cluster)
    assert {key: put_again(cluster, key, after, key) for key in keys} == ids
    assert len(everything(cluster, after)) == len(keys) - 1


def test_a_message_with_a_dedup_id_waits_for_those_that_were_used_elsewhere(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    key = key_that_moves(2, 3, to=2)
    ids = put(cluster, key, 2, b"x", dedup_id="once")
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.update(partitions=3)
    cluster.settle_down()
    with pytest.raises(ShardUnavailableError, match="dedup ids") as refusal:
        put(cluster, key, 3, b"x", dedup_id="once")
    assert refusal.value.details["refused"] is True
    put(cluster, key, 3, b"without one")
    cluster.copies = lambda _: 1
    cluster.pass_time(FORWARD_MS)
    cluster.of(2).restart()
    assert put_again(cluster, key, 3, "once") == ids
    settle(cluster)
    assert payloads(cluster.receive(2)) == [b"x", b"without one"]


def test_a_dedup_id_of_a_queue_that_is_spread_by_message_is_refused_where_others_do_not_look(
    cluster: PartitionedShards,
) -> None:
    cluster.define(partitions=2, spread="message")
    dedup_id = key_that_moves(2, 3)
    cluster.update(partitions=3)
    settle(cluster)
    with pytest.raises(PartitionedError):
        cluster.enqueue(partition_of(dedup_id, 2), b"x", key="k", dedup_id=["", dedup_id])
    cluster.enqueue(partition_of(dedup_id, 3), b"x", key="k", dedup_id=dedup_id)
    cluster.enqueue(partition_of(dedup_id, 2), b"y", key="k")
    assert sorted(everything(cluster, 3)) == [b"x", b"y"]


def test_a_dedup_id_is_forgotten_at_its_time_at_the_new_place(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    key = key_that_moves(2, 3, to=2)
    first = put(cluster, key, 2, b"x", dedup_id="once", dedup_window_ms=20_000)
    cluster.update(partitions=3)
    settle(cluster)
    assert put_again(cluster, key, 3, "once", dedup_window_ms=20_000) == first
    cluster.pass_time(20_000)
    assert put_again(cluster, key, 3, "once", dedup_window_ms=20_000) == []


def test_many_dedup_ids_come_in_bounded_portions(cluster: PartitionedShards) -> None:
    cluster.define(partitions=1)
    key = key_that_moves(1, 2)
    for start in range(0, 450, 150):
        put(cluster, key, 1, *(b"x" for _ in range(150)), dedup_id=[f"id {start + number}" for number in range(150)])
    cluster.update(partitions=2)
    settle(cluster)
    sent = [
        each for command in cluster.seen if isinstance(command, TransferMessages) for each in command.transfers if each.what
    ]
    assert [each.what for each in sent] == [Carried.DEDUP_IDS] * 4 + [Carried.LAST_DEDUP_IDS]
    put(cluster, key, 2, *(b"x" for _ in range(450)), dedup_id=[f"id {number}" for number in range(450)])
    assert cluster.counts(1)[0] == 450


def test_a_queue_that_is_spread_by_message_has_nothing_to_wait_for(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2, spread="message")
    cluster.enqueue(0, b"a", key="k")
    cluster.update(partitions=4)
    cluster.enqueue(3, b"b", key="k")
    settle(cluster)
    assert not is_moving(cluster)
    for partition, payload in (0, b"a"), (3, b"b"):
        got = cluster.receive(partition)
        assert payloads(got) == [payload]
        cluster.of(partition).ack(got, partition_name(ORDERS, partition))
    for partition in range(4):
        cluster.enqueue(partition, *(b"%d" % each for each in range(5)), key="k")
    cluster.update(partitions=2)
    settle(cluster)
    assert not is_moving(cluster)
    assert len(everything(cluster, 2)) == 20


def test_a_queue_that_is_deleted_meanwhile_leaves_nothing(cluster: PartitionedShards) -> None:
    cluster.define(partitions=4)
    put(cluster, key_that_moves(4, 2), 4, b"x")
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.update(partitions=2)
    cluster.delete()
    cluster.copies = lambda _: 1
    cluster.define(partitions=2)
    settle(cluster)
    assert everything(cluster, 2) == []
    with pytest.raises(PartitionedError):
        cluster.of(3).stats(partition_name(ORDERS, 3))


def test_others_that_change_on_the_same_shard_do_not_disturb_the_order(cluster: PartitionedShards) -> None:
    cluster.define(partitions=2)
    cluster.define("others", partitions=1)
    key = key_that_moves(2, 3, to=2)
    put(cluster, key, 2, b"old 1", b"old 2")
    cluster.copies = lambda command: not isinstance(command, TransferMessages)
    cluster.update(partitions=3)
    put(cluster, key, 3, b"new")
    cluster.update("others", partitions=8)
    for partition in range(8):
        cluster.counts(partition, "others")
    cluster.copies = lambda _: 1
    settle(cluster)
    assert payloads(cluster.receive(2)) == [b"old 1", b"old 2", b"new"]


# --- whatever happens -------------------------------------------------------------------------------------------------


class Random8:
    """Producers and consumers of a queue with up to eight partitions, to whom anything may happen."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        limits = limited(redrive_messages_max=random.choice([2, 5, 500]), step_effort=random.choice([5, 500]))
        self.cluster = PartitionedShards(settings=limits)
        self.cluster.copies = lambda _: random.choice([0, 1, 1, 1, 2])
        self.known = random.choice([1, 2, 4])
        self.version = self.cluster.define(partitions=self.known).version
        self.sent: defaultdict[str, list[bytes]] = defaultdict(list)
        self.got: defaultdict[str, list[bytes]] = defaultdict(list)
        self.gave_back: set[str] = set()
        """Keys whose messages came back: others may have been delivered meanwhile."""

    def put(self) -> None:
        """Enqueue a message, where the last refusal said."""
        key = f"k{self.random.randrange(8)}"
        payload = f"{key} {len(self.sent[key])}".encode()
        for _ in range(3):
            try:
                self.cluster.enqueue(partition_of(key, self.known), payload, key=key)
            except PartitionedError as refusal:
                if refusal.details["version"] > self.version:  # else a shard learns it later, as for all clients
                    self.known, self.version = refusal.details["partitions"], refusal.details["version"]
            else:
                self.sent[key].append(payload)
                return

    def take(self) -> None:
        """Receive and ack some messages of each partition."""
        for partition in range(8):
            with suppress(PartitionedError, QueueNotFoundError):
                for each in self.cluster.receive(partition, 3):
                    self.got[each.key].append(each.payload)
                    self.cluster.of(partition).ack([each], partition_name(ORDERS, partition))

    def give_back(self) -> None:
        """Receive some messages, and give them back."""
        partition = self.random.randrange(8)
        with suppress(PartitionedError, QueueNotFoundError):
            got = self.cluster.receive(partition, 3)
            self.gave_back |= {each.key for each in got}
            self.cluster.pass_time(self.random.choice([0, 5, 1500]))
            self.cluster.of(partition).settle(Verb.RELEASE, got, partition_name(ORDERS, partition))

    def change(self) -> None:
        """Change the number of partitions, which some shards learn later."""
        late = set(self.random.sample(range(1, TOTAL), self.random.choice([0, 1, 2])))
        with suppress(OverloadedError):
            self.cluster.update(partitions=self.random.choice([1, 2, 3, 5, 8]), unseen=late)

    def level(self) -> None:
        """Bring the config to all shards."""
        for index in range(1, TOTAL):
            self.cluster.catch_up(index)

    def restart(self) -> None:
        """Restart a shard."""
        self.cluster[self.random.randrange(TOTAL)].restart()

    def wait(self) -> None:
        """Let time pass."""
        self.cluster.pass_time(self.random.choice([1, 20, 1500]))


@pytest.mark.parametrize("seed", range(25))
def test_whatever_is_lost_each_message_is_delivered_once_in_the_order_of_its_key(seed: int) -> None:
    """Frames are lost and come twice, shards restart and learn changes late; clients follow what refusals say."""
    acting = Random8(seed)
    actions = [acting.put, acting.put, acting.put, acting.take, acting.give_back, acting.change, acting.level, acting.restart]
    for _ in range(60):
        acting.random.choice([*actions, acting.wait])()
    acting.cluster.copies = lambda _: 1
    for _ in range(20):
        acting.level()
        acting.cluster.pass_time(FORWARD_MS)
        acting.cluster.settle_down()
        acting.take()
    for _ in range(20):
        acting.take()
    assert not is_moving(acting.cluster)
    got = {key: sorted(some) if key in acting.gave_back else some for key, some in acting.got.items()}
    assert got == {key: some for key, some in acting.sent.items() if some}
