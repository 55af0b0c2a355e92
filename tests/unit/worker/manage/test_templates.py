"""Queue templates: the first enqueue makes the queue, and nothing else does."""

from collections.abc import Callable

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Command,
    CreateQueue,
    DeleteQueue,
    DeleteTemplate,
    Enqueue,
    Enqueued,
    GetQueueStats,
    ListConfig,
    PutConfig,
    PutTemplate,
    QueueOptions,
    Receive,
    SetConfig,
    Subscribe,
    UndoConfig,
    Verb,
    put_whole,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidConfigError,
    LuaCompilationError,
    OverloadedError,
    QueueNotFoundError,
)
from fila_proto_zmq.events import QueueCreated, TemplateDeleted, TemplatePut
from fila_proto_zmq.limits import SCRIPT_BYTES_MAX, TEMPLATES_MAX
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.runtime_config import TEMPLATE
from fila_proto_zmq.templates import encode_options
from fila_worker.core.manage.deletion import remove
from fila_worker.core.settings import ShardSettings
from fila_worker.reshard.copying import ReshardProgress, Shards, copy_all
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.linked_shards import LinkedShards, name_on
from tests.support.shard.shard import ShardHarness

KEYED = "function on_enqueue(msg) return { fairness_key = msg.queue } end"


def put(shard: ShardHarness, pattern: str = "t-*", **options: object) -> None:
    shard.shard.set_config(PutTemplate(pattern, QueueOptions(**options)), shard.now_ms)  # type: ignore[arg-type]
    shard.turn()


def delete(shard: ShardHarness, pattern: str = "t-*") -> bool:
    existed = shard.shard.set_config(DeleteTemplate(pattern), shard.now_ms).existed
    shard.turn()
    return existed


def options_of(shard: ShardHarness, queue: str) -> QueueOptions:
    return shard.shard.queues[queue].options


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_enqueue_makes_the_queue_and_its_dead_letter_queue(shard: ShardHarness, restarted: bool) -> None:
    put(shard, max_attempts=2, visibility_timeout_ms=7000)
    if restarted:
        shard.restart()
    shard.enqueue(b"1", queue="t-1")
    shard.enqueue(b"2", queue="t-1")
    if restarted:
        shard.restart()
    assert (options_of(shard, "t-1").max_attempts, options_of(shard, "t-1").visibility_timeout_ms) == (2, 7000)
    assert shard.counts("t-1") == (2, 0, 0)
    shard.settle(Verb.FAIL, shard.receive(queue="t-1"), "t-1")
    assert shard.counts("t-1.dlq") == (1, 0, 0)


def test_an_unknown_name_is_an_error_as_before(shard: ShardHarness) -> None:
    put(shard)
    for name in ("t", "s-1", "x/t-1"):
        with pytest.raises(QueueNotFoundError):
            shard.enqueue(b"x", queue=name)
    delete(shard)
    with pytest.raises(QueueNotFoundError):
        shard.enqueue(b"x", queue="t-1")


def test_the_longest_pattern_holds(shard: ShardHarness) -> None:
    for number, pattern in enumerate(("*", "t-*", "t-12*", "t-123", "ns/*"), 1):
        put(shard, pattern, max_attempts=number)
    for name, expected in (("x", 1), ("t-1", 2), ("t-12", 3), ("t-1234", 3), ("t-123", 4), ("ns/a", 5), ("t-", 2)):
        shard.enqueue(b"x", queue=name)
        assert options_of(shard, name).max_attempts == expected, name


@pytest.mark.parametrize("command", [Receive(1, 0), Subscribe(1, 10), GetQueueStats(), Browse(1), DeleteQueue()])
def test_only_an_enqueue_makes_one(shard: ShardHarness, command: Command) -> None:
    put(shard)
    with pytest.raises(QueueNotFoundError, match=r"its first message makes it, by the template 't-\*'") as caught:
        shard.ask(command, "t-1")
    assert caught.value.details == {"queue": "t-1", "template": "t-*"}
    assert "t-1" not in shard.shard.queues


