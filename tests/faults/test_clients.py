"""Clients that misbehave: killed, paused, forked, deaf, or a thousand of them that come and go. Nobody else notices."""

import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import zmq

from fila_cluster import Client, Message
from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import Browse, Hello, Receive, Subscribe
from fila_proto_zmq.errors import LeaseExpiredError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.faults import check_disk, running_parts

pytestmark = pytest.mark.whole

QUEUE = "shared"
TIMEOUT_S = 1.5
CLIENTS, THREADS = 1000, 20
DEAF = 100

HOLDER = """
import sys, time
from fila_cluster import Client

client = Client(sys.argv[1], timeout=20)
with client.consume(sys.argv[2], prefetch=5) as deliveries:
    for delivery in deliveries:
        print(delivery.payload.decode(), flush=True)
        sys.stdin.readline()
        try:
            delivery.ack()
            print("acked", flush=True)
        except Exception as error:
            print(type(error).__name__, flush=True)
"""


def impatient(tmp_path: Path) -> tuple[str, Path]:
    """The flags of a cluster that soon takes a silent consumer for lost."""
    (tmp_path / "fila.toml").write_text(f"[scheduler]\nconsumer_timeout_ms = {round(1000 * TIMEOUT_S)}\n")
    return "--config", tmp_path / "fila.toml"


def holder(cluster: Cluster) -> "subprocess.Popen[str]":
    """A consumer in a process of its own that waits for a line before it acks."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, cluster.endpoint, QUEUE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def drained(client: Client) -> list[bytes]:
    """All of the queue, acked."""
    got = []
    while client.queue_stats(QUEUE).depth:
        for delivery in client.receive(QUEUE, 100, wait=0.2):
            delivery.ack()
            got.append(delivery.payload)
    return got


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_what_a_lost_consumer_held_comes_again_and_its_late_ack_is_refused(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path / "data", *impatient(tmp_path)) as cluster, cluster.client() as client:
        client.create_queue(QUEUE)
        client.enqueue_many(QUEUE, [Message(b"%d" % index) for index in range(8)])
        with holder(cluster) as process:
            assert process.stdout
            assert process.stdin
            assert process.stdout.readline() == "0\n"
            process.send_signal(number)
            assert sorted(drained(client)) == [b"%d" % index for index in range(8)]
            process.send_signal(signal.SIGCONT)
            if number == signal.SIGSTOP:
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "LeaseExpiredError\n"
            process.kill()
        assert client.queue_stats(QUEUE).depth == 0
        assert cluster.stop() == 0
    assert check_disk(cluster.data_dir)[QUEUE] == 0


def test_a_thousand_clients_come_and_go(tmp_path: Path) -> None:
    """Each sends a message, takes one, and leaves: well, without a word, or with the message in hand."""
    taken: list[bytes] = []
    with running(tmp_path / "data", *impatient(tmp_path), workers=2) as cluster, cluster.client() as client:
        client.create_queue(QUEUE, visibility_timeout=2.0)
        router = running_parts(cluster, "router")[0]
        descriptors = router.num_fds()

        def come_and_go(first: int) -> None:
            for number in range(first, CLIENTS, THREADS):
                visitor = Client(cluster.endpoint, timeout=PATIENCE_S)
                visitor.enqueue(QUEUE, b"%d" % number)
                for delivery in visitor.receive(QUEUE):
                    if number % 3:
                        with suppress(LeaseExpiredError):  # this process was stopped for long: the message comes again
                            delivery.ack()
                            taken.append(delivery.payload)
                visitor.close()

        threads = [threading.Thread(target=come_and_go, args=(first,)) for first in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken += drained(client)
        assert sorted(taken) == sorted(b"%d" % number for number in range(CLIENTS))
        eventually(lambda: router.num_fds() <= descriptors + THREADS, "the router has closed their connections")
        assert cluster.stop() == 0
    assert check_disk(cluster.data_dir)[QUEUE] == 0


def acked(client: Client, queue: str) -> str:
    """Receive and ack a message; return its id. A process that was stopped for long has lost its lease, and receives it again."""
    while True:
        (delivery,) = client.receive(queue, wait=PATIENCE_S)
        with suppress(LeaseExpiredError):
            delivery.ack()
            return delivery.id


def test_clients_that_never_read_take_nothing_from_others(tmp_path: Path) -> None:
    context = zmq.Context()
    try:
        beside_deaf_clients(tmp_path, context)
    finally:
        context.destroy(linger=0)  # else a failure would wait for the sockets for ever


def beside_deaf_clients(tmp_path: Path, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    with running(tmp_path / "data", *impatient(tmp_path)) as cluster, cluster.client() as client:
        client.create_queue(QUEUE)
        client.create_queue("other")
        client.enqueue_many(QUEUE, [Message(bytes(1000)) for _ in range(2000)])
        worker = cluster.worker_of(0).pid
        deaf = [deaf_client(context, cluster.endpoint) for _ in range(DEAF)]
        for round_ in range(20):
            message_id = client.enqueue("other", b"%d" % round_)
            assert acked(client, "other") == message_id
        for socket in deaf:
            socket.close(linger=0)
        assert len(drained(client)) == 2000, "what they were sent comes again when they are gone"
        assert cluster.worker_of(0).pid == worker
        assert running_parts(cluster, "router")[0].memory_info().rss < 300 << 20


def deaf_client(context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str) -> "zmq.Socket[bytes]":
    """It subscribes, asks a lot, and reads nothing."""
    socket = context.socket(zmq.DEALER)
    for option, value in ((zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.LINGER, 0)):
        socket.setsockopt(option, value)
    socket.connect(endpoint)
    socket.send_multipart(encode_command(Hello([1], "deaf"), 1))
    socket.send_multipart(encode_command(Subscribe(1, 50), 2, QUEUE))
    for request in range(3, 8):
        socket.send_multipart(encode_command(Browse(1000), request, QUEUE))
        socket.send_multipart(encode_command(Receive(10), 100 + request, QUEUE))
    return socket


# --- fork -------------------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore")
from fila_cluster import Client
from fila_cluster.errors import FilaError

state, endpoint, queue = sys.argv[1:]
client = Client(endpoint, timeout=2)
kept = []
if state != "new":
    client.enqueue(queue, b"by the parent")
if state in ("holds", "consumes"):
    kept.append(client.receive(queue, wait=10))
if state == "consumes":
    consumer = client.consume(queue)
    client.enqueue(queue, b"for the consumer")
    kept.append(next(consumer))
if state == "produces":
    busy = threading.Thread(target=lambda: [client.enqueue(queue, b"more") for _ in range(50)])
    busy.start()
pid = os.fork()
if not pid:
    began = time.monotonic()
    try:
        client.enqueue(queue, b"by the child")
        os._exit(1)
    except FilaError as error:
        os._exit(0 if time.monotonic() - began < 1 and "fork" in str(error) else 2)
if state == "produces":
    busy.join()
give_up_at = time.monotonic() + 20
while not (done := os.waitpid(pid, os.WNOHANG))[0]:
    if time.monotonic() > give_up_at:
        os.kill(pid, 9)
    time.sleep(0.01)
assert os.waitstatus_to_exitcode(done[1]) == 0, ("the child", os.waitstatus_to_exitcode(done[1]))
client.enqueue(queue, b"by the parent, afterwards")
client.close()
print("sound")
"""


