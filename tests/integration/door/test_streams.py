"""Streams of the HTTP door: what is unsettled at a time, and what becomes of it when one of the sides goes."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from fila_cluster import Client, Message
from fila_cluster.ops.observer.http_api.receivers import LIMITS
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.guarded import guarded_cluster
from tests.support.cluster.http import address, answers, ask

_numbers = count()


class Reader:
    """A client that has opened a stream. It reads by the line, and only when it is asked to."""

    def __init__(self, url: str, queue: str, prefetch: int = 1, *, key: str = "", buffer_bytes: int = 0) -> None:
        place = urlsplit(url)
        self._socket = socket.socket()
        self._socket.settimeout(PATIENCE_S)
        if buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self._socket.connect((place.hostname, place.port))
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        request = f"GET /queues/{queue}/consume?prefetch={prefetch} HTTP/1.1\r\nHost: {place.netloc}\r\n{authorization}\r\n"
        self._socket.sendall(request.encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        while self._file.readline() not in {b"\r\n", b""}:
            pass

    def line(self) -> bytes | None:
        """The next line, which is a piece of the body of its own; None: the end, in good order."""
        size = int(self._file.readline(), 16)
        piece = self._file.read(size + 2)[:-2]
        while size and not piece.endswith(b"\n"):
            size = int(self._file.readline(), 16)
            piece += self._file.read(size + 2)[:-2]
        return piece[:-1] if size else None

    def next(self) -> dict[str, Any]:
        """The object of the next line that is not empty."""
        while (line := self.line()) == b"":
            pass
        assert line is not None, "the stream has ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def error(self) -> dict[str, Any]:
        """The answer to a stream that was refused."""
        found: dict[str, Any] = json.loads(self._file.readline())
        return found

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with an observer. Tests use queues of their own."""
    with running(tmp_path_factory.mktemp("shown") / "data", "--dashboard", "127.0.0.1:0") as cluster:
        eventually(lambda: answers(cluster), "an observer")
        yield cluster


@pytest.fixture
def url(shown: Cluster) -> str:
    return address(shown)


@pytest.fixture
def client(shown: Cluster) -> Iterator[Client]:
    with shown.client() as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"streams/{next(_numbers)}"
    client.create_queue(name)
    return name


def settle(url: str, queue: str, *deliveries: dict[str, Any], action: str = "ack", key: str = "", **how: Any) -> int:
    settlements = [{"token": each["token"], "action": action, **how} for each in deliveries]
    return ask(url, f"/queues/{queue}/settle", {"deliveries": settlements}, key=key).status


def in_flight(client: Client, queue: str) -> Callable[[], int]:
    return lambda: client.queue_stats(queue).in_flight


def test_no_more_than_the_credit_is_unsettled(url: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(str(number).encode()) for number in range(5)])
    with Reader(url, queue, prefetch=2) as stream:
        first, second = stream.next(), stream.next()
        assert [first["payload"], second["payload"]] == ["0", "1"]
        assert client.queue_stats(queue).in_flight == 2
        assert settle(url, queue, first) == 200
        third = stream.next()
        assert settle(url, queue, second, action="retry", after=3600) == 200
        assert settle(url, queue, third, action="extend", seconds=60) == 200
        fourth = stream.next()
        assert [third["payload"], fourth["payload"]] == ["2", "3"]
        assert client.queue_stats(queue).in_flight == 2
        received = ask(url, f"/queues/{queue}/receive", {}).body["deliveries"]
        assert [each["payload"] for each in received] == ["4"], "it is not the stream's"
        assert settle(url, queue, third, fourth, *received) == 200
        client.enqueue(queue, b"5")
        assert stream.next()["payload"] == "5"


