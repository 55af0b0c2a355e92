"""Why a message, a fairness key or a queue waits: the codes that a reason may have. ``docs/why.md`` says what to do about each."""

from enum import StrEnum


class ReasonCode(StrEnum):
    """Stable names of reasons, in the order in which they are told where several hold, except as said there."""

    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    LEASED = "leased"
    DELAYED = "delayed"
    RETRY_WAIT = "retry_wait"
    DEFERRED = "deferred"
    QUEUE_PAUSED = "queue_paused"
    KEY_PAUSED = "key_paused"
    ORDERED_BEHIND = "ordered_behind"
    IN_FLIGHT_CAP = "in_flight_cap"
    PARKED = "parked"
    THROTTLED = "throttled"
    NO_CONSUMERS = "no_consumers"
    NO_CREDIT = "no_credit"
    ENQUEUES_REFUSED = "enqueues_refused"
    BREAKER_OPEN = "breaker_open"
    BEHIND = "behind"
    KEYS_AHEAD = "keys_ahead"
    BUSY = "busy"
    NEXT = "next"
    EMPTY = "empty"
    EXPIRES = "expires"
    SHARD_DOWN = "shard_down"
    """Said by client libraries, when the broker says that a queue's shard has no live worker."""
