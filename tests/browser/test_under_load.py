"""Every page while messages flow: numbers keep up with the broker's, and nothing breaks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from playwright.sync_api import Page, expect

from fila_cluster import Client, Message
from tests.support.cluster.cluster import Cluster, eventually

KEYS = ("acme", "globex", "initech")


@contextmanager
def flowing(cluster: Cluster, queue: str) -> Iterator[None]:
    """Some hundred messages a second of three tenants, every tenth failed for good; it stops at the end."""
    stop = Event()

    def produce() -> None:
        with cluster.client() as client:
            while not stop.wait(0.05):
                client.enqueue_many(
                    queue, [Message(b'{"n": 1}', {"kind": "test"}, fairness_key=key) for key in KEYS for _ in range(4)]
                )

    def consume() -> None:
        with cluster.client() as client:
            while not stop.is_set():
                for number, delivery in enumerate(client.receive(queue, 10, wait=0.2)):
                    delivery.fail(f"HTTP 500 for {number}") if number == 9 else delivery.ack()

    threads = [Thread(target=produce), Thread(target=consume)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def flow(observed_cluster: Cluster, queue: str) -> Iterator[str]:
    with flowing(observed_cluster, queue):
        yield queue


def counted(page: Page, mark: str) -> int:
    """The counter below a tile's rate."""
    text = page.get_by_test_id(mark).locator("xpath=following-sibling::*[1]").inner_text()
    found = re.fullmatch(r"([\d,]+) in all", text)
    return int(found[1].replace(",", "")) if found else -1


def test_counters_of_a_queue_keep_up_with_queue_stats(page: Page, dashboard: str, client: Client, flow: str) -> None:
    page.goto(f"{dashboard}/queue?name={flow}")
    for _ in range(3):
        before = client.queue_stats(flow)
        eventually(lambda: counted(page, "queue-enqueued") >= before.enqueued, "the next refresh")  # noqa: B023
        shown = counted(page, "queue-enqueued"), counted(page, "queue-acked")
        after = client.queue_stats(flow)
        assert shown[0] <= after.enqueued
        assert shown[1] <= after.acked
    rate = page.get_by_test_id("queue-enqueued")
    eventually(lambda: float(rate.inner_text().replace("–", "0")) > 0, "a rate of enqueues")


def test_numbers_are_those_of_queue_stats_once_it_stops(
    page: Page, dashboard: str, client: Client, observed_cluster: Cluster, queue: str
) -> None:
    page.goto(f"{dashboard}/queue?name={queue}")
    with flowing(observed_cluster, queue):
        eventually(lambda: counted(page, "queue-acked") > 20, "messages flow")
    stats = client.queue_stats(queue)  # nobody is left who could change them
    eventually(lambda: counted(page, "queue-enqueued") == stats.enqueued, "what was enqueued")
    eventually(lambda: counted(page, "queue-acked") == stats.acked, "what was acked")
    expect(page.get_by_test_id("queue-pending")).to_have_text(f"{stats.pending:,}")
    expect(page.get_by_test_id("queue-in_flight")).to_have_text(f"{stats.in_flight:,}")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/queues",
        "/queue?name={}",
        "/messages?queue={}",
        "/dead-letters?queue={}",
        "/hooks?queue={}",
        "/limits",
        "/config",
        "/why?queue={}",
    ],
)
def test_every_page_serves_under_load(page: Page, dashboard: str, flow: str, path: str) -> None:
    """Errors in the page, and requests to anybody outside, fail it in any case."""
    page.goto(dashboard + path.format(flow))
    expect(page.get_by_test_id("state")).to_have_text("serving")
    expect(page.locator("main, .q-page").first).to_contain_text(re.compile(r"\w{4}"))
    expect(page.get_by_text("500: Internal", exact=False)).to_have_count(0)
