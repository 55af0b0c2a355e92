"""The page of schedules: what is shown of them, and one that is deleted."""

from playwright.sync_api import Page, expect

from fila_cluster import Client


def test_schedules_are_listed_and_deleted(page: Page, dashboard: str, client: Client) -> None:
    client.put_schedule("browser-nightly", "no-such-queue", cron="0 3 * * *", timezone="Europe/Lisbon")
    client.put_schedule("browser-often", "no-such-queue", every=1.0)
    page.goto(f"{dashboard}/schedules")
    table = page.get_by_test_id("schedules")
    expect(table).to_contain_text("0 3 * * * Europe/Lisbon")
    expect(table).to_contain_text("QUEUE_NOT_FOUND")
    row = page.get_by_role("row", name="browser-often")
    row.get_by_label("delete schedule").click()
    page.get_by_role("button", name="Delete it").click()
    expect(row).to_have_count(0)
    assert [each.name for each in client.list_schedules("browser-")] == ["browser-nightly"]
    client.delete_schedule("browser-nightly")
