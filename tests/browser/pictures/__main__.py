"""``python -m tests.browser.pictures.__main__ DIRECTORY``: takes the dashboard's pictures for ``docs/images``, of a cluster with some minutes of traffic.

The cluster has authentication and TLS. With ``--all`` there are pictures of dialogs and other logins, to be looked at after a change.
"""

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

from fila_cluster import Client, Message
from fila_cluster.client.calls import cluster as calls
from fila_cluster.errors import FilaError
from fila_cluster.run.supervisor.auth import init_auth
from tests.browser.conftest import FLAGS, address_of, patient
from tests.browser.test_login import ENVIRONMENT
from tests.support import machine
from tests.support.cluster.cluster import running

TENANTS: Final = {"acme": 4, "globex": 2, "initech": 1}
ERRORS: Final = ("timeout after 30 s for https://hooks.example/{}", "HTTP 503 from partner {}", "no such customer '{}'")
HOOK: Final = """\
function on_enqueue(msg)
  local tenant = msg.headers.tenant or "unknown"
  return {
    fairness_key = tenant,
    weight = tonumber(fila.get("weight:" .. tenant)) or 1,
    throttle_keys = { "partner:" .. tenant },
  }
end
"""
BREATH_S: Final = 0.1


class Traffic:
    """Producers and consumers of some queues, in threads of their own."""

    def __init__(self, connect: Callable[[str], Client]) -> None:
        """``connect`` opens a client with the key of this name."""
        self._stop = threading.Event()
        self._connect = connect
        self._chance = random.Random(7)
        self._threads = [
            threading.Thread(target=work)
            for work in (self._produce, lambda: self._consume("orders", 20), lambda: self._consume("emails", 20), self._fail)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        with self._connect("shop") as client:
            began = time.monotonic()
            while not self._stop.wait(BREATH_S):
                burst = 45 if 30 < time.monotonic() - began < 60 else 26
                for queue, count in (("orders", burst), ("emails", 18), ("webhooks", 3)):
                    client.enqueue_many(queue, [self._message() for _ in range(count)])
                if self._chance.random() < 0.3:
                    client.enqueue_many("nightly-report", [self._message()])
                    client.enqueue_many("refunds", [self._message(), self._message()])

    def _message(self) -> Message:
        tenant = self._chance.choices(list(TENANTS), weights=[6, 4, 3])[0]
        order = {
            "order": self._chance.randrange(10**6),
            "tenant": tenant,
            "items": [{"sku": "A-17", "count": 2}],
            "express": False,
        }
        delay = 600.0 if self._chance.random() < 0.01 else 0.0
        return Message(
            json.dumps(order).encode(),
            {"tenant": tenant, "source": "checkout"},
            fairness_key=tenant,
            weight=TENANTS[tenant],
            delay=delay,
        )

    def _consume(self, queue: str, at_once: int) -> None:
        with self._connect("shop") as client, client.consume(queue, prefetch=at_once) as consumer, suppress(FilaError):
            for number, delivery in enumerate(consumer):
                delivery.ack()
                if number % at_once == 0 and self._stop.wait(BREATH_S):
                    return

    def _fail(self) -> None:
        with self._connect("shop") as client:
            while not self._stop.wait(BREATH_S):
                for delivery in client.receive("webhooks", 3):
                    error = self._chance.choice(ERRORS).format(self._chance.randrange(1000))
                    delivery.nack(error) if self._chance.random() < 0.5 else delivery.ack()


def prepare(admin: Client) -> None:
    """Make the queues and the runtime config."""
    admin.create_queue("orders", max_attempts=3, visibility_timeout=30)
    admin.create_queue("emails", default_ttl=3600)
    admin.create_queue("webhooks", max_attempts=1, on_enqueue=HOOK)
    admin.create_queue("nightly-report")
    admin.create_queue("refunds", max_in_flight_per_key=1)
    admin.pause("refunds")
    for key, value in {
        "throttle:partner:acme:rate": "50", "throttle:partner:acme:burst": "100", "throttle:partner:globex:rate": "20",
        "weight:acme": "4", "weight:globex": "2",
    }.items():  # fmt: skip
        admin.set_config(key, value)
    admin.set_config("weight:globex", "3")


@contextmanager
def cluster(seconds: float) -> Iterator[tuple[str, dict[str, str], Client]]:
    """A cluster with some traffic: the dashboard's address, API keys by name, and a client for everything."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        made = init_auth(Path(directory) / "data")
        running_ = stack.enter_context(
            running(Path(directory) / "data", "--dashboard", "127.0.0.1:0", workers=2, env=ENVIRONMENT)
        )

        def connect(name: str) -> Client:
            return Client(running_.endpoint, api_key=keys[name], server_key=made.server_key)

        keys = {"admin": made.api_key}
        admin = stack.enter_context(connect("admin"))
        for name, allow in {
            "ops": ["admin:*", "consume:*", "produce:*"], "shop": ["produce:*", "consume:*"], "support": ["consume:orders*"],
        }.items():  # fmt: skip
            keys[name] = str(admin.request(calls.create_key(name, allow, None)).secret)
        prepare(admin)
        traffic = Traffic(connect)
        stack.callback(traffic.stop)
        time.sleep(seconds)
        yield address_of(running_), keys, admin


class Camera:
    """A browser with a login."""

    def __init__(self, browser: Browser, address: str, key: str, directory: Path, *, dark: bool = False) -> None:
        self._address, self._directory = address, directory
        size: Any = {"width": 1400, "height": 900}
        context = patient(
            browser.new_context(viewport=size, ignore_https_errors=True, color_scheme="dark" if dark else "light")
        )
        self.page: Page = context.new_page()
        self.page.goto(f"{address}/login")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_test_id("state").get_by_text("serving").wait_for()

    def take(self, name: str, path: str, height: int = 900, then: Callable[[Page], object] | None = None) -> None:
        """Open a page, do something there, and take its picture."""
        self.page.set_viewport_size({"width": 1400, "height": height})
        self.page.goto(self._address + path)
        self.page.get_by_test_id("state").get_by_text("serving").wait_for()
        self.page.wait_for_timeout(2500)  # charts draw themselves slowly
        if then is not None:
            then(self.page)
            self.page.wait_for_timeout(1500)
        self.page.screenshot(path=self._directory / f"dashboard-{name}.png")


def _first_row(table: str) -> Callable[[Page], object]:
    return lambda page: page.get_by_test_id(table).locator("tbody tr").first.click()


def _click(mark: str) -> Callable[[Page], object]:
    return lambda page: page.get_by_test_id(mark).click()


def take_those_of_the_docs(browser: Browser, address: str, keys: dict[str, str], directory: Path) -> None:
    """Take the pictures that ``docs/dashboard.md`` shows."""
    ops = Camera(browser, address, keys["ops"], directory)
    ops.take("overview", "/", 1000)
    ops.take("queues", "/queues", 560)
    ops.take("queue", "/queue?name=orders", 1000, then=lambda page: page.wait_for_timeout(8000))  # until rates are known
    ops.take("messages", "/messages?queue=orders&state=pending")
    ops.take("message", "/messages?queue=orders&state=pending", then=_first_row("messages"))
    ops.take("letters", "/dead-letters?queue=webhooks.dlq", then=_first_row("groups"))
    ops.take("hooks", "/hooks?queue=webhooks", then=_click("try"))
    ops.take("config", "/config", 1200)
    ops.take("why", "/why?queue=refunds", 600)
    ops.take("connections", "/connections", 620)
    ops.take("audit", "/audit", 760)
    Camera(browser, address, keys["ops"], directory, dark=True).take("dark", "/queue?name=orders", 1000)


def prepare_more(admin: Client) -> None:
    """Make templates with some of their queues, schedules, and messages that are leased and wait under limits."""
    admin.put_template("tenant-*", max_attempts=5, visibility_timeout=60, idle_expiry=3600)
    admin.put_template("tenant-acme", max_attempts=10, visibility_timeout=300)
    admin.put_template("partner/*", on_enqueue=HOOK, max_in_flight_per_key=1, idle_expiry=86_400)
    for queue in ("tenant-globex", "tenant-initech", "partner/acme-mail"):
        admin.create_queue(queue)
    admin.put_schedule(
        "nightly", "nightly-report", b'{"tenants": "all"}', {"source": "schedule"}, cron="0 3 * * MON-FRI",
        timezone="Europe/Lisbon", jitter=60.0,
    )  # fmt: skip
    admin.put_schedule("refresh", "orders", b"{}", every=30.0, jitter=5.0, priority=-1)
    admin.create_queue("answers", max_in_flight=20, visibility_timeout=600)
    admin.set_throttle("tenant:*", concurrency=2)
    admin.set_throttle("tenant:acme", concurrency=5)
    admin.set_throttle("llm", rate=2000, burst=8000, rate_min=200)
    for tenant in TENANTS:
        throttle_keys = ["llm", f"tenant:{tenant}"]
        admin.enqueue_many("answers", [Message(b"?", fairness_key=tenant, throttle_keys=throttle_keys)] * 14)
    for _ in range(3):
        admin.receive("answers", 3, wait=2.0)


def take_those_of_more(browser: Browser, address: str, keys: dict[str, str], directory: Path) -> None:
    """Take the pictures of what :func:`prepare_more` made."""
    ops = Camera(browser, address, keys["ops"], directory)
    ops.take("templates", "/templates", 560)
    ops.take("limits", "/limits?key=tenant:acme", 1250)
    ops.take("schedules", "/schedules", 960, then=_change_nightly)


def _change_nightly(page: Page) -> None:
    page.get_by_role("row", name="nightly").get_by_label("change schedule").click()


def take_others(browser: Browser, address: str, keys: dict[str, str], directory: Path) -> None:
    """Take dialogs, other pages, and what a key with few permissions sees."""
    ops = Camera(browser, address, keys["ops"], directory)
    ops.take("create", "/queues", then=_click("create-queue"))
    ops.take("change", "/queue?name=orders", then=_click("change-options"))
    ops.take("send", "/queue?name=orders", then=_click("send"))
    ops.take("all-letters", "/dead-letters", 600)
    ops.take("all-hooks", "/hooks", 500)
    support = Camera(browser, address, keys["support"], directory)
    for name, path in {
        "reader-overview": "/", "reader-queues": "/queues", "reader-queue": "/queue?name=orders", "reader-messages": "/messages?queue=orders",
        "reader-letters": "/dead-letters", "reader-hooks": "/hooks?queue=orders", "reader-config": "/config", "reader-other": "/queue?name=emails",
    }.items():  # fmt: skip
        support.take(name, path)
    support.page.get_by_test_id("logout").click()
    support.page.get_by_role("button", name="Log in").wait_for()
    support.page.screenshot(path=directory / "dashboard-login.png")


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=150, help="of traffic before the first picture")
    parser.add_argument("--all", action="store_true", help="take pictures of dialogs and of other logins, too")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with cluster(arguments.seconds) as (address, keys, admin), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=machine.browser(), args=list(FLAGS))
        take_those_of_the_docs(browser, address, keys, arguments.directory)
        prepare_more(admin)
        take_those_of_more(browser, address, keys, arguments.directory)
        if arguments.all:
            take_others(browser, address, keys, arguments.directory)
        browser.close()


if __name__ == "__main__":
    main()
