"""Behind TLS and a login: each page, what a key with few permissions sees, and the end of a key whose pages are open."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Locator, Page, expect

from fila_cluster import Client, Message
from fila_cluster.client.calls import cluster as calls
from fila_cluster.errors import FilaError
from fila_cluster.run.supervisor.auth import init_auth
from tests.browser.conftest import address_of, patient
from tests.browser.test_frame import PAGES
from tests.support.accessibility import grave_findings
from tests.support.cluster.cluster import Cluster, eventually, running

CERTIFICATES = Path(__file__).parents[1] / "unit" / "observer" / "certificates"
ENVIRONMENT = {
    "FILA_AUTH__ENABLED": "true",
    "FILA_HTTP__CERTIFICATE": str(CERTIFICATES / "one.pem"),
    "FILA_HTTP__KEY": str(CERTIFICATES / "one.key"),
}


@dataclass
class Guarded:
    """A cluster with authentication, and its administrator."""

    cluster: Cluster
    admin: Client
    server_key: str

    def key(self, name: str, *allow: str) -> str:
        return str(self.admin.request(calls.create_key(name, allow, None)).secret)

    def revoke(self, name: str) -> None:
        self.admin.request(calls.revoke_key(name))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    made = init_auth(data_dir)
    with running(data_dir, "--dashboard", "127.0.0.1:0", workers=1, env=ENVIRONMENT) as cluster:
        with Client(cluster.endpoint, api_key=made.api_key, server_key=made.server_key) as admin:
            for queue in ("orders", "secret"):
                admin.create_queue(queue, max_attempts=1)
                admin.enqueue_many(queue, [Message(b"{}", fairness_key=f"{queue}-key") for _ in range(3)])
                admin.receive(queue)[0].nack("failed")
            yield Guarded(cluster, admin, made.server_key)


@contextmanager
def visit(browser: Browser, guarded: Guarded, key: str) -> Iterator[Page]:
    """A browser of its own, logged in. It knows no certificate authority."""
    context = patient(browser.new_context(viewport={"width": 1400, "height": 900}, ignore_https_errors=True))
    page = context.new_page()
    page.goto(f"{address_of(guarded.cluster)}/queues")
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_test_id("state")).to_have_text("serving")
    yield page
    context.close()


def opened(page: Page, guarded: Guarded, path: str) -> Page:
    page.goto(address_of(guarded.cluster) + path)
    expect(page.get_by_test_id("state")).to_have_text("serving")
    return page


def test_who_may_do_everything_sees_every_page_until_the_logout(browser: Browser, guarded: Guarded) -> None:
    with visit(browser, guarded, guarded.key("boss", "admin:*", "consume:*", "produce:*")) as page:
        assert page.url.startswith("https://")
        for title in PAGES:
            page.locator(".q-drawer").get_by_role("link", name=title, exact=True).click()
            expect(page).to_have_title(f"{title} · fila-cluster")
        [cookie] = [each for each in page.context.cookies() if each["name"] == "fila_session"]
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        page.get_by_test_id("logout").click()
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        assert grave_findings(page) == []
        assert page.request.get(f"{address_of(guarded.cluster)}/queues").status == 401


def test_who_did_what_who_is_there_and_what_the_config_was(browser: Browser, guarded: Guarded) -> None:
    def row(page: Page, table: str, text: str) -> Locator:
        return page.get_by_test_id(table).locator("tbody tr").filter(has_text=text)

    guarded.admin.set_config("limit:one", "5")
    guarded.admin.set_config("limit:one", "7")
    endpoint, server_key = guarded.cluster.endpoint, guarded.server_key
    with (
        Client(endpoint, api_key=guarded.key("victim", "consume:orders"), server_key=server_key) as victim,
        visit(browser, guarded, guarded.key("operator", "admin:*")) as page,
    ):
        held = victim.receive("orders")[0]
        opened(page, guarded, "/connections")
        expect(row(page, "connections", "victim")).to_have_count(1)
        row(page, "connections", "victim").get_by_label("close connection").click()
        page.get_by_test_id("confirm").click()
        eventually(lambda: guarded.admin.queue_stats("orders").in_flight == 0, "what it held is given back")
        with pytest.raises(FilaError):
            held.ack()

        opened(page, guarded, "/config")
        row(page, "config-history", "limit:one").first.get_by_label("undo change").click()
        page.get_by_test_id("confirm").click()
        expect(row(page, "config", "limit:one").get_by_test_id("value")).to_have_text("5")
        assert guarded.admin.get_config("limit:one") == "5"

        opened(page, guarded, "/audit")
        for verb in ("connection.close", "config.undo"):
            expect(row(page, "audit", verb)).to_contain_text("operator")
        expect(row(page, "audit", "key.create").filter(has_text="victim")).to_contain_text("consume:orders")


READABLE = ("/", "/queues", "/queue?name=orders", "/messages?queue=orders", "/dead-letters", "/dead-letters?queue=orders.dlq")
WITHOUT_RIGHTS = (
    "/hooks?queue=orders",
    "/why?queue=orders",
    "/schedules",
    "/templates",
    "/limits",
    "/config",
    "/connections",
    "/audit",
)


def test_a_key_that_reads_sees_its_queues_and_no_buttons(browser: Browser, guarded: Guarded) -> None:
    with visit(browser, guarded, guarded.key("reader", "consume:orders*")) as page:
        expect(page.locator(".q-drawer")).to_contain_text("Queues")
        expect(page.locator(".q-drawer")).not_to_contain_text("Config")
        for path in (*READABLE, *WITHOUT_RIGHTS):
            opened(page, guarded, path)
            if "queue" in path or "letters" in path:
                expect(page.locator(".nicegui-content")).to_contain_text("orders")
            for mark in MARKS:
                expect(page.get_by_test_id(mark).filter(visible=True)).to_have_count(0)
            for label in ("pause", "purge", "delete", "edit throttle"):
                expect(page.get_by_label(label, exact=True).filter(visible=True)).to_have_count(0)
            expect(page.locator("body")).not_to_contain_text("secret")
        for queue in ("secret", "missing"):  # nothing tells one from the other
            opened(page, guarded, f"/queue?name={queue}")
            expect(page.get_by_test_id("lacks")).to_contain_text(f"any permission on '{queue}'")
            opened(page, guarded, f"/messages?queue={queue}")
            expect(page.get_by_test_id("lacks")).to_contain_text(f"consume:{queue}")
        for path, what in (
            ("templates", "list of templates"),
            ("config", "runtime config"),
            ("connections", "list of connections"),
            ("audit", "audit"),
        ):
            opened(page, guarded, f"/{path}")
            expect(page.get_by_test_id("lacks")).to_contain_text(f"does not have admin:*, which the {what} needs")
        opened(page, guarded, "/messages?queue=orders")
        page.get_by_test_id("messages").locator("tbody tr").first.click()
        expect(page.get_by_test_id("message-facts")).to_contain_text("orders-key")
        expect(page.get_by_test_id("cancel")).to_have_count(0)


MARKS = (
    "pause", "redrive", "purge", "redrive-all", "redrive-selected", "delete-selected", "apply", "undo", "reset", "try", "add",
    "set-throttle", "create-queue", "change-options", "delete-queue", "send", "move", "create-template", "create-schedule",
)  # fmt: skip


def test_a_revoked_key_is_out_at_its_next_click(browser: Browser, guarded: Guarded) -> None:
    with visit(browser, guarded, guarded.key("late", "admin:*", "consume:*")) as page:
        opened(page, guarded, "/queue?name=orders")
        expect(page.locator(".nicegui-content")).to_contain_text("orders")
        guarded.revoke("late")
        with suppress(Error):  # it leads to the login by itself, too
            page.get_by_test_id("pause").click(timeout=1000)
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        expect(page.locator("body")).not_to_contain_text("orders")
        page.goto(f"{address_of(guarded.cluster)}/queue?name=orders")
        expect(page.get_by_role("button", name="Log in")).to_be_visible()
        assert not guarded.admin.queue_stats("orders").paused
