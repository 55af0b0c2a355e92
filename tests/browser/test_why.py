"""Why something waits, as the page says it: the right reason, its numbers, what to do; and that it is gone when it is."""

import os
import re
import signal
from pathlib import Path

from playwright.sync_api import Page, expect

from fila_cluster import Client
from tests.browser.conftest import address_of
from tests.support.cluster.cluster import running

NASTY = "<img src=x onerror=alert(1)>"


def test_a_paused_queue_is_named_and_resumed_by_a_click(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")
    client.pause(queue)
    page.goto(f"{dashboard}/why?queue={queue}")
    first = page.get_by_test_id("reasons").locator("> *").first
    expect(first).to_contain_text("queue_paused")
    first.get_by_role("button", name="Resume the queue").click()
    expect(page.get_by_test_id("reason-queue_paused")).to_have_count(0)
    expect(page.get_by_test_id("reason-no_consumers")).to_be_visible()
    assert not client.queue_stats(queue).paused


def test_a_throttled_message_is_shown_with_the_numbers_of_its_bucket(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.set_config(f"throttle.{queue}", "0.001,1")
    for _ in range(2):
        client.enqueue(queue, b"x", throttle_keys=[queue])
    with client.consume(queue, prefetch=10) as deliveries:
        next(iter(deliveries)).ack()
        [waiting] = client.browse(queue, state="pending")
        page.goto(f"{dashboard}/why?queue={queue}&id={waiting.id}")
        reason = page.get_by_test_id("reason-throttled")
        expect(reason).to_contain_text(f"throttle key {queue}")
        expect(reason.get_by_test_id("numbers")).to_contain_text("burst 1")
        expect(reason.get_by_test_id("numbers")).to_contain_text("rate 0.0")
        expect(reason.get_by_test_id("until")).to_have_text(re.compile(r"in 1\d min \d\d s, \d\d:\d\d:\d\d UTC"))
        reason.get_by_role("link", name="Change the limits").click()
        expect(page.get_by_test_id("throttle-rate")).to_have_value("0.001")


def test_a_delayed_message_counts_down_and_is_followed_until_it_is_settled(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    message_id = client.enqueue(queue, b"x", delay=3600)
    page.goto(f"{dashboard}/why?queue={queue}&id={message_id}")
    expect(page.get_by_test_id("why-state")).to_have_text("delayed")
    until = page.get_by_test_id("reason-delayed").get_by_test_id("until")
    expect(until).to_have_text(re.compile(r"in 59 min \d\d s, .* UTC"))
    assert client.cancel(queue, message_id)
    expect(page.get_by_test_id("news")).to_contain_text("It is gone")
    expect(page.get_by_test_id("why-state")).to_be_hidden()


def test_a_delivery_and_its_end_are_shown(page: Page, dashboard: str, client: Client, queue: str) -> None:
    message_id = client.enqueue(queue, b"x", lease=600)
    page.goto(f"{dashboard}/why?queue={queue}&id={message_id}")
    expect(page.get_by_test_id("why-position")).to_have_text("0")
    [delivery] = client.receive(queue)
    expect(page.get_by_test_id("news")).to_contain_text("It was delivered: a consumer holds it")
    expect(page.get_by_test_id("reason-leased")).to_be_visible()
    delivery.ack()
    expect(page.get_by_test_id("news")).to_contain_text("its consumer settled it")


def test_hostile_names_are_text_and_what_is_not_there_is_one_clear_line(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.enqueue(queue, b"x", fairness_key=NASTY)
    client.pause(queue, fairness_key=NASTY)
    page.goto(f"{dashboard}/why?queue={queue}")
    page.get_by_test_id("why-key").fill(NASTY)
    page.get_by_test_id("ask").click()
    expect(page.get_by_test_id("reason-key_paused")).to_contain_text(NASTY)
    page.get_by_role("button", name=f"Resume {NASTY}").click()
    expect(page.get_by_test_id("reason-key_paused")).to_have_count(0)
    page.goto(f"{dashboard}/why?queue={NASTY}")
    expect(page.get_by_test_id("trouble")).to_contain_text(NASTY)
    page.goto(f"{dashboard}/why?queue={queue}&id=nonsense")
    expect(page.get_by_test_id("trouble")).to_contain_text("nonsense")


def test_while_its_shard_is_down_a_queue_says_so_and_comes_back(page: Page, tmp_path: Path) -> None:
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0") as cluster, cluster.client() as client:
        client.create_queue("orders")
        client.set_config("weight:gold", "5")
        client.enqueue("orders", b"x")
        page.goto(f"{address_of(cluster)}/why?queue=orders")
        expect(page.get_by_test_id("why-state")).to_have_text("pending")
        [worker] = client.cluster_status().workers
        paused = (cluster.supervisor.pid, worker.pid)  # or the supervisor restarts the worker within the client's patience
        for pid in paused:
            os.kill(pid, signal.SIGSTOP)
        try:
            config = page.context.new_page()
            config.goto(f"{address_of(cluster)}/config")
            expect(page.get_by_test_id("reason-shard_down")).to_contain_text("'worker-0'")
            expect(page.get_by_test_id("why-state")).to_have_text("unknown")
            expect(config.get_by_test_id("trouble")).to_contain_text("no live worker")
            expect(config.get_by_test_id("config")).to_be_hidden()
        finally:
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
        expect(page.get_by_test_id("why-state")).to_have_text("pending")
        config.reload()
        expect(config.get_by_test_id("config")).to_contain_text("weight:gold")
