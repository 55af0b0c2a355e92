"""Why a queue delivers nothing: the first reason names each situation, with its numbers."""

from fila_proto_zmq.commands import (
    Pause,
)
from fila_worker.core.settings import ShardSettings
from tests.support.shard.explained import codes, first, text_of, these, why
from tests.support.shard.hooked import hooked, on_enqueue, send
from tests.support.shard.shard import ShardHarness

# --- what somebody decided --------------------------------------------------------------------------------------------


def test_a_paused_queue(shard: ShardHarness) -> None:
    (message,) = shard.enqueue(b"m")
    shard.ask(Pause(True))
    shard.subscribe(10)
    for told in (why(shard, message), why(shard, key="default"), why(shard)):
        assert first(told, "queue_paused") == {"queue": "q"}
        assert (told.state, told.estimated_ms, len(told.reasons)) == ("pending", 0, 1)
    assert text_of(shard) == "queue 'q' is paused: resume it with `queue resume q`"


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
    assert text_of(shard) == "no consumer receives from 'q'"


def test_no_consumer_any_more(shard: ShardHarness) -> None:
    shard.enqueue(b"1", b"2")
    shard.ack(shard.receive())
    shard.pass_time(12_000)
    assert first(why(shard), "no_consumers") == {"consumers": 0, "last_asked_ago_ms": 12_000}
    assert text_of(shard).endswith("; the last one did 12.0 s ago")


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


def test_a_consumer_whose_connection_is_gone(shard: ShardHarness) -> None:
    shard.subscribe(2)
    shard.shard.lose_way(b"c1", 0, shard.now_ms)
    shard.enqueue(b"m")
    shard.pass_time(1500)
    assert these(first(why(shard), "no_credit"), ["consumers", "unsettled", "prefetch"]) == [1, 0, 0]
    assert text_of(shard) == (
        "its consumer has not asked for it, the last frame came 1.5 s ago: busy with messages of other partitions, or gone, "
        "which counts after 15.0 s of silence"
    )


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
