"""The scenes of ``python -m benchmarks instructions``, and the program that runs one of them, alone in a process.

``python -m benchmarks.inside.counted SCENE STEPS ADDRESS``. What a step needs of other processes is at ADDRESS, so that their
work does not count; the peers in this process are a few calls of a socket, with frames that were made before.
"""

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from benchmarks.harness.fila import asyncio_client, blocking_client
from benchmarks.inside.turns import CONSUMER, PRODUCER, driver
from benchmarks.inside.turns import QUEUE as TURNS_QUEUE
from benchmarks.inside.walks import Worker, worker
from fila_cluster import AsyncClient, Client, Message
from fila_cluster.client.io.reactor import run as run_loop
from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.frames import unpack_header
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.stream import FrameReader
from fila_worker.core.effects import Answer

BATCH: Final = 500
HEADERS: Final = {"kind": "order.created", "tenant": "acme"}
PAYLOAD: Final = bytes(1024)
ENVELOPE: Final = seal_envelope(PAYLOAD, HEADERS)
READ_BYTES: Final = 1 << 20
STEPS_MAX: Final = 10_000
"""The most messages that a scene of a consumer takes: so many are put into its queue before, whatever the length of the run."""

Steps: TypeAlias = Callable[[int], object]
"""Makes so many steps."""


@dataclass(frozen=True)
class CountedScene:
    """One thing to count: ``steps`` are the lengths of a short and a long run, of each of which ``per`` things are counted.

    ``open`` prepares it, with an address and the name of a queue there; ``filled``: whether that queue has messages.
    """

    name: str
    steps: tuple[int, int]
    open: Callable[[str, str], AbstractContextManager[Steps]]
    per: int = 1
    served: bool = False
    """Whether it needs a cluster at its address."""
    filled: bool = False


# --- a worker: its turns, and its whole loop ----------------------------------------------------------------------------


@contextmanager
def _turns(make: Callable[..., Steps], address: str, queue: str) -> Iterator[Steps]:
    with tempfile.TemporaryDirectory() as path, driver(Path(path) / "shard") as drive:
        yield make(drive)


def _repeated(action: Callable[[], object]) -> Steps:
    def run(steps: int) -> None:
        for _ in range(steps):
            action()

    return run


def _idle_turn(drive: Any) -> Steps:
    return _repeated(drive.empty)


def _life_turns(drive: Any) -> Steps:
    drive.turn(c.Subscribe(1, BATCH), CONSUMER)
    return _repeated(drive.life)


def _bulk_enqueue(drive: Any) -> Steps:
    return _repeated(partial(drive.read, _enqueue_of(BATCH)))


