"""Hooks: seen, edited, tried, applied, refused, undone; by clicks, with the broker as the judge."""

import re

from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client, Message
from tests.support.cluster.cluster import eventually

BY_TENANT = "function on_enqueue(msg)\n  return { fairness_key = msg.headers.tenant, weight = 3 }\nend"
BROKEN = "function on_enqueue(msg)\n  return {\n    weight = = 3\n  }\nend"
NASTY = "<img src=x onerror=alert(1)>"


def editor(page: Page, hook: str = "on_enqueue") -> Locator:
    return page.get_by_test_id(f"editor-{hook}").locator(".cm-content")


def write(page: Page, script: str, hook: str = "on_enqueue") -> None:
    """Replace a script as a person does; the mark says that the page has taken it in."""
    editor(page, hook).click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(script)
    expect(page.get_by_test_id(f"changed-{hook}")).to_be_visible()


def apply(page: Page) -> None:
    page.get_by_test_id("apply").click()
    page.get_by_test_id("confirm").click()


def key_of_next(client: Client, queue: str, **headers: str) -> str:
    client.enqueue(queue, b"x", headers)
    [delivery] = client.receive(queue)
    delivery.ack()
    return delivery.fairness_key


def test_an_edited_script_is_applied_and_decides_the_next_message_and_can_be_undone(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    assert key_of_next(client, queue, tenant="acme") == "default"
    page.goto(f"{dashboard}/hooks?queue={queue}")
    expect(page.get_by_test_id("apply")).to_be_disabled()
    write(page, BY_TENANT)
    apply(page)
    expect(page.get_by_test_id("changed-on_enqueue")).to_be_hidden()
    eventually(lambda: key_of_next(client, queue, tenant="acme") == "acme", "the new script decides")

    page.reload()
    expect(editor(page)).to_contain_text("msg.headers.tenant, weight = 3")
    expect(page.get_by_test_id("hook-runs")).to_have_text(re.compile("[1-9]"))
    page.get_by_test_id("undo").click()
    page.get_by_test_id("confirm").click()
    expect(editor(page)).not_to_contain_text("tenant")
    eventually(lambda: key_of_next(client, queue, tenant="acme") == "default", "the script is gone")
    expect(page.get_by_test_id("undo")).to_be_hidden()


def test_a_broken_script_is_refused_with_its_line_and_nothing_changes(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.update_queue(queue, on_enqueue=BY_TENANT)
    page.goto(f"{dashboard}/hooks?queue={queue}")
    expect(editor(page)).to_contain_text("weight = 3")
    write(page, BROKEN)
    apply(page)
    expect(page.get_by_test_id("refusal")).to_contain_text("on_enqueue:3:")
    assert key_of_next(client, queue, tenant="acme") == "acme"
    page.get_by_test_id("reset").click()
    expect(editor(page)).to_contain_text("return { fairness_key")
    expect(page.get_by_test_id("refusal")).to_be_hidden()


def test_trying_shows_what_the_messages_of_the_queue_would_get_and_changes_nothing(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.enqueue_many(queue, [Message(b"x", {"tenant": name}) for name in ("acme", NASTY)])
    client.enqueue(queue, b"x")
    page.goto(f"{dashboard}/hooks?queue={queue}")
    write(page, "function on_enqueue(msg) return { fairness_key = msg.headers.tenant:lower(), weight = 3 } end")
    write(page, "function on_failure(msg) return { delay_ms = 1000 * msg.attempts } end", "on_failure")
    page.get_by_test_id("try").click()
    rows = page.get_by_test_id("tried-on_enqueue").locator("tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text="acme")).to_contain_text("default → acme")
    expect(rows.filter(has_text="acme")).to_contain_text("1 → 3")
    expect(rows.filter(has_text=NASTY)).to_contain_text(f"default → {NASTY}")
    expect(rows.filter(has_text="attempt to index")).to_have_count(1)  # it has no header of that name
    expect(page.get_by_test_id("summary-on_enqueue")).to_contain_text("3 tried, 1 failed")
    fates = page.get_by_test_id("tried-on_failure").locator("tbody tr")
    expect(fates.filter(has_text="retry in 1.0 s")).to_have_count(3)
    assert {each.fairness_key for each in client.browse(queue)} == {"default"}


def test_an_endless_script_is_stopped_and_its_limit_is_set(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")
    page.goto(f"{dashboard}/hooks?queue={queue}")
    write(page, "function on_enqueue(msg) while true do end end")
    page.get_by_test_id("lua-timeout").fill("25")
    page.get_by_test_id("lua-timeout").blur()
    page.get_by_test_id("try").click()
    expect(page.get_by_test_id("tried-on_enqueue")).to_contain_text("ran for more than 25 ms")
    page.get_by_test_id("lua-timeout").fill("5000")
    page.get_by_test_id("lua-timeout").blur()
    apply(page)
    expect(page.get_by_test_id("refusal")).to_contain_text("lua_timeout")


def test_all_queues_with_hooks_are_listed_and_an_open_breaker_shows(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    client.update_queue(queue, on_enqueue="function on_enqueue(msg) error('no') end")
    client.enqueue_many(queue, [Message(b"x")] * 5)
    page.goto(f"{dashboard}/hooks")
    row = page.get_by_test_id("hooks").locator("tbody tr").filter(has_text=queue)
    expect(row).to_contain_text("open")
    row.get_by_role("link", name=queue).click()
    expect(page.get_by_test_id("hook-failed")).to_have_text("3")
    expect(page.get_by_test_id("hook-bypassed")).to_have_text("2")
    expect(page.get_by_test_id("last-failure")).to_contain_text("no")


def test_what_others_apply_meanwhile_is_shown_and_does_not_overwrite_what_is_edited(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    page.goto(f"{dashboard}/hooks")
    page.get_by_label("Queue").fill(queue)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{dashboard}/hooks?queue={queue}")
    client.update_queue(queue, on_failure="function on_failure(msg) end -- first")
    expect(editor(page, "on_failure")).to_contain_text("-- first")
    write(page, BY_TENANT)
    client.update_queue(queue, on_failure="function on_failure(msg) end -- second")
    expect(page.get_by_test_id("meanwhile")).to_be_visible()
    expect(editor(page)).to_contain_text("msg.headers.tenant")
    page.get_by_test_id("reset").click()
    expect(editor(page, "on_failure")).to_contain_text("-- second")
    expect(page.get_by_test_id("meanwhile")).to_be_hidden()
    expect(editor(page)).not_to_contain_text("msg.headers.tenant")


def test_a_queue_that_is_not_there_is_one_clear_line(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/hooks?queue={NASTY}")
    expect(page.get_by_test_id("trouble")).to_contain_text(NASTY)
    expect(page.get_by_test_id("apply")).to_be_hidden()
