"""Short calls are usual calls: the same answers of a worker give the same results, errors and frames on both paths."""

import asyncio
import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

import fila_cluster.client
from fila_cluster import AsyncClient
from fila_cluster.client.protocol.short_calls import SHORT_BYTES_MAX, ShortCalls
from fila_cluster.client.requests import routes
from fila_cluster.errors import AlreadySettledError, FilaError, LeaseExpiredError, OverloadedError, QueueNotFoundError
from fila_proto_zmq import codec
from fila_proto_zmq.commands import (
    WORKER_BANNER,
    Delivered,
    Done,
    DoorView,
    Enqueue,
    Enqueued,
    Hello,
    Placement,
    Receive,
    Settle,
    Settled,
    Welcome,
    WorkerBanner,
)
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import REPLY, pack_header
from fila_proto_zmq.ids import high_half, low_half
from fila_proto_zmq.stream import FrameReader, pack_lengths
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.cluster.shells import SHELLS, shell
from tests.unit.client.conftest import until
from tests.unit.client.interrupts import interrupted_at
from tests.unit.client.peer import BORN_MS, WELCOME, Sent, answering, batch, broker, give_up, read

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

CLIENT = str(Path(fila_cluster.client.__file__).parent)
DOOR = bytes(16)
SHARDS = [(shard, 1) for shard in range(4)]
TIMEOUT_S = 0.3
Behaviour = Callable[["Door", Sent], list[bytes] | None]
"""What a worker sends for a request; None: it closes the connection."""


class Door:
    """A worker's door in a thread. Its ``script`` has a behaviour for each request; after it, all is as usual."""

    def __init__(self) -> None:
        self.script: list[Behaviour] = []
        self.seen: list[tuple[Any, ...]] = []
        self.lease = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.view = DoorView("w", DOOR, [f"tcp://127.0.0.1:{self._server.getsockname()[1]}"], SHARDS)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            sock, _ = self._server.accept()
            with sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # An interrupted client closes a connection with data in it. A stranger may look for who had this port before.
                with suppress(ConnectionError, InvalidFrameError):
                    if not self._serve(sock):
                        return

    def _serve(self, sock: socket.socket) -> bool:
        """Serve a connection; return False at the end of the test."""
        sock.sendall(packed([pack_header(WORKER_BANNER), b"", codec.encode_body(WorkerBanner(DOOR))]))
        reader = FrameReader(1 << 30)
        while data := sock.recv(1 << 16):
            if data == b"end":
                return False
            reader.feed(data)
            while (parts := reader.take()) is not None:
                sent = read(list(parts))
                if isinstance(sent.command, (Enqueue, Settle)):
                    self.seen.append((*sent.header, sent.key, codec.encode_body(sent.command)))
                    behaviour = self.script.pop(0) if self.script else usual
                else:
                    behaviour = usual
                pieces = behaviour(self, sent)
                if pieces is None:
                    return True
                for piece in pieces:
                    sock.sendall(piece)
        return True

    def close(self) -> None:
        with socket.create_connection(self._server.getsockname()) as last:
            last.sendall(b"end")
            self._thread.join(10)
        self._server.close()
        assert not self._thread.is_alive()


def packed(parts: list[bytes]) -> bytes:
    return pack_lengths(parts[1], parts[2]) + b"".join(parts)


def reply(sent: Sent, answer: Any) -> bytes:
    encode = codec.encode_error if isinstance(answer, FilaError) else codec.encode_reply
    return packed(encode(sent.header.opcode, sent.header.request, answer, sent.key))


# --- what a worker does -------------------------------------------------------------------------------------------------


def answer_of(door: Door, sent: Sent) -> Any:
    if isinstance(sent.command, Hello):
        return Welcome(1, "0.0", 4, 15_000)
    if isinstance(sent.command, Enqueue):
        return Enqueued(high_half(BORN_MS, 3), low_half(sent.header.request), len(sent.command.envelopes))
    if isinstance(sent.command, Receive):
        door.lease += 1
        return Delivered(0, [batch(door.lease, sent.command.count)])
    return Settled() if isinstance(sent.command, Settle) else Done()


def usual(door: Door, sent: Sent) -> list[bytes]:
    return [reply(sent, answer_of(door, sent))]


def in_pieces(door: Door, sent: Sent) -> list[bytes]:
    (whole,) = usual(door, sent)
    return [whole[:3], whole[3:30], whole[30:]]


def beside_a_delivery(door: Door, sent: Sent) -> list[bytes]:
    """A push to a subscription that the client has ended: it says so once more."""
    return [usual(door, sent)[0] + packed(codec.encode_delivery("q", Delivered(77, [])))]


