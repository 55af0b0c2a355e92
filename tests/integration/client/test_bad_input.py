"""Whatever arrives on the socket gets a typed answer or none; other clients are not disturbed and nothing is lost."""

import os
import random
from collections.abc import Iterator

import pytest
import zmq

from fila_cluster import Client
from fila_cluster.errors import FilaError, InvalidArgumentError, PayloadTooLargeError, QueueNotFoundError
from fila_proto_zmq.codec import decode_body, encode_body, encode_command, from_fault
from fila_proto_zmq.commands import (
    BY_OPCODE,
    Enqueue,
    Extend,
    Fault,
    GetQueueStats,
    Hello,
    Pulse,
    QueueStats,
    Receive,
    Register,
    Settle,
    Subscribe,
    Welcome,
)  # fmt: skip
from fila_proto_zmq.frames import ERROR, pack_header, unpack_header
from fila_proto_zmq.record import seal_envelope
from tests.support.cluster.cluster import PATIENCE_S, Cluster


class Peer:
    """A raw socket that says what it likes."""

    def __init__(self, endpoint: str) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.IDENTITY, b"\x01" + os.urandom(15))
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVTIMEO, round(1000 * PATIENCE_S))
        self.socket.connect(endpoint)

    def say(self, *parts: bytes) -> None:
        self.socket.send_multipart(parts)

    def ask(self, *parts: bytes) -> FilaError | bytes:
        """The error that answers a frame, or the body of a good answer."""
        self.say(*parts)
        header, _, body = self.socket.recv_multipart()
        return from_fault(decode_body(Fault, body)) if unpack_header(header).flags & ERROR else body

    def still_served(self, queue: str) -> bool:
        """Whether the connection works: asks for statistics and drops answers to what was said before."""
        self.say(*encode_command(GetQueueStats(), 99_999, queue))
        while True:
            header, _, body = self.socket.recv_multipart()
            if unpack_header(header).request == 99_999:
                return isinstance(decode_body(QueueStats, body), QueueStats)


@pytest.fixture
def peer(shared_cluster: Cluster) -> Iterator[Peer]:
    peer = Peer(shared_cluster.endpoint)
    yield peer
    peer.socket.close()


def test_a_client_of_another_version_is_answered_with_the_versions_served(peer: Peer) -> None:
    answer = peer.ask(pack_header(Hello.opcode, 7, version=9), b"", encode_body(Hello([9])))
    assert isinstance(answer, FilaError)
    assert (answer.code, answer.details) == ("UNSUPPORTED_VERSION", {"versions": [1]})
    answer = peer.ask(pack_header(Hello.opcode, 8), b"", encode_body(Hello([1, 9])))
    assert isinstance(answer, bytes)
    assert decode_body(Welcome, answer).version == 1


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param((pack_header(200, 1), b"q", b"\x90"), id="an unknown opcode"),
        pytest.param((pack_header(Enqueue.opcode, 1), b"QUEUE", b"\xc1"), id="a body that is no msgpack"),
        pytest.param((pack_header(Enqueue.opcode, 1), b"QUEUE", b"\x91\x01"), id="a body that is no enqueue"),
        pytest.param((pack_header(Enqueue.opcode, 1), b"QUEUE", encode_body(Enqueue([b"x"], ["a", "b"]))), id="a bad column"),
        pytest.param((pack_header(Settle.opcode, 1), b"QUEUE", encode_body(Settle(77, []))), id="an unknown verb"),
        pytest.param((pack_header(Receive.opcode, 1), b"QUEUE", encode_body(Receive(-5))), id="a negative count"),
        pytest.param((pack_header(Subscribe.opcode, 1), b"QUEUE", encode_body(Subscribe(1, 2**60))), id="a huge prefetch"),
        pytest.param((pack_header(Receive.opcode, 1), b"\xff\xfe", encode_body(Receive())), id="a name that is no UTF-8"),
        pytest.param((pack_header(Receive.opcode, 1), b"", encode_body(Receive())), id="no name"),
        pytest.param((pack_header(Receive.opcode, 1), b"a//b", encode_body(Receive())), id="a bad name"),
        pytest.param((pack_header(Register.opcode, 1), b"", encode_body(Register("me", 1, "1", [(0, 2**31)]))), id="a usurper"),
        pytest.param((pack_header(Pulse.opcode, 1), b"", encode_body(Pulse(1, 1))), id="a false pulse"),
    ],
)  # fmt: skip
def test_what_does_not_fit_gets_a_typed_error(peer: Peer, queue: str, frame: tuple[bytes, ...]) -> None:
    answer = peer.ask(frame[0], frame[1].replace(b"QUEUE", queue.encode()), frame[2])
    assert isinstance(answer, FilaError)
    assert answer.code in {"INVALID_FRAME", "INVALID_ARGUMENT"}
    assert len(answer.message) > 20
    assert peer.still_served(queue)


