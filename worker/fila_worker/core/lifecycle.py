"""The life of a message as a table: where it may be, what may happen to it there, and where it is then.

Nothing in the core reads it: each command acts where its topic is, fast and in batches. The table says what all of them together must do. Tests
take the real core through each row, and through what is no row; the simulation's checker and ``docs/protocol.md`` are made of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Place(StrEnum):
    """Where a message is. The value is its name in the docs."""

    NOWHERE = "–"
    """It is not stored yet."""
    DELAYED = "delayed"
    PENDING = "pending"
    LEASED = "leased"
    DEAD_LETTER = "dead letter"
    """Pending in the dead letter queue of its queue, or where ``dead_letter`` says. There its life goes on like any pending message's."""
    GONE = "gone"


class Event(StrEnum):
    """What may happen to a message. The value is how the docs write it."""

    ENQUEUE = "Enqueue"
    ENQUEUE_LATER = "Enqueue, to be delivered later"
    DUE = "due"
    TOO_OLD = "its time to live is over"
    DELIVER = "Receive, Subscribe, Reserve"
    DELIVER_ONCE = "Receive, at most once"
    CANCEL = "Cancel, PurgeQueue"
    ACK = "ACK"
    RELEASE = "RELEASE, Goodbye"
    NACK = "NACK"
    NACK_LATER = "NACK, and the hook says a delay"
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
    """What becomes of a message's count of failed attempts. The value is how the docs write it."""

    SAME = "as before"
    ONE_MORE = "+ 1"
    ZERO = "0"

    def of(self, before: int) -> int:
        """How many there are afterwards."""
        return {Attempts.SAME: before, Attempts.ONE_MORE: before + 1, Attempts.ZERO: 0}[self]


class Reason(StrEnum):
    """Why a message becomes a dead letter. The value is the ``reason`` that it carries."""

    FAILED = "failed"
    HOOK = "hook"
    MAX_ATTEMPTS = "max_attempts"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Step:
    """One row: in ``before``, ``event`` brings a message to ``after``.

    Where one of ``unless`` holds, the first one that does makes it a dead letter instead.
    """

    before: Place
    event: Event
    after: Place
    attempts: Attempts = Attempts.SAME
    unless: tuple[Reason, ...] = ()

    def leads_to(self, reason: Reason | None, *, dead_letters: bool = True, discards: bool = False) -> Place:
        """Where the message is afterwards.

        ``reason``: which of ``unless`` holds. ``dead_letters`` false: the queue is a dead letter queue, whose messages stay there. ``discards``: its
        ``dead_letter`` is ``discard``.
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
    Step(Place.DELAYED, Event.CANCEL, Place.GONE),
    Step(Place.PENDING, Event.DELIVER, Place.LEASED),
    Step(Place.PENDING, Event.DELIVER_ONCE, Place.GONE),
    Step(Place.PENDING, Event.TOO_OLD, Place.DEAD_LETTER),
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
"""What is no row changes nothing: it is refused, or passes the message over."""

_BY_PAIR: Final = {(step.before, step.event): step for step in LIFE}


def step_of(before: Place, event: Event) -> Step | None:
    """The row of a place and an event; None if nothing changes."""
    return _BY_PAIR.get((before, event))


def steps_from(before: Place) -> Iterator[Step]:
    """The rows of a place."""
    return (step for step in LIFE if step.before is before)