def test_a_dead_letter_queue_is_not_made_by_its_name(shard: ShardHarness) -> None:
    put(shard, "*")
    with pytest.raises(QueueNotFoundError):
        shard.enqueue(b"x", queue="t-1.dlq")


def test_a_later_template_does_not_change_queues(shard: ShardHarness) -> None:
    put(shard, max_attempts=1)
    shard.enqueue(b"x", queue="t-1")
    put(shard, max_attempts=2, default_ttl_ms=5)
    shard.enqueue(b"x", queue="t-1")
    shard.enqueue(b"x", queue="t-2")
    assert options_of(shard, "t-1") == QueueOptions(max_attempts=1)
    assert options_of(shard, "t-2") == QueueOptions(max_attempts=2, default_ttl_ms=5)


def test_a_queue_that_goes_when_it_is_idle_comes_again(shard: ShardHarness) -> None:
    put(shard, idle_expiry_ms=5000)
    for _ in range(3):
        shard.enqueue(b"x", queue="t-1")
        shard.ack(shard.receive(queue="t-1"), "t-1")
        shard.pass_time(20_000)
        assert "t-1" not in shard.shard.queues
        assert "t-1.dlq" not in shard.shard.queues
        shard.restart()


def test_hooks_come_with_it(shard: ShardHarness) -> None:
    put(shard, on_enqueue=KEYED)
    shard.enqueue(b"x", queue="t-9")
    assert shard.receive(queue="t-9")[0].key == "t-9"


def test_a_script_that_does_not_compile_is_refused_with_its_line(shard: ShardHarness) -> None:
    put(shard, max_attempts=1)
    with pytest.raises(LuaCompilationError, match="1"):
        put(shard, on_enqueue="function on_enqueue(")
    shard.enqueue(b"x", queue="t-1")
    assert options_of(shard, "t-1").max_attempts == 1, "the earlier one holds"


@pytest.mark.parametrize(
    "pattern", ["", "**", "a*b", "*a", "a b*", "a/b/c*", "/x*", "x.dlq", "ü*", "a" * 201, "a" * 201 + "*"]
)
def test_bad_patterns_are_refused(shard: ShardHarness, pattern: str) -> None:
    with pytest.raises(InvalidArgumentError):
        put(shard, pattern)
    with pytest.raises(InvalidArgumentError):
        delete(shard, pattern)


def test_bad_options_are_refused(shard: ShardHarness) -> None:
    for options in ({"max_attempts": 0}, {"delivery": "twice"}, {"dead_letter": "a b"}, {"idle_expiry_ms": -1}):
        with pytest.raises(InvalidArgumentError):
            put(shard, **options)  # type: ignore[arg-type]
    assert len(shard.shard.templates) == 0


def test_two_large_scripts_fit_and_there_is_a_bound(shard: ShardHarness) -> None:
    both = "function on_enqueue(msg) return {} end function on_failure(msg) return {} end --"
    script = both + "-" * (SCRIPT_BYTES_MAX - len(both))
    put(shard, on_enqueue=script, on_failure=script)
    assert shard.shard.templates.get("t-*") == QueueOptions(on_enqueue=script, on_failure=script)
    quoted = both + '"' * (SCRIPT_BYTES_MAX - len(both))
    with pytest.raises(InvalidConfigError, match="bytes"):
        put(shard, on_enqueue=quoted, on_failure=quoted)


def test_the_number_of_templates_has_a_bound(shard: ShardHarness) -> None:
    whole = {f"{TEMPLATE}{number}*": encode_options(QueueOptions()) for number in range(TEMPLATES_MAX)}
    for page in put_whole(1, whole):
        shard.shard.put_config(page, shard.now_ms)
    put(shard, "7*", max_attempts=7)
    with pytest.raises(InvalidConfigError, match=str(TEMPLATES_MAX)):
        put(shard, "one-more")
    assert delete(shard, "7*")
    put(shard, "one-more")


