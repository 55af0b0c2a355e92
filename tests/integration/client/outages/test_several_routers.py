"""Both clients and the command line with several routers of which one dies, pauses or vanishes.

One router cannot be reached by two endpoints, so forwarders stand in front of it where messages are needed.
"""

import json
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zmq

import fila_cluster.client.asynchronous.client
import fila_cluster.client.blocking.client
from fila_cluster import Client, Message
from fila_cluster.errors import FilaError, RequestTimeoutError
from fila_router.settings import RouterSettings
from tests.integration.client.conftest import Connect
from tests.integration.cluster.test_auth import WITH_AUTH, initialized
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.cluster.forwarder import Forwarder
from tests.support.hosts.hosts import Part

pytestmark = pytest.mark.whole

FAULTS = ("kill", "freeze")


class Routers:
    """Two routers that are alike, by endpoint. They have no workers."""

    def __init__(self, home: Path) -> None:
        self.parts = {}
        for name in ("a", "b"):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
            settings = RouterSettings(endpoint, f"ipc://{home / name}.ipc", 1, 15_000, 1 << 24)
            self.parts[endpoint] = Part("fila_router", settings, home / name)
        self.endpoints = ",".join(self.parts)

    def of(self, client: Any) -> Part:
        """The one that a client is linked to."""
        return self.parts[current(client)]


def current(client: Any) -> str:
    """The endpoint of a client's link."""
    endpoint: str = client._io._links._rounds.current
    return endpoint


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[Routers]:
    made = Routers(tmp_path)
    for part in made.parts.values():
        part.start()
        eventually(lambda part=part: bool(part.events("router.listening")), "a router listens")
    yield made
    for part in made.parts.values():
        part.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_router_that_ends_or_pauses_is_left_for_the_other_one(
    open_client: Connect, routers: Routers, number: signal.Signals
) -> None:
    with open_client(routers.endpoints, timeout=PATIENCE_S) as client:
        assert client.cluster_status().workers == []
        first = current(client)
        routers.of(client).signal(number)
        # Each call is answered; a router that was asked to stop may answer the first ones.
        eventually(
            lambda: client.cluster_status().workers == [] and current(client) != first, "it is linked to the other one"
        )


def test_a_client_waits_for_the_first_of_all_routers_that_comes_back(open_client: Connect, routers: Routers) -> None:
    with open_client(routers.endpoints, timeout=0.5) as client:
        client.cluster_status()
        away = list(routers.parts.values())
        for part in away:
            part.kill()
        with pytest.raises(RequestTimeoutError, match="is lost and did not come back"):
            client.cluster_status()
        away[1].start()
        eventually(lambda: answers(client), "it is served again")
        assert routers.of(client) is away[1]
        away[0].start()


def answers(client: Client) -> bool:
    try:
        client.cluster_status()
    except RequestTimeoutError:
        return False
    return True