def _bulk_receive(drive: Any) -> Steps:
    for _ in range(STEPS_MAX // BATCH):
        drive.read(_enqueue_of(BATCH))

    def receive_and_ack() -> None:
        for effect in drive.turn(c.Receive(BATCH), CONSUMER):
            if isinstance(effect, Answer) and isinstance(effect.reply, c.Delivered):
                for batch in effect.reply.batches:
                    drive.turn(c.Settle(c.Verb.ACK, [(batch.lease, [])]), CONSUMER)

    return _repeated(receive_and_ack)


def _enqueue_of(count: int) -> list[bytes]:
    return [PRODUCER, *encode_command(c.Enqueue([ENVELOPE] * count), 1, TURNS_QUEUE)]


@contextmanager
def _loop(make: Callable[[Worker], Steps], address: str, queue: str) -> Iterator[Steps]:
    with tempfile.TemporaryDirectory(prefix="fila-") as path, worker(Path(path)) as made:  # a socket's path is short
        yield make(made)


def _worker_enqueue(made: Worker) -> Steps:
    request = made.request(c.Enqueue([ENVELOPE]))
    client = made.socket

    def run(steps: int) -> None:
        def step() -> bool:
            nonlocal steps
            client.recv(READ_BYTES)
            steps -= 1
            if steps:
                client.send(request)
            return not steps

        client.send(request)
        made.serve(step)

    return run


def _worker_life(made: Worker) -> Steps:
    """A lone message to a waiting consumer, which acks it: the lease of each delivery is at the same place of what comes."""
    made.ask(c.Subscribe(1, BATCH))
    client, request = made.socket, made.request(c.Enqueue([ENVELOPE]))
    client.send(request)
    came = b""

    def first() -> bool:
        nonlocal came
        came = client.recv(READ_BYTES)
        return True

    made.serve(first)
    lease = _lease_in(came)
    at = came.index(lease.to_bytes(8, "big"))
    before, after = made.request(c.Settle(c.Verb.ACK, [(lease, [])])).split(lease.to_bytes(8, "big"))

    def run(steps: int) -> None:
        came, acked = lease.to_bytes(8, "big").rjust(at + 8), True  # the lease of above is acked first
        left = 2 * steps

        def step() -> bool:
            nonlocal came, acked, left
            came = client.recv(READ_BYTES)
            left -= 1
            if left:
                acked = not acked
                client.send(before + came[at : at + 8] + after if acked else request)
            return not left

        client.send(before + came[at : at + 8] + after)
        made.serve(step)

    return run


def _lease_in(data: bytes) -> int:
    reader = FrameReader(READ_BYTES)
    reader.feed(data)
    while (parts := reader.take()) is not None:
        if unpack_header(parts[0]).opcode == c.DELIVERY:
            return decode_body(c.Delivered, parts[2]).batches[0].lease
    raise RuntimeError("the message was not delivered in the pass that enqueued it")


# --- a client ------------------------------------------------------------------------------------------------------------


LOOK_S: Final = 0.3
LOOKS_MAX: Final = 100


def _goes_straight(client: Any) -> bool:
    """Return whether a client's way to the worker is open: under valgrind it may take a second attempt."""
    doors = client._session.routes.doors.values()
    return bool(doors) and all(way.open for way in doors)


@contextmanager
def _client_of(address: str, queue: str) -> Iterator[Client]:
    with blocking_client(address) as client:
        for _ in range(LOOKS_MAX):
            client.enqueue(queue, PAYLOAD, HEADERS)
            if _goes_straight(client):
                break
            time.sleep(LOOK_S)
        yield client


@asynccontextmanager
async def _async_client_of(address: str, queue: str) -> AsyncIterator[AsyncClient]:
    async with asyncio_client(address) as client:
        for _ in range(LOOKS_MAX):
            await client.enqueue(queue, PAYLOAD, HEADERS)
            if _goes_straight(client):
                break
            await asyncio.sleep(LOOK_S)
        yield client


@contextmanager
def _client_enqueue(address: str, queue: str) -> Iterator[Steps]:
    with _client_of(address, queue) as client:
        yield _repeated(partial(client.enqueue, queue, PAYLOAD, HEADERS))


@contextmanager
def _async_enqueue(address: str, queue: str) -> Iterator[Steps]:
    async def main(steps: int) -> None:
        async with _async_client_of(address, queue) as client:
            for _ in range(steps):
                await client.enqueue(queue, PAYLOAD, HEADERS)

    yield lambda steps: run_loop(main(steps))


@contextmanager
def _async_together(address: str, queue: str) -> Iterator[Steps]:
    async def main(steps: int) -> None:
        async with _async_client_of(address, queue) as client:
            for _ in range(steps):
                await asyncio.gather(*(client.enqueue(queue, PAYLOAD, HEADERS) for _ in range(20)))

    yield lambda steps: run_loop(main(steps))


@contextmanager
def _client_consume(address: str, queue: str) -> Iterator[Steps]:
    def run(steps: int) -> None:
        with client.consume(queue) as deliveries:
            for _ in range(steps):
                delivery = next(deliveries)
                _look_at(delivery)
                delivery.ack()

    with _client_of(address, queue) as client:
        yield run


@contextmanager
def _async_consume(address: str, queue: str) -> Iterator[Steps]:
    async def main(steps: int) -> None:
        async with _async_client_of(address, queue) as client, client.consume(queue) as deliveries:
            for _ in range(steps):
                delivery = await anext(deliveries)
                _look_at(delivery)
                await delivery.ack()

    yield lambda steps: run_loop(main(steps))


@contextmanager
def _client_many(address: str, queue: str) -> Iterator[Steps]:
    messages = [Message(PAYLOAD, {**HEADERS}) for _ in range(BATCH)]
    with _client_of(address, queue) as client:
        yield _repeated(partial(client.enqueue_many, queue, messages))


@contextmanager
def _client_batches(address: str, queue: str) -> Iterator[Steps]:
    def run(steps: int) -> None:
        with client.consume_batches(queue) as batches:
            for _ in range(steps):
                batch = next(batches)
                for delivery in batch:
                    _look_at(delivery)
                batch.ack()

    with _client_of(address, queue) as client:
        yield run


def _look_at(delivery: Any) -> None:
    if len(delivery.payload) != len(PAYLOAD):
        raise RuntimeError("another payload was delivered")


SCENES: Final = (
    CountedScene("idle_turn", (1000, 6000), partial(_turns, _idle_turn)),
    CountedScene("worker_enqueue", (100, 600), partial(_loop, _worker_enqueue)),
    CountedScene("life_turns", (100, 600), partial(_turns, _life_turns)),
    CountedScene("worker_life", (100, 600), partial(_loop, _worker_life)),
    CountedScene("bulk_enqueue", (4, 16), partial(_turns, _bulk_enqueue), per=BATCH),
    CountedScene("bulk_receive", (4, 16), partial(_turns, _bulk_receive), per=BATCH),
    CountedScene("client_enqueue", (200, 1200), _client_enqueue, served=True),
    CountedScene("async_enqueue", (200, 1200), _async_enqueue, served=True),
    CountedScene("async_together", (20, 120), _async_together, per=20, served=True),
    CountedScene("client_consume", (200, 1200), _client_consume, served=True, filled=True),
    CountedScene("async_consume", (200, 1200), _async_consume, served=True, filled=True),
    CountedScene("client_many", (2, 14), _client_many, per=BATCH, served=True),
    CountedScene("client_batches", (2, 14), _client_batches, per=BATCH, served=True, filled=True),
)
BY_NAME: Final = {scene.name: scene for scene in SCENES}


def main(name: str, steps: str, address: str, queue: str) -> None:
    """Prepare a scene, and make its steps."""
    with BY_NAME[name].open(address, queue) as run:
        gc.collect()
        gc.freeze()  # as in a worker: garbage collections skip long-lived objects
        run(int(steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
