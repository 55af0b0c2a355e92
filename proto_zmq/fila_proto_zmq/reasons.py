"""Why a message, a fairness key or a queue waits: the codes that a reason may have, and what to do about each."""

from enum import StrEnum
from typing import Final, NamedTuple


class ReasonCode(StrEnum):
    """Stable names of reasons, in the order in which several are given; ``docs/why.md`` has the exceptions."""

    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    LEASED = "leased"
    DELAYED = "delayed"
    RETRY_WAIT = "retry_wait"
    DEFERRED = "deferred"
    QUEUE_PAUSED = "queue_paused"
    KEY_PAUSED = "key_paused"
    MOVING = "moving"
    LEAVING = "leaving"
    ORDERED_BEHIND = "ordered_behind"
    IN_FLIGHT_CAP = "in_flight_cap"
    CONCURRENCY = "concurrency"
    PARKED = "parked"
    THROTTLED = "throttled"
    NO_CONSUMERS = "no_consumers"
    NO_CREDIT = "no_credit"
    ENQUEUES_REFUSED = "enqueues_refused"
    BREAKER_OPEN = "breaker_open"
    BEHIND = "behind"
    KEYS_AHEAD = "keys_ahead"
    BUSY = "busy"
    LIMITED = "limited"
    NEXT = "next"
    EMPTY = "empty"
    EXPIRES = "expires"
    LOG_WAITS = "log_waits"
    SHARD_DOWN = "shard_down"
    """Client libraries give this reason, when the broker answers that a queue's shard has no live worker."""


class Meaning(NamedTuple):
    """The meaning of a reason and the advice, in Markdown; when it ends (empty: that is not known); its ``details``."""

    text: str
    until: str = ""
    details: str = ""


