"""The durable broker in an application's process."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.embedded import Broker
from fila_cluster.errors import FilaError, InvalidArgumentError, ShardUnavailableError, StorageError
from fila_cluster.run.supervisor.data_dir import DataDir
from tests.support.cluster.cluster import PATIENCE_S


def test_what_is_confirmed_is_there_again(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        client.create_queue("q", max_attempts=3)
        client.set_config("key", "value")
        client.enqueue_many("q", [Message(b"%d" % number) for number in range(100)])
        client.ack(client.receive("q", 40))
        client.receive("q")[0].nack("once")
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        assert client.get_config("key") == "value"
        deliveries = client.receive("q", 100)
        assert [int(each.payload) for each in deliveries] == list(range(40, 100))
        assert [each.attempts for each in deliveries[:2]] == [1, 0]
        client.ack(deliveries)


def test_both_kinds_of_clients(tmp_path: Path) -> None:
    async def consume(broker: Broker) -> list[bytes]:
        taken = []
        async with broker.async_client() as client, client.consume("q") as consumer:
            async for delivery in consumer:
                taken.append(delivery.payload)
                await delivery.ack()
                if len(taken) == 50:
                    return taken
        raise AssertionError

    with Broker(tmp_path) as broker:
        with broker.client() as client, Client(broker.endpoint) as other:
            client.create_queue("q")
            with other.producer("q") as producer:
                for number in range(50):
                    producer.send(b"%d" % number)
            assert asyncio.run(consume(broker)) == [b"%d" % number for number in range(50)]


def test_time_is_the_real_one(tmp_path: Path) -> None:
    with Broker(tmp_path, visibility_timeout=0.3) as broker, broker.client() as client:
        client.create_queue("q")
        began = time.monotonic()
        client.enqueue("q", b"x", delay=0.05)
        (held,) = client.receive("q", wait=PATIENCE_S)
        assert time.monotonic() - began >= 0.05
        (again,) = client.receive("q", wait=PATIENCE_S)
        assert (again.error, again.id) == ("lease expired", held.id)
        again.ack()


def test_fsync_confirms_too(tmp_path: Path) -> None:
    with Broker(tmp_path, durability="fsync") as broker, broker.client() as client:
        client.create_queue("q")
        assert len(client.enqueue_many("q", [Message(b"x")] * 1000)) == 1000


def test_a_consumer_waits_in_a_thread(tmp_path: Path) -> None:
    got: list[bytes] = []

    def consume() -> None:
        with broker.client() as client, client.consume("q") as consumer:
            for delivery in consumer:
                got.append(delivery.payload)
                delivery.ack()
                return

    with Broker(tmp_path) as broker, broker.client() as client:
        client.create_queue("q")
        thread = threading.Thread(target=consume)
        thread.start()
        client.enqueue("q", b"x")
        thread.join(PATIENCE_S)
    assert got == [b"x"]


def test_the_directory_is_for_one_broker(tmp_path: Path) -> None:
    with Broker(tmp_path):
        with pytest.raises(StorageError, match="is open in this process as memory://embedded"):
            Broker(tmp_path)
    data_dir = DataDir(tmp_path)  # as `fila-cluster up` in another process
    os.pwrite(data_dir.lock, f"{os.getppid()}\n".encode(), 0)
    try:
        with pytest.raises(StorageError, match="is in use by another process: stop it, or choose another directory"):
            Broker(tmp_path)
    finally:
        data_dir.release()


def test_a_directory_is_the_same_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with Broker(tmp_path / "data"), pytest.raises(StorageError, match="is open in this process"):
        Broker(tmp_path / "link")


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fila.json").write_text("{")
    with pytest.raises(StorageError, match=r"fila\.json is damaged"):
        Broker(tmp_path)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(StorageError, match="cannot use data directory"):
        Broker(file / "data")


def test_a_lost_database_is_no_new_one(tmp_path: Path) -> None:
    with Broker(tmp_path):
        pass
    os.rename(tmp_path / "shard-0000", tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is empty or missing, but it held a shard"):
        Broker(tmp_path)
    os.rename(tmp_path / "elsewhere", tmp_path / "shard-0000")
    with Broker(tmp_path):
        pass


def test_a_database_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    with Broker(tmp_path):
        pass
    current = tmp_path / "shard-0000" / "CURRENT"
    current.rename(tmp_path / "current")
    current.mkdir()
    with pytest.raises(StorageError, match=r"shard 0 of .* cannot be opened: .*CURRENT"):
        Broker(tmp_path)
    current.rmdir()
    (tmp_path / "current").rename(current)
    with Broker(tmp_path):
        pass


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "never"},
        {"visibility_timeout": 0},
        {"visibility_timeout": float("inf")},
        {"visibility_timeout": "1"},
        {"visibility_timeout": 13 * 3600},
        {"min_free_disk_bytes": -1},
        {"min_free_disk_bytes": "1"},
    ],
)
def test_options_are_checked_before_anything_is_made(tmp_path: Path, options: dict) -> None:
    with pytest.raises(InvalidArgumentError):
        Broker(tmp_path / "data", **options)
    assert not (tmp_path / "data").exists()


def test_a_closed_broker_says_so(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    given, own = broker.client(), Client(broker.endpoint)
    broker.close()
    broker.close()
    assert given.closed
    with pytest.raises(ShardUnavailableError, match="no broker memory://"):
        own.list_queues()
    own.close()
    for act in (broker.client, broker.async_client, broker.__enter__):
        with pytest.raises(FilaError, match="is closed: open another one"):
            act()


def test_a_broker_that_is_forgotten_warns(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    with pytest.warns(ResourceWarning, match="was never closed"):
        broker.__del__()
    broker.close()


def test_a_name_is_for_one_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "one", name="mine") as one:
        with pytest.raises(InvalidArgumentError, match="memory://mine"):
            Broker(tmp_path / "two", name="mine")
        with Broker(tmp_path / "two"):  # and it is unlocked
            assert one.endpoint == "memory://mine"


FORGETFUL = """
import sys
from fila_cluster.embedded import Broker

