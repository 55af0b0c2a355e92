"""The options of a queue: what they become on the wire, and what is refused."""

import inspect

import pytest

from fila_cluster import AsyncClient, AsyncProducer, Client, Message, Producer
from fila_cluster.client.calls.queues import QueueOptions, encode
from fila_cluster.errors import InvalidArgumentError
from fila_proto_zmq import commands
from fila_proto_zmq.limits import SCRIPT_BYTES_MAX

SCRIPT = "function on_enqueue(msg) return {} end"


def test_all_of_them():
    options, given = encode(
        {
            "on_enqueue": SCRIPT,
            "on_failure": "function on_failure(msg) return {} end",
            "visibility_timeout": 1.5,
            "max_attempts": 3,
            "dead_letter": "graveyard",
            "delivery": "at_most_once",
            "max_in_flight_per_key": 1,
            "default_ttl": 60,
            "idle_expiry": 3600,
            "lua_timeout": 0.02,
            "lua_memory_limit": 1 << 20,
        }
    )
    assert options == commands.QueueOptions(
        visibility_timeout_ms=1500,
        max_attempts=3,
        on_enqueue=SCRIPT,
        on_failure="function on_failure(msg) return {} end",
        dead_letter="graveyard",
        delivery="at_most_once",
        max_in_flight_per_key=1,
        default_ttl_ms=60_000,
        idle_expiry_ms=3_600_000,
        lua_timeout_ms=20,
        lua_memory_limit_bytes=1 << 20,
    )
    assert len(given) == 11


def test_every_option_has_its_place_on_the_wire():
    _, given = encode(dict.fromkeys(QueueOptions.__annotations__))
    assert sorted(given) == sorted(commands.QueueOptions.__struct_fields__)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_signature_has_the_options_of_the_table(client):
    parameters = list(inspect.signature(client.create_queue).parameters.values())[2:]
    defaults = {name: option.choices[0] if option.choices else None for name, option in commands.QUEUE_OPTIONS.items()}
    assert {each.name: each.default for each in parameters} == defaults | {"partitions": 1}
    assert list(QueueOptions.__annotations__) == list(commands.QUEUE_OPTIONS)


def test_the_signatures_have_the_options_of_a_message_and_each_has_a_column():
    usual = {name: option.usual for name, option in commands.MESSAGE_OPTIONS.items()}
    for call in (Client.enqueue, AsyncClient.enqueue, Producer.send, AsyncProducer.send, Message):
        parameters = {name: each.default for name, each in inspect.signature(call).parameters.items()}
        assert list(parameters)[-len(usual) :] == list(usual)
        assert parameters | usual == parameters
    of_frames = {"envelopes", "dedup_window_ms", "after", "batch"}
    assert {each.field for each in commands.MESSAGE_OPTIONS.values()} == {*commands.Enqueue.__struct_fields__} - of_frames


def test_none_is_the_default_and_counts_as_given():
    assert encode({"max_attempts": None, "default_ttl": 5}) == (
        commands.QueueOptions(default_ttl_ms=5000),
        ["max_attempts", "default_ttl_ms"],
    )


def test_what_is_no_option_is_named():
    with pytest.raises(TypeError, match=r"no option 'max_atempts'; there are .*max_attempts"):
        encode({"max_atempts": 3})


@pytest.mark.parametrize("policy", ["dlq", "discard", "ns/other"])
def test_dead_letter_policies(policy):
    assert encode({"dead_letter": policy})[0].dead_letter == policy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("on_enqueue", b"function"),
        ("on_enqueue", 3),
        ("on_enqueue", "-- " + "x" * SCRIPT_BYTES_MAX),
        ("on_failure", "\ud800"),
        ("visibility_timeout", 0),
        ("visibility_timeout", 13 * 3600),
        ("max_attempts", 0),
        ("max_attempts", 1.5),
        ("max_attempts", True),
        ("dead_letter", ""),
        ("dead_letter", "no such name"),
        ("dead_letter", 3),
        ("delivery", "exactly_once"),
        ("delivery", ["at_most_once"]),
        ("max_in_flight_per_key", 0),
        ("default_ttl", 0),
        ("default_ttl", -1),
        ("idle_expiry", "1h"),
        ("lua_timeout", 0),
        ("lua_timeout", 1.5),
        ("lua_memory_limit", 1000),
        ("lua_memory_limit", 1 << 40),
        ("lua_memory_limit", 1e6),
    ],
)
def test_bad_options(name, value):
    with pytest.raises(InvalidArgumentError) as caught:
        encode({name: value})
    assert len(str(caught.value)) < 500
