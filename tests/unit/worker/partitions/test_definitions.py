"""Queues with several partitions: shard 0 keeps their definitions, and each shard follows them."""

import pytest

from fila_proto_zmq.commands import (
    ConfigValues,
    CreateByTemplate,
    CreatePartitioned,
    CreateQueue,
    DeletePartitioned,
    DeleteQueue,
    DescribeQueue,
    Enqueue,
    GetQueueStats,
    ListConfig,
    ListQueues,
    MakeByTemplate,
    Moved,
    MoveMessages,
    PutConfig,
    PutSchedule,
    PutTemplate,
    QueueDescription,
    QueueList,
    QueueOptions,
    Receive,
    Redrive,
    Redriven,
    SetConfig,
    UndoConfig,
    UpdatePartitioned,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    LuaCompilationError,
    NotADeadLetterQueueError,
    PartitionedError,
    QueueExistsError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq.limits import PARTITIONED_QUEUES_MAX, PARTITIONS_MAX
from fila_proto_zmq.names import partition_name, shard_of
from fila_proto_zmq.partitions import PARTITIONED
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.templates import decode_options
from tests.support.shard.hooked import on_enqueue
from tests.support.shard.partitioned import ORDERS, TOTAL, PartitionedShards, key_of, payloads

HOME = shard_of(ORDERS, TOTAL)


@pytest.fixture
def cluster() -> PartitionedShards:
    return PartitionedShards()


def options_of(cluster: PartitionedShards, partition: int, name: str = ORDERS) -> QueueOptions:
    reply = cluster.of(partition, name).ask(DescribeQueue(), partition_name(name, partition))
    assert isinstance(reply, QueueDescription)
    return reply.options


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_definition_makes_no_queue_until_a_partition_is_named(cluster: PartitionedShards) -> None:
    cluster.define(max_attempts=3)
    assert not any(station.shard.queues for station in cluster.stations.values())
    cluster.enqueue(2, b"x", key=key_of(2))
    assert set(cluster.of(2).shard.queues) == {"orders@2", "orders.dlq@2"}
    assert options_of(cluster, 2) == QueueOptions(max_attempts=3, partitions=4)
    assert payloads(cluster.receive(2)) == [b"x"]


def test_the_partitions_are_on_consecutive_shards_from_home_on(cluster: PartitionedShards) -> None:
    cluster.define()
    for partition in range(4):
        cluster.counts(partition)
    names = [set(cluster[(HOME + partition) % TOTAL].shard.queues) for partition in range(4)]
    assert names == [{f"orders@{each}", f"orders.dlq@{each}"} for each in range(4)]


@pytest.mark.parametrize("name", [ORDERS, "orders.dlq", "orders@4", "orders.dlq@255"])
def test_who_asks_for_the_whole_queue_is_told_the_partitions(cluster: PartitionedShards, name: str) -> None:
    cluster.define(spread="message")
    shard = cluster[shard_of(name, TOTAL)]
    for command in GetQueueStats(), Receive(1, 0), Enqueue([seal_envelope(b"x")]), DeleteQueue(), Redrive(0):
        with pytest.raises(PartitionedError, match=r"'orders(\.dlq)?' has 4 partitions") as refusal:
            shard.ask(command, name)
        assert refusal.value.details == {"partitions": 4, "spread": "message", "earlier": 0, "held": 0, "version": 1}
    assert not shard.shard.queues


def test_its_name_is_taken(cluster: PartitionedShards) -> None:
    cluster.define()
    with pytest.raises(QueueExistsError):
        cluster[HOME].ask(CreateQueue(QueueOptions()), ORDERS)
    with pytest.raises(QueueExistsError):
        cluster.define(partitions=2)


def test_auto_is_the_number_of_shards(cluster: PartitionedShards) -> None:
    cluster.define(partitions=0)
    with pytest.raises(PartitionedError) as refusal:
        cluster[HOME].stats(ORDERS)
    assert refusal.value.details == {"partitions": TOTAL, "spread": "key", "earlier": 0, "held": 0, "version": 1}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("orders@2", QueueOptions(partitions=2)),
        ("orders.dlq", QueueOptions(partitions=2)),
        (ORDERS, QueueOptions(partitions=PARTITIONS_MAX + 1)),
        (ORDERS, QueueOptions(partitions=2, spread="round")),
        (ORDERS, QueueOptions(partitions=2, spread="message", max_in_flight_per_key=1)),
        (ORDERS, QueueOptions(partitions=2, dead_letter=ORDERS)),
    ],
)
def test_what_can_never_work_is_refused(cluster: PartitionedShards, name: str, options: QueueOptions) -> None:
    with pytest.raises(InvalidArgumentError):
        cluster.change(CreatePartitioned(name, options))
    assert len(cluster[0].shard.runtime.definitions) == 0


