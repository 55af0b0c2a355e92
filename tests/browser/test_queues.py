"""All queues, and one queue: numbers as the broker has them, and buttons that change the broker."""

from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client, Message
from tests.support.cluster.cluster import eventually

HOSTILE = "<img src=x onerror=alert(1)> & 'q'"


def row(page: Page, table: str, text: str) -> Locator:
    return page.get_by_test_id(table).locator("tbody tr").filter(has_text=text)


def open_queue(page: Page, dashboard: str, queue: str) -> None:
    page.goto(f"{dashboard}/queue?name={quote(queue)}")


def test_the_list_finds_a_queue_and_leads_to_it(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x") for _ in range(3)])
    page.goto(f"{dashboard}/queues")
    page.get_by_test_id("queues-search").fill(queue)
    found = page.get_by_test_id("queues").locator("tbody tr")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("unread")
    found.get_by_role("link", name=queue).click()
    expect(page.get_by_test_id("queue-pending")).to_have_text("3")


def test_the_list_leaves_out_dead_letter_queues_unless_asked(page: Page, dashboard: str, queue: str) -> None:
    page.goto(f"{dashboard}/queues")
    page.get_by_test_id("queues-search").fill(queue)
    found = page.get_by_test_id("queues").locator("tbody tr")
    expect(found).to_have_count(1)
    page.get_by_test_id("with-letters").click()
    expect(found).to_have_count(2)
    page.get_by_test_id("only-full").click()
    expect(found.filter(has_text=queue)).to_have_count(0)


def test_numbers_of_a_queue_are_those_of_queue_stats(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.set_config("throttle.test-numbers", "1,5")
    client.update_queue(queue, visibility_timeout=600)
    client.enqueue_many(queue, [Message(b"x", fairness_key=key, weight=2) for key in ("acme", "globex") for _ in range(40)])
    client.enqueue_many(
        queue, [Message(b"x", fairness_key="acme", delay=600, throttle_keys=["test-numbers"]) for _ in range(5)]
    )
    for delivery in client.receive(queue, 10):
        delivery.ack()
    held = client.receive(queue, 4)
    open_queue(page, dashboard, queue)

    def agrees() -> bool:
        stats = client.queue_stats(queue)
        wanted = {
            "pending": stats.pending,
            "in_flight": stats.in_flight,
            "delayed": stats.delayed,
            "consumers": stats.consumers,
        }
        return all(page.get_by_test_id(f"queue-{name}").inner_text() == str(number) for name, number in wanted.items())

    eventually(agrees, "the same numbers as queue_stats")
    stats = {key.fairness_key: key for key in client.queue_stats(queue).keys}
    for name, key in stats.items():
        cells = row(page, "keys", name).locator("td")
        expect(cells.nth(1)).to_have_text("2")
        expect(cells.nth(2)).to_have_text(str(key.pending))
        expect(cells.nth(3)).to_have_text(str(key.in_flight))
        expect(cells.nth(4)).to_have_text(str(key.delayed))
        expect(cells.nth(6)).to_have_text("50 %")
    expect(page.get_by_test_id("options")).to_contain_text("max attempts")
    client.nack(held)


def test_pause_and_resume_by_clicks_change_the_broker(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")
    open_queue(page, dashboard, queue)
    page.get_by_test_id("pause").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_test_id("queue-state")).to_have_text("paused")
    assert client.queue_stats(queue).paused
    page.get_by_test_id("pause").filter(has_text="Resume").click()
    expect(page.get_by_test_id("queue-state")).to_have_text("unread")
    assert not client.queue_stats(queue).paused


def test_a_question_that_is_declined_changes_nothing(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x")
    open_queue(page, dashboard, queue)
    page.get_by_test_id("purge").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert client.queue_stats(queue).pending == 1


def test_purge_by_clicks_empties_the_queue(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x"), Message(b"x", delay=600)])
    open_queue(page, dashboard, queue)
    page.get_by_test_id("purge").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_text("2 messages deleted")).to_be_visible()
    assert client.queue_stats(queue).depth == 0


def test_the_messages_of_a_key_are_moved_by_clicks(page: Page, dashboard: str, client: Client, queue: str) -> None:
    aside = f"{queue}-aside"
    client.create_queue(aside)
    client.enqueue_many(queue, [Message(b"x", fairness_key="noisy"), Message(b"x", fairness_key="other")])
    open_queue(page, dashboard, queue)
    page.get_by_test_id("move").click()
    page.get_by_test_id("move-target").fill(f"{queue}-missing")
    page.get_by_test_id("move-key").fill("noisy")
    page.get_by_test_id("move-submit").click()
    expect(page.get_by_test_id("move-trouble")).to_contain_text("-missing")
    page.get_by_test_id("move-target").fill(aside)
    page.get_by_test_id("move-submit").click()
    expect(page.get_by_text(f"1 message moved to {aside}")).to_be_visible()
    assert (client.queue_stats(queue).pending, client.queue_stats(aside).pending) == (1, 1)


def test_a_key_is_paused_and_purged_by_clicks(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x", fairness_key=key) for key in ("noisy", "quiet")])
    open_queue(page, dashboard, queue)
    noisy = row(page, "keys", "noisy")
    noisy.get_by_role("button", name="pause").click()
    expect(noisy.get_by_text("paused")).to_be_visible()
    assert {key.fairness_key: key.paused for key in client.queue_stats(queue).keys} == {"noisy": True, "quiet": False}
    noisy.get_by_role("button", name="purge").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_text("1 message deleted")).to_be_visible()
    assert [key.fairness_key for key in client.queue_stats(queue).keys if key.pending] == ["quiet"]


def test_redrive_by_clicks_brings_all_dead_letters_back(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x") for _ in range(3)])
    for delivery in client.receive(queue, 3):
        delivery.fail("broken")
    eventually(lambda: client.queue_stats(f"{queue}.dlq").pending == 3, "three dead letters")
    open_queue(page, dashboard, queue)
    page.get_by_test_id("redrive").click()
    page.get_by_test_id("confirm").click()
    expect(page.get_by_text("3 dead letters went back")).to_be_visible()
    assert client.queue_stats(queue).pending == 3


def test_a_queue_that_does_not_exist_is_said_to_be_missing(page: Page, dashboard: str) -> None:
    open_queue(page, dashboard, "no-such-queue")
    expect(page.get_by_test_id("trouble")).to_contain_text("no-such-queue")


def test_keys_are_text(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x", fairness_key=HOSTILE)
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    open_queue(page, dashboard, queue)
    expect(row(page, "keys", HOSTILE)).to_have_count(1)


def test_a_queue_is_made_changed_filled_and_deleted(page: Page, dashboard: str, client: Client, queue: str) -> None:
    name = f"{queue}-made"
    page.goto(f"{dashboard}/queues")
    page.get_by_test_id("create-queue").click()
    page.get_by_test_id("new-name").fill("no such name!")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("options-trouble")).to_contain_text("no such name!")
    page.get_by_test_id("new-name").fill(name)
    page.get_by_test_id("option-max_attempts").fill("1")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("options")).to_contain_text("max attempts1")

    page.get_by_test_id("change-options").click()
    page.get_by_test_id("option-visibility_timeout").fill("for a while")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("options-trouble")).to_contain_text("Visibility timeout: 'for a while' is not a duration")
    page.get_by_test_id("option-visibility_timeout").fill("10m")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("options")).to_contain_text("visibility timeout10 m")

    page.get_by_test_id("send").click()
    page.get_by_text("JSON", exact=True).click()
    page.get_by_test_id("send-payload").fill('{"order": ')
    page.get_by_test_id("send-submit").click()
    expect(page.get_by_test_id("send-trouble")).to_contain_text("The payload is not JSON")
    page.get_by_test_id("send-payload").fill('{"order": 1}')
    page.get_by_test_id("send-headers").fill(f"tenant=acme\nnote={HOSTILE}")
    page.get_by_test_id("send-key").fill("acme")
    page.get_by_test_id("send-priority").fill("-5")
    page.get_by_test_id("send-submit").click()
    expect(page.get_by_test_id("queue-pending")).to_have_text("1")
    [message] = client.receive(name)
    assert (message.payload, message.headers) == (b'{"order": 1}', {"tenant": "acme", "note": HOSTILE})
    assert (message.fairness_key, message.priority) == ("acme", -5)
    message.nack("no")
    page.get_by_test_id("send").click()
    page.get_by_test_id("send-delay").fill("2h")
    page.get_by_test_id("send-submit").click()
    expect(page.get_by_test_id("queue-delayed")).to_have_text("1")

    page.get_by_test_id("delete-queue").click()
    expect(page.get_by_test_id("confirm")).to_be_disabled()
    page.get_by_test_id("typed-name").fill(name)
    page.get_by_test_id("confirm").click()
    expect(page.get_by_text("Delete the dead letters, too?")).to_be_visible()
    page.get_by_role("button", name="Delete all of it").click()
    expect(page).to_have_title("Queues · fila-cluster")
    assert client.list_queues(name) == []


def test_the_shares_say_what_else_limits_a_key(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.set_config("throttle.slow", "0.1,1")
    for _ in range(20):
        client.enqueue(queue, b"x", fairness_key="big", weight=8, throttle_keys=["slow"])
    client.enqueue(queue, b"x", fairness_key="small")
    page.goto(f"{dashboard}/queue?name={queue}")
    expect(page.get_by_test_id("keys")).to_contain_text("small")
    held = []

    def said() -> bool:
        held.extend(client.receive(queue, 1, wait=0.2))
        client.enqueue(queue, b"x", fairness_key="small")
        return (
            "big is limited by something else than its weight: throttled by slow"
            in page.get_by_test_id("limits").inner_text()
        )

    eventually(said, "what limits the key")


def test_a_queue_with_partitions_is_one_and_shows_them(page: Page, dashboard: str, client: Client, queue: str) -> None:
    name = f"{queue}-whole"
    page.goto(f"{dashboard}/queues")
    page.get_by_test_id("create-queue").click()
    page.get_by_test_id("new-name").fill(name)
    page.get_by_test_id("option-partitions").fill("3")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("partition-count")).to_be_visible()
    client.enqueue_many(name, [Message(b"x", fairness_key=f"k{number}") for number in range(30)])
    expect(page.get_by_test_id("queue-pending")).to_have_text("30")
    partitions = page.get_by_test_id("partitions").locator("tbody tr")
    expect(partitions).to_have_count(3)
    expect(page.get_by_test_id("partition-count")).to_have_text("3 partitions")
    held = [partitions.nth(number).locator("td").nth(3) for number in range(3)]
    eventually(lambda: sum(int(each.inner_text()) for each in held) == 30, "each shows its messages")
    client.update_queue(name, max_in_flight_per_key=1)
    taken = client.receive(name, 30)
    page.get_by_test_id("change-options").click()
    page.get_by_test_id("option-partitions").fill("4")
    page.get_by_test_id("options-submit").click()
    expect(page.get_by_test_id("partition-move")).to_contain_text("goes from 3 to 4 partitions")
    expect(page.get_by_test_id("partitions")).to_contain_text("leased: ")
    client.ack(taken)
    client.enqueue_many(name, [Message(b"x", fairness_key=f"k{number}") for number in range(30)])
    expect(partitions).to_have_count(4)
    eventually(
        lambda: sum(int(partitions.nth(number).locator("td").nth(3).inner_text()) for number in range(4)) == 30, "all moved"
    )
    expect(page.get_by_test_id("partition-move")).to_have_text("")
    page.goto(f"{dashboard}/queues")
    page.get_by_test_id("queues-search").fill(name)
    found = page.get_by_test_id("queues").locator("tbody tr")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("30")