def behind_a_stale_answer(door: Door, sent: Sent) -> list[bytes]:
    return [packed(codec.encode_reply(Enqueue.opcode, 999, Enqueued(1, 1, 1))) + usual(door, sent)[0]]


def malformed(door: Door, sent: Sent) -> list[bytes]:
    return [packed([pack_header(sent.header.opcode, sent.header.request, REPLY), b"q", b"\x93\xc0"])]


def of_another_version(door: Door, sent: Sent) -> list[bytes]:
    return [packed([pack_header(sent.header.opcode, sent.header.request, REPLY, version=9), b"q", b"\x90"])]


def refusing(error: FilaError) -> Behaviour:
    return lambda door, sent: [reply(sent, error)]


def no_answer(door: Door, sent: Sent) -> list[bytes]:
    return []


def closing(door: Door, sent: Sent) -> None:
    return None


def retiring(door: Door, sent: Sent) -> list[bytes]:
    """The worker is about to stop: it takes no more calls, but this one is answered."""
    return [packed([pack_header(WORKER_BANNER), b"", codec.encode_body(WorkerBanner(b""))]) + usual(door, sent)[0]]


def faulty(door: Door, sent: Sent) -> list[bytes]:
    """The request is carried out, but not for its message."""
    if isinstance(sent.command, Settle):
        lease, indexes = sent.command.fences[0]
        fault = codec.to_fault(LeaseExpiredError("too late"))
        return [reply(sent, Settled([(lease, indexes[0] if indexes else -1, fault)]))]
    return [reply(sent, Enqueued(0, 0, 0, [(0, codec.to_fault(OverloadedError("full")))]))]


def passing_fault(door: Door, sent: Sent) -> list[bytes]:
    if isinstance(sent.command, Settle):
        lease, indexes = sent.command.fences[0]
        return [reply(sent, Settled([(lease, indexes[0] if indexes else -1, codec.to_fault(OverloadedError("full")))]))]
    return [reply(sent, Enqueued(0, 0, 0, known=[(0, high_half(BORN_MS, 1), low_half(5))]))]


BEHAVIOURS: dict[str, Behaviour] = {
    "usual": usual,
    "in pieces": in_pieces,
    "beside a delivery": beside_a_delivery,
    "behind a stale answer": behind_a_stale_answer,
    "malformed": malformed,
    "of another version": of_another_version,
    "refused": refusing(QueueNotFoundError("no queue")),
    "refused for a moment": refusing(OverloadedError("later", retry_after=0.01, details={"refused": True})),
    "in doubt": refusing(OverloadedError("who knows")),
    "moved": refusing(OverloadedError("elsewhere", details={"refused": True, "moved": True})),
    "forgotten": refusing(OverloadedError("who are you", details={"refused": True, "greet": True})),
    "no answer": no_answer,
    "closing": closing,
    "retiring": retiring,
    "faulty": faulty,
    "passing fault": passing_fault,
}
LASTING = {"closing", "retiring", "moved", "forgotten"}
"""After these, calls take another way for a while."""
CALLS = ("enqueue", "enqueue again", "ack", "ack one of two")


# --- what a client does -------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What came of the calls of one run: a result for each, and what the worker has seen."""

    results: list[Any] = field(default_factory=list)
    seen: list[tuple[Any, ...]] = field(default_factory=list)
    short: int = 0
    """The calls that began as short ones."""


@contextmanager
def opened(kind: str, timeout: float = TIMEOUT_S) -> Iterator[tuple[Door, Any]]:
    door = Door()
    welcome = Welcome(1, "0.0", 4, 15_000, WELCOME.max_payload_bytes, bytes(32), [door.view])
    try:
        with broker(answering(Hello=welcome, GetPlacement=Placement([door.view]))) as peer, shell(kind) as connect:
            with connect(peer.endpoint, timeout=timeout, direct=True) as client:
                for _ in range(2):  # the first one opens the way
                    client.enqueue("q", b"warm")
                assert door.seen, "the way is open"
                yield door, client
    finally:
        door.close()


def call(client: Any, name: str) -> Any:
    if name == "enqueue":
        return client.enqueue("q", b"x", {"a": "b"}, fairness_key="k")
    if name == "enqueue again":
        return client.enqueue("q", b"x", dedup_id="d", priority=3)
    deliveries = client.receive("q", 2 if name == "ack one of two" else 1)
    results: list[Any] = []
    for _ in range(2):  # the second one finds what the first one has left
        try:
            results.append(deliveries[-1].ack())
        except FilaError as error:
            results.append(shape(error))
    leases = [client._session._consumption._loose["q"].get(each._lease.id) for each in deliveries]
    results.append(
        [(lease is not None and lease.unsettled, each._settled) for lease, each in zip(leases, deliveries, strict=True)]
    )
    give_up(*(getattr(each, "_thing", each) for each in deliveries))
    return results