FORKED_LOOP = """
import asyncio, os, sys, time, warnings
warnings.simplefilter("ignore")
from fila_cluster import AsyncClient
from fila_cluster.errors import FilaError

state, endpoint, queue = sys.argv[1:]

async def ask(client):
    await client.enqueue(queue, b"by the child")

async def main():
    client = AsyncClient(endpoint, timeout=2)
    kept = []
    if state != "new":
        await client.enqueue(queue, b"by the parent")
    if state in ("holds", "consumes"):
        kept.append(await client.receive(queue, wait=10))
    if state == "consumes":
        consumer = client.consume(queue)
        await client.enqueue(queue, b"for the consumer")
        kept.append(await anext(consumer))
    if state == "produces":
        kept += [asyncio.create_task(client.enqueue(queue, b"more")) for _ in range(50)]
        await asyncio.sleep(0)
    pid = os.fork()
    if not pid:
        began = time.monotonic()
        try:
            asyncio.run(ask(client))
            os._exit(1)
        except FilaError as error:
            os._exit(0 if time.monotonic() - began < 1 and "fork" in str(error) else 2)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(3)
    give_up_at = time.monotonic() + 20
    while not (done := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > give_up_at:
            os.kill(pid, 9)
        await asyncio.sleep(0.01)
    assert os.waitstatus_to_exitcode(done[1]) == 0, ("the child", os.waitstatus_to_exitcode(done[1]))
    await client.enqueue(queue, b"by the parent, afterwards")
    if state == "produces":
        await asyncio.gather(*kept)
    await client.close()
    print("sound")

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["new", "idle", "holds", "consumes", "produces"])
@pytest.mark.parametrize("script", [FORKED, FORKED_LOOP], ids=["blocking", "asyncio"])
def test_a_client_made_before_a_fork_refuses_at_once_in_the_child(shared_cluster: Cluster, state: str, script: str) -> None:
    queue = f"forked-{state}-{len(script)}"
    with shared_cluster.client() as client:
        client.create_queue(queue)
    command = [sys.executable, "-c", script, state, shared_cluster.endpoint, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout == "sound\n", done.stderr


# --- two brokers ------------------------------------------------------------------------------------------------------


def test_of_three_brokers_on_one_directory_one_serves(tmp_path: Path) -> None:
    started: list[Cluster] = []

    def start() -> None:
        with suppress(AssertionError):  # no line that says it is ready
            started.append(Cluster(tmp_path / "data"))

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len(started) == 1
        with started[0].client() as client:
            client.create_queue(QUEUE)
            client.enqueue(QUEUE, b"sound")
            (delivery,) = client.receive(QUEUE, wait=PATIENCE_S)
            delivery.ack()
        assert started[0].stop() == 0
    finally:
        for cluster in started:
            cluster.close()
    assert check_disk(tmp_path / "data")[QUEUE] == 0
