"""The lifecycle of a message as a table: the places of a message, the events in each place, and the next place.

The core does not read the table: each command acts in its own module, fast and in batches. The table defines what all
commands together must do. Tests take the real core through each row, and through the pairs without a row. The simulation's
checker uses it, and the table in ``docs/protocol.md`` is made from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class MessagePlace(StrEnum):
    """The place of a message. The value is its name in the docs."""

    NOWHERE = "–"
    """Not stored yet."""
    DELAYED = "delayed"
    PENDING = "pending"
    LEASED = "leased"
    DEAD_LETTER = "dead letter"
    """Pending in the queue's dead letter queue, or, as any message there, in the queue that ``dead_letter`` names."""
    GONE = "gone"


class LifecycleEvent(StrEnum):
    """An event in the lifecycle of a message. The value is its text in the docs."""

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
    MOVE = "MoveMessages"


class Attempts(Enum):
    """The change of a message's count of failed attempts. The value is its text in the docs."""

    SAME = "as before"
    ONE_MORE = "+ 1"
    ZERO = "0"

    def of(self, before: int) -> int:
        """Return the count afterwards."""
        return {Attempts.SAME: before, Attempts.ONE_MORE: before + 1, Attempts.ZERO: 0}[self]


class DeadLetterReason(StrEnum):
    """Why a message becomes a dead letter. The value is the ``reason`` that the message carries."""

    FAILED = "failed"
    HOOK = "hook"
    MAX_ATTEMPTS = "max_attempts"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: ``event`` moves a message from ``before`` to ``after``.

    If a reason in ``unless`` applies, the first that does makes the message a dead letter instead.
    """

    before: MessagePlace
    event: LifecycleEvent
    after: MessagePlace
    attempts: Attempts = Attempts.SAME
    unless: tuple[DeadLetterReason, ...] = ()

    def leads_to(self, reason: DeadLetterReason | None, *, dead_letters: bool = True, discards: bool = False) -> MessagePlace:
        """Return the place of the message afterwards.

        ``reason``: the one of ``unless`` that applies. ``dead_letters`` false: the queue is a dead letter queue, whose
        messages stay in it. ``discards``: the queue's ``dead_letter`` is ``discard``.
        """
        if self.after is MessagePlace.DEAD_LETTER or reason in self.unless:
            if not dead_letters:
                return self.before if self.before is not MessagePlace.LEASED else MessagePlace.PENDING
            return MessagePlace.GONE if discards else MessagePlace.DEAD_LETTER
        return self.after


_COUNTED: Final = (DeadLetterReason.MAX_ATTEMPTS, DeadLetterReason.EXPIRED)
_HOOKED: Final = (DeadLetterReason.HOOK, *_COUNTED)
_UNCOUNTED: Final = (DeadLetterReason.EXPIRED,)

LIFE: Final = (
    Transition(MessagePlace.NOWHERE, LifecycleEvent.ENQUEUE, MessagePlace.PENDING, Attempts.ZERO),
    Transition(MessagePlace.NOWHERE, LifecycleEvent.ENQUEUE_LATER, MessagePlace.DELAYED, Attempts.ZERO),
    Transition(MessagePlace.DELAYED, LifecycleEvent.DUE, MessagePlace.PENDING, unless=_UNCOUNTED),
    Transition(MessagePlace.DELAYED, LifecycleEvent.TOO_OLD, MessagePlace.DEAD_LETTER),
    Transition(MessagePlace.DELAYED, LifecycleEvent.REPLACE, MessagePlace.PENDING),
    Transition(MessagePlace.DELAYED, LifecycleEvent.REPLACE_LATER, MessagePlace.DELAYED),
    Transition(MessagePlace.DELAYED, LifecycleEvent.CANCEL, MessagePlace.GONE),
    Transition(MessagePlace.PENDING, LifecycleEvent.DELIVER, MessagePlace.LEASED),
    Transition(MessagePlace.PENDING, LifecycleEvent.DELIVER_ONCE, MessagePlace.GONE),
    Transition(MessagePlace.PENDING, LifecycleEvent.TOO_OLD, MessagePlace.DEAD_LETTER),
    Transition(MessagePlace.PENDING, LifecycleEvent.REPLACE, MessagePlace.PENDING),
    Transition(MessagePlace.PENDING, LifecycleEvent.REPLACE_LATER, MessagePlace.DELAYED),
    Transition(MessagePlace.PENDING, LifecycleEvent.CANCEL, MessagePlace.GONE),
    Transition(MessagePlace.DELAYED, LifecycleEvent.MOVE, MessagePlace.DELAYED, Attempts.ZERO),
    Transition(MessagePlace.PENDING, LifecycleEvent.MOVE, MessagePlace.PENDING, Attempts.ZERO),
    Transition(MessagePlace.LEASED, LifecycleEvent.EXTEND, MessagePlace.LEASED),
    Transition(MessagePlace.LEASED, LifecycleEvent.ACK, MessagePlace.GONE),
    Transition(MessagePlace.LEASED, LifecycleEvent.RELEASE, MessagePlace.PENDING, unless=_UNCOUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.DEFER, MessagePlace.PENDING, unless=_UNCOUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.DEFER_LATER, MessagePlace.DELAYED, unless=_UNCOUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.RESERVATION_EXPIRED, MessagePlace.PENDING, unless=_UNCOUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.NACK, MessagePlace.PENDING, Attempts.ONE_MORE, _HOOKED),
    Transition(MessagePlace.LEASED, LifecycleEvent.NACK_LATER, MessagePlace.DELAYED, Attempts.ONE_MORE, _COUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.RETRY, MessagePlace.PENDING, Attempts.ONE_MORE, _COUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.RETRY_LATER, MessagePlace.DELAYED, Attempts.ONE_MORE, _COUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.LEASE_EXPIRED, MessagePlace.PENDING, Attempts.ONE_MORE, _COUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.CONSUMER_LOST, MessagePlace.PENDING, Attempts.ONE_MORE, _COUNTED),
    Transition(MessagePlace.LEASED, LifecycleEvent.FAIL, MessagePlace.DEAD_LETTER, Attempts.ONE_MORE),
    Transition(MessagePlace.DEAD_LETTER, LifecycleEvent.REDRIVE, MessagePlace.PENDING, Attempts.ZERO),
    Transition(MessagePlace.DEAD_LETTER, LifecycleEvent.MOVE, MessagePlace.PENDING, Attempts.ZERO),
)
"""A pair without a row changes nothing: the event is refused, or leaves the message out."""

_BY_PAIR: Final = {(step.before, step.event): step for step in LIFE}


def step_of(before: MessagePlace, event: LifecycleEvent) -> Transition | None:
    """Return the row of a place and an event; None if nothing changes."""
    return _BY_PAIR.get((before, event))


def steps_from(before: MessagePlace) -> Iterator[Transition]:
    """Return the rows of a place."""
    return (step for step in LIFE if step.before is before)
