"""The page of dead letters: groups that tell what went wrong, and the ways back, each seen in the broker."""

import re
from collections import Counter

from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client, Message
from tests.support.cluster.cluster import eventually

HOSTILE = "<img src=x onerror=alert(1)>"


def plant(client: Client, queue: str, *errors: str) -> list[str]:
    """Dead letters with these errors, each of a fairness key of its own; their ids."""
    client.enqueue_many(queue, [Message(error.encode(), fairness_key=f"k{n:03}") for n, error in enumerate(errors)])
    ids: dict[str, str] = {}
    while len(ids) < len(errors):
        for delivery in client.receive(queue, 100, wait=5):
            ids[delivery.text()] = delivery.id
            delivery.fail(delivery.text())
    return [ids[error] for error in errors]


def timeouts(count: int) -> list[str]:
    return [f"timeout after {number} s" for number in range(count)]


def refusals(count: int) -> list[str]:
    return [f"HTTP 500 from host {number}" for number in range(count)]


def group(page: Page, kind: str) -> Locator:
    return page.get_by_test_id("groups").locator("tbody tr").filter(has_text=kind)


def tick(row: Locator) -> None:
    row.locator(".q-checkbox").click()


def redrive_selected(page: Page, rate: str | None = None) -> None:
    """Click through the questions; no rate: at once."""
    page.get_by_test_id("redrive-selected").click()
    answer_speed(page, rate)


def answer_speed(page: Page, rate: str | None) -> None:
    if rate is None:
        page.get_by_test_id("speed").get_by_text("At once").click()
    else:
        page.get_by_test_id("rate").fill(rate)
    page.get_by_test_id("start-redrive").click()


def job(page: Page) -> Locator:
    return page.get_by_test_id("jobs").get_by_test_id("job-text")


def ids_in(client: Client, queue: str) -> set[str]:
    return {message.id for message in client.browse(queue, limit=1000)}


def test_groups_have_the_numbers_of_what_was_planted(page: Page, dashboard: str, client: Client, queue: str) -> None:
    errors = [*timeouts(17), *refusals(5), "bad signature", HOSTILE]
    plant(client, queue, *errors)
    page.goto(f"{dashboard}/dead-letters?queue={queue}")
    expect(page).to_have_url(re.compile(rf"queue={re.escape(queue)}\.dlq"))
    expect(page.get_by_test_id("held")).to_have_text("24 letters now")
    expect(page.get_by_test_id("read")).to_contain_text("24 of 24 read, as of")
    counts = {"timeout after <n> s": 17, "HTTP 500 from host <n>": 5, "bad signature": 1, "<img src=x onerror=alert(<n>)>": 1}
    for kind, count in counts.items():
        expect(group(page, kind).locator("td").nth(2)).to_have_text(str(count))
    expect(page.get_by_test_id("groups").locator("tbody tr")).to_have_count(len(counts))
    expect(page.get_by_test_id("groups")).to_contain_text("1-4 of 4")
    expect(page.get_by_test_id("reasons")).to_contain_text("failed 24")
    expect(page.locator("img")).to_have_count(0)


