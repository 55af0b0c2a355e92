"""Every command with every kind of value, in a broker that has messages in every state: nothing raises, and others are served."""

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    BY_OPCODE,
    Command,
    CreateQueue,
    Delivered,
    Enqueue,
    QueueOptions,
    Receive,
    Reserve,
    Settle,
    Subscribe,
    Verb,
)
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.record import seal_envelope
from tests.fuzz.broker import FuzzedBroker
from tests.fuzz.story import OF_WORKERS, Restart
from tests.fuzz.values import Values

pytestmark = pytest.mark.whole

CLIENT = b"somebody"
EXAMPLES = 12


def populated() -> FuzzedBroker:
    """A broker with messages that are pending, delayed, leased, acked, expired, dead, reserved and pushed."""
    broker = FuzzedBroker()
    sealed = seal_envelope(b"x", {"tenant": "a"})
    for number, queue in enumerate(("q", "r", "ns/s"), 1):
        broker.ask(CLIENT, CreateQueue(QueueOptions(visibility_timeout_ms=500, max_attempts=3)), queue)
        broker.ask(CLIENT, Enqueue([sealed] * 4, "a"), queue)
        broker.ask(CLIENT, Enqueue([sealed] * 2, "b", throttle_keys=[["t"]], dedup_id=["x", "y"]), queue)
        broker.ask(CLIENT, Enqueue([sealed], delay_ms=60_000), queue)
        broker.ask(CLIENT, Receive(1), queue)
        broker.pass_time(600)  # the lease ends
        acked = broker.ask(CLIENT, Receive(1), queue)
        dead = broker.ask(CLIENT, Receive(1), queue)
        assert isinstance(acked, Delivered)
        assert isinstance(dead, Delivered)
        broker.ask(CLIENT, Settle(Verb.ACK, [(acked.batches[0].lease, [])]), queue)
        broker.ask(CLIENT, Settle(Verb.FAIL, [(dead.batches[0].lease, [])]), queue)
        broker.ask(CLIENT, Reserve("batch", 0, 1, 60_000), queue)
        broker.ask(CLIENT, Subscribe(number, 2), queue)
        broker.run()
    return broker


def played(broker: FuzzedBroker, command: Command, queue: str) -> None:
    """Carry out a command twice, as a client's or as the router's, and see what is left."""
    header, body = pack_header(command.opcode, 7), encode_body(command)
    for _ in range(2):
        broker.from_client(CLIENT, header, queue.encode(), body)
        if command.opcode >= OF_WORKERS:
            broker.host.accept([b"", header, b"", body], broker.now_ms)
        broker.run()
    broker.pass_time(700)
    broker.check()


@pytest.mark.parametrize("opcode", sorted(BY_OPCODE), ids=lambda opcode: BY_OPCODE[opcode].__name__)
@settings(max_examples=EXAMPLES, phases=[Phase.generate])  # a smaller seed is no simpler case
@given(random=st.builds(Random, st.integers(0, 2**32)), wild=st.sampled_from((0.1, 0.5, 1.0)))
def test_any_values_are_carried_out_or_refused(opcode: int, random: Random, wild: float) -> None:
    broker = populated()
    values = Values(random, broker.known, wild)
    for _ in range(3):
        played(broker, values.any_command([opcode]), values.queue())
    if opcode < OF_WORKERS:  # the router's word is obeyed, whatever it does to the shards
        broker.serve_an_honest_client()
        Restart().play(broker)
        broker.serve_an_honest_client()