def test_the_end_of_a_lease_frees_its_place(url: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x", lease=0.05)
    with Reader(url, queue) as stream:
        assert stream.next()["attempts"] == 0
        assert stream.next()["attempts"] == 1


def test_who_hangs_up_keeps_what_was_sent(url: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"sent")
    with Reader(url, queue, prefetch=10) as stream:
        sent = stream.next()
    eventually(lambda: metric(url, "fila_http_waiting") == 0, "the end of the stream")
    assert client.queue_stats(queue).in_flight == 1
    client.enqueue(queue, b"next")
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert (delivery.payload, delivery.attempts) == (b"next", 0)
    delivery.ack()
    assert settle(url, queue, sent) == 200
    assert client.queue_stats(queue).depth == 0


def test_what_a_slow_reader_was_not_sent_goes_back_and_memory_is_bounded(shown: Cluster, client: Client, queue: str) -> None:
    """Eight readers may have 400 MB at a time and read nothing. The system's buffers take some MB for each, the observer 1."""
    url = address(shown)
    (observer,) = (child for child in shown.children() if "fila_cluster.ops.observer" in child.cmdline())
    for _ in range(60):
        client.enqueue_many(queue, [Message(b"x" * 100_000, lease=3600) for _ in range(20)])
    before = observer.memory_info().rss
    readers = [Reader(url, queue, prefetch=500, buffer_bytes=4096) for _ in range(8)]
    try:
        looks = [0]

        def stuck() -> bool:
            looks.append(client.queue_stats(queue).in_flight)
            return len(set(looks[-10:])) == 1

        eventually(stuck, "readers are behind")
        client.create_queue(f"{queue}-other")
        client.enqueue(f"{queue}-other", b"x")
        with Reader(url, f"{queue}-other") as other:
            assert other.next()["payload"] == "x"
        assert observer.memory_info().rss < before + len(readers) * 5 * 2**20
    finally:
        for reader in readers:
            reader.close()
    eventually(lambda: metric(url, "fila_http_waiting") == 0, "the end of the streams")
    eventually(lambda: client.queue_stats(queue).in_flight <= looks[-1] - len(readers), "what was not sent is back")
    (delivery,) = client.receive(queue)
    assert delivery.attempts == 0
    delivery.ack()


def metric(url: str, name: str) -> float:
    page = ask(url, "/metrics", b"", method="GET").body
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name} ")), 0)


def test_an_empty_line_shows_that_the_other_side_is_there(url: str, queue: str) -> None:
    with Reader(url, queue) as stream:
        begun = time.monotonic()
        assert stream.line() == b""
        assert time.monotonic() - begun < 10


def test_queues_that_deliver_at_most_once_and_with_partitions(url: str, client: Client, queue: str) -> None:
    client.create_queue(f"{queue}-once", delivery="at_most_once")
    client.enqueue_many(f"{queue}-once", [Message(b"x") for _ in range(3)])
    with Reader(url, f"{queue}-once") as stream:
        assert [stream.next()["token"] for _ in range(3)] == [None] * 3
    client.create_queue(f"{queue}-parts", partitions=4)
    client.enqueue_many(f"{queue}-parts", [Message(b"%d" % n, fairness_key=f"k{n}") for n in range(12)])
    seen = set()
    with Reader(url, f"{queue}-parts", prefetch=3) as stream:
        while len(seen) < 12:
            delivery = stream.next()
            assert delivery["queue"] == f"{queue}-parts"
            seen.add(delivery["payload"])
            assert settle(url, f"{queue}-parts", delivery) == 200
    assert client.queue_stats(f"{queue}-parts").depth == 0


def test_what_is_wrong_is_refused(url: str, queue: str) -> None:
    for path, status, code in (
        (f"/queues/{queue}/consume?prefetch=0", 400, "INVALID_ARGUMENT"),
        (f"/queues/{queue}/consume?prefetch=501", 400, "INVALID_ARGUMENT"),
        (f"/queues/{queue}/consume?prefetch=some", 400, "INVALID_ARGUMENT"),
        (f"/queues/{queue}/consume?credit=1", 400, "INVALID_ARGUMENT"),
        ("/queues/no-such-queue/consume", 404, "QUEUE_NOT_FOUND"),
    ):
        answer = ask(url, path, b"", method="GET")
        assert (answer.status, answer.body["code"]) == (status, code), path
    assert ask(url, f"/queues/{queue}/consume", {}).status == 405
    streams = [Reader(url, queue) for _ in range(LIMITS.waiting_of_key)]
    try:
        answer = ask(url, f"/queues/{queue}/consume", b"", method="GET")
        assert (answer.status, answer.body["code"]) == (429, "OVERLOADED")
    finally:
        for stream in streams:
            stream.close()
        eventually(lambda: metric(url, "fila_http_waiting") == 0, "their end")


