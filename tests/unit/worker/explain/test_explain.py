"""Why does it wait? Situations planted one by one: the first reason names each, with its numbers."""

import re

import pytest

from fila_proto_zmq.clients import client_name
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Enqueue,
    Explain,
    Explained,
    Pause,
    QueueOptions,
    Reserve,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.errors import InvalidArgumentError, MessageNotFoundError, QueueNotFoundError
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import record_id, seal_envelope
from fila_worker.core.effects import Call
from fila_worker.core.explain.explain import explain
from fila_worker.core.inspect.browse import browse
from fila_worker.core.settings import ShardSettings
from tests.support.cluster_of_shards import ClusterOfShards
from tests.support.explained import codes, first, these, why
from tests.support.hooked import hooked, on_enqueue, send
from tests.support.shard import ADMIN, SHARDS, Got, ShardHarness, finished

C1 = client_name(b"c1")


def text_of(shard: ShardHarness, *arguments: str, **options: str) -> str:
    return why(shard, *arguments, **options).reasons[0].text


def why_now(shard: ShardHarness, message: str | None = None) -> Explained:
    """Why, before the turn that would change it."""
    return finished(
        explain(shard.shard, Call(ADMIN, 0, "q", shard.now_ms), Explain(None if message is None else parse_id(message)))
    )


def starve(shard: ShardHarness) -> None:
    """Let so much time pass that nobody counts as reading any more."""
    shard.pass_time(60_000)


# --- where it is not in line ------------------------------------------------------------------------------------------


def test_delayed(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", delay_ms=5000)
    shard.subscribe(10)
    shard.pass_time(2000)
    told = why(shard, message)
    assert these(first(told, "delayed"), ["due_ms", "remaining_ms"]) == [1_005_000, 3000]
    assert told.reasons[0].until_ms == told.estimated_ms == 1_005_000
    assert (told.state, told.position, codes(told)) == ("delayed", None, ["delayed"])
    assert told.reasons[0].text == "delayed for another 3.0 s"


def test_delayed_where_nobody_reads_says_both_and_estimates_nothing(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", delay_ms=5000)
    told = why(shard, message)
    assert codes(told) == ["delayed", "no_consumers"]
    assert told.estimated_ms == 0


def test_waiting_for_its_next_attempt(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.subscribe(10)
    shard.settle(Verb.RETRY, shard.take_pushed(), after_ms=4000, error="timeout at upstream")
    told = why(shard, message)
    assert these(first(told, "retry_wait"), ["attempts", "error", "due_ms"]) == [1, "timeout at upstream", 1_004_000]
    assert told.reasons[0].text == "1 attempt failed (timeout at upstream): the next one in 4.0 s"
    assert told.estimated_ms == 1_004_000


def test_deferred(shard: ShardHarness) -> None:
    deferred, other = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, deferred)
    assert first(told, "deferred")["remaining_ms"] == 2500
    told = why(shard, other)
    assert these(first(told, "parked"), ["throttle_key", "remaining_ms"]) == ["mail", 2500]
    assert told.reasons[0].until_ms == told.estimated_ms == 1_002_500
    assert (told.state, told.position) == ("pending", 0)


def test_deferred_after_a_failed_attempt(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.subscribe(1)
    shard.settle(Verb.RETRY, shard.take_pushed(), error="timeout at upstream")
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert these(first(told, "deferred"), ["attempts", "error"]) == [1, "timeout at upstream"]
    assert told.reasons[0].text == "its consumer deferred it: delivered again in 2.5 s"
    shard.restart()
    assert first(why(shard, message), "deferred")["remaining_ms"] == 2500


def test_delayed_while_its_throttle_key_is_parked_for_longer(shard: ShardHarness) -> None:
    _, message = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]], delay_ms=[0, 1000])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert codes(told) == ["delayed", "parked"]
    assert told.estimated_ms == told.reasons[1].until_ms == 1_002_500


