"""The page of templates: made, changed and deleted by clicks; the broker makes queues as the page says."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client

HOOK = "function on_enqueue(msg)\n  return { fairness_key = msg.headers.tenant }\nend\n"


@pytest.fixture
def pattern(client: Client, queue: str) -> Iterator[str]:
    """A pattern of this test's own; its template is gone afterwards."""
    name = f"{queue}-tenant-*"
    yield name
    client.delete_template(name)


def row(page: Page, pattern: str) -> Locator:
    return page.get_by_test_id("templates").locator("tbody tr").filter(has_text=pattern)


def test_a_template_is_made_by_clicks_and_makes_queues(page: Page, dashboard: str, client: Client, pattern: str) -> None:
    page.goto(f"{dashboard}/queues")
    page.locator(".nicegui-content").get_by_role("link", name="Templates").click()
    page.get_by_test_id("create-template").click()
    page.get_by_test_id("new-pattern").fill("no such pattern!")
    page.get_by_test_id("template-submit").click()
    expect(page.get_by_test_id("template-trouble")).to_contain_text("no such pattern!")
    page.get_by_test_id("new-pattern").fill(pattern)
    page.get_by_test_id("option-max_attempts").fill("five")
    page.get_by_test_id("template-submit").click()
    expect(page.get_by_test_id("template-trouble")).to_contain_text("Max attempts: 'five' is not a whole number")
    page.get_by_test_id("option-max_attempts").fill("5")
    page.get_by_test_id("option-idle_expiry").fill("1h")
    page.get_by_test_id("template-submit").click()
    expect(row(page, pattern)).to_contain_text("max attempts 5 · idle expiry 60 m")
    assert client.get_template(pattern) == {"max_attempts": 5, "idle_expiry": 3600.0}

    made = pattern.replace("*", "acme")
    client.enqueue(made, b"x")
    expect(row(page, pattern).get_by_role("link")).to_have_text("1")
    row(page, pattern).get_by_role("link").click()
    expect(page.get_by_test_id("queues").locator("tbody tr")).to_have_count(1)
    expect(page.get_by_test_id("queues")).to_contain_text(made)
    client.delete_queue(made)


def test_a_change_keeps_the_other_options_and_hooks(page: Page, dashboard: str, client: Client, pattern: str) -> None:
    client.put_template(pattern, on_enqueue=HOOK, lua_timeout=0.02, visibility_timeout=90, delivery="at_most_once")
    page.goto(f"{dashboard}/templates")
    expect(row(page, pattern)).to_contain_text("visibility timeout 90.0 s · delivery at_most_once · on_enqueue 76 B of Lua")
    row(page, pattern).get_by_label("change template").click()
    expect(page.get_by_test_id("editor-on_enqueue")).to_contain_text("msg.headers.tenant")
    page.get_by_test_id("option-visibility_timeout").fill("")
    page.get_by_test_id("option-default_ttl").fill("10m")
    page.get_by_test_id("template-submit").click()
    expect(row(page, pattern)).to_contain_text("default TTL 10 m")
    assert client.get_template(pattern) == {
        "on_enqueue": HOOK, "lua_timeout": 0.02, "default_ttl": 600.0, "delivery": "at_most_once"
    }  # fmt: skip


def test_a_hook_that_does_not_compile_is_refused_in_the_form(
    page: Page, dashboard: str, client: Client, pattern: str
) -> None:
    page.goto(f"{dashboard}/templates")
    page.get_by_test_id("create-template").click()
    page.get_by_test_id("new-pattern").fill(pattern)
    page.get_by_test_id("editor-on_enqueue").locator(".cm-content").fill("function on_enqueue(msg")
    page.get_by_test_id("template-submit").click()
    expect(page.get_by_test_id("template-trouble")).to_contain_text("on_enqueue:")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert client.get_template(pattern) is None


def test_editors_have_the_colours_of_the_page_each_time_they_are_opened(page: Page, dashboard: str) -> None:
    page.goto(f"{dashboard}/templates")
    for colour in ("rgb(255, 255, 255)", "rgb(30, 30, 30)"):
        page.get_by_test_id("theme").click()  # from auto to light, and on to dark
        page.get_by_test_id("create-template").click()
        editor = page.get_by_test_id("editor-on_enqueue").locator(".cm-editor")
        expect(editor).to_have_css("background-color", colour)
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_others_did_meanwhile_is_not_replaced(page: Page, dashboard: str, client: Client, pattern: str) -> None:
    client.put_template(pattern, max_attempts=1)
    page.goto(f"{dashboard}/templates")
    page.get_by_test_id("create-template").click()
    page.get_by_test_id("new-pattern").fill(pattern)
    page.get_by_test_id("template-submit").click()
    expect(page.get_by_test_id("template-trouble")).to_contain_text(f"there is a template of {pattern}")
    page.get_by_role("button", name="Cancel").click()

    row(page, pattern).get_by_label("change template").click()
    page.get_by_test_id("option-max_attempts").fill("3")
    client.put_template(pattern, max_attempts=2)
    page.get_by_test_id("template-submit").click()
    expect(page.get_by_test_id("template-trouble")).to_contain_text("was changed or deleted elsewhere")
    assert client.get_template(pattern) == {"max_attempts": 2}


def test_a_template_is_deleted_after_a_question(page: Page, dashboard: str, client: Client, pattern: str) -> None:
    client.put_template(pattern)
    page.goto(f"{dashboard}/templates")
    expect(row(page, pattern)).to_contain_text("all defaults")
    row(page, pattern).get_by_label("delete template").click()
    page.get_by_role("button", name="Delete it").click()
    expect(row(page, pattern)).to_have_count(0)
    assert client.get_template(pattern) is None