def test_the_number_of_queues_has_a_bound() -> None:
    shard = ShardHarness(settings=ShardSettings(max_queues_per_shard=5))
    put(shard, idle_expiry_ms=1000)
    for number in range(3):
        shard.enqueue(b"x", queue=f"t-{number}")
    with pytest.raises(OverloadedError, match="max_queues_per_shard"):
        shard.enqueue(b"x", queue="t-3")
    shard.enqueue(b"y", queue="t-2")
    shard.create("by-hand")
    for number in range(3):
        shard.ack(shard.receive(9, queue=f"t-{number}"), f"t-{number}")
    shard.pass_time(10_000)
    shard.enqueue(b"x", queue="t-3")


def test_all_shards_have_them_however_the_config_comes(shard: ShardHarness) -> None:
    put(shard, max_attempts=3)
    put(shard, "u-*", max_attempts=4)
    other = ShardHarness(index=4)
    other.shard.put_config(PutConfig(2, dict(shard.shard.config), whole=True), other.now_ms)
    other.turn()
    other.enqueue(b"x", queue="t-1")
    values = dict(shard.shard.config)
    other.shard.put_config(PutConfig(5, {f"{TEMPLATE}t-*": values[f"{TEMPLATE}u-*"]}, page=0, more=True), other.now_ms)
    other.enqueue(b"x", queue="t-2")
    other.shard.put_config(PutConfig(5, {"other": "1"}, page=1), other.now_ms)
    other.enqueue(b"x", queue="t-3")
    assert [options_of(other, f"t-{number}").max_attempts for number in (1, 2, 3)] == [3, 3, 4]
    with pytest.raises(QueueNotFoundError):
        other.enqueue(b"x", queue="u-1")
    other.restart()
    assert other.shard.templates.get("t-*") == QueueOptions(max_attempts=4)


def test_they_are_neither_listed_nor_set_as_keys(shard: ShardHarness) -> None:
    put(shard)
    shard.shard.set_config(SetConfig("fila", "1"), shard.now_ms)
    listed = shard.ask(ListConfig(""), "")
    assert listed.values == {"fila": "1"}  # type: ignore[attr-defined]
    for value in ("{}", None):
        with pytest.raises(InvalidConfigError, match="put_template"):
            shard.shard.set_config(SetConfig(f"{TEMPLATE}t-*", value), shard.now_ms)


def test_a_change_can_be_taken_back(shard: ShardHarness) -> None:
    put(shard, max_attempts=1)
    put(shard, max_attempts=2)
    delete(shard)
    assert not delete(shard), "there is none, and no version is made"
    for version, cap in ((3, 2), (4, None), (5, 2)):
        shard.shard.set_config(UndoConfig(version), shard.now_ms)
        shard.turn()
        options = shard.shard.templates.get("t-*")
        assert (options and options.max_attempts) == cap


def test_a_template_that_a_later_version_wrote_is_none(shard: ShardHarness) -> None:
    for value in ("", "[]", '{"max_attempts": "many"}'):
        shard.shard.put_config(PutConfig(shard.shard.config_version + 1, {f"{TEMPLATE}t-*": value}), shard.now_ms)
        with pytest.raises(QueueNotFoundError):
            shard.enqueue(b"x", queue="t-1")
    shard.shard.put_config(PutConfig(9, {f"{TEMPLATE}t-*": '{"max_attempts": 5, "colour": 1}'}, whole=True), shard.now_ms)
    shard.enqueue(b"x", queue="t-1")
    assert options_of(shard, "t-1").max_attempts == 5


def test_the_log_names_them(shard: ShardHarness) -> None:
    shard.shard.notes.clear()
    put(shard)
    shard.enqueue(b"x", queue="t-1")
    delete(shard)
    assert shard.shard.notes == [TemplatePut("t-*", 1), QueueCreated("t-1", 3, "t-*"), TemplateDeleted("t-*", 2)]


def test_a_queue_takes_the_dead_letters_of_the_others_of_its_template() -> None:
    shard = ShardHarness(index=shard_of("t-dead", 8))
    put(shard, dead_letter="t-dead")
    shard.enqueue(b"1", queue="t-1")
    shard.settle(Verb.FAIL, shard.receive(queue="t-1"), "t-1")
    assert shard.counts("t-1.dlq") == (1, 0, 0), "there is no queue that takes them yet"
    shard.enqueue(b"of its own", queue="t-dead")
    shard.enqueue(b"2", queue="t-1")
    shard.settle(Verb.FAIL, shard.receive(queue="t-1"), "t-1")
    assert shard.counts("t-dead") == (2, 0, 0)
    shard.settle(Verb.FAIL, shard.receive(queue="t-dead"), "t-dead")
    assert shard.counts("t-dead.dlq") == (1, 0, 0)
    assert shard.redrive(queue="t-dead").count == 1
    assert shard.counts("t-1") == (1, 0, 0)


