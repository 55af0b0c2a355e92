"""Hooks in a shard, with real Lua: what scripts decide, and when they are asked."""

import pytest

from fila_proto_zmq.commands import SetConfig, Verb
from tests.support.shard.hooked import TENANT, hooked, keys, on_enqueue, on_failure, send, update
from tests.support.shard.shard import Got, ShardHarness


def failed(shard: ShardHarness, error: str = "boom") -> tuple[int, int, int]:
    """Nack one message; the counts of its queue."""
    send(shard, {"kind": "mail"})
    shard.nack(shard.receive(), error)
    return shard.counts()


def letters(shard: ShardHarness) -> list[Got]:
    return shard.receive(99, "q.dlq")


# --- on_enqueue decides -----------------------------------------------------------------------------------------------


def test_what_the_script_decides_wins_over_the_options() -> None:
    shard = hooked(
        on_enqueue=on_enqueue(
            "return { fairness_key = 'k', weight = 3, throttle_keys = { 't', 'u' }, priority = -2, cost = 0.5, delay_ms = 0 }"
        )
    )
    send(shard, {}, fairness_key="given", weight=7, throttle_keys=[["given"]], priority=9, cost_milli=4000, delay_ms=5_000)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.throttle_keys, got.record.priority) == ("k", 3, ("t", "u"), -2)
    assert got.record.extension.cost_milli == 500


def test_what_it_leaves_out_keeps_the_options() -> None:
    shard = hooked(on_enqueue=on_enqueue("return {}"))
    send(shard, {}, fairness_key="given", weight=7, throttle_keys=[["t"]], priority=9, cost_milli=4000)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.throttle_keys, got.record.priority) == ("given", 7, ("t",), 9)
    assert got.record.extension.cost_milli == 4000


def test_an_invalid_field_counts_as_left_out_and_the_others_hold() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = 'k', weight = 'heavy', priority = 0.5, cost = -1 }"))
    send(shard, {}, weight=7, priority=9)
    (got,) = shard.receive()
    assert (got.key, got.weight, got.record.priority, got.record.extension.cost_milli) == ("k", 7, 9, 1000)


def test_each_message_of_a_batch_is_decided_on_its_own() -> None:
    shard = hooked(on_enqueue=TENANT)
    send(shard, {"tenant": "a"}, {}, {"tenant": "b"}, fairness_key=["x", "y", "z"])
    assert keys(shard) == ["a", "y", "b"]


def test_it_sees_headers_sizes_and_the_name_of_the_queue() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = msg.headers.a .. msg.payload_size .. msg.queue }"))
    send(shard, {"a": "1"})
    assert keys(shard) == ["17q"]


@pytest.mark.parametrize(("delay", "due_ms"), [("delay_ms = 2000", 2_000), ("delay_ms = 0", 0), ("", 60_000)])
def test_its_delay_wins_over_a_time_to_deliver_at(delay: str, due_ms: int) -> None:
    shard = hooked(on_enqueue=on_enqueue(f"return {{ {delay} }}"))
    send(shard, {}, due_ms=shard.now_ms + 60_000)
    if due_ms:
        shard.pass_time(due_ms - 1)
        assert shard.counts() == (0, 0, 1)
        shard.pass_time(1)
    assert shard.counts() == (1, 0, 0)


def test_a_redriven_message_is_decided_anew() -> None:
    shard = hooked(on_enqueue=TENANT)
    send(shard, {"tenant": "a"})
    shard.settle(Verb.FAIL, shard.receive())
    update(shard, on_enqueue=on_enqueue("return { fairness_key = 'again', delay_ms = 1000 }"))
    shard.redrive()
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1_000)
    assert keys(shard) == ["again"]


def test_it_reads_the_runtime_config_as_it_is_now() -> None:
    shard = hooked(on_enqueue=on_enqueue("return { fairness_key = fila.get('region') }"))
    for region in ("eu", "us", None):
        shard.shard.set_config(SetConfig("region", region), shard.now_ms)
        send(shard, {}, fairness_key="nowhere")
    assert keys(shard) == ["eu", "us", "nowhere"]


# --- on_failure -------------------------------------------------------------------------------------------------------


def test_a_nacked_message_is_retried_or_dead_lettered_as_the_script_says() -> None:
    shard = hooked(on_failure=on_failure("return { action = msg.error == 'fatal' and 'dlq' or 'retry' }"))
    assert failed(shard, "busy") == (1, 0, 0)
    shard.nack(shard.receive(), "fatal")
    assert shard.counts() == (0, 0, 0)
    ((letter,), stats) = (letters(shard), shard.stats())
    assert (letter.attempts, letter.error, letter.record.extension.reason) == (2, "fatal", "hook")
    assert (stats.nacked, stats.dead_lettered) == (2, 1)


def test_a_retry_may_wait() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'retry', delay_ms = 100 * 2 ^ msg.attempts }"))
    assert failed(shard) == (0, 0, 1)
    shard.pass_time(200)
    shard.nack(shard.receive())
    shard.pass_time(399)
    assert shard.counts() == (0, 0, 1)
    shard.pass_time(1)
    assert [each.attempts for each in shard.receive()] == [2]


@pytest.mark.parametrize("body", ["return { action = 'explode' }", "return {}", "return", "error('no')"])
def test_anything_else_is_a_retry_at_once(body: str) -> None:
    shard = hooked(on_failure=on_failure(body))
    assert failed(shard) == (1, 0, 0)


def test_it_sees_the_message_and_how_it_failed() -> None:
    seen = "msg.headers.kind, msg.attempts, msg.queue, msg.error, msg.fairness_key, #msg.id"
    check = f"local all = table.concat({{ {seen} }}, ' ') return {{ action = all == 'mail 1 q boom default 36' and 'dlq' }}"
    shard = hooked(on_failure=on_failure(check))
    failed(shard)
    assert len(letters(shard)) == 1


def test_no_script_retries_beyond_the_last_attempt() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'retry', delay_ms = 1000 }"), max_attempts=1)
    assert failed(shard) == (0, 0, 0)
    assert [each.record.extension.reason for each in letters(shard)] == ["max_attempts"]


@pytest.mark.parametrize("how", ["retry", "fail", "expiry", "lost", "release", "defer"])
def test_only_a_nack_asks_it(how: str) -> None:
    shard = ShardHarness()
    shard.create(
        visibility_timeout_ms=5_000 if how == "expiry" else 60_000, on_failure=on_failure("return { action = 'dlq' }")
    )  # type: ignore[arg-type]
    send(shard, {})
    got = shard.receive()
    if how in {"expiry", "lost"}:
        shard.pass_time(5_000 if how == "expiry" else 15_000)
    else:
        shard.settle(Verb[how.upper()], got)
    reasons = [each.record.extension.reason for each in letters(shard)]
    assert reasons == (["failed"] if how == "fail" else [])


def test_a_nack_of_a_dead_letter_leaves_it_where_it_is() -> None:
    shard = hooked(on_failure=on_failure("return { action = 'dlq' }"))
    failed(shard)
    shard.nack(letters(shard), queue="q.dlq")
    assert shard.counts("q.dlq") == (1, 0, 0)


def test_hooks_survive_a_restart() -> None:
    shard = hooked(on_enqueue=TENANT, on_failure=on_failure("return { action = 'dlq' }"))
    shard.restart()
    send(shard, {"tenant": "a"})
    (got,) = shard.receive()
    shard.nack([got])
    assert (got.key, len(letters(shard))) == ("a", 1)