broker = Broker(sys.argv[1])
client = broker.client()
client.create_queue("q")
client.enqueue("q", b"x")
(held,) = client.receive("q")
"""


def test_a_program_that_ends_closes_its_broker(tmp_path: Path) -> None:
    """What it held is given back, and counts no attempt."""
    subprocess.run([sys.executable, "-P", "-c", FORGETFUL, str(tmp_path)], timeout=60, check=True)
    with Broker(tmp_path) as broker, broker.client() as client:
        (again,) = client.receive("q")
        assert again.attempts == 0
        again.ack()


KILLED = """
import sys
from fila_cluster.embedded import Broker

broker = Broker(sys.argv[1])
client = broker.client()
if not client.list_queues():
    client.create_queue("q")
for number in range(int(sys.argv[2]), 1_000_000):
    client.enqueue("q", b"%d" % number)
    print(number, flush=True)
"""


def test_kill_9_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    data, confirmed = tmp_path / "data", -1
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", KILLED, str(data), str(confirmed + 1)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            confirmed = int(line)
            if confirmed % 50 == 49:
                break
        process.send_signal(signal.SIGKILL)
        left, _ = process.communicate()
        confirmed = int(left.split("\n")[-2]) if left.count("\n") else confirmed
    with Broker(data) as broker, broker.client() as client:
        numbers: list[int] = []
        while deliveries := client.receive("q", 1000):
            numbers += [int(each.payload) for each in deliveries]
            client.ack(deliveries)
    assert set(range(confirmed + 1)) <= set(numbers)
    assert len(numbers) <= confirmed + 1 + 2, "at most the enqueue under way at each kill comes twice"


def test_the_child_of_a_fork_leaves_the_broker_to_its_parent(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, broker.client() as client:
        client.create_queue("q")
        child = os.fork()
        if child == 0:
            told = 1
            try:
                broker.client()
            except FilaError as error:
                told = 0 if "before the fork" in str(error) else 2
            finally:
                broker.close()
                os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.enqueue("q", b"x")
        client.receive("q")[0].ack()


FORKED = """
import os, sys
from fila_cluster.embedded import Broker
from fila_cluster.errors import StorageError

broker = Broker(sys.argv[1])
client = broker.client()
client.create_queue("q")
client.enqueue("q", b"x")
if sys.argv[2] == "closed":
    broker.close()
child = os.fork()
if child == 0:
    try:
        Broker(sys.argv[1] + "-of-the-child")
    except StorageError as error:
        print(error)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
broker.close()
"""


@pytest.mark.parametrize("state", ["open", "closed"])
def test_the_child_of_a_fork_opens_none_and_ends_in_order(tmp_path: Path, state: str) -> None:
    """RocksDB's threads are missing there: a database would not close, and the end of the process would be a crash."""
    command = [sys.executable, "-P", "-c", FORKED, str(tmp_path / "data"), state]
    done = subprocess.run(command, timeout=60, check=True, capture_output=True, text=True)
    refusal, code = done.stdout.splitlines()
    assert "forked from one that had opened a broker" in refusal
    assert int(code) == 7
    with Broker(tmp_path / "data") as broker, broker.client() as client:
        client.receive("q")[0].ack()
