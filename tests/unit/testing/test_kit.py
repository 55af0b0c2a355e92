"""What a test has in its hands: states, stories, assertions."""

from collections.abc import Iterator
from typing import Any

import pytest

from fila_cluster import Message
from fila_cluster.errors import InvalidArgumentError, QueueNotFoundError
from fila_cluster.testing import Fila, broker
from fila_cluster.testing.story import shown_payload


@pytest.fixture
def fila() -> Iterator[Fila]:
    with broker() as opened:
        opened.create_queue("q", max_attempts=2)
        yield opened


def a_life(fila: Fila) -> str:
    """A message that fails twice, with 5 s in between; its id."""
    message = fila.enqueue("q", b"order 1", fairness_key="ana", delay=1)
    fila.clock.advance(1)
    fila.receive("q")[0].retry(after=5, error="busy")
    fila.clock.advance(5)
    fila.receive("q")[0].nack("busy again")
    return message


def test_a_story_has_what_happened_and_how_it_is_now(fila: Fila) -> None:
    message = a_life(fila)
    lines = [line.strip() for line in fila.story("q").splitlines()]
    assert lines[0].startswith("queue 'q': 0 pending, 0 delayed, 0 leased, 1 dead, 6.000 s after")
    assert lines[1] == f"message {message}"
    assert lines[2] == "0.000 s  enqueued order 1 (key ana, delay 1 s)"
    assert lines[3].startswith("1.000 s  delivered to client ")
    assert lines[3].endswith("attempts 0, leased until 31.000 s")
    assert lines[4] == "1.000 s  retried in 5 s: busy"
    assert lines[6] == "6.000 s  nacked: busy again"
    assert lines[7] == "now  dead letter: max_attempts, attempts 2, error 'busy again'"


@pytest.mark.parametrize(
    ("prepare", "line"),
    [
        (lambda fila: fila.enqueue("q", b"x", delay=9), "now  delayed, due in 9.000 s, attempts 0"),
        (lambda fila: fila.enqueue("q", b"x", ttl=9), "0.000 s  enqueued x (ttl 9 s)"),
        (lambda fila: fila.cancel("q", fila.enqueue("q", b"x")), "0.000 s  cancelled"),
        (lambda fila: [fila.enqueue("q", b"x"), fila.purge_queue("q")], "0.000 s  1 messages purged"),
        (lambda fila: [fila.enqueue("q", b"x", dedup_id="1") for _ in range(2)], "0.000 s  enqueued again by its dedup id: nothing stored"),
        (lambda fila: [fila.enqueue("q", b"x"), fila.receive("q")[0].defer(3)], "0.000 s  deferred in 3 s"),
        (lambda fila: [fila.enqueue("q", b"x"), fila.receive("q")[0].fail("no")], "0.000 s  failed: no"),
    ],
)  # fmt: skip
def test_the_lines_of_a_story(fila: Fila, prepare: Any, line: str) -> None:
    prepare(fila)
    assert line in [each.strip() for each in fila.story("q").splitlines()]


def test_a_queue_with_partitions_has_one_story(fila: Fila) -> None:
    fila.create_queue("big", partitions=4)
    fila.enqueue_many("big", [Message(b"%d" % number, fairness_key=f"k{number}") for number in range(8)])
    for delivery in fila.receive("big", 8):
        delivery.fail("no")
    story = fila.story("big")
    assert story.count("enqueued ") == 8
    assert story.count("dead letter: ") == 8
    assert "refused" not in story
    assert "@" not in story
    assert len(fila.queue("big").dead) == 8


def test_a_refusal_is_part_of_the_story(fila: Fila) -> None:
    with pytest.raises(QueueNotFoundError):
        fila.enqueue("nowhere", b"x")
    assert "queue 'nowhere': there is none" in fila.story("nowhere")
    assert "Enqueue was refused: QUEUE_NOT_FOUND" in fila.story("nowhere")


def test_a_story_is_bounded(fila: Fila) -> None:
    for _ in range(100):
        fila.enqueue("q", bytes(10_000))
    story = fila.story("q")
    assert "80 earlier messages" in story
    assert len(story) < 10_000


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"text", "text"),
        (b"\xff\x00", repr(b"\xff\x00")),
        (b"two\nlines", repr(b"two\nlines")),
        (b"x" * 99, "x" * 60 + "… (99 bytes)"),
    ],
)
def test_a_payload_is_shown_on_one_line(payload: bytes, shown: str) -> None:
    assert shown_payload(payload) == shown


def test_the_state_of_a_queue(fila: Fila) -> None:
    a_life(fila)
    fila.enqueue("q", b"next")
    state = fila.queue("q")
    assert (state.pending, state.depth, state.enqueued, state.delivered, state.dead_lettered) == (1, 1, 2, 2, 1)
    assert [view.payload for view in state.messages] == [b"next"]
    assert [view.reason for view in state.dead] == ["max_attempts"]
    assert repr(state) == state.story == fila.story("q")


def test_dead_letters_in_a_queue_that_takes_those_of_several(fila: Fila) -> None:
    fila.create_queue("failed")
    for name in ("orders", "invoices"):
        fila.create_queue(name, dead_letter="failed", max_attempts=1)
        fila.enqueue(name, name.encode())
        fila.receive(name)[0].nack("boom")
    fila.assert_dead("orders", 1)
    assert [view.payload for view in fila.queue("orders").dead] == [b"orders"]
    assert "now  dead letter: max_attempts" in fila.story("orders")
    fila.assert_pending("failed", 2)


def test_assertions_hold_or_tell_the_story(fila: Fila) -> None:
    message = a_life(fila)
    fila.assert_delivered("q", 2)
    fila.assert_dead("q", 1)
    fila.assert_empty("q")
    fila.assert_acked("q", 0)
    fila.assert_pending("q", 0)
    fila.assert_delayed("q", 0)
    for wrong in (
        lambda: fila.assert_delivered("q", 1),
        lambda: fila.assert_dead("q", 0),
        lambda: fila.assert_acked("q", 1),
        lambda: fila.assert_pending("q", 1),
        lambda: fila.assert_delayed("q", 1),
    ):
        with pytest.raises(AssertionError, match="retried in 5 s: busy") as raised:
            wrong()
        assert message in str(raised.value)
    fila.enqueue("q", b"next")
    with pytest.raises(AssertionError, match="queue 'q': messages: 1, expected: 0"):
        fila.assert_empty("q")


class Worker:
    """Handles what is there, as an app does."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def run_until_idle(self, client: Fila) -> int:
        count = 0
        while deliveries := client.receive("q", 10):
            for delivery in deliveries:
                self.seen.append(delivery.payload)
                if delivery.payload == b"one":
                    client.enqueue("q", b"two")
                delivery.ack()
                count += 1
        return count


def test_handlers_run_until_nothing_is_left(fila: Fila) -> None:
    worker = Worker()
    fila.enqueue("q", b"one")
    fila.enqueue("q", b"later", delay=60)
    assert fila.run_until_idle(worker) == 2
    fila.clock.advance(60)
    assert fila.run_until_idle(worker) == 1
    assert worker.seen == [b"one", b"two", b"later"]


def test_what_cannot_run_is_refused(fila: Fila) -> None:
    with pytest.raises(InvalidArgumentError, match="run_until_idle"):
        fila.run_until_idle(object())  # type: ignore[arg-type]
