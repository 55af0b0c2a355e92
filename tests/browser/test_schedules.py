"""The page of schedules: what is shown of them; made, changed and deleted by clicks, with their due times before."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client

RARE = "0 3 29 2 *"
"""Due once in four years."""


@pytest.fixture
def schedule(client: Client, queue: str) -> Iterator[str]:
    """A name of this test's own; its schedule is gone afterwards."""
    yield queue
    client.delete_schedule(queue)


def row(page: Page, name: str) -> Locator:
    return page.get_by_test_id("schedules").locator("tbody tr").filter(has_text=name)


def test_schedules_are_listed_and_deleted(page: Page, dashboard: str, client: Client) -> None:
    client.put_schedule("browser-nightly", "no-such-queue", cron="0 3 * * *", timezone="Europe/Lisbon")
    client.put_schedule("browser-often", "no-such-queue", every=1.0)
    page.goto(f"{dashboard}/schedules")
    table = page.get_by_test_id("schedules")
    expect(table).to_contain_text("0 3 * * * Europe/Lisbon")
    expect(table).to_contain_text("QUEUE_NOT_FOUND")
    often = row(page, "browser-often")
    often.get_by_label("delete schedule").click()
    page.get_by_role("button", name="Delete it").click()
    expect(often).to_have_count(0)
    assert [each.name for each in client.list_schedules("browser-")] == ["browser-nightly"]
    client.delete_schedule("browser-nightly")


def test_a_schedule_is_made_with_its_due_times_shown_before(
    page: Page, dashboard: str, client: Client, queue: str, schedule: str
) -> None:
    page.goto(f"{dashboard}/schedules")
    page.get_by_test_id("create-schedule").click()
    page.get_by_test_id("schedule-name").fill(schedule)
    page.get_by_test_id("schedule-queue").fill(queue)
    page.get_by_test_id("schedule-submit").click()
    expect(page.get_by_test_id("schedule-trouble")).to_contain_text("say when the schedule is due")
    page.get_by_test_id("schedule-cron").fill("0 3 * *")
    expect(page.get_by_test_id("schedule-wrong")).to_contain_text("bad cron expression '0 3 * *'")
    page.get_by_test_id("schedule-cron").fill(RARE)
    page.get_by_test_id("schedule-timezone").fill("Asia/Nowhere")
    expect(page.get_by_test_id("schedule-wrong")).to_contain_text("unknown time zone 'Asia/Nowhere'")
    page.get_by_test_id("schedule-timezone").fill("Asia/Kolkata")
    expect(page.get_by_test_id("schedule-due")).to_contain_text("29 Feb 2028 03:00:00 IST")
    expect(page.get_by_test_id("schedule-due")).to_contain_text("Mon 21:30:00 UTC")
    page.get_by_test_id("schedule-jitter").fill("5s")
    page.get_by_test_id("schedule-catch-up").click()
    page.get_by_role("option", name="skip").click()
    page.get_by_test_id("schedule-payload").fill('{"all": true}')
    page.get_by_test_id("schedule-headers").fill("tenant=acme")
    page.get_by_test_id("schedule-priority").fill("-5")
    page.get_by_test_id("schedule-submit").click()
    expect(row(page, schedule)).to_contain_text("0 3 29 2 * Asia/Kolkata")
    made = client.get_schedule(schedule)
    assert made is not None
    assert (made.queue, made.catch_up, made.jitter, made.timezone) == (queue, "skip", 5.0, "Asia/Kolkata")
    assert made.message is not None
    assert (made.message.payload, made.message.headers, made.message.priority) == (b'{"all": true}', {"tenant": "acme"}, -5)

    page.get_by_test_id("create-schedule").click()
    page.get_by_test_id("schedule-name").fill(schedule)
    page.get_by_test_id("schedule-queue").fill(queue)
    page.get_by_test_id("schedule-cron").fill("* * * * *")
    page.get_by_test_id("schedule-submit").click()
    expect(page.get_by_test_id("schedule-trouble")).to_contain_text(f"there is a schedule {schedule}")


def test_a_change_keeps_what_has_no_field(page: Page, dashboard: str, client: Client, queue: str, schedule: str) -> None:
    client.put_schedule(schedule, queue, b"\xff\x00", {"a": "b"}, cron=RARE, weight=3, throttle_keys=["partner"], ttl=60.0)
    page.goto(f"{dashboard}/schedules")
    row(page, schedule).get_by_label("change schedule").click()
    expect(page.get_by_test_id("schedule-kept")).to_contain_text("weight 3, throttle_keys partner, ttl 60.0")
    page.get_by_text("Interval", exact=True).first.click()
    page.get_by_test_id("schedule-every").fill("500ms")
    expect(page.get_by_test_id("schedule-wrong")).to_contain_text("interval of 500 ms: use 1000 to")
    page.get_by_test_id("schedule-submit").click()
    expect(page.get_by_test_id("schedule-trouble")).to_contain_text("interval of 500 ms: use 1000 to")
    page.get_by_test_id("schedule-every").fill("2h")
    expect(page.get_by_test_id("schedule-due")).to_contain_text("UTC   in 120 m")
    page.get_by_test_id("schedule-key").fill("acme")
    page.get_by_test_id("schedule-submit").click()
    expect(row(page, schedule)).to_contain_text("every 2h")
    changed = client.get_schedule(schedule)
    assert changed is not None
    assert (changed.every, changed.cron) == (7200.0, None)
    message = changed.message
    assert message is not None
    assert (message.payload, message.headers, message.fairness_key) == (b"\xff\x00", {"a": "b"}, "acme")
    assert (message.weight, message.throttle_keys, message.ttl) == (3, ["partner"], 60.0)
