"""While a worker does not answer, nothing that it has is shown as none."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from fila_proto_zmq.names import shard_of
from tests.browser.conftest import address_of
from tests.support.cluster.cluster import Cluster, running
from tests.support.cluster.faults import paused

QUEUES = [next(f"q{number}" for number in range(100) if shard_of(f"q{number}", 2) == shard) for shard in (0, 1)]


@pytest.fixture(scope="module")
def observed_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of its own, one worker of which is stopped."""
    with running(tmp_path_factory.mktemp("unknown"), "--dashboard", "127.0.0.1:0", workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def dashboard(observed_cluster: Cluster) -> str:
    return address_of(observed_cluster)


def test_what_a_silent_worker_has_is_unknown(page: Page, observed_cluster: Cluster, dashboard: str) -> None:
    with observed_cluster.client() as client:
        for queue in QUEUES:
            client.create_queue(queue)
            client.enqueue(queue, b"waits", fairness_key="acme")
            client.enqueue(queue, b"bad")
            for delivery in client.receive(queue, 1):
                delivery.fail("broken")
    with paused(observed_cluster, "supervisor", "worker-1"):  # it would start another worker
        page.goto(f"{dashboard}/")
        for tile in ("total-pending", "total-dead_letters"):
            expect(page.get_by_test_id(tile).locator("xpath=..")).to_contain_text("1 of 2 shards")
        page.goto(f"{dashboard}/dead-letters")
        expect(page.get_by_test_id("part")).to_contain_text("1 of 2 shards")
        expect(page.get_by_test_id("letter-queues")).to_contain_text(f"{QUEUES[0]}.dlq")
        page.goto(f"{dashboard}/queue?name={QUEUES[1]}")
        expect(page.get_by_test_id("keys")).to_contain_text("Unknown: ")
        expect(page.get_by_test_id("queue-pending")).to_have_text("?")
        for verb in ("pause", "purge", "redrive", "delete-queue"):
            expect(page.get_by_test_id(verb)).to_be_disabled()
        page.goto(f"{dashboard}/messages?queue={QUEUES[1]}")
        expect(page.get_by_test_id("messages")).to_contain_text("Unknown: ")
    page.goto(f"{dashboard}/queue?name={QUEUES[1]}")
    expect(page.get_by_test_id("keys")).to_contain_text("acme")
    expect(page.get_by_test_id("purge")).to_be_enabled()
