"""The page of hosts, of a broker that says what a test wants: who leads, who follows, and what is at risk now."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import pytest
from playwright.sync_api import Page, expect

from fila_cluster.ops.observer.settings import ObserverSettings
from fila_proto_zmq.commands import Histogram, HostCopy, LogReplicas, Metrics
from tests.support.accessibility import grave_findings
from tests.support.cluster.cluster import eventually
from tests.unit.analysis.looks import follows, hosts, leads, look, shard, worker
from tests.unit.client.peer import answering, broker, free_port

TOOK: Final = Histogram([1_000_000, 10_000_000, 100_000_000], [900, 90, 10, 0], 0)
STUCK: Final = "the log has confirmed nothing for 7.2 s: no quorum of its brokers, or they can't be reached"


def led(index: int, **more: object) -> HostCopy:
    figures = {
        "position": 18_000 + 61 * index,
        "unconfirmed_bytes": 2048 * index,
        "confirm_ns": TOOK,
        "log": LogReplicas(3, 3, 2),
    }
    return leads(index, **figures | more)


def well() -> Metrics:
    """Two hosts with four shards, and a third one that has just come."""
    return hosts(
        4,
        a=[led(0), led(1), follows(2), follows(3, 12)],
        b=[follows(0), follows(1, 3), led(2), led(3)],
        c=[follows(0, 9_120), follows(1, 8_400), follows(2, 7_777), HostCopy(3, "begins")],
    )


class Fake:
    """A broker whose metrics a test chooses, with a dashboard beside it."""

    def __init__(self, dashboard: str) -> None:
        self.dashboard = dashboard
        self.told = well()


@pytest.fixture(autouse=True)
def _log() -> None:
    """There is no cluster whose log could be shown."""


@contextmanager
def faked() -> Iterator[Fake]:
    """The dashboard runs as a process, as ever."""
    port = free_port()
    fake = Fake(f"http://127.0.0.1:{port}")
    with broker(answering(GetMetrics=lambda _: fake.told)) as peer:
        settings = ObserverSettings(
            endpoint=peer.endpoint,
            host="127.0.0.1",
            port=port,
            otlp_endpoint=None,
            service_name="fila",
            metrics_interval_ms=1000,
        )
        reading, writing = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fila_cluster.ops.observer"], stdin=reading, stdout=subprocess.DEVNULL
        )
        os.write(writing, msgspec.json.encode(settings) + b"\n")
        try:
            eventually(lambda: answers(fake.dashboard), "the dashboard answers")
            yield fake
        finally:
            os.close(writing)
            os.close(reading)
            process.wait(30)


def answers(dashboard: str) -> bool:
    try:
        return bool(text_at(f"{dashboard}/healthz"))
    except URLError:
        return False


def text_at(address: str) -> str:
    with urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.fixture(scope="module")
def fake_of_all() -> Iterator[Fake]:
    with faked() as fake:
        yield fake


@pytest.fixture
def fake(fake_of_all: Fake) -> Fake:
    fake_of_all.told = well()
    return fake_of_all


def test_hosts_have_cards_and_shards_have_rows(page: Page, fake: Fake) -> None:
    page.goto(f"{fake.dashboard}/")
    page.locator(".q-drawer").get_by_role("link", name="Hosts").click()
    expect(page).to_have_title("Hosts · fila-cluster")
    card = page.get_by_test_id("host-a")
    expect(card).to_contain_text("a.example")
    expect(card).to_contain_text(re.compile(r"leads\s*2\s*follows\s*2\s*behind\s*12"))
    expect(card).to_contain_text("leads shards 0–1")
    expect(page.get_by_test_id("host-c")).to_contain_text(re.compile(r"leads\s*0\s*follows\s*4\s*behind\s*9,120"))
    rows = page.get_by_test_id("copies").locator("tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0)).to_contain_text("b (0), c (9,120)")
    expect(rows.nth(0)).to_contain_text("1 of 2")
    expect(rows.nth(0)).to_contain_text(re.compile(r"18,000.*0 B.*ms.*0.3 s ago"))
    expect(rows.nth(3)).to_contain_text("a (12), c (begins)")
    expect(page.get_by_test_id("concern-copy_behind")).to_contain_text(
        "c catches up with shards 0–2, up to 9,120 records behind"
    )
    expect(page.get_by_test_id("concern-no_standby")).to_have_count(0)
    expect(rows.nth(0)).to_contain_text("3 of 3")
    assert grave_findings(page) == []


def test_what_is_at_risk_changes_with_the_cluster(page: Page, fake: Fake) -> None:
    page.goto(f"{fake.dashboard}/hosts")
    expect(page.get_by_test_id("host-c")).to_be_visible()
    fake.told = hosts(
        4,
        down=("b",),
        a=[led(0), led(1, problem=STUCK, proof_age_ms=7200), follows(2), follows(3, 900)],
    )
    expect(page.get_by_test_id("concern-no_quorum")).to_contain_text(f"shard 1 waits for the log: {STUCK}")
    expect(page.get_by_test_id("concern-no_leader")).to_contain_text("a standby takes over in at most 10 s")
    expect(page.get_by_test_id("concern-catching_up")).to_contain_text("900 records behind")
    expect(page.get_by_test_id("concern-no_standby")).to_contain_text("one more loss makes shard 0 wait")
    expect(page.get_by_test_id("concern-host_silent")).to_contain_text("b/worker-0 does not answer")
    expect(page.get_by_test_id("host-b")).to_have_count(0)
    expect(page.get_by_test_id("host-a")).to_contain_text(STUCK)
    states = page.get_by_test_id("copies").locator("tbody tr .q-badge")
    expect(states).to_have_text(["leads", "no quorum", "no leader", "catching up"])
    expect(page.get_by_test_id("state")).to_have_text("partly down")
    fake.told = hosts(1, a=[led(0, log=LogReplicas(2, 3, 2))], b=[follows(0)])
    expect(page.get_by_test_id("concern-log_under_replicated")).to_contain_text(
        "2 of 3 brokers of the log are in sync for shard 0"
    )
    fake.told = hosts(1, a=[led(0)], b=[follows(0)])
    expect(page.get_by_test_id("attention")).to_contain_text("Each shard has a leader, and a standby that has caught up.")
    expect(page.get_by_test_id("state")).to_have_text("serving")


def test_a_cluster_of_one_host_is_told_what_several_are_good_for(page: Page, fake: Fake) -> None:
    fake.told = look(worker("worker-0", shard(0)))
    eventually(lambda: "fila_copy" not in text_at(f"{fake.dashboard}/metrics"), "the dashboard knows")
    page.goto(f"{fake.dashboard}/hosts")
    expect(page.get_by_test_id("one-host")).to_contain_text("docs/hosts.md says how to get there")
    expect(page.get_by_test_id("copies")).not_to_be_visible()
    expect(page.locator(".q-drawer").get_by_role("link", name="Queues")).to_be_visible()
    expect(page.locator(".q-drawer").get_by_role("link", name="Hosts")).to_have_count(0)
