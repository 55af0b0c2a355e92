"""The first page: totals, what needs attention, workers."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from fila_cluster import Client
from tests.browser.conftest import address_of
from tests.support.cluster.cluster import Cluster, eventually, running


@pytest.fixture(scope="module")
def observed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own: what other tests leave behind needs attention, too."""
    with running(tmp_path_factory.mktemp("overview"), "--dashboard", "127.0.0.1:0", workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def dashboard(observed_cluster: Cluster) -> str:
    return address_of(observed_cluster)


def test_an_unserved_queue_needs_attention_until_a_consumer_receives(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.enqueue(queue, b"waits")
    page.goto(f"{dashboard}/")
    concern = page.get_by_test_id("concern-no_consumers").filter(has_text=queue)
    expect(concern).to_contain_text("no client receives, 1 message waiting")
    expect(concern).to_contain_text("start a consumer")
    [delivery] = client.receive(queue)
    delivery.ack()
    expect(concern).to_have_count(0)


def test_it_shows_each_worker_with_its_load(page: Page, dashboard: str, client: Client) -> None:
    page.goto(f"{dashboard}/")
    workers = page.get_by_test_id("workers").locator("tbody tr")
    expect(workers).to_have_count(2)
    for worker in client.cluster_status().workers:
        row = workers.filter(has_text=worker.name)
        expect(row).to_contain_text(str(worker.pid))
        expect(row).to_contain_text("up")
        expect(row).to_contain_text(re.compile(r"\d+ %\d+ MiB[\d.]+ (µs|ms)"))


def test_totals_are_those_of_the_queues(page: Page, dashboard: str, client: Client, queue: str) -> None:
    for _ in range(25):
        client.enqueue(queue, b"x", delay=3600)
    page.goto(f"{dashboard}/")
    delayed = page.get_by_test_id("total-delayed")

    def agrees() -> bool:
        held = sum(info.delayed for info in client.list_queues() if not info.is_dead_letter)
        return held >= 25 and delayed.inner_text() == f"{held:,}"

    eventually(agrees, "the total of delayed messages")
