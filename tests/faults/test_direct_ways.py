"""What happens to the two ways on which clients reach shards: each test asks the same of both, and no more than the other way would give.

After each: nothing confirmed is lost, nothing acked comes back, no call outlives its timeout, and a key keeps its order.
"""

import errno
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fila_cluster import Client
from fila_cluster.client.io.wire import Wire
from fila_cluster.client.requests.routes import DirectWay
from fila_proto_zmq.frames import epoch_tag
from fila_router.core.worker_state import SILENCE_MS_MAX
from tests.support.cluster.client_records import ClientRecords, Load
from tests.support.cluster.cluster import Cluster, eventually, running, settling_may_fail
from tests.support.cluster.faults import check_disk, kill, paused, queue_on, running_parts, wait_until_served

pytestmark = pytest.mark.whole

PAUSE_S = SILENCE_MS_MAX / 1000 + 0.7
"""Longer than the router's patience with a silent worker, shorter than the supervisor's."""


@pytest.fixture(params=[True, False], ids=["direct", "routed"])
def direct(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether clients of this process use workers' doors."""
    monkeypatch.setenv("FILA_DIRECT", str(int(request.param)))
    return bool(request.param)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Two workers with a shard each."""
    with running(tmp_path / "data", workers=2) as cluster:
        yield cluster


def ways(client: Client) -> list[DirectWay]:
    """The direct ways of a client that are open."""
    return [way for way in client._session.routes.doors.values() if way.open]


def moved_on(load: Load) -> None:
    confirmed, acked = load.records.confirmed, load.records.acked
    eventually(lambda: load.records.confirmed > confirmed + 30 and load.records.acked > acked + 30, "work is done")


def in_order(client: Client, queue: str, count: int) -> list[int]:
    """The numbers of a key's messages, as they are delivered."""
    numbers: list[int] = []
    while len(numbers) < count:
        deliveries = client.receive(queue, 100, wait=5)
        assert deliveries, f"only {len(numbers)} of {count} are there"
        numbers += [int(bytes(delivery.payload)) for delivery in deliveries]
        client.ack(deliveries)
    return numbers


@settling_may_fail
@pytest.mark.usefixtures("direct")
@pytest.mark.parametrize("fault", ["killed", "paused for longer than the router waits", "restarted in good order"])
def test_a_worker_goes_away_under_load(cluster: Cluster, fault: str) -> None:
    with cluster.client() as client:
        queues = [queue_on(client, shard, visibility_timeout=3.0) for shard in (0, 1)]
    load = Load(cluster.endpoint, ClientRecords(), queues, seed=5)
    load.start()
    moved_on(load)
    with load.records.fault():
        if fault == "killed":
            kill(cluster, "worker-0")
        elif fault.startswith("paused"):
            with paused(cluster, "worker-0"):
                threading.Event().wait(PAUSE_S)  # the length of the pause is what is being tried
        else:
            running_parts(cluster, "worker-0")[0].send_signal(signal.SIGTERM)
        wait_until_served(cluster, *queues)
    moved_on(load)
    load.stop()
    assert cluster.stop() == 0
    load.records.check()
    assert {queue: depth for queue, depth in check_disk(cluster.data_dir).items() if queue in queues and depth} == {}


def test_calls_that_wait_survive_a_restart_in_good_order(cluster: Cluster, *, direct: bool) -> None:
    """A receive that waits, a consumer, and a client that does nothing at that moment: none of them sees an error."""
    with cluster.client() as client, cluster.client() as idle, cluster.client() as waiting:
        queue = queue_on(client, 0)
        other = queue_on(client, 0, prefix="other")
        client.enqueue(queue, b"0")
        idle.queue_stats(queue)
        waiting.queue_stats(queue)
        assert [bool(ways(each)) for each in (client, idle, waiting)] == [direct] * 3
        received: list[bytes] = []

        def receive() -> None:
            deliveries = waiting.receive(other, wait=30)
            waiting.ack(deliveries)
            received.extend(bytes(each.payload) for each in deliveries)

        thread = threading.Thread(target=receive)
        thread.start()
        with client.consume(queue, prefetch=10) as consumer:
            next(consumer).ack()
            running_parts(cluster, "worker-0")[0].send_signal(signal.SIGTERM)
            for number in range(1, 40):
                client.enqueue(queue, str(number).encode())
            numbers = []
            for delivery in consumer:
                numbers.append(int(bytes(delivery.payload)))
                delivery.ack()
                if len(numbers) == 39:
                    break
        assert numbers == list(range(1, 40))
        idle.enqueue(other, b"late")
        thread.join()
        assert received == [b"late"]


@pytest.mark.usefixtures("direct")
def test_a_key_keeps_its_order_while_a_client_changes_ways(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doors come and go: enqueues that are awaited one after the other stay in order, and none is there twice."""
    with cluster.client() as client:
        queue = queue_on(client, 0)
        for number in range(300):
            if number % 50 == 25:
                for way in ways(client):
                    way.failures = 0
                    wire = client._io._links._wires[way]
                    assert wire.socket is not None
                    wire.socket.shutdown(socket.SHUT_RDWR)
            client.enqueue(queue, str(number).encode(), dedup_id=str(number))
        assert in_order(client, queue, 300) == list(range(300))


def test_a_stale_map_costs_no_error(cluster: Cluster, *, direct: bool) -> None:
    """The shard is in another epoch than the client believes: the worker refuses, and the call goes through the router."""
    with cluster.client() as client:
        queue = queue_on(client, 0)
        client.enqueue(queue, b"0")
        for way in ways(client):
            way.tags = {shard: (tag - 1) & 0xFFFF_FFFF for shard, tag in way.tags.items()}
        client.enqueue(queue, b"1")  # may not be repeated: it has no dedup id
        for number in range(2, 20):
            client.enqueue(queue, str(number).encode())
        assert in_order(client, queue, 20) == list(range(20))
        epochs = {tag for way in ways(client) for tag in way.tags.values()}
        assert bool(epochs) == direct
        assert all(epoch_tag(epoch) == epoch for epoch in epochs)


@pytest.mark.parametrize("door", ["refused", "silent", "gone"])
def test_a_client_that_can_reach_only_the_router_is_served(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def begin(wire: Wire, endpoint: str) -> int:
            if door == "refused":
                return errno.ECONNREFUSED
            if door == "gone":
                raise OSError(errno.EHOSTUNREACH, "no route")
            wire.socket = socket.socket()
            wire.socket.setblocking(False)
            return wire.socket.connect_ex(silent.getsockname())

        monkeypatch.setattr(Wire, "_begin", begin)
        with Client(cluster.endpoint, timeout=10, direct=True) as client:
            queue = queue_on(client, 0)
            for number in range(50):
                client.enqueue(queue, str(number).encode())
            assert in_order(client, queue, 50) == list(range(50))
            assert ways(client) == []


def test_a_cluster_without_doors_serves_clients_that_would_use_them(tmp_path: Path) -> None:
    with running(tmp_path / "data", env={"FILA_SERVER__DIRECT": "false"}) as cluster:
        with Client(cluster.endpoint, timeout=10, direct=True) as client:
            client.create_queue("q")
            client.enqueue("q", b"0")
            assert in_order(client, "q", 1) == [0]
            assert client._session.routes.doors == {}
        assert list((tmp_path / "data").glob("door-*")) == []


def test_the_client_s_choice_is_followed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, argument, expected in (
        (None, None, True),
        ("0", None, False),
        ("1", None, True),
        ("0", True, True),
        ("1", False, False),
    ):
        if variable is None:
            monkeypatch.delenv("FILA_DIRECT", raising=False)
        else:
            monkeypatch.setenv("FILA_DIRECT", variable)
        with Client(cluster.endpoint, timeout=10, direct=argument) as client:
            if "q" not in {info.name for info in client.list_queues("q")}:
                client.create_queue("q")
            client.queue_stats("q")
            assert bool(ways(client)) is expected, (variable, argument)
