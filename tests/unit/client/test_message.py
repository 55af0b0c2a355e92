"""What a message says that was only looked at."""

import inspect
from datetime import UTC, datetime
from typing import get_type_hints

import pytest

from fila_cluster import Client, Message, Producer
from fila_cluster.client.message import EnqueueOptions, ScheduledOptions, message_view
from fila_proto_zmq.commands import MessageView
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, record


def at(seconds):
    return datetime.fromtimestamp(BORN_MS / 1000 + seconds, UTC)


def test_a_pending_message():
    packed = record(b'{"a": 1}', 5, attempts=2, priority=-3, error="why", metadata=b"m", cost_milli=500)
    got = message_view("orders", MessageView("pending", "k", 2, ["a", "b"], 0, 0, 0, "", packed))
    assert (got.id, got.queue, got.state) == (format_id(high_half(BORN_MS, 3), low_half(5)), "orders", "pending")
    assert (got.payload, got.text(), got.json(), got.headers) == (b'{"a": 1}', '{"a": 1}', {"a": 1}, {"h": '{"a": 1}'})
    assert (got.fairness_key, got.weight, got.throttle_keys, got.priority, got.cost) == ("k", 2, ["a", "b"], -3, 0.5)
    assert (got.attempts, got.error, got.metadata, got.enqueued_at) == (2, "why", b"m", at(0))
    assert (got.due_at, got.leased_at, got.lease_expires_at, got.consumer) == (None, None, None, None)
    assert (got.reason, got.source_queue, got.dead_lettered_at) == (None, None, None)


def test_a_delayed_message_has_its_due_time():
    got = message_view("orders", MessageView("delayed", "k", 1, [], BORN_MS + 2000, 0, 0, "", record()))
    assert (got.state, got.due_at) == ("delayed", at(2))


def test_a_leased_message_has_its_lease():
    got = message_view("orders", MessageView("leased", "k", 1, [], 0, BORN_MS + 1000, BORN_MS + 31_000, "ab12", record()))
    assert (got.leased_at, got.lease_expires_at, got.consumer) == (at(1), at(31), "ab12")


def test_a_dead_letter_says_where_it_comes_from():
    packed = record(reason="failed", source_queue="orders", dead_lettered_ms=BORN_MS + 5000)
    got = message_view("orders.dlq", MessageView("pending", "k", 1, [], 0, 0, 0, "", packed))
    assert (got.reason, got.source_queue, got.dead_lettered_at) == ("failed", "orders", at(5))


def test_its_repr_has_no_payload():
    got = message_view("orders", MessageView("pending", "k", 1, [], 0, 0, 0, "", record(b"secret")))
    assert got.id in repr(got)
    assert "secret" not in repr(got)


OPTIONS = {name: kind for name, kind in get_type_hints(Message).items() if name not in {"payload", "headers", "_"}}


@pytest.mark.parametrize("call", [Client.enqueue, Producer.send])
def test_calls_take_the_options_of_a_message_with_its_defaults(call):
    named = [
        each
        for each in inspect.signature(call).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name != "queue"
    ]
    usual = Message(b"")
    assert {each.name: each.default for each in named} == {name: getattr(usual, name) for name in OPTIONS}
    assert {name: kind for name, kind in get_type_hints(call).items() if name in OPTIONS} == OPTIONS


def test_the_options_by_name_are_those_of_a_message():
    assert get_type_hints(EnqueueOptions) == OPTIONS
    assert get_type_hints(ScheduledOptions).items() == OPTIONS.items() - {("deliver_at", OPTIONS["deliver_at"])}