def test_the_command_line_takes_the_same_list(routers: Routers) -> None:
    next(iter(routers.parts.values())).kill()
    for arguments, env in (
        (["--endpoint", routers.endpoints], environment()),
        ([], environment(FILA_ENDPOINT=routers.endpoints)),
    ):
        done = subprocess.run(
            command(*arguments, "--json", "status"),
            env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["workers"] == []
    wrong = subprocess.run(
        command("--endpoint", f"{routers.endpoints},nowhere", "status"),
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Error: endpoint 'nowhere' (number 3 of ")


def test_the_command_line_asks_each_router_for_its_clients_and_acts(routers: Routers) -> None:
    first, second = routers.parts

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command("--endpoint", routers.endpoints, *arguments),
            env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    with Client(first) as one, Client(second) as two:
        names = {(endpoint, client.connections()[0].client) for endpoint, client in ((first, one), (second, two))}
        listed = json.loads(run("--json", "connections", "list").stdout)
        assert names <= {(each["router"], each["client"]) for each in listed}
        ((_, name),) = (each for each in names if each[0] == second)
        closed = run("connections", "close", name)
        assert (closed.returncode, closed.stdout.split(";")[0]) == (0, f"closed {name}")
        acts = {(act["router"], act["result"]) for act in json.loads(run("--json", "audit").stdout)}
        assert acts == {(first, "INVALID_ARGUMENT"), (second, "ok")}
        assert run("connections", "close", "00000000").stderr.count("no client '00000000'") == 2
    routers.parts[first].kill()
    left = run("connections", "list")
    assert (left.returncode, second in left.stdout) == (1, True)
    assert left.stderr.startswith(f"{first}: ")
    routers.parts[second].kill()
    none = run("connections", "list")
    assert (none.returncode, none.stdout, len(none.stderr.splitlines())) == (1, "", 2), "it does not say that there are none"


# --- two endpoints of one router --------------------------------------------------------------------------------------


class Ways:
    """Two endpoints of a cluster."""

    def __init__(self, endpoint: str) -> None:
        self.forwarders = [Forwarder(endpoint), Forwarder(endpoint)]
        self.endpoints = ",".join(each.endpoint for each in self.forwarders)

    def of(self, client: Any) -> Forwarder:
        return next(each for each in self.forwarders if each.endpoint == current(client))


@contextmanager
def two_ways_to(endpoint: str) -> Iterator[Ways]:
    ways = Ways(endpoint)
    with ways.forwarders[0], ways.forwarders[1]:
        yield ways


@pytest.fixture
def ways(shared_cluster: Cluster) -> Iterator[Ways]:
    with two_ways_to(shared_cluster.endpoint) as ways:
        yield ways


def enqueue_surely(client: Client, queue: str, payload: bytes) -> str:
    """Enqueue once, whatever happens: asked again with the same dedup id after an error that allows it."""
    while True:
        try:
            return client.enqueue(queue, payload, dedup_id=payload.decode())
        except FilaError as error:
            if not error.retryable:
                raise


@pytest.mark.parametrize("fault", FAULTS)
def test_enqueues_and_a_consumer_go_on_over_a_switch(
    open_client: Connect, ways: Ways, client: Client, queue: str, fault: str
) -> None:
    """Confirmed is not lost, and what has a dedup id is there once; the consumer needs no help."""
    total, confirmed, got = 300, [], []
    with open_client(ways.endpoints, direct=False, timeout=PATIENCE_S) as ours:
        consumer = ours.consume(queue)

        def consume() -> None:
            for delivery in consumer:
                got.append(delivery.id)
                delivery.ack()
                if len(got) == total:
                    break

        thread = threading.Thread(target=consume)
        thread.start()
        for number in range(total):
            if number == total // 2:
                eventually(lambda: len(got) > 0, "the consumer is at work")
                first = current(ours)
                getattr(ways.of(ours), fault)()
            confirmed.append(enqueue_surely(ours, queue, f"{number}".encode()))
        thread.join(PATIENCE_S)
        consumer.close()
        assert current(ours) != first
    assert len(set(confirmed)) == total
    assert set(got) == set(confirmed)
    stats = client.queue_stats(queue)
    assert (stats.enqueued, stats.depth) == (total, 0)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_producer_that_has_batches_under_way_loses_none(
    open_client: Connect, ways: Ways, client: Client, queue: str, fault: str
) -> None:
    total = 20_000
    with open_client(ways.endpoints, direct=False, timeout=PATIENCE_S) as ours:
        with ours.producer(queue) as producer:
            futures = []
            for number in range(total):
                if number == total // 2:
                    getattr(ways.of(ours), fault)()
                futures.append(producer.send(b"x", dedup_id=str(number)))
        ids = {future.result(PATIENCE_S) for future in futures}
    assert len(ids) == total
    assert client.queue_stats(queue).pending == total


@pytest.mark.parametrize("fault", FAULTS)
def test_direct_connections_need_no_router(open_client: Connect, ways: Ways, queue: str, fault: str) -> None:
    """With all routers away, calls that go straight to a worker go on."""
    with open_client(ways.endpoints, direct=True, timeout=PATIENCE_S) as ours:
        consumer = ours.consume(queue)
        ours.enqueue(queue, b"before")
        next(consumer).ack()
        for each in ways.forwarders:
            getattr(each, fault)()
        for number in range(100):
            ours.enqueue_many(queue, [Message(b"%d" % number)])
            delivery = next(consumer)
            assert delivery.payload == b"%d" % number
            delivery.ack()
        consumer.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_many_clients_spread_and_go_on(
    open_client: Connect, ways: Ways, queue: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = iter(range(20))
    for module in (fila_cluster.client.blocking.client, fila_cluster.client.asynchronous.client):
        monkeypatch.setattr(module, "Random", lambda: Random(next(seeds)))
    clients = [open_client(ways.endpoints, direct=False, timeout=PATIENCE_S) for _ in range(20)]
    try:
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(lambda each: each.enqueue(queue, b"x"), clients))
            counts = [each.connections for each in ways.forwarders]
            assert sum(counts) == 20
            assert min(counts) >= 5
            getattr(ways.forwarders[0], fault)()
            ids = set(pool.map(lambda each: enqueue_surely(each[1], queue, b"%d" % each[0]), enumerate(clients)))
        assert len(ids) == 20
        assert ways.forwarders[1].connections == 20
    finally:
        for each in clients:
            each.close()


def test_the_server_s_key_is_the_same_at_each_endpoint(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    keys = initialized(data_dir)
    another = zmq.curve_keypair()[0].decode()
    with running(data_dir, workers=1, env=WITH_AUTH) as cluster, two_ways_to(cluster.endpoint) as ways:
        with Client(
            ways.endpoints, api_key=keys["api_key"], server_key=f"{another},{keys['server_key']}", timeout=PATIENCE_S
        ) as client:
            client.create_queue("orders")
            ways.of(client).kill()
            assert [info.name for info in client.list_queues("orders")] == ["orders", "orders.dlq"]
