"""The runtime config: keys edited, added and deleted by clicks; the broker has what the page says."""

from playwright.sync_api import Page, expect

from fila_cluster import Client

NASTY = "<img src=x onerror=alert(1)>"


def test_a_value_is_edited_where_it_stands_and_what_the_broker_refuses_stays_open(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    key = f"throttle:{queue}:rate"
    client.set_config(key, "5")
    page.goto(f"{dashboard}/config?search={queue}")
    row = page.get_by_test_id("config").locator("tbody tr").filter(has_text=key)
    expect(row).to_contain_text(f"tokens a second for throttle key {queue}")
    row.get_by_test_id("value").click()
    page.get_by_test_id("edit-value").fill("lots")
    page.keyboard.press("Enter")
    expect(row).to_contain_text("that is no finite number")
    assert client.get_config(key) == "5"
    page.get_by_test_id("edit-value").fill("7.5")
    page.keyboard.press("Enter")
    expect(row.get_by_test_id("value")).to_have_text("7.5")
    assert client.get_config(key) == "7.5"


def test_a_key_is_added_and_deleted(page: Page, dashboard: str, client: Client, queue: str) -> None:
    key = f"{queue}:{NASTY}"
    page.goto(f"{dashboard}/config?search={queue}")
    page.get_by_test_id("new-key").fill(key)
    page.get_by_test_id("new-value").fill(NASTY)
    page.get_by_test_id("add").click()
    row = page.get_by_test_id("config").locator("tbody tr").filter(has_text=key)
    expect(row.get_by_test_id("value")).to_have_text(NASTY)
    assert client.get_config(key) == NASTY
    row.get_by_label("delete").click()
    page.get_by_test_id("confirm").click()
    expect(row).to_have_count(0)
    assert client.get_config(key) is None


def test_what_others_change_is_seen(page: Page, dashboard: str, client: Client, queue: str) -> None:
    page.goto(f"{dashboard}/config?search={queue}")
    expect(page.get_by_test_id("config")).to_contain_text("No keys, or none that match")
    client.set_config(f"weight:{queue}", "4")
    row = page.get_by_test_id("config").locator("tbody tr").filter(has_text=f"weight:{queue}")
    expect(row).to_contain_text("for hooks to read")
    client.delete_config(f"weight:{queue}")
    expect(row).to_have_count(0)
