"""Messages in a wrong partition of their queue: none is delivered there, and each comes to its key's partition once."""

from random import Random

import pytest

from fila_proto_zmq.commands import (
    Command,
    Delivered,
    Enqueue,
    MessagesTransferred,
    OpenBatch,
    Pause,
    PutSchedule,
    Receive,
    SealBatch,
    TransferMessages,
    Verb,
)
from fila_proto_zmq.limits import PARTITIONS_MAX, QUEUE_NAME_BYTES_MAX
from fila_proto_zmq.names import batch_id, partition_name, shard_of
from fila_proto_zmq.partitions import partition_of
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.manage.partitions import FORWARD_MS
from fila_worker.core.model.runtime_config import RuntimeConfig
from fila_worker.core.model.shard_transfers import Owner
from fila_worker.core.settings import ShardSettings
from fila_worker.core.settle.remote_enqueues import send
from tests.property.replication.test_reshard import findings
from tests.support.shard.explained import first, why
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.linked_shards import once
from tests.support.shard.partitioned import ORDERS, TOTAL, PartitionedShards, key_of, payloads
from tests.support.shard.random_cluster import copied
from tests.support.shard.shard import limited

RIGHT, WRONG, SAME_SHARD = 2, 1, 2 + TOTAL
KEY = key_of(RIGHT)
QUEUE = f"{ORDERS}@{WRONG}"


@pytest.fixture
def cluster() -> PartitionedShards:
    return defined()


def defined(settings: ShardSettings | None = None, **options: object) -> PartitionedShards:
    """With a hook, which might have decided the keys: else messages of other partitions are refused."""
    cluster = PartitionedShards(settings=settings)
    cluster.define(**{"on_enqueue": on_enqueue("return {}"), **options})  # type: ignore[arg-type]
    return cluster


def hold_back(cluster: PartitionedShards) -> None:
    """Lose all frames with messages, so that strays stay on their way."""
    cluster.copies = lambda command: not isinstance(command, TransferMessages)


def look(cluster: PartitionedShards, partition: int) -> int:
    """What a partition without messages says of those on their way from it to others."""
    reply = cluster.of(partition).ask(Receive(0), partition_name(ORDERS, partition))
    assert isinstance(reply, Delivered)
    return reply.strays


# --- what a partition says of its strays ------------------------------------------------------------------------------