def test_a_script_is_compiled_before_it_is_kept(cluster: PartitionedShards) -> None:
    with pytest.raises(LuaCompilationError):
        cluster.define(on_enqueue="this is not Lua")
    assert not cluster[0].shard.config


def test_there_are_not_too_many(cluster: PartitionedShards) -> None:
    values = cluster[0].shard.runtime.limits.values
    values.update({f"{PARTITIONED}q{number}": "{}" for number in range(PARTITIONED_QUEUES_MAX)})
    with pytest.raises(InvalidConfigError, match="queues with partitions already"):
        cluster.define()


def test_only_its_commands_change_the_kept_key(cluster: PartitionedShards) -> None:
    created = cluster.define()
    with pytest.raises(InvalidConfigError, match="create_queue"):
        cluster.change(SetConfig(PARTITIONED + ORDERS, "{}"))
    with pytest.raises(InvalidConfigError, match="use the commands of queues"):
        cluster.change(UndoConfig(created.version))


def test_lists_of_the_config_leave_definitions_out(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.change(SetConfig("fila:own", "x"))
    for prefix in "", "fila:", PARTITIONED + ORDERS:
        values = cluster[0].ask(ListConfig(prefix))
        assert isinstance(values, ConfigValues)
        assert values.values == ({} if prefix.endswith(ORDERS) else {"fila:own": "x"})


@pytest.mark.parametrize("pattern", ["or*", ORDERS])
def test_a_queue_by_template(cluster: PartitionedShards, pattern: str) -> None:
    cluster.change(PutTemplate(pattern, QueueOptions(partitions=3, max_attempts=5)))
    for name in ORDERS, "orders@1":
        with pytest.raises(PartitionedError, match="'orders' is made by the template") as refusal:
            cluster[shard_of(name, TOTAL)].enqueue(b"x", queue=name)
        assert refusal.value.details == {"template": pattern}
    cluster.change(CreateByTemplate(ORDERS))
    cluster.enqueue(1, b"x", key=key_of(1, 3))
    assert options_of(cluster, 1) == QueueOptions(partitions=3, max_attempts=5)
    with pytest.raises(QueueNotFoundError):
        cluster.change(CreateByTemplate("unlike"))


@pytest.mark.parametrize("home", range(TOTAL))
def test_a_schedule_makes_a_queue_by_template(cluster: PartitionedShards, home: int) -> None:
    cluster.change(PutTemplate("or*", QueueOptions(partitions=3)))
    name = next(f"s{number}" for number in range(99) if shard_of(f"s{number}", TOTAL) == home)
    cluster[home].ask(PutSchedule(ORDERS, Enqueue([seal_envelope(b"x", {})], key_of(1, 3)), every_ms=60_000), name)
    cluster.pass_time(65_000)
    assert payloads(cluster.receive(1)) == [b"x"]
    assert sum(isinstance(each, MakeByTemplate) for each in cluster.seen) == 1


@pytest.mark.parametrize("home", range(TOTAL))
def test_a_move_makes_a_queue_by_template(cluster: PartitionedShards, home: int) -> None:
    cluster.change(PutTemplate("or*", QueueOptions(partitions=3)))
    source = next(f"m{number}" for number in range(99) if shard_of(f"m{number}", TOTAL) == home)
    shard = cluster[home]
    shard.create(source)
    ids = shard.enqueue(*(b"%d" % number for number in range(20)), queue=source, key=key_of(2, 3))

    def moved() -> object:
        number = shard.begin(MoveMessages(ORDERS, 0), source)
        for _ in range(20):
            cluster.carry()
            cluster.pass_time(2)
        return shard.late.pop(number)

    refusal = moved()
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details == {"refused": True}, "the client repeats it"
    assert shard.counts(source)[0] == 20
    assert moved() == Moved(20, 0)
    assert [each.id for each in cluster.receive(2)] == ids
    assert sum(isinstance(each, MakeByTemplate) for each in cluster.seen) == 1


def test_a_template_makes_no_partition_of_a_queue_that_has_none(cluster: PartitionedShards) -> None:
    cluster.change(PutTemplate("or*", QueueOptions()))
    with pytest.raises(QueueNotFoundError, match="no queue 'orders': its first message makes it"):
        cluster[shard_of("orders@1", TOTAL)].enqueue(b"x", queue="orders@1")


def test_a_partition_of_no_queue_is_not_found_by_the_name_that_users_know(cluster: PartitionedShards) -> None:
    with pytest.raises(QueueNotFoundError, match="no queue 'orders': create it with `queue create orders`"):
        cluster[0].stats("orders@2")


# --- changes ----------------------------------------------------------------------------------------------------------


def test_options_change_in_all_partitions(cluster: PartitionedShards) -> None:
    cluster.define(max_attempts=3)
    cluster.counts(1)
    cluster.counts(3)
    cluster.update(max_attempts=7, max_in_flight_per_key=1)
    cluster.settle_down()
    wanted = QueueOptions(max_attempts=7, max_in_flight_per_key=1, partitions=4)
    assert [options_of(cluster, each) for each in range(4)] == [wanted] * 4


def test_a_hook_changes_in_all_partitions(cluster: PartitionedShards) -> None:
    cluster.define(on_enqueue=on_enqueue("return { priority = 1 }"))
    cluster.counts(1)
    cluster.update(on_enqueue=on_enqueue("return { priority = 2 }"))
    cluster.settle_down()
    cluster.enqueue(1, b"x", key=key_of(1))
    assert cluster.receive(1)[0].record.priority == 2


def test_a_hook_sees_the_name_that_users_know(cluster: PartitionedShards) -> None:
    cluster.define(on_enqueue=on_enqueue("return { throttle_keys = { msg.queue } }"))
    cluster.enqueue(1, b"x", key=key_of(1))
    assert cluster.receive(1)[0].throttle_keys == (ORDERS,)


def test_the_spread_stays(cluster: PartitionedShards) -> None:
    cluster.define()
    with pytest.raises(InvalidArgumentError, match="keeps its spread"):
        cluster.update(spread="message")
    with pytest.raises(InvalidArgumentError, match="unknown queue options"):
        cluster.change(UpdatePartitioned(ORDERS, QueueOptions(), ["colour"]))


@pytest.mark.parametrize("target", range(TOTAL))
def test_dead_letters_go_to_no_queue_that_is_missing(cluster: PartitionedShards, target: int) -> None:
    cluster.define()
    dead = next(f"d{number}" for number in range(99) if shard_of(f"d{number}", TOTAL) == target)
    command = UpdateQueue(QueueOptions(dead_letter=dead), ["dead_letter"])

    def asked() -> object:
        number = cluster[HOME].send(command, ORDERS)
        cluster.carry()
        return cluster[HOME].late.pop(number)

    refusal = asked()
    assert isinstance(refusal, InvalidArgumentError)
    assert f"dead_letter={dead!r}: no such queue" in refusal.message
    cluster.define(dead)
    assert isinstance(asked(), PartitionedError), "the client follows it with the update"
    cluster.delete(dead)
    cluster.settle_down()
    cluster[target].create(dead)
    assert isinstance(asked(), PartitionedError)
    assert cluster[target].shard.queues[dead].appointed or target == HOME


def test_a_usual_queue_does_not_make_its_partitions_itself(cluster: PartitionedShards) -> None:
    shard = cluster[HOME]
    with pytest.raises(InvalidArgumentError, match="too old"):
        shard.create(ORDERS, partitions=4)
    shard.create(ORDERS, partitions=1, max_attempts=3)
    with pytest.raises(PartitionedError, match="too old") as refusal:
        shard.ask(UpdateQueue(QueueOptions(partitions=4), ["partitions"]), ORDERS)
    assert decode_options(refusal.value.details["ordinary"]) == QueueOptions(partitions=4, max_attempts=3)
    shard.ask(UpdateQueue(QueueOptions(max_attempts=4), ["max_attempts", "partitions"]), ORDERS)


def test_a_partition_is_neither_changed_nor_deleted_alone(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.counts(2)
    for command in UpdateQueue(QueueOptions(max_attempts=1), ["max_attempts"]), DeleteQueue(True):
        with pytest.raises(InvalidArgumentError, match="'orders@2' is a partition: change, or delete, 'orders'"):
            cluster.of(2).ask(command, "orders@2")


@pytest.mark.parametrize("name", ["orders", "orders@1", "orders.dlq"])
def test_what_is_not_defined_is_not_found(cluster: PartitionedShards, name: str) -> None:
    if name != ORDERS:
        cluster.define()
    with pytest.raises(QueueNotFoundError):
        cluster.update(name, max_attempts=1)
    with pytest.raises(QueueNotFoundError):
        cluster.delete(name)


# --- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_from_all_shards(cluster: PartitionedShards) -> None:
    cluster.define()
    for partition in range(4):
        cluster.enqueue(partition, b"x", key=key_of(partition))
    assert cluster.delete().existed
    cluster.settle_down()
    assert not any(station.shard.queues.by_id for station in cluster.stations.values())
    with pytest.raises(QueueNotFoundError):
        cluster.counts(1)
    with pytest.raises(QueueNotFoundError):
        cluster.change(DeletePartitioned(ORDERS))


def test_a_queue_with_a_like_name_stays(cluster: PartitionedShards) -> None:
    for name in ORDERS, "orders2", "orders-", "a/orders":
        cluster.define(name)
        cluster.counts(1, name)
    cluster.delete()
    for name in "orders2", "orders-", "a/orders":
        assert f"{name}@1" in cluster.of(1, name).shard.queues


def test_a_queue_of_the_same_name_begins_empty_also_before_jobs_run(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.enqueue(1, b"old", key=key_of(1))
    cluster.delete()
    cluster.define(max_attempts=2)
    cluster.enqueue(1, b"new", key=key_of(1))
    cluster.settle_down()
    assert payloads(cluster.receive(1)) == [b"new"]


@pytest.mark.parametrize("pages", [False, True])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_shard_that_saw_neither_deletion_nor_creation(cluster: PartitionedShards, restarts: bool, pages: bool) -> None:
    cluster.define()
    shard, away = cluster.of(1), cluster.of(1).index
    assert away, "shard 0 sees everything"
    cluster.enqueue(1, b"old", key=key_of(1))
    cluster.delete(unseen={away})
    cluster.define(unseen={away}, max_attempts=2)
    if restarts:
        shard.restart()
    cluster.catch_up(away, pages=pages)
    assert "orders@1" not in shard.shard.queues
    cluster.enqueue(1, b"new", key=key_of(1))
    assert payloads(cluster.receive(1)) == [b"new"]
    assert options_of(cluster, 1).max_attempts == 2


def test_a_definition_that_a_later_version_wrote_removes_nothing(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.enqueue(1, b"x", key=key_of(1))
    definition = cluster[0].shard.config[PARTITIONED + ORDERS]
    shard, version = cluster.of(1), cluster[0].shard.config_version
    cluster.tell(shard.index, PutConfig(version + 1, {PARTITIONED + ORDERS: '{"created":{},"options":{}}'}))
    shard.finish()
    shard.restart()
    cluster.tell(shard.index, PutConfig(version + 2, {PARTITIONED + ORDERS: definition}))
    shard.finish()
    assert payloads(cluster.receive(1)) == [b"x"]


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_partitions_survive_a_restart(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.enqueue(1, b"x", key=key_of(1))
    cluster.of(1).restart()
    cluster[0].restart()
    cluster.settle_down()
    assert payloads(cluster.receive(1)) == [b"x"]
    with pytest.raises(PartitionedError):
        cluster[HOME].stats(ORDERS)


def test_a_crash_before_the_partitions_have_followed(cluster: PartitionedShards) -> None:
    cluster.define()
    for partition in range(4):
        cluster.enqueue(partition, b"x", key=key_of(partition))
    change = cluster.update(unseen=range(TOTAL), max_attempts=9)
    for index in range(1, TOTAL):
        shard = cluster[index]
        shard.shard.runtime.change(change.version, change.changes, shard.shard.batch)
        shard.shard.commit()
        shard.restart()
    cluster.settle_down()
    assert {options_of(cluster, each).max_attempts for each in range(4)} == {9}
    change = cluster.delete(unseen=range(TOTAL))
    for index in range(1, TOTAL):
        shard = cluster[index]
        shard.shard.runtime.change(change.version, change.changes, shard.shard.batch)
        shard.shard.commit()
        shard.restart()
        assert not any("@" in name for name in shard.shard.queues)
        shard.restart()
    cluster.settle_down()
    assert not any(station.shard.queues.by_id for station in cluster.stations.values())


def test_a_partition_that_is_half_removed_at_a_crash(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.enqueue(1, *(b"%d" % number for number in range(50)), key=key_of(1))
    shard, away = cluster.of(1), (HOME + 1) % TOTAL
    change = cluster.delete(unseen={away})
    if away:
        shard.shard.runtime.change(change.version, change.changes, shard.shard.batch)
        for component in shard.shard.components:
            component.on_config(shard.now_ms)
        shard.shard.commit()
    shard.restart()
    shard.finish()
    assert not shard.shard.queues.by_id


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_stay_in_their_partition(cluster: PartitionedShards) -> None:
    cluster.define()
    (message_id,) = cluster.enqueue(3, b"x", key=key_of(3))
    cluster.of(3).settle(Verb.FAIL, cluster.receive(3), "orders@3", error="boom")
    assert (cluster.counts(3), cluster.dead_counts(3)) == ((0, 0, 0), (1, 0, 0))
    assert cluster.of(3).redrive(queue="orders.dlq@3") == Redriven(1, 0)
    (got,) = cluster.receive(3)
    assert (got.id, got.attempts) == (message_id, 0)


def test_the_dead_letter_queue_is_named_in_the_refusal(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.counts(3)
    with pytest.raises(NotADeadLetterQueueError, match=r"redrive 'orders\.dlq@3'"):
        cluster.of(3).redrive(queue="orders@3")


def test_dead_letters_that_are_discarded_have_no_queue(cluster: PartitionedShards) -> None:
    cluster.define(dead_letter="discard")
    cluster.counts(1)
    with pytest.raises(QueueNotFoundError):
        cluster.dead_counts(1)


@pytest.mark.parametrize("home", range(TOTAL))
def test_a_dead_letter_of_another_queue_comes_to_its_keys_partition(cluster: PartitionedShards, home: int) -> None:
    cluster.define()
    source = next(f"s{number}" for number in range(99) if shard_of(f"s{number}", TOTAL) == home)
    cluster[home].send(CreateQueue(QueueOptions(dead_letter=ORDERS)), source)
    cluster.carry()
    for partition in range(4):
        cluster[home].enqueue(b"%d" % partition, queue=source, key=key_of(partition))
    cluster[home].settle(Verb.FAIL, cluster[home].receive(9, source), source)
    cluster.settle_down()
    assert [cluster.counts(each) for each in range(4)] == [(1, 0, 0)] * 4
    for partition in range(4):
        assert cluster.of(partition).redrive(queue=f"orders@{partition}") == Redriven(1, 0)
    cluster.settle_down()
    assert sorted(payloads(cluster[home].receive(9, source))) == [b"0", b"1", b"2", b"3"]


def test_a_redrive_to_a_queue_that_has_partitions_now(cluster: PartitionedShards) -> None:
    dead = "dead"
    shard = cluster[HOME]
    cluster[shard_of(dead, TOTAL)].create(dead)
    shard.send(CreateQueue(QueueOptions(dead_letter=dead)), ORDERS)
    cluster.carry()
    for partition in range(4):
        shard.enqueue(b"%d" % partition, queue=ORDERS, key=key_of(partition))
    shard.settle(Verb.FAIL, shard.receive(9, ORDERS), ORDERS)
    cluster.settle_down()
    shard.ask(DeleteQueue(True), ORDERS)
    cluster.define()
    assert cluster[shard_of(dead, TOTAL)].redrive(queue=dead) == Redriven(4, 0)
    cluster.settle_down()
    assert [payloads(cluster.receive(each)) for each in range(4)] == [[b"%d" % each] for each in range(4)]


# --- moves and lists --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", range(TOTAL))
def test_a_move_brings_each_message_into_its_partition(cluster: PartitionedShards, home: int) -> None:
    cluster.define()
    source = next(f"s{number}" for number in range(99) if shard_of(f"s{number}", TOTAL) == home)
    shard = cluster[home]
    shard.create(source)
    for partition in range(4):
        shard.enqueue(b"a", b"b", queue=source, key=key_of(partition))
    number = shard.begin(MoveMessages(ORDERS, 0), source)
    cluster.settle_down()
    assert shard.late[number].count == 8  # type: ignore[union-attr]
    assert [payloads(cluster.receive(each)) for each in range(4)] == [[b"a", b"b"]] * 4


def test_a_move_to_its_own_queue_is_refused(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.counts(1)
    with pytest.raises(InvalidArgumentError, match="from 'orders' to itself"):
        cluster.of(1).ask(MoveMessages(ORDERS, 0), "orders@1")


def test_a_list_shows_the_partitions_to_who_may_see_the_queue(cluster: PartitionedShards) -> None:
    cluster.define()
    cluster.counts(1)

    def listed(within: list[str] | None) -> list[str]:
        reply = cluster.of(1).ask(ListQueues(within=within))
        assert isinstance(reply, QueueList)
        return [info.name for info in reply.queues]

    assert listed(None) == ["orders.dlq@1", "orders@1"]
    assert listed([ORDERS]) == ["orders@1"]
    assert listed(["orders*"]) == ["orders.dlq@1", "orders@1"]
    assert listed(["order", "orders@1"]) == []
