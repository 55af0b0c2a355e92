"""Limits: throttle keys with what they hold, changed and changed back by clicks; the broker has what the page says."""

from playwright.sync_api import Page, expect

from fila_cluster import Client


def test_a_rate_is_set_with_its_burst_and_holds(page: Page, dashboard: str, client: Client, queue: str) -> None:
    page.goto(f"{dashboard}/limits?key={queue}")
    page.get_by_test_id("throttle-rate").fill("often")
    page.get_by_test_id("throttle-burst").fill("2")
    page.get_by_test_id("set-throttle").click()
    expect(page.get_by_text("that is no finite number")).to_be_visible()
    page.get_by_test_id("throttle-rate").fill("0.01")
    page.get_by_test_id("set-throttle").click()
    row = page.get_by_test_id("throttles").locator("tbody tr").filter(has_text=queue)
    expect(row).to_contain_text("0.01")
    assert client.get_config(f"throttle.{queue}") == "0.01,2"

    for _ in range(3):
        client.enqueue(queue, b"x", throttle_keys=[queue])
    held = client.receive(queue, 3, wait=5)
    while len(held) < 2:
        held += client.receive(queue, 3, wait=5)
    assert len(held) == 2  # the burst
    expect(row.locator("td").nth(9)).to_have_text("2")
    client.ack(held)


def test_who_holds_the_places_and_who_waits_and_an_undo(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.set_throttle(queue, concurrency=2)
    ids = [client.enqueue(queue, b"x", throttle_keys=[queue], fairness_key="acme") for _ in range(5)]
    with client.consume(queue, prefetch=5) as consumer:
        held = [next(consumer), next(consumer)]
        page.goto(f"{dashboard}/limits?key={queue}&prefix={queue}")
        users = page.get_by_test_id("throttle-users")
        expect(users).to_contain_text(f"{queue}: 2 of 2 places in use, 3 messages waiting")
        for message_id in ids[:2]:
            expect(users.get_by_test_id("holders")).to_contain_text(message_id)
        expect(users.get_by_test_id("waiters")).to_contain_text("acme")

        places = page.get_by_test_id("throttle-concurrency")
        expect(places).to_have_value("2")
        places.fill("4")
        page.get_by_test_id("set-throttle").click()
        expect(users).to_contain_text("4 of 4 places in use, 1 message waiting")
        change = page.get_by_test_id("config-history").locator("tbody tr").filter(has_text=f"throttle:{queue}:concurrency")
        change.first.get_by_label("undo change").click()
        page.get_by_test_id("confirm").click()
        expect(users).to_contain_text("4 of 2 places in use, 1 message waiting")
        assert client.get_config(f"throttle:{queue}:concurrency") == "2"
        held += [next(consumer), next(consumer)]
        client.ack(held)
        client.ack([next(consumer)])
    row = page.get_by_test_id("throttles").locator("tbody tr").filter(has_text=queue)
    row.get_by_label("delete throttle").click()
    page.get_by_test_id("confirm").click()
    expect(row).to_have_count(0)
    assert client.list_throttles(queue) == []


def test_keys_under_a_pattern_are_found_by_how_they_begin(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.set_throttle(f"{queue}:*", concurrency=3)
    client.enqueue(queue, b"x", throttle_keys=[f"{queue}:acme"])
    page.goto(f"{dashboard}/limits")
    page.get_by_test_id("throttle-prefix").fill(f"{queue}:")
    rows = page.get_by_test_id("throttles").locator("tbody tr")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name=f"{queue}:acme").click()
    expect(page.get_by_test_id("throttle-users")).to_contain_text(f"{queue}:acme: 0 of 3 places in use")
    client.delete_throttle(f"{queue}:*")