def test_letters_can_be_of_one_reason(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.update_queue(queue, max_attempts=1)
    for number, verb in enumerate(("nack", "nack", "fail")):
        client.enqueue(queue, b"x")
        [delivery] = client.receive(queue, wait=5)
        getattr(delivery, verb)(f"error {number} of {verb}")
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    page.get_by_test_id("reasons").get_by_text("max_attempts 2").click()
    rows = page.get_by_test_id("groups").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(page).to_have_url(re.compile("reason=max_attempts"))
    page.reload()
    expect(rows).to_have_count(2)


def test_one_group_goes_back_and_the_others_stay(page: Page, dashboard: str, client: Client, queue: str) -> None:
    ids = plant(client, queue, *timeouts(12), *refusals(7))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    tick(group(page, "HTTP 500"))
    expect(page.get_by_test_id("selected")).to_have_text("7 letters selected")
    redrive_selected(page)
    expect(job(page)).to_have_text("7 of 7 went back")
    assert ids_in(client, queue) == set(ids[12:])
    assert ids_in(client, f"{queue}.dlq") == set(ids[:12])
    expect(group(page, "HTTP 500")).to_have_count(0)
    expect(page.get_by_test_id("read")).to_contain_text("12 of 12 read, as of")


def test_single_letters_go_back(page: Page, dashboard: str, client: Client, queue: str) -> None:
    ids = plant(client, queue, *timeouts(5))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    group(page, "timeout").click()
    letters = page.get_by_test_id("letters").locator("tbody tr")
    expect(letters).to_have_count(5)
    tick(letters.filter(has_text="k001"))
    tick(letters.filter(has_text="k003"))
    expect(page.get_by_test_id("selected")).to_have_text("2 letters selected")
    redrive_selected(page)
    expect(job(page)).to_have_text("2 of 2 went back")
    assert ids_in(client, queue) == {ids[1], ids[3]}


def test_a_redrive_at_a_rate_goes_on_without_its_page_until_it_is_stopped(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    plant(client, queue, *timeouts(60))
    address = f"{dashboard}/dead-letters?queue={queue}.dlq"
    page.goto(address)
    tick(group(page, "timeout"))
    redrive_selected(page, rate="1")
    expect(job(page)).to_contain_text("of 60 went back")
    page.goto("about:blank")
    before = client.queue_stats(queue).pending
    eventually(lambda: client.queue_stats(queue).pending > before, "more letters come back while nobody looks")
    page.goto(address)
    page.get_by_test_id("job-stop").click()
    row = page.get_by_test_id("jobs")
    expect(row).to_contain_text("stopped")
    count = client.queue_stats(queue).pending
    assert 0 < count < 60
    expect(job(page)).to_have_text(f"{count} of 60 went back")
    assert client.queue_stats(f"{queue}.dlq").pending == 60 - count


def test_all_go_back(page: Page, dashboard: str, client: Client, queue: str) -> None:
    ids = plant(client, queue, *timeouts(8), *refusals(3))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    expect(page.get_by_test_id("held")).to_have_text("11 letters now")
    page.get_by_test_id("redrive-all").click()
    answer_speed(page, "1000")
    expect(job(page)).to_have_text("11 of 11 went back")
    assert ids_in(client, queue) == set(ids)
    expect(page.get_by_test_id("groups")).to_contain_text("No dead letters.")


def test_a_leased_letter_stays_and_is_counted(page: Page, dashboard: str, client: Client, queue: str) -> None:
    plant(client, queue, *timeouts(3))
    with client.consume(f"{queue}.dlq", prefetch=1) as letters:  # it renews the lease, however long the page takes
        held = next(letters)
        page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
        tick(group(page, "timeout"))
        redrive_selected(page)
        expect(job(page)).to_contain_text("2 of 3 went back · 1 stayed")
        assert ids_in(client, f"{queue}.dlq") == {held.id}
        held.nack()


def test_selected_letters_are_deleted(page: Page, dashboard: str, client: Client, queue: str) -> None:
    ids = plant(client, queue, *timeouts(4), *refusals(2))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    tick(group(page, "timeout"))
    page.get_by_test_id("delete-selected").click()
    expect(page.get_by_test_id("confirm")).to_have_text("Delete 4 letters")
    page.get_by_test_id("confirm").click()
    expect(job(page)).to_have_text("4 of 4 deleted")
    assert ids_in(client, f"{queue}.dlq") == set(ids[4:])
    assert client.queue_stats(queue).depth == 0


def test_a_purge_wants_the_name_typed(page: Page, dashboard: str, client: Client, queue: str) -> None:
    plant(client, queue, *timeouts(3))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    page.get_by_test_id("purge").click()
    confirm = page.get_by_test_id("confirm")
    expect(confirm).to_be_disabled()
    page.get_by_test_id("typed-name").fill(queue)
    expect(confirm).to_be_disabled()
    page.get_by_test_id("typed-name").fill(f"{queue}.dlq")
    confirm.click()
    expect(page.get_by_test_id("held")).to_have_text("0 letters now")
    assert client.queue_stats(f"{queue}.dlq").depth == 0


def test_a_letter_shows_its_history_and_goes_back(page: Page, dashboard: str, client: Client, queue: str) -> None:
    [letter] = plant(client, queue, f"no customer {HOSTILE}")
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    group(page, "no customer").click()
    page.get_by_test_id("letters").locator("tbody tr td").nth(2).click()
    message = page.get_by_test_id("message")
    expect(message.get_by_test_id("message-facts")).to_contain_text(
        re.compile(rf"Attempts1.*Reasonfailed.*Came from{re.escape(queue)}.*Dead-lettered", re.DOTALL)
    )
    expect(message.get_by_test_id("message-error")).to_have_text(f"no customer {HOSTILE}")
    expect(page).to_have_url(re.compile(f"id={letter}"))
    message.get_by_test_id("redrive").click()
    expect(page.get_by_test_id("groups")).to_contain_text("No dead letters.")
    assert ids_in(client, queue) == {letter}


def test_all_queues_with_dead_letters_are_shown_with_their_errors(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    plant(client, queue, *timeouts(3), *refusals(1))
    page.goto(f"{dashboard}/dead-letters")
    row = page.get_by_test_id("letter-queues").locator("tbody tr").filter(has_text=f"{queue}.dlq")
    expect(row.locator("td").nth(1)).to_have_text("4")
    expect(row).to_contain_text("75 % timeout after <n> s · 25 % HTTP 500 from host <n>")
    row.get_by_role("link").click()
    expect(page.get_by_test_id("held")).to_have_text("4 letters now")


def test_letters_that_lie_in_a_named_queue_are_found_there(page: Page, dashboard: str, client: Client, queue: str) -> None:
    source = f"{queue}-source"
    client.create_queue(source, dead_letter=queue)
    plant(client, source, *timeouts(2))
    eventually(lambda: client.queue_stats(queue).pending == 2, "letters arrive on the other shard")
    page.goto(f"{dashboard}/dead-letters?queue={source}")
    expect(page).to_have_url(re.compile(rf"queue={re.escape(queue)}$"))
    expect(group(page, "timeout").locator("td").nth(2)).to_have_text("2")


def test_a_queue_without_dead_letters_says_so(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.update_queue(queue, dead_letter="discard")
    page.goto(f"{dashboard}/dead-letters?queue={queue}")
    expect(page.get_by_test_id("trouble")).to_contain_text("it discards them")
    page.goto(f"{dashboard}/dead-letters?queue=no-such-queue.dlq")
    expect(page.get_by_test_id("trouble")).to_contain_text("no-such-queue.dlq")
    expect(page.get_by_test_id("groups")).to_be_hidden()


def test_more_letters_than_a_table_page_are_all_selected_with_their_group(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    plant(client, queue, *timeouts(600))
    page.goto(f"{dashboard}/dead-letters?queue={queue}.dlq")
    expect(page.get_by_test_id("read")).to_contain_text("600 of 600 read, as of")
    tick(group(page, "timeout"))
    redrive_selected(page)
    expect(job(page)).to_have_text("600 of 600 went back")
    assert Counter(message.queue for message in client.browse(queue, limit=1000)) == {queue: 600}
