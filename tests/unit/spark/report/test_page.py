"""A report's shares and its page; what Spark counts is in tests/spark."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from fila_cluster.client.views import KeyStats, QueueStats
from fila_cluster.ops.analysis.history import SERIES, LastMinuteShare
from fila_cluster.spark.report.content import (
    TENANTS_SHOWN,
    Count,
    Dwell,
    Failures,
    QueueReport,
    QueueTotals,
    ReportHistory,
    TenantShare,
)
from fila_cluster.spark.report.measures import NONE, shares_lately, shares_of
from fila_cluster.spark.report.page import duration, page
from fila_proto_zmq.commands import OTHER_KEYS

NASTY = ["<script>alert(1)</script>", "$x^2$ & more", "\x00\x1b[31m", "日本の顧客", "a" * 200, ""]
EMPTY = QueueReport("orders", "orders.dlq", datetime(2026, 11, 20, 9, tzinfo=UTC), QueueTotals(*range(9)), NONE, [], [])


def key(name: str, weight: int = 1, pending: int = 0, delivered: int = 0) -> KeyStats:
    return KeyStats(name, weight, pending, 0, 0, 0.0, delivered, False)


def stats(*keys: KeyStats, delivered: int = 0) -> QueueStats:
    info = ("orders", 0, 0, 0, 0, 0, False, False, 0)
    return QueueStats(*info, 0.0, 1000, 0, delivered, 0, 0, 0, 0, list(keys), [])


def history(*numbers: float | None) -> ReportHistory:
    """The same numbers for each series, five seconds apart."""
    start = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
    return ReportHistory(
        [start + timedelta(seconds=5 * tick) for tick in range(len(numbers))], {name: [*numbers] for name in SERIES}
    )


@pytest.fixture
def full() -> QueueReport:
    counts = [Count(name, 10 - number, {"failed": 5 - number}) for number, name in enumerate(NASTY[:5])]
    failures = Failures(
        77, 6, [Count("failed", 40, {})], counts, [*counts, Count(None, 9, {})],
        [Count("2026-11-20T09:00:00+00:00", 5, {"failed": 5}), Count("2026-11-20T09:05:00+00:00", 3, {"other": 3})], 300,
        [Dwell(None, 9, 0.0, 0.5, 60.0, 9000.0)],
    )  # fmt: skip
    waiting = [Dwell(None, 9, 0.0, 0.5, 7200.0, 9000.0), *(Dwell(name, 1, 1.0, 2.0, 3.0, 4.0) for name in NASTY)]
    shares = [TenantShare(name, 1, 10, 3, 0.1, 0.1) for name in NASTY] + [TenantShare(None, 4, 40, 3, 0.4, 0.4)]
    halves = history(None, 1.5, 3.0, None, 1200.0, 4.0)
    return replace(EMPTY, queue="<b>orders", failures=failures, waiting=waiting, shares=shares, history=halves)


# --- shares -----------------------------------------------------------------------------------------------------------


def test_shares_are_set_against_weights():
    heavy, light = shares_of(stats(key("light", 1, 5, 30), key("heavy", 3, 5, 70), key("gone"), delivered=100))
    assert heavy == TenantShare("heavy", 3, 70, 5, 0.7, 0.75)
    assert light == TenantShare("light", 1, 30, 5, 0.3, 0.25)


def test_deliveries_of_tenants_that_are_gone_count_in_the_whole():
    (only,) = shares_of(stats(key("a", delivered=50), delivered=200))
    assert (only.share, only.entitled) == (0.25, 1.0)


def test_many_tenants_end_in_a_row_for_the_others():
    keys = [key(f"k{number:02}", delivered=100 - number) for number in range(TENANTS_SHOWN + 5)]
    shares = shares_of(stats(*keys))
    assert [share.fairness_key for share in shares] == [*(each.fairness_key for each in keys[:TENANTS_SHOWN]), None]
    assert sum(share.share for share in shares) == pytest.approx(1)
    assert sum(share.entitled for share in shares) == pytest.approx(1)


def test_no_deliveries_no_shares():
    assert shares_of(stats()) == []
    assert shares_of(stats(key("a", pending=3))) == []


def test_shares_of_the_last_minute_take_its_numbers():
    told = [LastMinuteShare("heavy", 3, 9, 0.75, 0.7, 7.0), LastMinuteShare("light", 1, 9, 0.25, 0.3, 3.0)]
    heavy, light = shares_lately(told, stats(key("light", 1, 4, 40), key("heavy", 3, 5, 60), delivered=100))
    assert heavy == TenantShare("heavy", 3, 60, 5, 0.7, 0.75, 7.0)
    assert light == TenantShare("light", 1, 40, 4, 0.3, 0.25, 3.0)


def test_keys_that_a_dashboard_does_not_show_are_the_others_and_entitled_to_the_rest():
    told = [LastMinuteShare("a", 2, 9, 0.2, 0.1, 1.0), LastMinuteShare(OTHER_KEYS, 0, 0, 0.0, 0.9, 9.0)]
    stat = stats(key("a", 2, 1, 10), key("b", 3, 2, 50), key("c", 5, 4, 30), delivered=100)
    assert shares_lately(told, stat)[-1] == TenantShare(None, 8, 90, 6, 0.9, 0.8, 9.0)
    idle = [LastMinuteShare("a", 2, 0, 0.0, 0.1, 1.0), LastMinuteShare(OTHER_KEYS, 0, 0, 0.0, 0.9, 9.0)]
    assert [share.entitled for share in shares_lately(idle, stat)] == [0.0, 0.0]


def test_a_minute_without_deliveries_has_no_shares():
    assert shares_lately([LastMinuteShare("a", 1, 9, 1.0, 0.0, 0.0)], stats(key("a", delivered=9))) == []
    assert shares_lately([], stats(key("a", delivered=9))) == []


# --- the page ---------------------------------------------------------------------------------------------------------


def test_names_are_data(full):
    text = page(full)
    assert "<script" not in text
    assert "<b>orders" not in text
    assert "&lt;b&gt;orders" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "$x^2$ &amp; more" in text


@pytest.mark.whole
def test_it_needs_nothing_else(full):
    links = set(re.findall(r"(?:https?:)?//[\w.]+", page(full))) - {"http://www.w3.org", "http://purl.org"}
    assert {link for link in links if "w3.org" not in link and "creativecommons" not in link} == set()
    assert "src=" not in page(full)


@pytest.mark.whole
def test_its_colours_are_the_page_s(full):
    """Or one of them is unreadable on a dark screen, or in print."""
    drawn = "".join(re.findall(r"<svg.*?</svg>", page(full), re.DOTALL))
    assert set(re.findall(r"#[0-9a-f]{6}\b", drawn)) <= {"#ffffff"}  # what matplotlib fills invisible backgrounds with
    used = set(re.findall(r"var\((--[\w-]+)\)", page(full)))
    assert used <= set(re.findall(r"(--[\w-]+):", page(full)))


def test_ids_of_its_pictures_do_not_collide(full):
    pictures = re.findall(r"<svg.*?</svg>", page(full), re.DOTALL)
    assert len(pictures) == 8
    clips = [set(re.findall(r'<clipPath id="([^"]+)"', picture)) for picture in pictures]
    assert sum(map(len, clips)) == len(set().union(*clips))


def test_its_pictures_are_well_formed(full):
    for picture in re.findall(r"<svg.*?</svg>", page(full), re.DOTALL):
        ElementTree.fromstring(picture)


def test_numbers_are_in_tables_too(full):
    text = page(full)
    for part in ("77 dead letters in orders.dlq, of\n6 tenants:", "40 failed.", "2 h", "40.0%", "all others", "all tenants"):
        assert part in text, part


def test_an_empty_queue_has_a_page():
    text = page(EMPTY)
    for part in ("orders.dlq is empty.", "Nothing waits.", "Nothing was delivered yet."):
        assert part in text, part
    assert "no dead letter queue of its own" in page(replace(EMPTY, dead_letter_queue=None))
    assert "<svg" not in text


def test_the_last_half_hour_is_drawn_with_its_numbers(full):
    text = page(full)
    assert "Messages a second" in text
    assert "Messages held" in text
    text = text[: text.index("<h2>Failures")]
    extents = re.findall(r"<td>([^<]*)</td>" + r"\D*number\">(.*?)</td>" * 3, text)
    assert extents[0] == ("enqueued a second", "4.0", "302", "1,200")
    assert [extent[0] for extent in extents] == [
        "enqueued a second", "delivered a second", "dead-lettered a second", "pending", "in flight", "delayed"
    ]  # fmt: skip


def test_without_a_history_the_page_says_why():
    text = page(replace(EMPTY, no_history="nothing answers at http://<b>:8555: Connection refused"))
    assert "Not in here: nothing answers at http://&lt;b&gt;:8555: Connection refused." in text
    assert "Messages held" not in text


@pytest.mark.parametrize("numbers", [(), (None,), (1.0,), (None, None, None)])
def test_a_history_that_is_too_young_is_not_drawn(numbers):
    text = page(replace(EMPTY, history=history(*numbers)))
    assert "has not watched this queue for long enough" in text
    assert "<svg" not in text


def test_a_queue_that_did_nothing_is_drawn_as_nothing():
    assert page(replace(EMPTY, history=history(0.0, 0.0))).count("<svg") == 2


def test_shares_say_what_they_are_of():
    rows = [TenantShare("a", 1, 1234, 0, 1.0, 1.0, 12.5)]
    text = page(replace(EMPTY, shares=rows, shares_span="last_minute"))
    assert "the last minute's deliveries" in text
    assert "delivered a second" in text
    assert ">12.5<" in text
    text = page(replace(EMPTY, shares=rows))
    assert "of all deliveries" in text
    assert ">1,234<" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0042, "4.2 ms"), (0.5, "500 ms"), (1, "1 s"), (12.4, "12 s"), (90, "1.5 min"), (12_600, "3.5 h"), (1e6, "12 d")],
)  # fmt: skip
def test_durations_read_well(seconds, text):
    assert duration(seconds) == text