def test_where_there_were_no_strays_it_says_nothing(cluster: PartitionedShards) -> None:
    cluster.enqueue(RIGHT, b"x", key=KEY)
    cluster.receive(RIGHT)
    assert [look(cluster, partition) for partition in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("restarts", [False, True])
def test_it_is_odd_until_the_stray_is_there_and_another_number_after_that(cluster: PartitionedShards, restarts: bool) -> None:
    hold_back(cluster)
    cluster.enqueue(WRONG, b"x", key=KEY)
    assert look(cluster, WRONG) % 2 == 1
    cluster.settle_down()
    if restarts:
        cluster.of(WRONG).restart()
    assert look(cluster, WRONG) % 2 == 1, "it may not have arrived"
    cluster.copies = lambda command: not isinstance(command, MessagesTransferred)
    cluster.pass_time(2 * FORWARD_MS)
    assert (cluster.counts(RIGHT)[0], look(cluster, WRONG) % 2) == (1, 1), "it is not known that it has arrived"
    cluster.copies = once
    cluster.pass_time(2 * FORWARD_MS)
    seen = look(cluster, WRONG)
    assert (seen % 2, look(cluster, WRONG)) == (0, seen)
    assert restarts or seen > 0
    cluster.enqueue(WRONG, b"y", key=KEY)
    cluster.pass_time(2 * FORWARD_MS)
    assert (look(cluster, WRONG) % 2, look(cluster, WRONG) == seen) == (0, False)


def test_what_comes_while_others_are_on_their_way_follows_at_once(cluster: PartitionedShards) -> None:
    began_ms = cluster.of(WRONG).now_ms
    for key in KEY, key_of(RIGHT, prefix="other"), KEY:
        cluster.of(WRONG).begin(Enqueue([seal_envelope(b"x", {})], key), QUEUE)
    for _ in range(20):
        cluster.carry()
        cluster.pass_time(2)
    assert (cluster.counts(WRONG)[0], cluster.counts(RIGHT)[0]) == (0, 3)
    assert cluster.of(WRONG).now_ms < began_ms + FORWARD_MS


def test_what_is_refused_is_sent_again_after_a_moment_only(cluster: PartitionedShards) -> None:
    refusing = cluster.of(RIGHT).shard
    runtime, refusing.runtime = refusing.runtime, RuntimeConfig(refusing.store.families)
    cluster.enqueue(WRONG, b"x", key=KEY)
    cluster.settle_down()
    sent = sum(isinstance(each, TransferMessages) for each in cluster.seen)
    cluster.settle_down()
    assert sum(isinstance(each, TransferMessages) for each in cluster.seen) == sent
    refusing.runtime = runtime
    cluster.pass_time(2 * FORWARD_MS)
    assert payloads(cluster.receive(RIGHT)) == [b"x"]


# --- what comes over --------------------------------------------------------------------------------------------------


def test_a_stray_is_not_delivered_where_it_was_enqueued(cluster: PartitionedShards) -> None:
    hold_back(cluster)
    cluster.enqueue(WRONG, b"x", key=KEY)
    assert cluster.receive(WRONG) == []
    cluster.settle_down()
    assert (cluster.receive(WRONG), cluster.receive(RIGHT)) == ([], [])


def test_a_stray_that_waits_for_earlier_ones_is_explained() -> None:
    cluster = defined(limited(redrive_messages_max=2))
    hold_back(cluster)
    ids = cluster.enqueue(WRONG, *(b"%d" % number for number in range(5)), key=KEY)
    cluster.settle_down()
    for asked in {"key": KEY}, {"message": ids[-1]}:
        told = why(cluster.of(WRONG), queue=QUEUE, **asked)
        details = first(told, "leaving")
        assert (details["partition"], details["to"], details["messages"]) == (WRONG, RIGHT, 3)
        assert details["sent_to"] == [cluster.of(RIGHT).index]
    assert first(why(cluster.of(WRONG), queue=QUEUE), "leaving")["messages"] == 3


def test_all_come_over_once_in_order_with_their_ids(cluster: PartitionedShards) -> None:
    sent = [b"%d" % number for number in range(20)]
    ids = cluster.enqueue(WRONG, *sent, key=KEY)
    own = cluster.enqueue(WRONG, b"own", key=key_of(WRONG))
    cluster.settle_down()
    got = cluster.receive(RIGHT)
    assert (payloads(got), [each.id for each in got]) == (sent, ids)
    assert [each.id for each in cluster.receive(WRONG)] == own
    assert (cluster.counts(WRONG)[0], cluster.counts(RIGHT)) == (0, (0, 20, 0))


def test_more_come_over_after_the_first_ones(cluster: PartitionedShards) -> None:
    for number in range(3):
        cluster.enqueue(WRONG, b"%d" % number, key=KEY)
        cluster.settle_down()
        cluster.pass_time(2 * FORWARD_MS)
    assert payloads(cluster.receive(RIGHT)) == [b"0", b"1", b"2"]


def test_many_come_over_in_bounded_portions() -> None:
    cluster = defined(limited(redrive_messages_max=7, step_effort=20))
    sent = [b"%d" % number for number in range(50)]
    cluster.enqueue(WRONG, *sent, key=KEY)
    cluster.pass_time(30 * FORWARD_MS)
    assert payloads(cluster.receive(RIGHT)) == sent
    assert all(len(each.transfers) <= 7 for each in cluster.seen if isinstance(each, TransferMessages))


def test_a_stray_keeps_what_it_was_enqueued_with(cluster: PartitionedShards) -> None:
    cluster.enqueue(
        WRONG,
        b"x",
        key=KEY,
        priority=-3,
        lease_ms=2_000,
        ttl_ms=60_000,
        throttle_keys=[["t", "u"]],
        weight=4,
        max_attempts=7,
    )
    cluster.settle_down()
    (got,) = cluster.receive(RIGHT)
    extension = got.record.extension
    assert (got.key, got.weight, got.throttle_keys, got.record.priority) == (KEY, 4, ("t", "u"), -3)
    assert (got.expires_ms - cluster.of(RIGHT).now_ms, extension.max_attempts) == (2_000, 7)
    assert extension.expires_ms == 1_000_000 + 60_000


def test_a_stray_expires_in_its_partition(cluster: PartitionedShards) -> None:
    cluster.enqueue(WRONG, b"x", key=KEY, ttl_ms=5_000)
    cluster.settle_down()
    cluster.pass_time(6_000)
    assert (cluster.counts(RIGHT), cluster.dead_counts(RIGHT), cluster.counts(WRONG)) == ((0, 0, 0), (1, 0, 0), (0, 0, 0))


def test_a_stray_keeps_the_rest_of_its_delay(cluster: PartitionedShards) -> None:
    cluster.enqueue(WRONG, b"later", key=KEY, delay_ms=5_000)
    cluster.settle_down()
    assert (cluster.counts(WRONG), cluster.counts(RIGHT)) == ((0, 0, 0), (0, 0, 1))
    cluster.pass_time(1_000_000 + 4_999 - cluster.of(RIGHT).now_ms)
    assert cluster.receive(RIGHT) == []
    cluster.pass_time(1)
    assert payloads(cluster.receive(RIGHT)) == [b"later"]


def test_a_stray_keeps_its_attempts() -> None:
    """A dead letter queue takes all keys, and so does a partition of a queue that is spread by message."""
    cluster = defined(spread="message")
    cluster.enqueue(WRONG, b"x", key=KEY)
    cluster.of(WRONG).nack(cluster.receive(WRONG), "boom", QUEUE)
    partition = cluster.of(WRONG).shard.queues[QUEUE].partition
    assert partition is not None
    partition.has_all_keys = False
    key = cluster.of(WRONG).shard.queues[QUEUE].keys[KEY]
    cluster.of(WRONG).shard.hold_if_moving(key)
    cluster.of(WRONG).shard.refresh_eligibility(key)
    cluster.pass_time(FORWARD_MS)
    cluster.update(max_attempts=9)
    cluster.settle_down()
    (got,) = [*cluster.receive(RIGHT), *cluster.receive(0)]
    assert (got.attempts, got.error) == (1, "boom")


def test_a_queue_that_is_spread_by_message_has_no_strays() -> None:
    cluster = defined(spread="message")
    for partition in range(4):
        cluster.enqueue(partition, b"x", key=KEY)
    cluster.settle_down()
    assert [payloads(cluster.receive(each)) for each in range(4)] == [[b"x"]] * 4


def test_a_partition_on_the_same_shard() -> None:
    cluster = defined(partitions=8)
    key = key_of(SAME_SHARD, 8)
    ids = cluster.enqueue(RIGHT, b"a", b"b", key=key)
    cluster.enqueue(RIGHT, b"later", key=key, delay_ms=60_000)
    cluster.settle_down()
    assert (cluster.counts(RIGHT), cluster.counts(SAME_SHARD)) == ((0, 0, 0), (2, 0, 1))
    assert [each.id for each in cluster.receive(SAME_SHARD)] == ids
    assert not any(isinstance(each, TransferMessages) for each in cluster.seen)


def test_a_paused_stray_is_neither_delivered_nor_kept(cluster: PartitionedShards) -> None:
    hold_back(cluster)
    cluster.enqueue(WRONG, b"x", key=KEY)
    for paused in True, False:
        cluster.of(WRONG).ask(Pause(paused, KEY), QUEUE)
        assert cluster.receive(WRONG) == []
        assert not any(key.paused > paused for key in cluster.of(WRONG).stats(QUEUE).keys)
    cluster.copies = lambda command: 1
    cluster.settle_down()
    cluster.pass_time(10_000)
    assert payloads(cluster.receive(RIGHT)) == [b"x"]


def test_messages_are_found_by_their_ids_where_they_are(cluster: PartitionedShards) -> None:
    ids = cluster.enqueue(WRONG, b"x", b"y", key=KEY)
    cluster.settle_down()
    got = cluster.receive(RIGHT)
    cluster.of(RIGHT).settle(Verb.FAIL, got, f"{ORDERS}@{RIGHT}")
    assert cluster.of(RIGHT).redrive(queue=f"{ORDERS}.dlq@{RIGHT}").count == 2
    assert [each.id for each in cluster.receive(RIGHT)] == ids


# --- crashes and silence ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", [TransferMessages, MessagesTransferred])
def test_a_crash_between_the_commits(cluster: PartitionedShards, lost: type[Command]) -> None:
    cluster.copies = lambda command: not isinstance(command, lost)
    sent = [b"%d" % number for number in range(9)]
    ids = cluster.enqueue(WRONG, *sent, key=KEY)
    cluster.settle_down()
    for partition in WRONG, RIGHT, WRONG:
        cluster.of(partition).posted.clear()
        cluster.of(partition).restart()
    cluster.copies = lambda command: 2
    cluster.settle_down()
    cluster.pass_time(60_000)
    got = cluster.receive(RIGHT)
    assert (payloads(got), [each.id for each in got]) == (sent, ids)
    assert (cluster.receive(WRONG), cluster.counts(WRONG)) == ([], (0, 0, 0))


def test_strays_that_were_never_sent_are_found_after_a_restart(cluster: PartitionedShards) -> None:
    away = cluster.of(RIGHT)
    shard = cluster.of(WRONG)
    shard.shard.jobs.start_own = lambda work: work.close()  # type: ignore[method-assign]
    cluster.enqueue(WRONG, b"x", key=KEY)
    cluster.enqueue(WRONG, b"throttled", key=KEY, throttle_keys=[["t"]])
    cluster.enqueue(WRONG, b"y", key=key_of(RIGHT, prefix="other"), delay_ms=60_000)
    shard.restart()
    assert cluster.receive(WRONG) == []
    cluster.pass_time(5 * FORWARD_MS)
    assert away.counts(f"{ORDERS}@{RIGHT}") == (2, 0, 1)
    assert sorted(payloads(cluster.receive(RIGHT))) == [b"throttled", b"x"]


def test_a_shard_that_answers_late_holds_up_no_other(cluster: PartitionedShards) -> None:
    other = key_of(3)
    cluster.stopped.add(shard_of(f"{ORDERS}@{RIGHT}", TOTAL))
    cluster.enqueue(WRONG, b"a", key=KEY)
    cluster.enqueue(WRONG, b"b", key=other)
    cluster.settle_down()
    cluster.pass_time(3 * FORWARD_MS)
    assert payloads(cluster.receive(3)) == [b"b"]
    cluster.enqueue(WRONG, b"c", key=KEY)
    cluster.pass_time(3 * FORWARD_MS)
    cluster.stopped.clear()
    cluster.pass_time(60_000)
    assert payloads(cluster.receive(RIGHT)) == [b"a", b"c"]


def test_a_shard_that_does_not_know_the_queue_yet_sends_them_back(cluster: PartitionedShards) -> None:
    away = shard_of(f"new@{RIGHT}", TOTAL)
    home = shard_of("new@0", TOTAL)
    unseen = {away} - {0}
    wrong = next(each for each in range(4) if shard_of(f"new@{each}", TOTAL) not in {away})
    cluster.define("new", unseen=unseen, on_enqueue=on_enqueue("return {}"))
    ids = cluster.enqueue(wrong, b"x", b"y", key=KEY, name="new")
    cluster.settle_down()
    if unseen:
        assert cluster.counts(wrong, "new")[0] == 2, home
        cluster.catch_up(away)
    cluster.pass_time(60_000)
    assert [each.id for each in cluster.receive(RIGHT, name="new")] == ids


@pytest.mark.parametrize("sent", [False, True])
def test_strays_of_a_deleted_queue_do_not_come_to_the_next_one(cluster: PartitionedShards, sent: bool) -> None:
    hold_back(cluster)
    cluster.enqueue(WRONG, b"old", key=KEY)
    if sent:
        cluster.settle_down()
        assert cluster.counts(WRONG) == (0, 0, 0)
    cluster.delete()
    cluster.define(on_enqueue=on_enqueue("return {}"))
    cluster.copies = lambda command: 1
    cluster.enqueue(WRONG, b"new", key=KEY)
    cluster.settle_down()
    cluster.pass_time(60_000)
    assert payloads(cluster.receive(RIGHT)) == [b"new"]
    assert cluster.counts(WRONG) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_lost_each_arrives_once_in_the_order_of_its_key(seed: int) -> None:
    random = Random(seed)
    cluster = defined(limited(redrive_messages_max=5))
    cluster.copies = lambda command: random.choice([0, 1, 1, 2])
    sent: dict[str, list[bytes]] = {}
    for number in range(60):
        key = f"key{random.randrange(6)}"
        payload = b"%d" % number
        # the line of a key is in order if it comes in by one partition
        cluster.enqueue(partition_of(key + "!", 4), payload, key=key)
        sent.setdefault(key, []).append(payload)
        if random.random() < 0.1:
            cluster.of(random.randrange(4)).restart()
        if random.random() < 0.3:
            cluster.pass_time(random.randrange(1, 700))
    cluster.copies = lambda command: 1
    cluster.settle_down()
    cluster.pass_time(60_000)
    got: dict[str, list[bytes]] = {}
    for partition in range(4):
        for each in cluster.receive(partition):
            assert partition_of(each.key, 4) == partition
            got.setdefault(each.key, []).append(each.payload)
    assert got == sent


# --- batches, hooks, and what the broker enqueues ---------------------------------------------------------------------


def test_members_of_a_batch_stay_and_are_delivered(cluster: PartitionedShards) -> None:
    token = bytes(16)
    owner = "done@0"
    cluster.define("done")
    number = cluster.of(0, "done").begin(OpenBatch(token, Enqueue([seal_envelope(b"all done")])), owner)
    cluster.settle_down()
    assert cluster.of(0, "done").late[number]
    for payload in b"a", b"b":
        member = Enqueue([seal_envelope(payload)], KEY, batch=batch_id(owner, token))
        cluster.of(WRONG).begin(member, QUEUE)
        cluster.settle_down()
    assert payloads(cluster.receive(WRONG)) == [b"a", b"b"]
    cluster.of(WRONG).restart()
    cluster.settle_down()
    assert cluster.receive(RIGHT) == []


def test_a_callback_comes_to_its_keys_partition(cluster: PartitionedShards) -> None:
    token, owner = bytes(16), "done@0"
    cluster.define("done")
    shard = cluster.of(0, "done")
    shard.begin(OpenBatch(token, Enqueue([seal_envelope(b"all done")], KEY)), owner)
    cluster.settle_down()
    cluster.of(WRONG).begin(Enqueue([seal_envelope(b"a")], key_of(WRONG), batch=batch_id(owner, token)), QUEUE)
    cluster.settle_down()
    shard.begin(SealBatch(token), owner)
    cluster.settle_down()
    cluster.of(WRONG).ack(cluster.receive(WRONG), QUEUE)
    cluster.pass_time(30_000)
    assert payloads(cluster.receive(RIGHT, name="done")) == [b"all done"]


def test_batches_of_partitions_with_the_longest_names_survive_a_restart() -> None:
    cluster, name, token = PartitionedShards(), "n" * QUEUE_NAME_BYTES_MAX, bytes(16)
    cluster.define(name, partitions=PARTITIONS_MAX, on_enqueue=on_enqueue("return {}"))
    last, key = PARTITIONS_MAX - 1, key_of(PARTITIONS_MAX - 1, PARTITIONS_MAX)
    owner, shard = partition_name(name, last), cluster.of(last, name)
    shard.begin(OpenBatch(token, Enqueue([seal_envelope(b"all done")], key)), owner)
    cluster.settle_down()
    shard.begin(Enqueue([seal_envelope(b"a")], key, batch=batch_id(owner, token)), owner)
    cluster.settle_down()
    shard.restart()
    shard.begin(SealBatch(token), owner)
    cluster.settle_down()
    shard.ack(cluster.receive(last, name=name), owner)
    cluster.pass_time(30_000)
    assert payloads(cluster.receive(last, name=name)) == [b"all done"]
    assert findings([copied(station.store) for station in cluster.stations.values()]) == []


def test_a_hook_decides_the_key() -> None:
    cluster = defined(on_enqueue=on_enqueue(f"return {{ fairness_key = '{KEY}', priority = (msg.headers.n or 0) + 1 }}"))
    cluster.enqueue(WRONG, b"x", key=key_of(WRONG))
    cluster.settle_down()
    (got,) = cluster.receive(RIGHT)
    assert (got.key, got.record.priority) == (KEY, 1)


@pytest.mark.parametrize("on", range(TOTAL))
def test_what_the_broker_enqueues_comes_to_its_keys_partition(cluster: PartitionedShards, on: int) -> None:
    for partition in range(4):
        command = Enqueue([seal_envelope(b"%d" % partition)], key_of(partition))
        send(cluster[on].shard, Owner("desk", str(partition)), ORDERS, command)
    cluster[on].turn()
    cluster.settle_down()
    assert [payloads(cluster.receive(each)) for each in range(4)] == [[b"%d" % each] for each in range(4)]
    assert all(cluster.of(each).shard.queues[f"orders@{each}"].created_ms for each in range(4))


def test_what_was_sent_to_the_whole_queue_before_it_was_known(cluster: PartitionedShards) -> None:
    away = shard_of("new", TOTAL)
    sender = next(each for each in range(1, TOTAL) if each != away)
    cluster.define("new", unseen={sender}, on_enqueue=on_enqueue("return {}"))
    send(cluster[sender].shard, Owner("desk", "x"), "new", Enqueue([seal_envelope(b"x")], KEY))
    cluster[sender].turn()
    cluster.settle_down()
    cluster.pass_time(5_000)
    assert payloads(cluster.receive(RIGHT, name="new")) == [b"x"]


def test_a_schedule(cluster: PartitionedShards) -> None:
    shard = cluster[shard_of("nightly", TOTAL)]
    shard.ask(PutSchedule(ORDERS, Enqueue([seal_envelope(b"x")], KEY), every_ms=60_000), "nightly")
    cluster.pass_time(130_000)
    assert payloads(cluster.receive(RIGHT)) == [b"x", b"x"]


def test_options_may_change_while_strays_wait(cluster: PartitionedShards) -> None:
    hold_back(cluster)
    cluster.enqueue(WRONG, b"x", key=KEY)
    cluster.update(max_in_flight_per_key=1)
    cluster.settle_down()
    cluster.copies = lambda command: 1
    cluster.pass_time(10_000)
    assert payloads(cluster.receive(RIGHT)) == [b"x"]
    assert cluster.of(RIGHT).shard.queues[f"{ORDERS}@{RIGHT}"].options.max_in_flight_per_key == 1