def shape(error: FilaError) -> tuple[Any, ...]:
    details = {key: value for key, value in error.details.items() if key != "endpoint"}
    text = error.message
    for endpoint in (error.details.get("endpoint", ""), "tcp://127.0.0.1:"):
        text = text.split(endpoint)[0] if endpoint else text
    return type(error), text, details, error.retry_after


def run(kind: str, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, *, short: bool) -> Run:
    """Make calls, each with what the worker does for its first request."""
    found = Run()
    frame = ShortCalls.frame

    def counted(self: ShortCalls, *arguments: Any) -> bytes | None:
        found.short += 1
        return frame(self, *arguments)

    with monkeypatch.context() as patched:
        if short:
            patched.setattr(ShortCalls, "frame", counted)
        else:
            patched.setattr(ShortCalls, "way_of", lambda self, key, now: None)
        with opened(kind) as (door, client):
            begun = len(door.seen)
            for name, behaviour in steps:
                door.script = [BEHAVIOURS[behaviour]]
                try:
                    found.results.append(call(client, name))
                except FilaError as error:
                    found.results.append(shape(error))
                assert client._session.short.way is None
                if kind == "blocking":
                    client._session._calls.check()
            found.seen = door.seen[begun:]
    return found


def assert_same(kind: str, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Run:
    usually = run(kind, steps, monkeypatch, short=False)
    shortly = run(kind, steps, monkeypatch, short=True)
    assert shortly.results == usually.results
    assert shortly.seen == usually.seen
    assert shortly.short > 0
    return shortly


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_short_call_ends_as_a_usual_one(kind: str, name: str, behaviour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(kind, [(name, behaviour), (name, "usual")], monkeypatch)


@pytest.mark.parametrize("kind", SHELLS)
@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_calls_ends_in_the_same_way(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    passing = [each for each in BEHAVIOURS if each not in LASTING]
    steps = [(chance.choice(CALLS), chance.choice(passing)) for _ in range(12)]
    steps.append((chance.choice(CALLS), chance.choice(sorted(LASTING))))
    assert_same(kind, steps, monkeypatch)


# --- what happens meanwhile ---------------------------------------------------------------------------------------------


@contextmanager
def deaf(door: Door, *then: Behaviour) -> Iterator[Callable[[], None]]:
    """Leave the next request without an answer; the yielded function waits until it has come."""
    seen = len(door.seen)
    door.script = [no_answer, *then]
    yield lambda: eventually(lambda: len(door.seen) > seen, "the request")


@pytest.mark.parametrize("kind", SHELLS)
def test_a_call_that_comes_meanwhile_does_not_wait_for_the_answer(kind: str) -> None:
    with opened(kind, timeout=PATIENCE_S) as (door, client), deaf(door) as wait_for_it:
        asked: list[Sent] = []
        door.script[0] = lambda door, sent: asked.append(sent) or []
        door.script.append(lambda door, sent: usual(door, sent) + usual(door, asked[0]))
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(client.enqueue("q", b"first")))
        thread.start()
        wait_for_it()
        found.append(client.enqueue("q", b"second"))
        thread.join(PATIENCE_S)
        assert len(set(found)) == 2
        assert client._session.short.usual is None or client._session.short.usual.done


@pytest.mark.parametrize("kind", SHELLS)
def test_many_threads_get_their_own_answers(kind: str) -> None:
    with opened(kind, timeout=PATIENCE_S) as (_, client):
        found: list[str] = []
        threads = [
            threading.Thread(target=lambda: found.extend(client.enqueue("q", b"x") for _ in range(50))) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(found) == 200


@pytest.mark.parametrize("kind", SHELLS)
def test_a_client_that_is_closed_meanwhile_ends_the_call(kind: str) -> None:
    with opened(kind, timeout=PATIENCE_S) as (door, client), deaf(door) as wait_for_it:
        errors: list[FilaError] = []

        def enqueue() -> None:
            with pytest.raises(FilaError) as caught:
                client.enqueue("q", b"x")
            errors.append(caught.value)

        thread = threading.Thread(target=enqueue)
        thread.start()
        wait_for_it()
        client.close()
        thread.join(PATIENCE_S)
        assert "closed" in str(errors[0])


def test_a_signal_handler_may_close_the_client_while_a_short_call_waits() -> None:
    with opened("blocking", timeout=PATIENCE_S) as (door, client), deaf(door) as wait_for_it:
        before = signal.signal(signal.SIGUSR1, lambda *_: client.close())
        signalling = threading.Thread(target=lambda: (wait_for_it(), os.kill(os.getpid(), signal.SIGUSR1)))
        try:
            signalling.start()
            with pytest.raises(FilaError, match="closed"):
                client.enqueue("q", b"x")
            signalling.join()
        finally:
            signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("back_soon")
@pytest.mark.parametrize("first", range(3))
def test_an_interrupt_at_any_line_of_a_short_call_leaves_the_client_usable(first: int) -> None:
    step = first
    with opened("blocking", timeout=PATIENCE_S) as (_, client):
        while True:
            client.enqueue("q", b"warm")
            eventually(lambda: takes_the_short_way(client), "the way is there again")
            was_interrupted = interrupted_at(step, lambda: client.enqueue("q", b"x"), CLIENT)
            assert client._io._leader is None
            client.enqueue("q", b"y")
            client._session._calls.check()
            if not was_interrupted:
                break
            step += 3


@pytest.fixture
def back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A direct way that was lost is opened again soon."""
    monkeypatch.setattr(routes, "RETRY_S_MIN", 0.001)


def takes_the_short_way(client: Any) -> bool:
    session = client._session
    client.enqueue("q", b"look")
    return session.short.usual is None and session.short.way_of("q", time.monotonic()) is not None


@pytest.mark.usefixtures("back_soon")
@pytest.mark.parametrize("first", range(4))
def test_an_ack_that_is_interrupted_may_be_made_again_and_never_counts_twice(first: int) -> None:
    step = first
    with opened("blocking", timeout=PATIENCE_S) as (_, client):
        while True:
            eventually(lambda: takes_the_short_way(client), "the way is there again")
            other, delivery = client.receive("q", 2)
            was_interrupted = interrupted_at(step, delivery.ack, CLIENT)
            with suppress(AlreadySettledError):  # the answer has come
                delivery.ack()
            client._io.ask(lambda now: None, None)
            assert delivery._settled
            assert delivery._lease.unsettled in ((1, 2) if was_interrupted else (1,))
            other.ack()
            if not was_interrupted:
                break
            step += 4


def test_an_ack_that_is_cancelled_may_be_made_again_and_counts_once() -> None:
    async def main(door: Door, endpoint: str) -> None:
        async with AsyncClient(endpoint, timeout=PATIENCE_S, direct=True) as client:
            for _ in range(3):
                await client.enqueue("q", b"warm")
            other, delivery = await client.receive("q", 2)
            asked: list[Sent] = []
            door.script = [
                lambda door, sent: asked.append(sent) or [],
                lambda door, sent: usual(door, asked[0]) + usual(door, sent),
            ]
            ack = asyncio.ensure_future(delivery.ack())
            await until(lambda: asked, "the ack")
            assert client._session.short.way is not None
            ack.cancel()
            with pytest.raises(asyncio.CancelledError):
                await ack
            assert not delivery._settled
            await delivery.ack()
            assert (delivery._settled, delivery._lease.unsettled) == (True, 1)
            await other.ack()

    door = Door()
    welcome = Welcome(1, "0.0", 4, 15_000, WELCOME.max_payload_bytes, bytes(32), [door.view])
    try:
        with broker(answering(Hello=welcome)) as peer:
            uvloop.run(main(door, peer.endpoint))
    finally:
        door.close()


@pytest.mark.parametrize("kind", SHELLS)
def test_a_frame_that_the_socket_takes_in_pieces_arrives(kind: str) -> None:
    with opened(kind, timeout=PATIENCE_S) as (door, client):
        (wire,) = client._io._links._wires.values()
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        payload = random.Random(1).randbytes(SHORT_BYTES_MAX - 100)
        assert client.enqueue("q", payload)
        assert payload in door.seen[-1][-1]
        assert client.enqueue("q", payload * 2), "too large for a short call"


def test_an_idle_client_looks_whether_the_worker_is_still_there() -> None:
    with opened("blocking", timeout=PATIENCE_S) as (door, client):
        (wire,) = client._io._links._wires.values()
        wire.read_at = -math.inf
        assert wire.is_quiet(1.0)
        assert wire.read_at == 1.0
        door.script = [beside_a_delivery]
        client.enqueue("q", b"x")
        wire.read_at = -math.inf
        client.enqueue("q", b"x")
