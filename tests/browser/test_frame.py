"""What all pages share: the way around, colours, and what they show while the broker is down."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import address_of, patient
from tests.support.cluster.cluster import Cluster, running

PAGES = [
    "Overview",
    "Queues",
    "Templates",
    "Messages",
    "Dead letters",
    "Schedules",
    "Hooks",
    "Config",
    "Connections",
    "Audit",
    "Why",
]


def test_every_page_is_reached_by_its_link(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/")
    for title in PAGES:
        page.locator(".q-drawer").get_by_role("link", name=title).click()
        expect(page).to_have_title(f"{title} · fila-cluster")
        expect(page.get_by_test_id("state")).to_have_text("serving")


@pytest.mark.parametrize("system", ["light", "dark"])
def test_colours_are_the_systems_until_the_user_chooses(browser: Browser, dashboard: str, system: str) -> None:
    context = patient(browser.new_context(color_scheme=system))  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{dashboard}/")
    expect(page.locator(f"body.body--{system}")).to_have_count(1)
    page.get_by_test_id("theme").click()
    expect(page.locator("body.body--light")).to_have_count(1)
    page.get_by_test_id("theme").click()
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.wait_for_function("document.cookie.includes('dark')")  # it is painted first, then remembered
    page.reload()
    expect(page.locator("body.body--dark")).to_have_count(1)
    context.close()


def router_of(cluster: Cluster) -> psutil.Process:
    return psutil.Process(cluster.router_pid())


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0", workers=2) as cluster:
        yield cluster


def test_a_broker_that_is_down_is_said_to_be_and_shows_no_numbers(page: Page, own_cluster: Cluster) -> None:
    page.goto(f"{address_of(own_cluster)}/")
    total = page.get_by_test_id("total-pending")
    expect(total).to_be_visible()
    router = router_of(own_cluster)
    router.send_signal(signal.SIGSTOP)  # it lives, and says nothing
    expect(page.get_by_test_id("down")).to_contain_text("The broker is down")
    expect(page.get_by_test_id("state")).to_have_text("down")
    expect(total).not_to_be_visible()
    router.send_signal(signal.SIGCONT)
    expect(total).to_be_visible()
    expect(page.get_by_test_id("down")).not_to_be_visible()


def test_a_worker_that_is_gone_needs_attention_until_it_is_back(page: Page, own_cluster: Cluster) -> None:
    page.goto(f"{address_of(own_cluster)}/")
    expect(page.get_by_test_id("state")).to_have_text("serving")
    worker = psutil.Process(own_cluster.worker_of(0).pid)
    worker.send_signal(signal.SIGSTOP)
    expect(page.get_by_test_id("state")).to_have_text("partly down")
    expect(page.get_by_test_id("concern-shard_down")).to_contain_text("shard 0")
    worker.send_signal(signal.SIGCONT)
    expect(page.get_by_test_id("state")).to_have_text("serving")
    expect(page.get_by_test_id("concern-shard_down")).to_have_count(0)