def test_delayed_until_its_throttle_key_delivers_again(shard: ShardHarness) -> None:
    _, message = shard.enqueue(b"1", b"2", throttle_keys=[["mail"]], delay_ms=[0, 3000])
    shard.subscribe(1)
    shard.settle(Verb.DEFER, shard.take_pushed(), after_ms=2500)
    told = why(shard, message)
    assert codes(told) == ["delayed"]
    assert told.estimated_ms == 1_003_000


def test_leased(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.receive()
    shard.pass_time(4000)
    told = why(shard, message)
    details = first(told, "leased")
    assert these(details, ["consumer", "reservation", "leased_ms", "expires_ms", "attempts"]) == [
        C1, False, 1_000_000, 1_030_000, 0,
    ]  # fmt: skip
    assert told.reasons[0].text == f"leased by client {C1} for 4.0 s, and for another 26.0 s, unless that is renewed"
    assert (told.state, told.reasons[0].until_ms, told.estimated_ms) == ("leased", 1_030_000, 0)


def test_leased_by_a_reservation(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ask(Reserve("batch-7", 0, 10, 60_000))
    details = first(why(shard, message), "leased")
    assert these(details, ["consumer", "reservation", "expires_ms"]) == ["batch-7", True, 1_060_000]


def test_dead_lettered(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.settle(Verb.FAIL, shard.receive(), error="no such account")
    shard.pass_time(3000)
    told = why(shard, message)
    names = ["reason", "error", "source_queue", "dead_letter_queue", "dead_lettered_ms", "attempts"]
    assert these(first(told, "dead_lettered"), names) == ["failed", "no such account", "q", "q.dlq", 1_000_000, 1]
    assert told.reasons[0].text == (
        "it was dead-lettered into 'q.dlq' 3.0 s ago (failed after 1 attempt: no such account); "
        "`redrive q.dlq` sends it back to 'q'"
    )
    assert told.state == "dead_lettered"
    there = why(shard, message, queue="q.dlq")
    assert (there.state, codes(there), there.position) == ("dead_lettered", ["dead_lettered", "no_consumers"], 0)


def test_too_old_and_dead_lettered(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", ttl_ms=1000)
    shard.pass_time(10_000)
    told = why(shard, message)
    assert these(first(told, "expired"), ["reason", "dead_letter_queue"]) == ["expired", "q.dlq"]
    assert "`redrive q.dlq`" in told.reasons[0].text
    assert told.state == "dead_lettered"


def test_too_old_and_not_swept_yet(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", ttl_ms=1000)
    shard.now_ms += 1000
    told = why_now(shard, message)
    assert these(first(told, "expired"), ["expires_ms"]) == [1_001_000]
    assert (told.state, told.estimated_ms) == ("pending", 0)


def test_a_time_to_live_that_ends_first(shard: ShardHarness) -> None:
    shard.subscribe(10)
    (message,) = shard.enqueue(b"m", ttl_ms=1000, delay_ms=5000)
    told = why(shard, message)
    assert codes(told) == ["delayed", "expires"]
    assert told.reasons[1].text == "its time to live ends in 1.0 s, before it would be delivered"
    assert (told.reasons[1].until_ms, told.estimated_ms) == (1_001_000, 0)


@pytest.mark.parametrize("queue", ["q", "q.dlq"])
def test_a_message_that_is_gone(shard: ShardHarness, queue: str) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ack(shard.receive())
    with pytest.raises(MessageNotFoundError, match="settled or removed, or never here"):
        why(shard, message, queue=queue)


def test_dead_letters_of_another_shard_are_asked_for_there(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    queue = shard.shard.queues["q"]
    queue.options.dead_letter = next(f"dead{number}" for number in range(99) if _elsewhere(f"dead{number}"))
    shard.ack(shard.receive())
    with pytest.raises(MessageNotFoundError, match=r"its dead letters go to queue 'dead.*: ask there") as refusal:
        why(shard, message)
    assert refusal.value.details["dead_letters"] == queue.options.dead_letter


def _elsewhere(name: str) -> bool:

    return shard_of(name, SHARDS) != 3


def test_dead_letters_that_are_discarded(shard: ShardHarness) -> None:
    shard.ask(UpdateQueue(QueueOptions(dead_letter="discard"), ["dead_letter"]))
    (message,) = shard.enqueue(b"m")
    shard.settle(Verb.FAIL, shard.receive())
    with pytest.raises(MessageNotFoundError, match="is discarded"):
        why(shard, message)


# --- what somebody decided --------------------------------------------------------------------------------------------


def test_a_paused_queue(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ask(Pause(True))
    shard.subscribe(10)
    for told in (why(shard, message), why(shard, key="default"), why(shard)):
        assert first(told, "queue_paused") == {"queue": "q"}
        assert (told.state, told.estimated_ms, len(told.reasons)) == ("pending", 0, 1)
    assert text_of(shard) == "queue 'q' is paused: `queue resume q` ends that"


def test_a_paused_key(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m", key="acme")
    shard.ask(Pause(True, "acme"))
    shard.subscribe(10)
    for told in (why(shard, message), why(shard, key="acme")):
        assert first(told, "key_paused") == {"queue": "q", "fairness_key": "acme"}
        assert codes(told) == ["key_paused"]
    group = first(why(shard), "key_paused")
    assert these(group, ["keys", "messages", "fairness_key"]) == [1, 1, "acme"]


def test_a_paused_key_of_a_queue_that_goes_on(shard: ShardHarness) -> None:
    shard.enqueue(b"m", key="acme")
    shard.ask(Pause(True, "acme"))
    shard.enqueue(*[b"m"] * 3, key="other")
    shard.subscribe(1)
    assert codes(why(shard)) == ["no_credit", "key_paused"]
    assert codes(why(shard, key="acme")) == ["key_paused", "no_credit"]


# --- who reads --------------------------------------------------------------------------------------------------------


def test_no_consumer(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    for told in (why(shard, message), why(shard, key="default"), why(shard)):
        assert first(told, "no_consumers") == {"consumers": 0, "last_asked_ago_ms": None}
        assert (codes(told), told.estimated_ms) == (["no_consumers"], 0)
    assert text_of(shard) == "nobody receives from 'q' now"


def test_no_consumer_any_more(shard: ShardHarness) -> None:
    shard.enqueue(b"1", b"2")
    shard.ack(shard.receive())
    shard.pass_time(12_000)
    assert first(why(shard), "no_consumers") == {"consumers": 0, "last_asked_ago_ms": 12_000}
    assert text_of(shard).endswith("; somebody last did 12.0 s ago")


def test_consumers_without_credit(shard: ShardHarness) -> None:
    *_, message = shard.enqueue(*[b"m"] * 6)
    shard.subscribe(2)
    shard.pass_time(1000)
    shard.subscribe(3, client=b"c2")
    shard.pass_time(1500)
    for told in (why(shard, message), why(shard, key="default"), why(shard)):
        details = first(told, "no_credit")
        assert these(details, ["consumers", "unsettled", "prefetch", "oldest_leased_ms"]) == [2, 5, 5, 1_000_000]
    assert text_of(shard) == (
        "its 2 consumers have 5 unsettled messages of 5 (prefetch), the oldest for 2.5 s; they get more when they settle some"
    )


# --- caps and order ---------------------------------------------------------------------------------------------------


def ordered(cap: int = 1) -> ShardHarness:
    shard = ShardHarness()
    shard.create("q", max_in_flight_per_key=cap)
    return shard


def test_behind_a_stuck_message_in_strict_order() -> None:
    shard = ordered()
    stuck, _, message = shard.enqueue(*[b"m"] * 3, key="acme")
    shard.receive()
    shard.pass_time(10_000)
    for told in (why(shard, message), why(shard, key="acme")):
        details = first(told, "ordered_behind")
        names = ["fairness_key", "message_id", "waits_for", "leased_ms", "expires_ms"]
        assert these(details, names) == ["acme", stuck, "lease", 1_000_000, 1_030_000]
        assert (told.reasons[0].until_ms, told.estimated_ms) == (1_030_000, 0)
    assert why(shard, message).position == 1
    assert f"and message {stuck} is first: leased by client {C1} for 10.0 s" in text_of(shard, message)
    assert first(why(shard), "ordered_behind")["messages"] == 2


def test_behind_a_message_that_waits_for_its_retry() -> None:
    shard = ordered()
    stuck, message = shard.enqueue(b"1", b"2")
    shard.subscribe(5)
    shard.settle(Verb.RETRY, shard.take_pushed(), after_ms=9000, error="boom")
    told = why(shard, message)
    assert these(first(told, "ordered_behind"), ["message_id", "waits_for", "error"]) == [stuck, "retry", "boom"]
    assert told.reasons[0].until_ms == 1_009_000
    assert why(shard, stuck).estimated_ms == 1_009_000


def test_a_cap_that_is_reached() -> None:
    shard = ordered(3)
    messages = shard.enqueue(*[b"m"] * 6, key="acme")
    shard.subscribe(10)
    got = shard.take_pushed()
    shard.settle(Verb.RETRY, got[:1], after_ms=90_000)
    shard.pass_time(1000)
    told = why(shard, messages[-1])
    details = first(told, "in_flight_cap")
    assert these(details, ["fairness_key", "in_flight", "max_in_flight", "retrying"]) == ["acme", 3, 3, 1]
    assert (told.reasons[0].until_ms, told.position) == (1_030_000, 2)
    assert "has 3 of at most 3 in flight (max_in_flight_per_key): 2 leased" in told.reasons[0].text
    assert these(first(why(shard), "in_flight_cap"), ["keys", "messages"]) == [1, 3]


# --- tokens -----------------------------------------------------------------------------------------------------------


def throttled(rate: float, burst: float, messages: int, *, key: str = "default", throttles: str = "t") -> ClusterOfShards:
    """One shard whose bucket ``t`` was just emptied by a consumer that takes what it can get."""
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", rate, burst)
    cluster.limit("slow", rate / 10, 1)
    cluster.enqueue(0, messages, throttles, key=key)
    cluster.consume(0, hold_ms=5)
    cluster.run(20)
    return cluster


def test_throttled() -> None:
    cluster = throttled(5, 10, 30)
    shard = cluster.shards[0]
    waiting = [each for each in ids(shard) if why(shard, each).state == "pending"]
    assert len(waiting) == 20
    told = why(shard, waiting[0])
    details = first(told, "throttled")
    assert these(details, ["throttle_key", "burst", "rate", "cost", "throttle_keys"]) == ["t", 10.0, 5.0, 1.0, ["t"]]
    assert 0 <= details["tokens"] < 0.2
    assert 150 <= details["wait_ms"] <= 200
    assert told.reasons[0].until_ms == told.estimated_ms == shard.now_ms + details["wait_ms"]
    assert re.fullmatch(r"throttled by t: 0\.[01] of 10 tokens, 5/s, the next one in 0\.[12] s", told.reasons[0].text)
    last = why(shard, waiting[-1])
    assert (codes(last), last.position) == (["throttled", "behind"], 19)
    assert last.estimated_ms == pytest.approx(shard.now_ms + 4000, abs=60)
    assert first(why(shard, key="default"), "throttled")["wait_ms"] == details["wait_ms"]
    assert these(first(why(shard), "throttled"), ["keys", "messages", "throttle_key"]) == [1, 20, "t"]


def ids(shard: ShardHarness, *, turn: bool = True) -> list[str]:
    """Of the messages that are left, in line order."""
    page = (
        shard.ask(Browse(1000), "q", ADMIN)
        if turn
        else finished(browse(shard.shard, Call(ADMIN, 0, "q", shard.now_ms), Browse(1000)))
    )
    assert isinstance(page, Browsed)
    return [format_id(*record_id(each.record)) for each in page.messages]


def test_the_estimate_of_a_throttled_message_holds() -> None:
    cluster = throttled(5, 10, 30)
    shard = cluster.shards[0]
    message = ids(shard)[-1]
    estimated_ms = why(shard, message).estimated_ms
    cluster.run(estimated_ms - cluster.now_ms - 50)
    assert message in ids(shard)
    cluster.run(150)
    assert message not in ids(shard)


def test_of_several_throttle_keys_the_last_is_named() -> None:
    cluster = throttled(50, 10, 5, throttles="t slow")
    told = why(cluster.shards[0], ids(cluster.shards[0])[0])
    details = first(told, "throttled")
    assert these(details, ["throttle_key", "burst", "rate", "throttle_keys"]) == ["slow", 1.0, 5.0, ["slow", "t"]]


def test_a_rate_of_zero_has_no_end() -> None:
    cluster = throttled(0, 3, 5)
    told = why(cluster.shards[0], key="default")
    assert first(told, "throttled")["wait_ms"] is None
    assert (told.reasons[0].until_ms, told.estimated_ms) == (0, 0)
    assert told.reasons[0].text == "throttled by t: 0.0 of 3 tokens, 0/s, none will come"


def test_a_cost_above_what_is_there() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 10, 10)
    cluster.enqueue(0, 2, "t", cost_milli=8000)
    cluster.consume(0, hold_ms=1)
    cluster.run(100)
    told = why(cluster.shards[0], ids(cluster.shards[0])[0])
    assert these(first(told, "throttled"), ["cost", "burst"]) == [8.0, 10.0]
    assert "the 8 that it costs in 0.5 s" in told.reasons[0].text


def test_a_cost_above_the_burst_waits_for_a_full_bucket() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0)
    cluster.limit("t", 10, 10)
    cluster.enqueue(0, 2, "t", cost_milli=30_000)
    cluster.consume(0, hold_ms=1)
    cluster.run(100)
    shard = cluster.shards[0]
    told = why(shard, ids(shard)[0])
    details = first(told, "throttled")
    assert (details["cost"], round(details["tokens"])) == (30.0, -19), "owed for the one before"
    assert details["wait_ms"] == pytest.approx(2900, abs=20)
    assert told.estimated_ms == shard.now_ms + details["wait_ms"]


def test_keys_of_a_queue_that_are_held_up_by_different_things_are_told_in_groups() -> None:
    cluster = throttled(0, 1, 3, key="a")
    cluster.enqueue(0, 4, "t", key="b")
    cluster.enqueue(0, 2, key="c")
    shard = cluster.shards[0]
    shard.ask(Pause(True, "c"), "q", ADMIN)
    cluster.enqueue(0, 5, key="c")
    cluster.run(100)
    told = why(shard)
    assert these(first(told, "throttled"), ["keys", "messages", "throttle_key"]) == [2, 6, "t"]
    assert codes(told) == ["throttled", "key_paused"]
    assert these(told.reasons[1].details, ["keys", "messages", "fairness_key"]) == [1, 5, "c"]
    assert told.reasons[0].text.startswith("2 fairness keys with 6 messages: 'a' for one: throttled by t:")
    assert told.reasons[1].text.startswith("1 fairness key with 5 messages: fairness key 'c' is paused")


def test_a_retry_that_is_not_found_among_many_delayed_ones_is_a_cap_all_the_same() -> None:
    """It came before the cap, so it is not the first of its key."""
    shard = ShardHarness()
    shard.create()
    _, message = shard.enqueue(b"1", b"2", priority=5)
    shard.settle(Verb.RETRY, shard.receive(), after_ms=9000)
    shard.enqueue(*[b"m"] * 1001, delay_ms=60_000)
    shard.ask(UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]))
    shard.subscribe(5)
    assert these(first(why(shard, message), "in_flight_cap"), ["in_flight", "retrying"]) == [1, 1]


def test_a_throttle_that_some_of_a_key_wait_for_is_told_last() -> None:
    cluster = throttled(0, 1, 5)
    cluster.shards[0].ask(Pause(True), "q", ADMIN)
    cluster.enqueue(0, 3)
    told = why(cluster.shards[0], key="default")
    assert codes(told) == ["queue_paused", "throttled"]


def test_a_throttled_message_that_is_first_in_strict_order_holds_up_the_others() -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0, max_in_flight_per_key=1)
    cluster.limit("t", 0, 1)
    cluster.enqueue(0, 2, "t")
    cluster.enqueue(0, 1)
    cluster.consume(0)
    cluster.run(100)
    shard = cluster.shards[0]
    head, free = ids(shard)
    told = why(shard, free)
    assert these(first(told, "ordered_behind"), ["message_id", "waits_for", "throttle_key"]) == [head, "tokens", "t"]
    assert first(why(shard, head), "throttled")["throttle_key"] == "t"
    assert first(why(shard, key="default"), "throttled")["throttle_key"] == "t"


# --- who goes before --------------------------------------------------------------------------------------------------


def busy(shard: ShardHarness, seconds: int = 10) -> list[Got]:
    """A consumer takes 20 messages a second for a while."""
    taken = []
    for _ in range(seconds * 2):
        got = shard.receive(10)
        shard.ack(got)
        taken += got
        shard.pass_time(500)
    return taken


def test_the_position_in_its_key(shard: ShardHarness) -> None:
    shard.subscribe(1)
    messages = shard.enqueue(*[b"m"] * 6)
    urgent = shard.enqueue(b"m", priority=-1)[0]
    assert [why(shard, each).position for each in (urgent, *messages[1:])] == [0, 1, 2, 3, 4, 5]
    behind = why(shard, messages[3]).reasons[-1]
    assert (behind.code, behind.text) == ("behind", "3 messages go before it in its fairness key 'default'")
    assert behind.details == {"fairness_key": "default", "ahead": 3, "exact": True}


def test_keys_that_take_turns() -> None:
    shard = ShardHarness()
    shard.create("q")
    for key, weight in (("a", 3), ("b", 1)):
        shard.enqueue(*[b"m"] * 500, key=key, weight=weight)
    busy(shard)
    (message,) = shard.enqueue(b"m", key="c", weight=4)
    told = why(shard, message)
    (turns,) = [each for each in told.reasons if each.code == "keys_ahead"]
    assert these(turns.details, ["keys", "weight", "weights", "share", "messages"]) == [2, 4, 8, 0.5, 4]
    assert turns.details["per_second"] == pytest.approx(20, rel=0.15)
    assert told.position == 0
    assert told.estimated_ms == pytest.approx(shard.now_ms + 5 * 50, abs=60)
    key = why(shard, key="a")
    assert these(first_of(key, "keys_ahead"), ["weight", "weights"]) == [3, 8]


def first_of(told: Explained, code: str) -> dict[str, object]:
    return next(each.details for each in told.reasons if each.code == code)


def test_an_estimate_from_the_pace_of_the_queue(shard: ShardHarness) -> None:
    messages = shard.enqueue(*[b"m"] * 1000)
    taken = busy(shard)
    told = why(shard, messages[len(taken) + 99])
    assert told.position == 99
    assert told.estimated_ms - shard.now_ms == pytest.approx(5000, rel=0.15)


def test_an_old_pace_says_nothing(shard: ShardHarness) -> None:
    messages = shard.enqueue(*[b"m"] * 1000)
    busy(shard)
    starve(shard)
    told = why(shard, messages[-1])
    assert (codes(told), told.estimated_ms) == (["no_consumers", "behind"], 0)


def test_a_position_far_behind_in_a_line_on_disk_is_about_right() -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=20_000), checked=False)
    shard.create("q")
    messages = [each for _ in range(12) for each in shard.enqueue(*[b"m"] * 1000)]
    assert why(shard, messages[4000]).position == 4000
    told = why(shard, messages[9000])
    assert told.position == pytest.approx(9000, rel=0.02)
    assert told.reasons[-1].details["exact"] is False
    assert told.reasons[-1].text.startswith("about ")


def test_nothing_is_in_the_way_of_what_the_next_turn_delivers(shard: ShardHarness) -> None:
    shard.subscribe(5)
    command = Enqueue([seal_envelope(b"m")] * 3, ["a", "a", "b"])
    shard.shard.apply(Call(b"p", 1, "q", shard.now_ms), command)
    message, _, other = ids(shard, turn=False)
    told = why_now(shard, message)
    assert codes(told) == ["keys_ahead"]
    shard.shard.apply(Call(ADMIN, 2, "q", shard.now_ms), Cancel(*parse_id(other)))
    told = why_now(shard, message)
    assert (codes(told), told.position, told.estimated_ms) == (["next"], 0, shard.now_ms)
    told = why_now(shard)
    assert first(told, "busy") == {"messages": 2, "per_second": 0.0}
    assert told.reasons[0].text.startswith("nothing is in the way of 2 messages")


# --- queues that hold nothing, and producers --------------------------------------------------------------------------


def test_empty(shard: ShardHarness) -> None:
    for told in (why(shard), why(shard, key="nobody")):
        assert (told.state, codes(told), told.position) == ("empty", ["empty"], None)
    shard.ask(Pause(True, "nobody"))
    assert codes(why(shard, key="nobody")) == ["key_paused", "empty"]


def test_only_delayed_ones(shard: ShardHarness) -> None:
    shard.enqueue(b"m", key="b", delay_ms=9000)
    shard.enqueue(b"m", b"m", key="a", delay_ms=5000)
    told = why(shard)
    assert (told.state, told.reasons[0].until_ms) == ("delayed", 1_005_000)
    assert first(told, "delayed") == {"messages": 3, "remaining_ms": 5000}
    assert first(why(shard, key="b"), "delayed") == {"messages": 1, "remaining_ms": 9000}


def test_only_leased_ones(shard: ShardHarness) -> None:
    shard.enqueue(b"m", b"m", b"m")
    shard.receive(2)
    shard.pass_time(1000)
    shard.receive(1, client=b"c2")
    for told in (why(shard), why(shard, key="default")):
        names = ["messages", "consumers", "leased_ms", "expires_ms"]
        assert these(first(told, "leased"), names) == [3, 2, 1_000_000, 1_030_000]
        assert told.state == "leased"


def test_an_open_breaker() -> None:
    shard = hooked(on_enqueue=on_enqueue("error('no tenant')"))
    send(shard, *[{}] * 3)
    shard.ack(shard.receive(9))
    shard.pass_time(2000)
    details = first(why(shard), "breaker_open")
    assert these(details, ["threshold", "remaining_ms"]) == [3, 8000]
    assert "no tenant" in details["last_failure"]
    assert why(shard).reasons[0].until_ms == 1_010_000
    assert codes(why(shard)) == ["breaker_open", "empty"]
    send(shard, {})
    assert codes(why(shard)) == ["no_consumers", "breaker_open"]


def test_a_queue_that_is_full() -> None:
    shard = ShardHarness(settings=ShardSettings(max_queue_messages=2))
    shard.create("q")
    shard.enqueue(b"m", b"m")
    shard.receive(2)
    told = why(shard)
    assert codes(told) == ["leased", "enqueues_refused"]
    assert told.reasons[1].details == {"queue": "q", "depth": 2}
    assert "enqueues are refused: queue 'q' is full: 2 messages ([limits] max_queue_messages)" in told.reasons[1].text


def test_a_key_that_is_full() -> None:
    shard = ShardHarness(settings=ShardSettings(max_key_messages=2))
    shard.create("q")
    shard.enqueue(b"m", b"m", key="acme")
    assert codes(why(shard, key="acme")) == ["no_consumers", "enqueues_refused"]
    assert codes(why(shard)) == ["no_consumers"]


def test_a_disk_that_is_full() -> None:
    shard = ShardHarness(settings=ShardSettings(min_free_disk_bytes=1 << 30))
    shard.create("q")
    shard.shard.free_disk_bytes = 1 << 20
    told = why(shard)
    assert first(told, "enqueues_refused")["free_disk_bytes"] == 1 << 20
    assert codes(told) == ["enqueues_refused", "empty"]


# --- asked wrongly ----------------------------------------------------------------------------------------------------


def test_a_message_and_a_key_at_once(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    with pytest.raises(InvalidArgumentError, match="one of them"):
        why(shard, message, key="default")


def test_a_queue_that_does_not_exist(shard: ShardHarness) -> None:
    with pytest.raises(QueueNotFoundError):
        why(shard, queue="nowhere")


@pytest.mark.parametrize("message_id", [(-1, 5), (2**64, 1), (0, 0)])
def test_an_id_that_can_not_be(shard: ShardHarness, message_id: tuple[int, int]) -> None:
    with pytest.raises(MessageNotFoundError):
        shard.ask(Explain(message_id), "q", ADMIN)
