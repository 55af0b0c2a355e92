"""Workers that are linked to two routers: clients may be at either, and either may die."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from fila_cluster import Client, Message, WorkerStatus
from fila_cluster.errors import FilaError
from fila_proto_zmq.names import shard_of
from fila_router.settings import RouterSettings
from fila_worker.settings import WorkerSettings
from tests.support.cluster.cluster import eventually
from tests.support.hosts.hosts import Part

pytestmark = pytest.mark.whole

SHARDS = 2


class Twins:
    """Two routers, and two workers with a shard each. Each worker has another router in front."""

    def __init__(self, tmp_path: Path, *, doors: bool) -> None:
        self.endpoints = [_free_endpoint() for _ in range(2)]
        backs = [f"ipc://{tmp_path}/router-{number}.ipc" for number in range(2)]
        self.routers = [
            Part("fila_router", RouterSettings(front, back, SHARDS, 15_000, 1 << 24), tmp_path / f"router-{number}")
            for number, (front, back) in enumerate(zip(self.endpoints, backs, strict=True))
        ]
        self.workers = [
            Part(
                "fila_worker",
                WorkerSettings(
                    name=f"worker-{number}", router=backs[number], other_routers=[backs[1 - number]], data_dir=str(tmp_path),
                    shards=[number], shards_total=SHARDS, doors=["ipc://door.ipc"] if doors else [],
                ),
                tmp_path / f"worker-{number}",
            )
            for number in range(2)
        ]  # fmt: skip
        for part in (*self.routers, *self.workers):
            part.start()
        for number in range(2):
            self.until_served(number)

    def client(self, number: int, timeout: float = 30) -> Client:
        """A client of one of the routers."""
        return Client(self.endpoints[number], timeout=timeout)

    def until_served(self, number: int) -> None:
        with self.client(number) as client:
            eventually(
                lambda: sum(len(worker.shards) for worker in _status(client)) == SHARDS, f"router {number} has both workers"
            )

    def restart(self, number: int) -> None:
        """Let a router that was killed live again."""
        self.routers[number].start()
        self.until_served(number)

    def close(self) -> None:
        for part in (*self.workers, *self.routers):
            if part.alive:
                part.kill()


def _free_endpoint() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def _status(client: Client) -> list[WorkerStatus]:
    with suppress(FilaError):
        return [worker for worker in client.cluster_status().workers if worker.state == "up"]
    return []


@pytest.fixture(params=[False, True], ids=["routed", "direct"])
def twins(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Twins]:
    made = Twins(tmp_path, doors=request.param)
    try:
        yield made
    finally:
        made.close()


def queue_on(shard: int, name: str) -> str:
    return next(queue for queue in map(f"{name}-{{}}".format, range(99)) if shard_of(queue, SHARDS) == shard)


def received(client: Client, queue: str, count: int) -> list[bytes]:
    """The payloads of so many messages, acked."""
    payloads: list[bytes] = []

    def came() -> bool:
        with suppress(FilaError):
            deliveries = client.receive(queue, count - len(payloads), wait=0.5)
            client.ack(deliveries)
            payloads.extend(delivery.payload for delivery in deliveries)
        return len(payloads) >= count

    eventually(came, f"{count} messages of {queue}")
    return payloads


def test_clients_of_either_router_share_the_queues(twins: Twins) -> None:
    with twins.client(0) as one, twins.client(1) as two:
        for shard, (sender, receiver) in enumerate(((one, two), (two, one))):
            queue = queue_on(shard, "shared")
            sender.create_queue(queue, dead_letter="discard")
            sender.enqueue_many(queue, [Message(str(number).encode()) for number in range(200)])
            assert sorted(map(int, received(receiver, queue, 200))) == list(range(200))
            assert receiver.queue_stats(queue).pending == 0
        assert [[info.name for info in client.list_queues("shared")] for client in (one, two)] == [
            sorted(queue_on(shard, "shared") for shard in (0, 1))
        ] * 2


def test_a_consumer_goes_on_while_the_other_router_is_killed_and_restarted(twins: Twins) -> None:
    queues = [queue_on(shard, "steady") for shard in (0, 1)]
    seen: list[bytes] = []

    def consume(queue: str) -> None:
        with twins.client(0) as client, client.consume(queue, prefetch=10) as consumer:
            for delivery in consumer:
                delivery.ack()
                seen.append(delivery.payload)
                if delivery.payload.startswith(b"last"):
                    return

    with twins.client(0) as client:
        for queue in queues:
            client.create_queue(queue)
        consumers = [Thread(target=consume, args=(queue,), daemon=True) for queue in queues]
        for consumer in consumers:
            consumer.start()
        sent: list[bytes] = []

        def more() -> None:
            for queue in queues:
                payloads = [f"{queue} {len(sent) + number}".encode() for number in range(20)]
                client.enqueue_many(queue, list(map(Message, payloads)))
                sent.extend(payloads)
            eventually(lambda: len(seen) >= len(sent), "all deliveries")

        more()
        twins.routers[1].kill()
        more()
        twins.routers[1].start()
        more()
        twins.until_served(1)
        more()
        for queue in queues:
            client.enqueue(queue, b"last of " + queue.encode())
        for consumer in consumers:
            consumer.join(60)
            assert not consumer.is_alive()
    assert sorted(seen) == sorted([*sent, *(b"last of " + queue.encode() for queue in queues)]), "each once"


@pytest.mark.parametrize("dead", [0, 1])
def test_dead_letters_reach_the_other_shard_with_either_router_dead(twins: Twins, dead: int) -> None:
    with twins.client(1 - dead) as client:
        twins.routers[dead].kill()
        for shard in (0, 1):
            source, letters = queue_on(shard, "source"), queue_on(1 - shard, "letters")
            client.create_queue(letters)
            client.create_queue(source, dead_letter=letters, max_attempts=1)
            client.enqueue(source, b"poison")
            (delivery,) = client.receive(source, wait=30)
            delivery.nack()
            assert received(client, letters, 1) == [b"poison"]


def test_a_change_of_the_config_holds_at_both_routers(twins: Twins) -> None:
    with twins.client(0) as one, twins.client(1) as two:
        one.set_config("region", "eu")
        eventually(lambda: two.get_config("region") == "eu", "the other router's config")
        two.set_config("region", "us")
        eventually(lambda: one.get_config("region") == "us", "the first router's config")
        twins.routers[1].kill()
        one.set_config("region", "asia")
        twins.restart(1)
    with twins.client(1) as again:
        assert again.get_config("region") == "asia"
        again.set_config("region", "africa")


def test_a_deferral_is_known_to_clients_of_both_routers(twins: Twins) -> None:
    """Its answer waits until the workers have parked the key, by both routers; and not for long if one of them is dead."""
    queues = [queue_on(shard, "limited") for shard in (0, 1)]
    with twins.client(0) as one, twins.client(1) as two:
        for queue in queues:
            one.create_queue(queue)

        def deferred(key: str) -> None:
            one.enqueue(queues[0], b"deferred", throttle_keys=[key])
            (delivery,) = one.receive(queues[0], wait=30)
            delivery.defer(3600)

        deferred("api")
        waits = two.enqueue(queues[1], b"waits", throttle_keys=["api"])
        assert two.receive(queues[1]) == []
        assert "parked" in {reason.code for reason in two.why(queues[1], message_id=waits).reasons}
        twins.routers[1].kill()
        deferred("other")
        one.enqueue(queues[1], b"waits too", throttle_keys=["other"])
        assert one.receive(queues[1]) == []


@pytest.mark.parametrize("dead", [(), (0,), (1,)])
def test_a_worker_stops_cleanly_with_either_router_dead(twins: Twins, dead: tuple[int, ...]) -> None:
    for number in dead:
        twins.routers[number].kill()
    assert [worker.stop() for worker in twins.workers] == [0, 0]