def test_an_error_ends_a_stream_with_a_line(url: str, client: Client, queue: str) -> None:
    with Reader(url, queue) as stream:
        client.delete_queue(queue, force=True)
        assert stream.next()["code"] == "QUEUE_NOT_FOUND"
        assert stream.line() is None


def test_a_stream_is_for_a_key_that_may_consume(tmp_path: Path) -> None:
    with guarded_cluster(tmp_path / "data") as guarded, guarded.client() as admin:
        url = address(guarded.cluster)
        eventually(lambda: answers(guarded.cluster), "an observer")
        producer, consumer = guarded.key("in", "produce:orders"), guarded.key("out", "consume:orders")
        for key, status, code in ((producer, 403, "PERMISSION_DENIED"), ("", 401, "UNAUTHENTICATED")):
            with Reader(url, "orders", key=key) as refused:
                assert (refused.status, refused.error()["code"]) == (status, code)
        admin.enqueue("orders", b"x")
        with Reader(url, "orders", key=consumer) as full, Reader(url, "secret", key=guarded.api_key) as others:
            assert full.next()["payload"] == "x"
            guarded.revoke("out")
            assert json.loads(full.line() or b"")["code"] == "UNAUTHENTICATED", "before the next empty line"
            assert full.line() is None
            admin.enqueue("secret", b"x")
            got = others.next()
            assert got["payload"] == "x"
            assert settle(url, "secret", got, key=guarded.api_key) == 200
        other = guarded.key("other", "consume:secret")
        with Reader(url, "secret", key=other) as waiting:
            guarded.revoke("other")
            assert waiting.next()["code"] == "UNAUTHENTICATED"
        admin.enqueue("secret", b"y")
        (delivery,) = admin.receive("secret", wait=PATIENCE_S)
        assert delivery.payload == b"y"
        delivery.ack()


@contextmanager
def restartable(folder: Path) -> Iterator[tuple[Cluster, Client]]:
    with running(folder / "data", "--dashboard", "127.0.0.1:0", workers=2) as cluster, cluster.client() as client:
        client.create_queue("orders")
        eventually(lambda: answers(cluster), "an observer")
        yield cluster, client


@pytest.mark.whole
def test_an_observer_that_stops_ends_its_streams_in_good_order(tmp_path: Path) -> None:
    with restartable(tmp_path) as (cluster, client), Reader(address(cluster), "orders", prefetch=5) as stream:
        client.enqueue("orders", b"x")
        got = stream.next()
        (observer,) = (child for child in cluster.children() if "fila_cluster.ops.observer" in child.cmdline())
        observer.terminate()
        lines = iter(stream.line, None)
        assert set(lines) <= {b""}
        (again,) = client.receive("orders", wait=PATIENCE_S)
        assert (again.id, again.attempts) == (got["id"], 0)
        again.ack()
        assert cluster.events("library.failed") == []


@pytest.mark.whole
def test_a_stream_outlives_the_broker_or_says_why_it_ends(tmp_path: Path) -> None:
    with restartable(tmp_path) as (cluster, client):
        url = address(cluster)
        stream = Reader(url, "orders", prefetch=5)
        client.enqueue("orders", b"before")
        held = stream.next()
        for child in cluster.children():
            if "fila_cluster.ops.observer" not in child.cmdline():
                child.kill()
        eventually(cluster.all_up, "all workers")
        client.enqueue("orders", b"after")
        got = stream.next()
        if "code" in got:
            assert got["retryable"]
            assert stream.line() is None
            stream.close()
            stream = Reader(url, "orders", prefetch=5)
            got = stream.next()
        assert got["payload"] == "after"
        assert settle(url, "orders", held, got) == 200
        assert client.queue_stats("orders").depth == 0
        stream.close()
