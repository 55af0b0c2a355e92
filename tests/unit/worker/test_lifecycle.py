"""The table of a message's life, walked through the real core: each row, each reason for a dead letter, and what is no row."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Enqueue,
    Extend,
    FetchReserved,
    MoveMessages,
    Receive,
    Reserve,
    Settle,
    Verb,
)
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.record import Record, seal_envelope, unpack_record
from fila_worker.core.lifecycle import LIFE, Attempts, DeadLetterReason, LifecycleEvent, MessagePlace, Transition, step_of
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import ADMIN, Got, ShardHarness, fences, opened

DELAY_MS = 10_500
TTL_MS = 10_400
"""Shorter than the delay, and in the same second: expired messages are looked for at the full one."""
LEASE_MS = 12_000
RESERVATION_MS = 11_000
ALL_OF_IT_MS = 15_001
"""Longer than a consumer may be silent."""

ASIDE = name_on(3, "aside")
VERBS = {
    LifecycleEvent.ACK: (Verb.ACK, 0), LifecycleEvent.RELEASE: (Verb.RELEASE, 0), LifecycleEvent.NACK: (Verb.NACK, 0), LifecycleEvent.NACK_LATER: (Verb.NACK, 0),
    LifecycleEvent.RETRY: (Verb.RETRY, 0), LifecycleEvent.RETRY_LATER: (Verb.RETRY, DELAY_MS), LifecycleEvent.DEFER: (Verb.DEFER, 0),
    LifecycleEvent.DEFER_LATER: (Verb.DEFER, DELAY_MS), LifecycleEvent.FAIL: (Verb.FAIL, 0),
}  # fmt: skip
CLOCK = {
    LifecycleEvent.DUE: DELAY_MS, LifecycleEvent.TOO_OLD: 11_000, LifecycleEvent.LEASE_EXPIRED: LEASE_MS, LifecycleEvent.CONSUMER_LOST: ALL_OF_IT_MS,
    LifecycleEvent.RESERVATION_EXPIRED: RESERVATION_MS,
}  # fmt: skip
HOOK = "function on_failure(msg) return {{ action = {action!r}, delay_ms = {delay_ms} }} end"


@dataclass
class Life:
    """One message in a shard of its own, made for an event that is to happen to it."""

    event: LifecycleEvent
    reasons: tuple[DeadLetterReason, ...] = ()
    """Those that are to hold when it happens."""
    options: dict[str, Any] = field(default_factory=dict)
    id: str = ""
    got: Got | None = None

    def __post_init__(self) -> None:
        self.harness = ShardHarness()
        options: dict[str, Any] = {
            "visibility_timeout_ms": LEASE_MS if self.event is LifecycleEvent.LEASE_EXPIRED else 60_000
        }
        if self.event is LifecycleEvent.DELIVER_ONCE:
            options["delivery"] = "at_most_once"
        if self.event is LifecycleEvent.NACK_LATER:
            options["on_failure"] = HOOK.format(action="retry", delay_ms=DELAY_MS)
        if DeadLetterReason.HOOK in self.reasons:
            options["on_failure"] = HOOK.format(action="dlq", delay_ms=0)
        if DeadLetterReason.MAX_ATTEMPTS in self.reasons:
            options["max_attempts"] = 2
        self.harness.create(**options | self.options)

    def begin(self, place: MessagePlace) -> None:
        """Bring the message to a place, with one failed attempt if it can have had any."""
        if place is MessagePlace.NOWHERE:
            return
        ttl_ms = TTL_MS if self.event is LifecycleEvent.TOO_OLD or DeadLetterReason.EXPIRED in self.reasons else 0
        self.enqueue(ttl_ms=ttl_ms)
        (view,) = self.harness.ask(Browse(10)).messages  # type: ignore[attr-defined]
        record = unpack_record(view.record)
        self.id = format_id(record.id_high, record.id_low)
        if self.event is not LifecycleEvent.DELIVER_ONCE:
            self.settle(Verb.RETRY, self.receive(), DELAY_MS if place is MessagePlace.DELAYED else 0)
        if place is MessagePlace.LEASED:
            self.got = self.reserve() if self.event is LifecycleEvent.RESERVATION_EXPIRED else self.receive()
        elif place is MessagePlace.DEAD_LETTER:
            self.settle(Verb.FAIL, self.receive())
        elif place is MessagePlace.GONE:
            self.cancel()
        if DeadLetterReason.EXPIRED in self.reasons and self.event not in CLOCK:
            self.harness.pass_time(TTL_MS + 1)

    def happen(self) -> None:
        """Let the event happen."""
        event, harness = self.event, self.harness
        if event is LifecycleEvent.ENQUEUE:
            (self.id,) = harness.enqueue(b"payload")
        elif event is LifecycleEvent.ENQUEUE_LATER:
            (self.id,) = harness.enqueue(b"payload", delay_ms=DELAY_MS)
        elif event is LifecycleEvent.REPLACE:
            self.enqueue()
        elif event is LifecycleEvent.REPLACE_LATER:
            self.enqueue(delay_ms=DELAY_MS)
        elif event in CLOCK:
            harness.pass_time(CLOCK[event])
        elif event in VERBS:
            self.settle(VERBS[event][0], self.got, VERBS[event][1])
        elif event in {LifecycleEvent.DELIVER, LifecycleEvent.DELIVER_ONCE}:
            harness.ask(Receive(1, 0))
        elif event is LifecycleEvent.CANCEL:
            self.cancel()
        elif event is LifecycleEvent.EXTEND:
            harness.ask(Extend(fences([self.got]) if self.got else [(1, [0])], 30_000))
        elif event is LifecycleEvent.MOVE:
            harness.create(ASIDE)
            for queue in ("q", "q.dlq"):
                harness.ask(MoveMessages(ASIDE, 0), queue, ADMIN)
        else:
            assert event is LifecycleEvent.REDRIVE
            harness.redrive()

    def enqueue(self, **columns: int) -> None:
        """Enqueue the message, or replace it."""
        self.harness.ask(Enqueue([seal_envelope(b"payload")], dedup_id="a", dedup_last=True, **columns), client=ADMIN)  # type: ignore[arg-type]

    def receive(self, queue: str = "q") -> Got:
        (got,) = self.harness.receive(1, queue)
        return got

    def reserve(self) -> Got:
        self.harness.ask(Reserve("r", 0, 1, RESERVATION_MS), client=ADMIN)
        (got,) = opened(self.harness.ask(FetchReserved("r", 0), client=ADMIN))  # type: ignore[arg-type]
        return got

    def settle(self, verb: Verb, got: Got | None, after_ms: int = 0, queue: str = "q") -> None:
        self.harness.ask(Settle(verb, fences([got]) if got else [(1, [0])], after_ms=after_ms), queue)

    def cancel(self) -> None:
        with suppress(FilaError):
            self.harness.ask(Cancel(*parse_id(self.id)), client=ADMIN)

    def look(self) -> tuple[MessagePlace, Record | None]:
        """Where the message is, and as what."""
        found = []
        for queue, places in (("q", {}), (ASIDE, {}), ("q.dlq", {"pending": MessagePlace.DEAD_LETTER})):
            with suppress(FilaError):
                page = self.harness.ask(Browse(10), queue, ADMIN)
                assert isinstance(page, Browsed)
                records = [
                    (places.get(view.state) or MessagePlace(view.state), unpack_record(view.record)) for view in page.messages
                ]
                found += [
                    (place, record) for place, record in records if (record.id_high, record.id_low) == parse_id(self.id)
                ]
        assert len(found) <= 1, "a message is in one place"
        return found[0] if found else (MessagePlace.GONE, None)


def name(step: Transition) -> str:
    return f"{step.before.name}-{step.event.name}"


JUDGED = [(step, reason) for step in LIFE for reason in step.unless]


@pytest.mark.parametrize("step", LIFE, ids=name)
def test_each_row_is_what_the_core_does(step: Transition) -> None:
    life = Life(step.event)
    life.begin(step.before)
    before = life.look()[1] if life.id else None
    life.happen()
    place, record = life.look()
    assert place is step.after
    if record is not None:
        assert record.attempts == step.attempts.of(before.attempts if before else 0)
        assert before is None or before.attempts > 0, "so that it is seen whether they are kept"
    if step.after is MessagePlace.DEAD_LETTER:
        expected = DeadLetterReason.FAILED if step.event is LifecycleEvent.FAIL else DeadLetterReason.EXPIRED
        assert record is not None
        assert record.extension.reason == expected


@pytest.mark.parametrize(
    ("step", "reason"), JUDGED, ids=lambda each: name(each) if isinstance(each, Transition) else each.name
)
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with those behind it"])
def test_each_reason_makes_a_dead_letter_and_the_first_one_is_kept(
    step: Transition, reason: DeadLetterReason, others: bool
) -> None:
    reasons = step.unless[step.unless.index(reason) :] if others else (reason,)
    life = Life(step.event, reasons)
    life.begin(step.before)
    life.happen()
    place, record = life.look()
    assert place is step.leads_to(reason) is MessagePlace.DEAD_LETTER
    assert record is not None
    assert (record.extension.reason, record.attempts) == (reason, step.attempts.of(1))


@pytest.mark.parametrize(
    "step",
    [step for step in LIFE if step.before is MessagePlace.LEASED and (step.unless or step.event is LifecycleEvent.FAIL)],
    ids=name,
)
def test_without_dead_letters_it_is_gone(step: Transition) -> None:
    reason = step.unless[0] if step.unless else None
    life = Life(step.event, () if reason is None else (reason,), {"dead_letter": "discard"})
    life.begin(step.before)
    life.happen()
    assert life.look()[0] is step.leads_to(reason, discards=True) is MessagePlace.GONE


@pytest.mark.parametrize(
    "event", [LifecycleEvent.NACK, LifecycleEvent.RETRY, LifecycleEvent.FAIL], ids=lambda event: event.name
)
def test_a_dead_letter_stays_one(event: LifecycleEvent) -> None:
    life = Life(event, (DeadLetterReason.MAX_ATTEMPTS,))
    life.begin(MessagePlace.DEAD_LETTER)
    for _ in range(3):
        life.settle(VERBS[event][0], life.receive("q.dlq"), queue="q.dlq")
    step = step_of(MessagePlace.LEASED, event)
    assert step is not None
    assert step.leads_to(DeadLetterReason.MAX_ATTEMPTS, dead_letters=False) is MessagePlace.PENDING
    assert life.look()[0] is MessagePlace.DEAD_LETTER, "pending, in the dead letter queue"


@pytest.mark.parametrize(
    "place", [place for place in MessagePlace if place is not MessagePlace.NOWHERE], ids=lambda place: place.name
)
@pytest.mark.parametrize("event", [event for event in LifecycleEvent if event not in CLOCK], ids=lambda event: event.name)
def test_what_is_no_row_changes_nothing(place: MessagePlace, event: LifecycleEvent) -> None:
    if step_of(place, event) is not None or event in {LifecycleEvent.ENQUEUE, LifecycleEvent.ENQUEUE_LATER}:
        return
    if event is LifecycleEvent.DELIVER_ONCE and place is not MessagePlace.GONE:
        return  # where messages are delivered at most once, none has a failed attempt
    life = Life(event)
    life.begin(place)
    before = life.look()
    assert before[0] is place
    life.happen()
    after = life.look()
    assert (after[0], after[1] and after[1].attempts) == (place, before[1] and before[1].attempts)


def test_the_table_names_each_place_event_and_reason() -> None:
    assert {step.event for step in LIFE} == set(LifecycleEvent)
    assert {step.before for step in LIFE} | {step.after for step in LIFE} == set(MessagePlace)
    assert len({(step.before, step.event) for step in LIFE}) == len(LIFE)
    assert {step.attempts for step in LIFE} == set(Attempts)