def test_garbage_in_an_envelope_is_that_messages_fault(peer: Peer, client: Client, queue: str) -> None:
    body = encode_body(Enqueue([b"\xff\xff\xff\xff", seal_envelope(b"good"), b""]))
    assert isinstance(peer.ask(pack_header(Enqueue.opcode, 1), queue.encode(), body), bytes)
    (good,) = client.receive(queue, 10)
    assert good.payload == b"good"
    good.ack()


def test_fences_out_of_nowhere_settle_nothing(peer: Peer, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")
    (held,) = client.receive(queue)
    for fence in ((1, []), (2**63, [0]), (held._lease.id, [-1, 5, 2**40]), (held._lease.id, [0, 0])):
        for command in (Settle(2, [fence]), Extend([fence], 1000)):
            peer.ask(*encode_command(command, 1, queue))
    assert peer.still_served(queue)
    held.ack()  # the peer knew its fence, but it is not the peer's
    assert client.queue_stats(queue).depth == 0


def test_noise_disturbs_no_client(shared_cluster: Cluster, client: Client, queue: str) -> None:
    noise = random.Random(20)
    client.enqueue(queue, b"safe")
    for _ in range(20):
        peer = Peer(shared_cluster.endpoint)
        for _ in range(50):
            peer.say(*(noise.randbytes(noise.randrange(40)) for _ in range(noise.randrange(1, 6))))
            opcode = noise.choice(list(BY_OPCODE))
            peer.say(pack_header(opcode, noise.randrange(2**32)), queue.encode(), noise.randbytes(noise.randrange(30)))
        peer.socket.close()
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert delivery.payload == b"safe"
    delivery.ack()
    assert [worker.state for worker in client.cluster_status().workers] == ["up", "up"]


def test_truncated_multiparts_are_dropped(peer: Peer, queue: str) -> None:
    whole = encode_command(GetQueueStats(), 1, queue)
    for parts in (whole[:1], whole[:2], [*whole, b"more"], [b""], [b"", b"", b""]):
        peer.say(*parts)
    assert peer.still_served(queue)


def test_a_payload_over_the_limit_is_refused_by_its_number(client: Client, queue: str) -> None:
    with pytest.raises(PayloadTooLargeError, match="17825792") as caught:
        client.enqueue(queue, bytes(17 * 1024 * 1024))
    assert caught.value.details["max_payload_bytes"] == 16 * 1024 * 1024
    client.enqueue(queue, bytes(16 * 1024 * 1024))
    (delivery,) = client.receive(queue)
    assert len(delivery.payload) == 16 * 1024 * 1024
    delivery.ack()


def test_an_unknown_queue_is_named(client: Client) -> None:
    for call in (client.receive, client.queue_stats, client.delete_queue, lambda name: client.enqueue(name, b"")):
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            call("nowhere")


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "/a", "ä", "x" * 201, "a.dlq", "a\n"])
def test_a_bad_name_creates_nothing(client: Client, name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        client.create_queue(name)


@pytest.mark.parametrize("name", ["x" * 200, "ns/" + "y" * 197, "a.b-c_D.9", "."])
def test_a_good_name_does(client: Client, name: str) -> None:
    client.create_queue(name)
    assert [info.name for info in client.list_queues(name)] == [name, name + ".dlq"]
    client.delete_queue(name)