SOURCE, TARGET = name_on(3), name_on(5)


@pytest.mark.parametrize("exists", [True, False])
def test_dead_letters_for_another_shard_come_back_while_their_queue_is_missing(exists: bool) -> None:
    linked = LinkedShards(3, 5)
    if exists:
        linked[5].create(TARGET)
    shard = linked[3]
    put(shard, SOURCE, dead_letter=TARGET)
    shard.enqueue(b"1", queue=SOURCE)
    assert f"{SOURCE}.dlq" not in shard.shard.queues
    shard.settle(Verb.FAIL, shard.receive(queue=SOURCE), SOURCE)
    linked.carry()
    assert (linked[5].counts(TARGET) if exists else shard.counts(f"{SOURCE}.dlq")) == (1, 0, 0)


def test_a_full_disk_makes_no_queue() -> None:
    shard = ShardHarness(settings=ShardSettings(min_free_disk_bytes=100))
    put(shard)
    shard.shard.free_disk_bytes = 1
    with pytest.raises(OverloadedError, match="disk"):
        shard.enqueue(b"x", queue="t-1")
    assert "t-1" not in shard.shard.queues


def test_an_enqueue_whose_queue_goes_while_it_waits_makes_it_anew(shard: ShardHarness) -> None:
    put(shard, idle_expiry_ms=1)
    shard.limit(enqueue_step_messages=2, turn_effort=4, step_effort=1)
    first = shard.begin(Enqueue([seal_envelope(b"x")] * 9), "t-1")
    second = shard.begin(Enqueue([seal_envelope(b"y")] * 9), "t-1")
    remove(shard.shard, shard.shard.queues["t-1"], idle=True)
    shard.finish()
    one, other = (shard.late.pop(each) for each in (first, second))
    assert isinstance(one, Enqueued)
    assert one.faults, "a part of it was stored, and is gone"
    assert isinstance(other, Enqueued)
    assert other.count == 9
    assert shard.counts("t-1") == (9, 0, 0)


def refused(action: Callable[[], object]) -> type[FilaError] | None:
    try:
        action()
    except FilaError as error:
        return type(error)
    return None


def test_one_made_by_hand_is_not_made_again(shard: ShardHarness) -> None:
    put(shard, max_attempts=3)
    shard.ask(CreateQueue(QueueOptions(max_attempts=1)), "t-1")
    shard.enqueue(b"x", queue="t-1")
    assert options_of(shard, "t-1").max_attempts == 1
    shard.ask(DeleteQueue(), "t-1")
    assert refused(lambda: shard.enqueue(b"x", queue="t-1")) is None
    assert options_of(shard, "t-1").max_attempts == 3


@pytest.mark.parametrize("after", [1, 3])
def test_they_survive_a_reshard_with_their_history(after: int) -> None:
    before = ShardHarness(index=0, shards=2)
    put(before, max_attempts=3)
    put(before, max_attempts=4)
    other = ShardHarness(index=1, shards=2)
    for page in put_whole(2, dict(before.shard.config)):
        other.shard.put_config(page, other.now_ms)
    other.turn()
    olds, news = [before.store, other.store], [MemoryStore() for _ in range(after)]
    copy_all(Shards(2, after, olds.__getitem__, news.__getitem__), before.now_ms, lambda: 1, ReshardProgress())
    for index, store in enumerate(news):
        shard = ShardHarness(store=store, index=index, shards=after)
        assert shard.shard.templates.get("t-*") == QueueOptions(max_attempts=4)
    first = ShardHarness(store=news[0], index=0, shards=after)
    first.shard.set_config(UndoConfig(2), first.now_ms)
    assert first.shard.templates.get("t-*") == QueueOptions(max_attempts=3)
