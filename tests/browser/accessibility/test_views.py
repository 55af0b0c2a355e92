"""axe finds nothing grave on any view of the dashboard, light and dark. The login and the page of hosts are looked at by their own tests."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from fila_cluster import Message
from tests.support.accessibility import grave_findings
from tests.support.cluster.cluster import Cluster

NAME = "accessible"
HOOK = "function on_enqueue(msg)\n  return { weight = 2 }\nend\n"
Action = Callable[[Page], object]


@pytest.fixture(scope="module", autouse=True)
def filled(observed_cluster: Cluster) -> Iterator[None]:
    """Something to see on each view: a queue with messages in each state, its dead letters, and what holds for several queues."""
    with observed_cluster.client() as client:
        client.create_queue(NAME, max_attempts=1, on_enqueue=HOOK)
        client.put_template(f"{NAME}-*", max_attempts=5)
        client.put_schedule(NAME, NAME, b"{}", every=3600.0)
        client.set_throttle(NAME, rate=0.001, burst=8, concurrency=8)
        client.enqueue_many(
            NAME, [Message(b'{"a": 1}', fairness_key=f"key-{n % 3}", throttle_keys=[NAME]) for n in range(12)]
        )
        client.enqueue(NAME, b"later", delay=3600)
        taken = client.receive(NAME, 5, wait=5)
        for delivery in taken[:3]:
            delivery.nack("timeout after 30 s")
        yield
        client.delete_schedule(NAME)
        client.delete_template(f"{NAME}-*")
        client.delete_throttle(NAME)
        client.delete_queue(NAME, force=True)


def click(mark: str) -> Action:
    return lambda page: page.get_by_test_id(mark).click()


def first_of(table: str) -> Action:
    return lambda page: page.get_by_test_id(table).locator("tbody tr").first.click()


VIEWS: dict[str, tuple[str, str, Action | None]] = {
    "overview": ("/", "attention", None),
    "hosts": ("/hosts", "state", None),
    "queues": ("/queues", "queues", None),
    "a queue": (f"/queue?name={NAME}", "throttles", None),
    "a new queue": ("/queues", "options-dialog", click("create-queue")),
    "options of a queue": (f"/queue?name={NAME}", "options-dialog", click("change-options")),
    "a test message": (f"/queue?name={NAME}", "send-dialog", click("send")),
    "a purge": (f"/queue?name={NAME}", "confirm", click("purge")),
    "a move": (f"/queue?name={NAME}", "move-target", click("move")),
    "templates": ("/templates", "templates", None),
    "messages": (f"/messages?queue={NAME}&state=pending", "messages", None),
    "a message": (f"/messages?queue={NAME}&state=pending", "message", first_of("messages")),
    "all dead letters": ("/dead-letters", "letter-queues", None),
    "dead letters": (f"/dead-letters?queue={NAME}.dlq", "letters", first_of("groups")),
    "the speed of a redrive": (f"/dead-letters?queue={NAME}.dlq", "speed", click("redrive-all")),
    "schedules": ("/schedules", "schedules", None),
    "a schedule": ("/schedules", "schedule-dialog", click("create-schedule")),
    "all hooks": ("/hooks", "hooks", None),
    "a hook": (f"/hooks?queue={NAME}", "editor-on_enqueue", click("try")),
    "limits": (f"/limits?key={NAME}", "holders", None),
    "config": ("/config", "config", None),
    "connections": ("/connections", "connections", None),
    "audit": ("/audit", "audit", None),
    "why": (f"/why?queue={NAME}", "state", None),
}
"""The path, what has to be visible, and what is done before."""


@pytest.mark.parametrize("view", VIEWS)
def test_a_view(page: Page, dashboard: str, view: str) -> None:
    path, mark, action = VIEWS[view]
    page.set_viewport_size({"width": 1400, "height": 1500})
    page.goto(dashboard + path)
    expect(page.get_by_test_id("state")).to_have_text("serving")
    if action is not None:
        action(page)
    expect(page.get_by_test_id(mark).first).to_be_visible()
    assert grave_findings(page) == []
