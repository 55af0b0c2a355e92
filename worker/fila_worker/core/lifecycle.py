"""The life of a message as a table: the places of a message, the events in each place, and the next place.

The core does not read the table: each command acts in its own module, fast and in batches. The table defines what all
commands together must do. Tests take the real core through each row, and through the pairs without a row. The simulation's
checker uses it, and the table in ``docs/protocol.md`` is made from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Place(StrEnum):
    """The place of a message. The value is its name in the docs."""

    NOWHERE = "–"
    """Not stored yet."""
    DELAYED = "delayed"
    PENDING = "pending"
    LEASED = "leased"
    DEAD_LETTER = "dead letter"
    """Pending in the dead letter queue of its queue, or in the queue that ``dead_letter`` names, like any pending message
    there."""
    GONE = "gone"


class Event(StrEnum):
    """An event in the life of a message. The value is its text in the docs."""

    ENQUEUE = "Enqueue"
    ENQUEUE_LATER = "Enqueue, to be delivered later"
    REPLACE = "Enqueue with dedup_last"
    REPLACE_LATER = "Enqueue with dedup_last, to be delivered later"
    DUE = "due"
    TOO_OLD = "its time to live is over"
    DELIVER = "Receive, Subscribe, Reserve"
    DELIVER_ONCE = "Receive, at most once"
    CANCEL = "Cancel, PurgeQueue"
    ACK = "ACK"
    RELEASE = "RELEASE, Goodbye"
    NACK = "NACK"
    NACK_LATER = "NACK, and the hook chooses a delay"
    RETRY = "RETRY"
    RETRY_LATER = "RETRY with after_ms"
    DEFER = "DEFER"
    DEFER_LATER = "DEFER with after_ms"
    FAIL = "FAIL"
    EXTEND = "Extend"
    LEASE_EXPIRED = "lease expired"
    CONSUMER_LOST = "consumer lost"
    RESERVATION_EXPIRED = "reservation expired"
    REDRIVE = "Redrive"


class Attempts(Enum):
    """The change of a message's count of failed attempts. The value is its text in the docs."""

    SAME = "as before"
    ONE_MORE = "+ 1"
    ZERO = "0"

    def of(self, before: int) -> int:
        """Return the count afterwards."""
        return {Attempts.SAME: before, Attempts.ONE_MORE: before + 1, Attempts.ZERO: 0}[self]


class Reason(StrEnum):
    """Why a message becomes a dead letter. The value is the ``reason`` that the message carries."""

    FAILED = "failed"
    HOOK = "hook"
    MAX_ATTEMPTS = "max_attempts"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Step:
    """One row: ``event`` moves a message from ``before`` to ``after``.

    If a reason in ``unless`` applies, the first that does makes the message a dead letter instead.
    """

    before: Place
    event: Event
    after: Place
    attempts: Attempts = Attempts.SAME
    unless: tuple[Reason, ...] = ()

    def leads_to(self, reason: Reason | None, *, dead_letters: bool = True, discards: bool = False) -> Place:
        """Return the place of the message afterwards.

        ``reason``: the one of ``unless`` that applies. ``dead_letters`` false: the queue is a dead letter queue, whose
        messages stay in it. ``discards``: the queue's ``dead_letter`` is ``discard``.
        """
        if self.after is Place.DEAD_LETTER or reason in self.unless:
            if not dead_letters:
                return self.before if self.before is not Place.LEASED else Place.PENDING
            return Place.GONE if discards else Place.DEAD_LETTER
        return self.after


_COUNTED: Final = (Reason.MAX_ATTEMPTS, Reason.EXPIRED)
_HOOKED: Final = (Reason.HOOK, *_COUNTED)
_UNCOUNTED: Final = (Reason.EXPIRED,)

LIFE: Final = (
    Step(Place.NOWHERE, Event.ENQUEUE, Place.PENDING, Attempts.ZERO),
    Step(Place.NOWHERE, Event.ENQUEUE_LATER, Place.DELAYED, Attempts.ZERO),
    Step(Place.DELAYED, Event.DUE, Place.PENDING, unless=_UNCOUNTED),
    Step(Place.DELAYED, Event.TOO_OLD, Place.DEAD_LETTER),
    Step(Place.DELAYED, Event.REPLACE, Place.PENDING),
    Step(Place.DELAYED, Event.REPLACE_LATER, Place.DELAYED),
    Step(Place.DELAYED, Event.CANCEL, Place.GONE),
    Step(Place.PENDING, Event.DELIVER, Place.LEASED),
    Step(Place.PENDING, Event.DELIVER_ONCE, Place.GONE),
    Step(Place.PENDING, Event.TOO_OLD, Place.DEAD_LETTER),
    Step(Place.PENDING, Event.REPLACE, Place.PENDING),
    Step(Place.PENDING, Event.REPLACE_LATER, Place.DELAYED),
    Step(Place.PENDING, Event.CANCEL, Place.GONE),
    Step(Place.LEASED, Event.EXTEND, Place.LEASED),
    Step(Place.LEASED, Event.ACK, Place.GONE),
    Step(Place.LEASED, Event.RELEASE, Place.PENDING, unless=_UNCOUNTED),
    Step(Place.LEASED, Event.DEFER, Place.PENDING, unless=_UNCOUNTED),
    Step(Place.LEASED, Event.DEFER_LATER, Place.DELAYED, unless=_UNCOUNTED),
    Step(Place.LEASED, Event.RESERVATION_EXPIRED, Place.PENDING, unless=_UNCOUNTED),
    Step(Place.LEASED, Event.NACK, Place.PENDING, Attempts.ONE_MORE, _HOOKED),
    Step(Place.LEASED, Event.NACK_LATER, Place.DELAYED, Attempts.ONE_MORE, _COUNTED),
    Step(Place.LEASED, Event.RETRY, Place.PENDING, Attempts.ONE_MORE, _COUNTED),
    Step(Place.LEASED, Event.RETRY_LATER, Place.DELAYED, Attempts.ONE_MORE, _COUNTED),
    Step(Place.LEASED, Event.LEASE_EXPIRED, Place.PENDING, Attempts.ONE_MORE, _COUNTED),
    Step(Place.LEASED, Event.CONSUMER_LOST, Place.PENDING, Attempts.ONE_MORE, _COUNTED),
    Step(Place.LEASED, Event.FAIL, Place.DEAD_LETTER, Attempts.ONE_MORE),
    Step(Place.DEAD_LETTER, Event.REDRIVE, Place.PENDING, Attempts.ZERO),
)  # fmt: skip
"""A pair without a row changes nothing: the event is refused, or leaves the message out."""

_BY_PAIR: Final = {(step.before, step.event): step for step in LIFE}


def step_of(before: Place, event: Event) -> Step | None:
    """Return the row of a place and an event; None if nothing changes."""
    return _BY_PAIR.get((before, event))


def steps_from(before: Place) -> Iterator[Step]:
    """Return the rows of a place."""
    return (step for step in LIFE if step.before is before)
