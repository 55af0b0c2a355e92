"""Views: queues as they were at one moment, whatever happens to them. The rest is in ``tests/property/messages/test_views.py``."""

import pytest

from fila_proto_zmq.commands import (
    BrowseView,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Extend,
    OpenView,
    QueueOptions,
    Reserve,
    Verb,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, QueueNotFoundError
from fila_proto_zmq.ids import client_name
from fila_proto_zmq.limits import BROWSE_MESSAGES_MAX, VIEW_BYTES_MAX, VIEW_IDLE_MS_MAX, VIEW_IDLE_MS_MIN
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.effects import ClientCall
from fila_worker.core.inspect import views
from fila_worker.core.inspect.views import Views
from fila_worker.core.settings import Limits, ShardSettings
from tests.support.shard.shard import ADMIN, ShardHarness
from tests.support.shard.views import in_view, open_view, page_of, pages_of, payloads


def states(shard: ShardHarness, **options: object) -> list[str]:
    return [message.state for message in in_view(shard, **options)]


# --- what a view shows ------------------------------------------------------------------------------------------------


def test_it_shows_what_there_was_when_it_was_opened(shard: ShardHarness) -> None:
    shard.enqueue(b"b", key="b")
    shard.enqueue(b"a0", b"a1", key="a")
    shard.enqueue(b"a2", key="a", delay_ms=60_000)
    shard.receive(1)
    before = open_view(shard)
    assert [(queue.name, queue.messages) for queue in before.queues] == [("q", 4)]
    shard.enqueue(b"later", key="a")
    shard.ack(shard.receive(10))
    shard.pass_time(120_000)
    assert payloads(in_view(shard)) == [b"a0", b"a1", b"a2", b"b"]
    assert sorted(states(shard)) == ["delayed", "leased", "pending", "pending"]


def test_what_it_says_of_a_message(shard: ShardHarness) -> None:
    shard.enqueue(b"leased", b"extended", b"pending", key="acme", weight=3, throttle_keys=[["t2", "t1"]])
    shard.enqueue(b"delayed", key="acme", delay_ms=5_000)
    got = shard.receive(2, client=b"\x01\x02")
    shard.ask(Extend([(got[1].lease, [got[1].index])], 90_000), client=b"\x01\x02")
    now_ms = shard.now_ms
    open_view(shard)
    shard.pass_time(200_000)
    said = {
        payload: (each.state, each.consumer, each.leased_ms, each.lease_expires_ms, each.due_ms, each.throttle_keys)
        for payload, each in zip(payloads(in_view(shard)), in_view(shard), strict=True)
    }
    assert said == {
        b"leased": ("leased", client_name(b"\x01\x02"), now_ms, now_ms + 30_000, 0, ["t1", "t2"]),
        b"extended": ("leased", client_name(b"\x01\x02"), now_ms, now_ms + 90_000, 0, ["t1", "t2"]),
        b"pending": ("pending", "", 0, 0, 0, ["t1", "t2"]),
        b"delayed": ("delayed", "", 0, 0, now_ms + 5_000, []),
    }
    assert {(each.fairness_key, each.weight) for each in in_view(shard)} == {("acme", 3)}


def test_what_a_reservation_holds_is_leased_by_its_name(shard: ShardHarness) -> None:
    shard.enqueue(b"0")
    shard.ask(Reserve("query-7", 0, 1, 60_000))
    open_view(shard)
    assert [(each.state, each.consumer) for each in in_view(shard)] == [("leased", "query-7")]


def test_what_was_acked_is_not_shown_though_it_may_still_lie_on_disk(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%d" % number for number in range(5)])
    shard.ack(shard.receive(3))
    assert [queue.messages for queue in open_view(shard).queues] == [2]
    assert payloads(in_view(shard)) == [b"3", b"4"]


def test_what_came_in_the_same_turn_is_shown(shard: ShardHarness) -> None:
    shard.shard.apply(ClientCall(ADMIN, 1_000, "q", shard.now_ms), Enqueue([seal_envelope(b"0")]))
    shard.shard.apply(ClientCall(ADMIN, 1_001, "q", shard.now_ms), OpenView("v", ["q"], 10, 60_000))
    shard.turn()
    assert payloads(in_view(shard)) == [b"0"]


def test_a_queue_that_is_deleted_can_still_be_read_and_a_new_one_of_its_name_is_another(shard: ShardHarness) -> None:
    shard.enqueue(b"old")
    shard.receive(1)
    open_view(shard)
    shard.ask(DeleteQueue(), "q", ADMIN)
    assert payloads(in_view(shard)) == [b"old"]
    shard.ask(CreateQueue(QueueOptions()), "q", ADMIN)
    shard.enqueue(b"new")
    assert [(payload, each.state) for payload, each in zip([b"old"], in_view(shard), strict=True)] == [(b"old", "leased")]
    open_view(shard, "second")
    assert payloads(in_view(shard, "second")) == [b"new"]


def test_dead_letters_are_a_queue_of_their_own(shard: ShardHarness) -> None:
    shard.enqueue(b"dead", b"alive")
    shard.settle(Verb.FAIL, shard.receive(1))
    opened = open_view(shard, queues=("q", "q.dlq"))
    assert [(queue.name, queue.messages) for queue in opened.queues] == [("q", 1), ("q.dlq", 1)]
    shard.redrive()
    assert payloads(in_view(shard, queue="q.dlq")) == [b"dead"]
    assert payloads(in_view(shard, queue="q")) == [b"alive"]


def test_queues_that_do_not_exist_are_not_in_it(shard: ShardHarness) -> None:
    opened = open_view(shard, queues=("q", "nowhere", "q"))
    assert [queue.name for queue in opened.queues] == ["q"]
    with pytest.raises(QueueNotFoundError, match="'nowhere' is not in view 'v'"):
        page_of(shard, queue="nowhere")


def test_a_view_of_nothing_is_not_kept(shard: ShardHarness) -> None:
    assert open_view(shard, queues=("nowhere",)).queues == []
    assert shard.shard.part(Views).by_name == {}


def test_an_empty_queue_has_one_empty_page(shard: ShardHarness) -> None:
    assert [(queue.messages, queue.bounds) for queue in open_view(shard).queues] == [(0, [])]
    assert pages_of(shard) == [[]]


# --- ranges and filters -----------------------------------------------------------------------------------------------


def test_bounds_divide_the_keys_into_ranges_of_about_the_same_size(shard: ShardHarness) -> None:
    for number in range(10):
        shard.enqueue(*[b""] * (30 if number == 4 else 3), key=f"k{number}")
    (queue,) = open_view(shard, range_messages=10).queues
    assert (queue.messages, queue.bounds) == (57, ["k4", "k5", "k9"])
    sizes = [
        len(in_view(shard, from_key=first, to_key=end))
        for first, end in zip(["", *queue.bounds], [*queue.bounds, None], strict=True)
    ]
    assert sizes == [12, 30, 12, 3]


def test_a_queue_is_not_divided_into_more_ranges_than_there_may_be(shard: ShardHarness) -> None:
    for number in range(12):
        shard.enqueue(b"", key=f"k{number:02}")
    shard.limit(view_ranges_max=3)
    (queue,) = open_view(shard, range_messages=1).queues
    assert queue.bounds == ["k04", "k08"]


def test_keys_and_states_can_be_chosen(shard: ShardHarness) -> None:
    for key in ("a", "b", "c"):
        shard.enqueue(key.encode() + b"0", key.encode() + b"1", key=key)
        shard.enqueue(key.encode() + b"2", key=key, delay_ms=1_000)
    shard.receive(3)
    open_view(shard)
    assert {each.fairness_key for each in in_view(shard, fairness_keys=["c", "a", "x", "a"])} == {"a", "c"}
    assert states(shard, states=["delayed"]) == ["delayed"] * 3
    assert states(shard, states=["leased"]) == ["leased"] * 3
    assert states(shard, states=["pending"], fairness_keys=["a", "b", "c"]) == ["pending"] * 3
    assert [each.fairness_key for each in in_view(shard, fairness_keys=["a", "c"], from_key="b")] == ["c"] * 3
    assert in_view(shard, fairness_keys=["a", "c"], from_key="b", to_key="c") == []
    assert in_view(shard, states=[]) == in_view(shard, fairness_keys=[]) == []


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_pages_follow_each_other(limit: int) -> None:
    shard = ShardHarness(settings=ShardSettings(buffer_bytes=300))
    shard.create()
    expected = []
    for key in ("a", "b"):
        for number in range(9):
            payload = f"{key}{number}".encode()
            shard.enqueue(payload, key=key, throttle_keys=[["t"]] if number % 3 == 0 else [])
            expected.append(payload)
    open_view(shard)
    pages = pages_of(shard, limit=limit)
    assert all(len(page) == limit for page in pages[:-1])
    assert sorted(payload for page in pages for payload in payloads(page)) == sorted(expected)


def test_a_page_is_bounded_in_bytes(shard: ShardHarness) -> None:
    shard.enqueue(*[bytes(700_000)] * 3)
    shard.enqueue(bytes(3_000_000))
    open_view(shard)
    assert [len(page) for page in pages_of(shard)] == [2, 2]


def test_a_page_that_finds_nothing_of_what_is_wanted_ends_early(shard: ShardHarness) -> None:
    shard.enqueue(*[b""] * 50)
    shard.enqueue(b"last")
    shard.receive(50)
    shard.limit(view_examined_messages_max=20)
    open_view(shard)
    pages = pages_of(shard, states=["pending"])
    assert [payloads(page) for page in pages] == [[], [], [b"last"]]


def test_a_page_that_comes_to_many_keys_ends_early(shard: ShardHarness) -> None:
    for number in range(5):
        shard.enqueue(b"", key=f"k{number}")
    shard.enqueue(b"late", key="z", delay_ms=1_000)
    shard.limit(view_keys_max=2)
    open_view(shard)
    assert [payloads(page) for page in pages_of(shard, states=["delayed"])] == [[], [], [b"late"]]


def test_a_page_can_be_asked_for_again(shard: ShardHarness) -> None:
    shard.enqueue(*[b"%d" % number for number in range(6)])
    open_view(shard)
    first = page_of(shard, limit=2)
    again = [page_of(shard, limit=2, start=first.next) for _ in range(2)]
    assert again[0] == again[1]
    assert payloads(again[0].messages) == [b"2", b"3"]


# --- life and death ---------------------------------------------------------------------------------------------------


def test_opening_an_open_view_answers_the_same_and_changes_nothing(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    first = open_view(shard)
    shard.enqueue(b"2")
    assert open_view(shard, range_messages=1) == first
    assert payloads(in_view(shard)) == [b"0", b"1"]


def test_a_view_that_is_not_read_is_closed_when_its_time_is_over(shard: ShardHarness) -> None:
    shard.enqueue(b"0")
    open_view(shard, idle_ms=10_000)
    shard.pass_time(9_999)
    assert payloads(in_view(shard)) == [b"0"]
    shard.pass_time(9_999)
    assert list(shard.shard.part(Views).by_name) == ["v"]
    shard.pass_time(1)
    assert shard.shard.part(Views).by_name == {}
    with pytest.raises(InvalidArgumentError, match=r"no view 'v' is open.*load the DataFrame again"):
        page_of(shard)


def test_a_restart_closes_all_views(shard: ShardHarness) -> None:
    open_view(shard)
    shard.restart()
    with pytest.raises(InvalidArgumentError, match="its worker was restarted"):
        page_of(shard)


def test_a_view_may_be_opened_anew_once_it_is_closed(shard: ShardHarness) -> None:
    open_view(shard, idle_ms=1_000)
    shard.enqueue(b"0")
    shard.pass_time(1_000)
    open_view(shard)
    assert payloads(in_view(shard)) == [b"0"]


def test_there_are_few_at_a_time_and_those_that_are_read_stay(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    for number in range(Limits().views_max):
        open_view(shard, f"v{number}")
        shard.pass_time(1_000)
    with pytest.raises(OverloadedError, match="16 views of this shard's queues are open") as refused:
        open_view(shard, "more")
    assert refused.value.retry_after == 44.0
    page_of(shard, "v0", limit=1)
    shard.pass_time(44_000)
    with pytest.raises(OverloadedError) as refused:
        open_view(shard, "more")
    assert refused.value.retry_after == 1.0, "v0 is being read, v1 is next"
    shard.pass_time(1_000)
    open_view(shard, "more")
    page_of(shard, "v0")
    with pytest.raises(InvalidArgumentError, match="its shard ran out of room"):
        page_of(shard, "v1")


def test_what_was_read_to_its_end_makes_room_first_and_soon(shard: ShardHarness) -> None:
    shard.enqueue(b"0", b"1")
    for number in range(Limits().views_max):
        open_view(shard, f"v{number}")
    begun = page_of(shard, "v3", limit=1)
    page_of(shard, "v7")
    shard.pass_time(views.AT_REST_MS - 1)
    with pytest.raises(OverloadedError) as refused:
        open_view(shard, "more")
    assert refused.value.retry_after == 0.001
    assert payloads(in_view(shard, "v3", start=begun.next)) == [b"1"]
    shard.pass_time(1)
    open_view(shard, "more")
    with pytest.raises(InvalidArgumentError, match="ran out of room"):
        page_of(shard, "v7")
    shard.pass_time(views.AT_REST_MS - 1)
    open_view(shard, "another")  # v3 was at rest, the others were never read
    with pytest.raises(InvalidArgumentError, match="ran out of room"):
        page_of(shard, "v3")


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (OpenView("", ["q"], 1, 1_000), "view=''"),
        (OpenView("v" * (VIEW_BYTES_MAX + 1), ["q"], 1, 1_000), "1 to 200 bytes"),
        (OpenView("v", ["q"], 0, 1_000), "range_messages=0"),
        (OpenView("v", ["q"], 1, VIEW_IDLE_MS_MIN - 1), "idle_ms=999"),
        (OpenView("v", ["q"], 1, VIEW_IDLE_MS_MAX + 1), "idle_ms=3600001"),
        (BrowseView("open", 0), "0 messages"),
        (BrowseView("open", BROWSE_MESSAGES_MAX + 1), "1001 messages"),
        (BrowseView("open", 1, states=["pending", "gone"]), "state 'gone'"),
        (BrowseView("open", 1, ("a", b"junk")), "`next` of the page before"),
    ],
)
def test_bad_arguments_are_refused_by_name(shard: ShardHarness, command: OpenView | BrowseView, text: str) -> None:
    open_view(shard, "open")
    with pytest.raises(InvalidArgumentError, match=text):
        shard.ask(command, "q", ADMIN)


@pytest.mark.parametrize("name", ["", "a", "b", "\uffff"])
@pytest.mark.parametrize("packed", [bytes(25), b"\xff" * 25, b"\x00" + bytes(7) + b"\x01" + bytes(12) + b"\xff" * 4])
def test_a_forged_place_to_go_on_at_finds_only_messages_of_that_key(shard: ShardHarness, name: str, packed: bytes) -> None:
    shard.enqueue(b"a", key="a")
    shard.enqueue(b"b", key="b")
    open_view(shard)
    try:
        found = page_of(shard, start=(name, packed), to_key=name + "\0").messages
    except FilaError:
        return
    assert all(each.fairness_key == name for each in found)


def test_the_name_of_an_open_view_shows_nothing_to_who_asks_for_other_queues(shard: ShardHarness) -> None:
    shard.create("mine")
    opened = open_view(shard, queues=("q", "mine"))
    assert open_view(shard, queues=("mine", "q")) == opened
    with pytest.raises(InvalidArgumentError, match="other queues: use another name"):
        open_view(shard, queues=("mine",))