MEANINGS: Final = {
    ReasonCode.DEAD_LETTERED: Meaning(
        "The message failed for good. Read `error`, correct the cause, then `redrive` its queue.",
        details="`reason` (`failed`, `max_attempts`, `hook`) `error` `source_queue` `dead_letter_queue` `dead_lettered_ms` "
        "`attempts` `max_attempts` (if the message has its own)",
    ),
    ReasonCode.EXPIRED: Meaning(
        "Its time to live ended before it was delivered. It is among the dead letters, or will be within seconds; `redrive` "
        "sends it back. Start more consumers, or give a longer time to live.",
        details="as `dead_lettered`; while it is not moved yet: `expires_ms`",
    ),
    ReasonCode.LEASED: Meaning(
        "A consumer has the message, or all messages of the key or queue. If that takes too long: `consumer` names clients "
        "as the broker's log does, and at the lease's end the message goes to the next consumer.",
        details="`consumer` `reservation` (whether that is a reservation's name) `leased_ms` `expires_ms` `attempts` "
        "`max_attempts` (its own); of a key or a queue: `messages` `consumers` `leased_ms` `expires_ms`",
        until="the lease's end",
    ),
    ReasonCode.DELAYED: Meaning(
        "Its producer, or a hook, delayed it.",
        details="`due_ms` `remaining_ms` `attempts` `error` `max_attempts` (its own); of a key or a queue: `messages` "
        "`remaining_ms`",
        until="it is due",
    ),
    ReasonCode.RETRY_WAIT: Meaning(
        "An attempt failed, and the next one has a delay. `error` says why it failed.",
        details="`due_ms` `remaining_ms` `attempts` `error` `max_attempts` (its own)",
        until="the next attempt",
    ),
    ReasonCode.DEFERRED: Meaning(
        "A consumer deferred it: the service that the consumer calls asked it to come later.",
        details="`due_ms` `remaining_ms` `attempts` `error` `max_attempts` (its own)",
        until="the next delivery",
    ),
    ReasonCode.QUEUE_PAUSED: Meaning("The queue is paused: `queue resume`.", details="`queue`"),
    ReasonCode.KEY_PAUSED: Meaning("The fairness key is paused: `queue resume --key`.", details="`queue` `fairness_key`"),
    ReasonCode.MOVING: Meaning(
        "The number of partitions of the queue was changed, and earlier messages of the key may still come from the partitions "
        "`waits_for`, on the `shards`. They go first. `leaving` says what keeps those partitions, if their shards answer.",
        details="`queue` `fairness_key` `earlier` `partitions` (the number before and now) `since_ms` `waits_for` `shards`; "
        "`down`: the shard among these that does not answer",
    ),
    ReasonCode.LEAVING: Meaning(
        "A `partition` has messages that belong to others, and sends them on: a hook changed their key, or the number of "
        "partitions. It waits for `leased` messages, which are before those of their key, and for shards that have not "
        "confirmed what was sent to them. Look at those consumers and shards if that takes long.",
        details="`queue` `partition` `shard` `messages` (to be sent on) `exact` (false: there may be more) `leased` `sent_to` "
        "(shards); of a key: `fairness_key`, and `to`, its partition",
    ),
    ReasonCode.ORDERED_BEHIND: Meaning(
        "Its key is in strict order (`max_in_flight_per_key=1`), and message `message_id` goes first: that one is leased, "
        "or waits for its next attempt or for tokens. Settle it or `cancel` it, or ask `why` for it.",
        details="`fairness_key` `message_id` `waits_for` (`lease`, `retry`, `tokens`); with `lease`: `leased_ms` "
        "`expires_ms`; with `retry`: `error`; with `tokens`: as the reason for that",
        until="the end of what that message waits for",
    ),
    ReasonCode.IN_FLIGHT_CAP: Meaning(
        "As many messages of its key as `max_in_flight_per_key` allows are leased or wait for a retry. The consumers take "
        "long, or the cap is too low.",
        details="`fairness_key` `in_flight` `max_in_flight` `retrying`",
        until="the first of those leases ends",
    ),
    ReasonCode.CONCURRENCY: Meaning(
        "As many messages are leased as may be: of the queue (`max_in_flight`), or, in the whole cluster, of a throttle key "
        "(`config set throttle:KEY:concurrency` changes it). `holders` are those that are leased for longest, of a throttle "
        "key on this shard. The consumers take long, or the limit is too low.",
        details="`queue` or `throttle_key`; `limit` `in_use` `holders` (each with `message_id` `consumer` `since_ms`)",
        until="of a queue: the first of those leases ends",
    ),
    ReasonCode.PARKED: Meaning(
        "A consumer deferred a message, so the throttle keys of that message deliver nothing.",
        details="`throttle_key` `remaining_ms`",
        until="the deferral's end",
    ),
    ReasonCode.THROTTLED: Meaning(
        "The bucket of a throttle key lacks tokens; of several keys, `throttle_key` is the one that takes longest. `config "
        "set throttle:KEY:rate` changes the rate. `wait_ms` is nil where the rate is 0. Other shards may take the tokens "
        "first.",
        details="`throttle_key` `tokens` `burst` `rate` (a second) `cost` `wait_ms` `throttle_keys` (all that it has)",
        until="the tokens may be there",
    ),
    ReasonCode.NO_CONSUMERS: Meaning(
        "At this moment no consumer receives from the queue. Start one, or read the log of the one that should run.",
        details="`consumers` (0) `last_asked_ago_ms`",
    ),
    ReasonCode.NO_CREDIT: Meaning(
        "Each consumer has as many unsettled messages as its `prefetch` allows. The consumers are slow, stuck, or do not "
        "settle: start more, or give a higher prefetch. With a `prefetch` of 0 its consumers are busy with other partitions, or "
        "their connection is gone.",
        details="`consumers` `unsettled` `prefetch` `oldest_leased_ms`",
    ),
    ReasonCode.ENQUEUES_REFUSED: Meaning(
        "Producers get an error, because a queue, a key or the disk is full. Consume, purge, or raise the limit.",
        details="`queue` `depth`, or `free_disk_bytes` `min_free_disk_bytes`",
    ),
    ReasonCode.BREAKER_OPEN: Meaning(
        "The queue's hooks failed too often and are bypassed: new messages keep their enqueue options. Correct the script "
        "(`hook test`).",
        details="`threshold` `last_failure` `remaining_ms`",
        until="hooks are tried again",
    ),
    ReasonCode.BEHIND: Meaning(
        "`ahead` messages of its own key go before it: by priority, then by enqueue order. `exact` false: the number is an "
        "estimate.",
        details="`fairness_key` `ahead` `exact`",
    ),
    ReasonCode.KEYS_AHEAD: Meaning(
        "Other keys have their turns, too. `share` is the key's part of the deliveries, by weight. More consumers help all "
        "keys, a higher `weight` helps this one.",
        details="`fairness_key` `keys` `weight` `weights` (with its own) `share` `messages` (of other keys, before it) "
        "`per_second`",
    ),
    ReasonCode.BUSY: Meaning("Nothing stops the queue or key: it has many messages.", details="`messages` `per_second`"),
    ReasonCode.LIMITED: Meaning(
        "Of a queue: nothing stops these messages now, but throttle keys let only so many through. More consumers than "
        "that do not help.",
        details="`messages` `limits`: for each throttle key, of several of a message the slowest, `throttle_key` `messages` "
        "`rate` (a second) `tokens` `concurrency` (nil where there is none); the last one, with `throttle_key` nil, has the "
        "sums of those after the first hundred",
    ),
    ReasonCode.NEXT: Meaning("Nothing stops it: it goes with the next delivery.", details="`per_second`"),
    ReasonCode.EMPTY: Meaning("There are no messages."),
    ReasonCode.EXPIRES: Meaning(
        "It has a time to live, which ends then.", details="`expires_ms` `remaining_ms`", until="it expires"
    ),
    ReasonCode.LOG_WAITS: Meaning(
        "The shard's replicated log does not confirm what was written, so no answer and no delivery leaves the shard. The "
        "state is `unknown`, because what the shard has in memory is not confirmed. Look at the log's brokers: a partition "
        "needs as many in sync as `in_sync` says. The shard continues by itself.",
        details="`queue` `shard` `unconfirmed_bytes`",
    ),
    ReasonCode.SHARD_DOWN: Meaning(
        "The worker that holds the queue is down. The supervisor restarts it within a second or so; if it does not stay up, "
        "read its log and look at the disk. The client gives this reason at once, instead of an error, with the state "
        "`unknown`. If the worker is up and the shard is not, the text says why: [a damaged "
        "shard](operating.md#a-damaged-shard), or on [several hosts](hosts.md#watching) which copy it waits for.",
        details="`queue` `shard` `worker` `worker_state` (nil if not known); `shard_state` (`opening`, `waiting`, "
        "`following`, `beginning`, `no_quorum`, `quarantined`; on several hosts `no_leader`, `catching_up`, `no_copy`, "
        "`recovering`) and `reason` if a worker that has it is up",
    ),
}
