"""The page of messages: browsing, one message with all that it has, and taking one out."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from fila_cluster import Client, Message
from tests.support.cluster.cluster import eventually

HOSTILE = "<img src=x onerror=alert(1)>"


def rows(page: Page) -> Locator:
    return page.get_by_test_id("messages").locator("tbody tr")


def opened(page: Page, row: int = 0) -> Locator:
    rows(page).nth(row).click()
    return page.get_by_test_id("message")


def test_pages_follow_each_other_in_the_order_of_the_queue(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue_many(queue, [Message(b"x", fairness_key=f"k{number:03}") for number in range(120)])
    page.goto(f"{dashboard}/messages?queue={queue}")
    place = page.get_by_test_id("place")
    expect(rows(page)).to_have_count(50)
    expect(page.get_by_test_id("previous")).to_be_disabled()
    for number, shown in ((1, range(50)), (2, range(50, 100)), (3, range(100, 120))):
        expect(place).to_contain_text(f"page {number}, {len(shown)} messages")
        expect(rows(page).locator("td:nth-child(2)")).to_have_text([f"k{number:03}" for number in shown])
        if number < 3:
            page.get_by_test_id("next").click()
    expect(page.get_by_test_id("next")).to_be_disabled()
    page.get_by_test_id("previous").click()
    expect(rows(page).first).to_contain_text("k050")


def test_the_address_chooses_state_and_fairness_key(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x", fairness_key="a")
    client.enqueue(queue, b"x", fairness_key="b", delay=3600)
    client.enqueue(queue, b"x", fairness_key="c", delay=3600)
    page.goto(f"{dashboard}/messages?queue={queue}&key=c")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(re.compile("c.*delayed.*due in"))
    page.get_by_test_id("key").fill("")
    page.get_by_test_id("key").press("Enter")
    expect(rows(page)).to_have_count(3)
    page.get_by_test_id("states").get_by_text("Delayed").click()
    expect(rows(page)).to_have_count(2)
    expect(page).to_have_url(re.compile("state=delayed"))


def test_a_message_is_removed_by_clicks(page: Page, dashboard: str, client: Client, queue: str) -> None:
    first, second = (client.enqueue(queue, b"x") for _ in range(2))
    page.goto(f"{dashboard}/messages?queue={queue}")
    message = opened(page, 1)
    expect(message.get_by_test_id("message-id")).to_have_text(second)
    message.get_by_test_id("cancel").click()
    page.get_by_test_id("confirm").click()
    expect(rows(page)).to_have_count(1)
    assert [left.id for left in client.browse(queue)] == [first]


def test_a_leased_message_is_left_to_its_consumer(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"x", lease=600)
    [delivery] = client.receive(queue)
    page.goto(f"{dashboard}/messages?queue={queue}")
    message = opened(page)
    expect(message).to_contain_text(re.compile("Lease ends.*in .*Consumer", re.DOTALL))
    message.get_by_test_id("cancel").click()
    expect(page.get_by_role("alert")).to_contain_text("is leased by")
    delivery.ack()


def test_json_is_laid_out_and_can_be_seen_as_bytes(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b'{"id":12345678901234567890.0,"tags":["a"]}', {"trace": "t-1"}, priority=-3, cost=2.5)
    page.goto(f"{dashboard}/messages?queue={queue}")
    message = opened(page)
    expect(message.get_by_test_id("message-headers")).to_have_text("tracet-1")
    expect(message.get_by_test_id("message-facts")).to_contain_text(re.compile("Priority-3Cost2.5"))
    payload = message.get_by_test_id("payload")
    laid_out = '{\n  "id": 12345678901234567890.0,\n  "tags": [\n    "a"\n  ]\n}'
    eventually(lambda: payload.inner_text() == laid_out, "the payload is laid out")
    message.get_by_test_id("payload-view").get_by_text("Hex").click()
    expect(payload).to_contain_text("00000000  7b 22 69 64 22 3a")
    message.get_by_test_id("payload-view").get_by_text("Text").click()
    expect(payload).to_have_text('{"id":12345678901234567890.0,"tags":["a"]}')


def test_a_large_payload_is_cut_and_comes_whole_as_a_file(page: Page, dashboard: str, client: Client, queue: str) -> None:
    payload = bytes(range(256)) * 64
    client.enqueue(queue, payload)
    page.goto(f"{dashboard}/messages?queue={queue}")
    message = opened(page)
    expect(message.get_by_test_id("payload-note")).to_have_text("12,288 of 16,384 bytes are not shown: download all of it")
    with page.expect_download() as download:
        message.get_by_test_id("payload-download").click()
    assert Path(download.value.path()).read_bytes() == payload
    assert download.value.suggested_filename.endswith(".bin")


def test_what_users_send_is_text(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, json.dumps({HOSTILE: HOSTILE}).encode(), {HOSTILE: HOSTILE}, fairness_key=HOSTILE)
    page.goto(f"{dashboard}/messages?queue={queue}")
    expect(rows(page)).to_contain_text(HOSTILE)
    message = opened(page)
    expect(message.get_by_test_id("message-facts")).to_contain_text(HOSTILE)
    expect(message.get_by_test_id("message-headers")).to_have_text(HOSTILE * 2)
    expect(message.get_by_test_id("payload")).to_contain_text(HOSTILE)
    expect(page.locator("img")).to_have_count(0)


def test_an_address_leads_to_a_message(page: Page, dashboard: str, client: Client, queue: str) -> None:
    ids = client.enqueue_many(queue, [Message(b"%d" % number, fairness_key=f"k{number:03}") for number in range(60)])
    page.goto(f"{dashboard}/messages?queue={queue}&id={ids[57]}")
    expect(page.get_by_test_id("payload")).to_have_text("57")
    page.get_by_test_id("message-close").click()
    expect(page).not_to_have_url(re.compile("id="))


def test_an_id_that_became_a_dead_letter_leads_there(page: Page, dashboard: str, client: Client, queue: str) -> None:
    client.enqueue(queue, b"dead")
    [delivery] = client.receive(queue)
    delivery.fail("no such customer")
    page.goto(f"{dashboard}/messages?queue={queue}&id={delivery.id}")
    expect(page).to_have_url(re.compile(r"/dead-letters\?queue="))
    expect(page.get_by_test_id("message-error")).to_have_text("no such customer")


@pytest.mark.parametrize(
    ("query", "trouble"),
    [
        ("queue=no-such-queue", "no-such-queue"),
        ("queue={queue}&state=lost", "state='lost'"),
        ("queue={queue}&id=rubbish", "'rubbish' is not a message id"),
        ("queue=%3Cimg%20src=x%3E", "<img src=x>"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(
    page: Page, dashboard: str, client: Client, queue: str, query: str, trouble: str
) -> None:
    page.goto(f"{dashboard}/messages?{query.format(queue=queue)}")
    expect(page.get_by_test_id("trouble")).to_contain_text(trouble)
    expect(page.get_by_test_id("state")).to_have_text("serving")


def test_a_message_that_has_just_gone_is_missed(page: Page, dashboard: str, client: Client, queue: str) -> None:
    gone = client.enqueue(queue, b"x")
    client.cancel(queue, gone)
    page.goto(f"{dashboard}/messages?queue={queue}&id={gone}")
    expect(page.get_by_test_id("trouble")).to_contain_text(f"no message {gone}")


def test_the_next_page_is_found_though_the_last_message_has_gone(
    page: Page, dashboard: str, client: Client, queue: str
) -> None:
    ids = client.enqueue_many(queue, [Message(b"x", fairness_key=f"k{number:03}") for number in range(70)])
    page.goto(f"{dashboard}/messages?queue={queue}")
    expect(rows(page)).to_have_count(50)
    assert client.cancel(queue, ids[49])
    page.get_by_test_id("next").click()
    expect(rows(page).first).to_contain_text("k050")
    expect(rows(page)).to_have_count(20)
