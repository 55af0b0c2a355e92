"""Concerns about a cluster, the most urgent first, with the remedy for each. A pure function of two snapshots.

Growth and standstill take two snapshots, about :data:`LOOK_BACK_S` apart: within a second every slow queue seems to stand
still. Left out: anything that needs a threshold (too deep, too old, too slow), which is for alerts on ``/metrics``; and a
router that does not answer, because then there is no snapshot.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from fila_cluster.client.views import how_far, queue_move
from fila_cluster.figures import aged, counted
from fila_cluster.ops.analysis.hosts import hosts_in, obstacles, risks
from fila_cluster.ops.analysis.partitions import WholeQueue, partition_number, partitions_in
from fila_cluster.ops.analysis.rates import all_queues
from fila_proto_zmq.commands import Metrics, QueueMetrics
from fila_proto_zmq.names import DEAD_LETTER_SUFFIX, dead_letter_name, partition_name, shard_of

Severity: TypeAlias = Literal["critical", "warning", "info"]

SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "warning", "info")

LOOK_BACK_S: Final = 30.0
"""About how old the earlier snapshot should be: growth is measured over this time."""

UNSERVED_MS: Final = 5_000
"""A message that waits for longer did not come just before its consumer."""

BEHIND_MIN: Final = 1000
"""A partition with fewer messages than this catches up by itself."""

NEARLY_EMPTY: Final = 0.05
"""The other partitions have at most this part of the fullest one's messages each, in the mean."""

PLACES_HELD_MS: Final = 300_000
"""Places that are all in use are what a limit is for. With a lease that lasts for so long, a consumer may hang."""


NAMED_MAX: Final = 3
"""Partitions that a text names."""

MOVE_STILL_MS: Final = 60_000
"""A shard that was away for a moment sends messages on before that."""


@dataclass(frozen=True, slots=True)
class Concern:
    """A problem: ``text`` has its numbers, ``action`` is the remedy; the others are its place, None where it has none."""

    severity: Severity
    code: str
    text: str
    action: str
    queue: str | None = None
    shard: int | None = None
    throttle_key: str | None = None


class ConcernKind(NamedTuple):
    """The severities that a code may have, and its meaning."""

    severities: tuple[Severity, ...]
    meaning: str


KINDS: Final = {
    "shard_down": ConcernKind(("critical",), "No worker serves the shard: its queues stand still."),
    "no_quorum": ConcernKind(("critical",), "The shard's replicated log confirms nothing, so nothing leaves the shard."),
    "no_copy": ConcernKind(("critical",), "No host leads the shard, and no host that answers has a copy of it."),
    "catching_up": ConcernKind(("critical",), "No host leads the shard: its copy has to catch up with the log first."),
    "no_leader": ConcernKind(("critical",), "No host leads the shard: a standby takes over in some seconds."),
    "recovering": ConcernKind(("critical",), "A host takes the shard over, and reads it from its copy."),
    "storage_stalled": ConcernKind(("critical",), "RocksDB slows down writes until compaction has caught up."),
    "rejecting": ConcernKind(
        ("critical", "warning"),
        "The queue refused messages within half a minute: it, a key or the disk is full (critical), or producers send "
        "messages that cannot be accepted.",
    ),
    "breaker_open": ConcernKind(("critical",), "The queue's hooks failed too often and are bypassed."),
    "no_standby": ConcernKind(
        ("warning",), "No copy of the shard has caught up: if its host is lost too, it waits for a recovery from the log."
    ),
    "few_standbys": ConcernKind(("warning",), "Fewer copies of the shard have caught up than `[replication] standbys` says."),
    "log_under_replicated": ConcernKind(
        ("warning",),
        "Fewer brokers of the shard's replicated log are in sync than should be: with too few, it confirms nothing.",
    ),
    "log_unsafe": ConcernKind(
        ("critical",), "The topic of the log has a setting with which a confirmed message may be lost."
    ),
    "host_failing": ConcernKind(
        ("warning",), "The disk of a host is full or fails: hosts with room lead its shards, if there are any."
    ),
    "copy_failing": ConcernKind(("warning",), "A copy of a shard that another host leads is stuck."),
    "host_silent": ConcernKind(("warning",), "A worker of a host is down or did not answer: its copies are not kept up."),
    "worker_silent": ConcernKind(("warning",), "A worker is up, and did not answer."),
    "worker_restarted": ConcernKind(("warning",), "A worker was restarted within half a minute."),
    "no_consumers": ConcernKind(
        ("warning",), "Messages wait for longer than 5 s, no consumer receives, and nothing was delivered for half a minute."
    ),
    "standing_still": ConcernKind(
        ("warning",), "Consumers are there and messages wait, but nothing was delivered for half a minute."
    ),
    "places_held": ConcernKind(
        ("warning",),
        "All places of a throttle key have been in use for five minutes while messages waited for them, and one lease has "
        "lasted for all of this time.",
    ),
    "partition_behind": ConcernKind(
        ("warning",),
        "One partition of a queue has a thousand messages or more, one of them waits for longer than 5 s, and the other "
        "partitions are all but empty.",
    ),
    "partitions_stuck": ConcernKind(
        ("warning",),
        "The number of partitions of a queue was changed, and for a minute no message has come any further to its new place.",
    ),
    "dead_letters_growing": ConcernKind(("warning",), "Messages failed for good within half a minute."),
    "leases_expiring": ConcernKind(("warning",), "Leases expired within half a minute."),
    "paused": ConcernKind(("info",), "A paused queue has messages."),
    "dead_letters": ConcernKind(("info",), "Dead letters wait for an operator to look at them."),
    "copy_behind": ConcernKind(("info",), "A copy has still to catch up with the log before it can take over."),
    "queues_left_out": ConcernKind(
        ("info",),
        "The shard has more than a thousand queues: those with little traffic have no rates, and are not watched for any of "
        "this.",
    ),
}
"""Each code of a concern."""


def attention(now: Metrics, before: Metrics | None) -> list[Concern]:
    """Return all concerns, the most urgent first; within a kind, the queue with the most messages."""
    earlier = {queue.info.name: queue for queue in all_queues(before)} if before else {}
    at_risk = list(_at_risk(now))
    troubled = {shard for concern, shards in at_risk if concern.severity == "critical" for shard in shards}
    found = [concern for concern in _shards_down(now) if concern.shard not in troubled]
    found += [concern for concern, _ in at_risk]
    found += [*_stalled_stores(now), *_silent_workers(now), *_restarted(now, before), *_held_places(now), *_stuck_moves(now)]
    deepest_first = sorted(all_queues(now), key=lambda queue: (-queue.info.depth, queue.info.name))
    for look in _QUEUE_LOOKS:
        found += (concern for queue in deepest_first if (concern := look(queue, _comparable(queue, earlier))))
    found += _left_out(now)
    return sorted(found, key=lambda concern: SEVERITIES.index(concern.severity))


def _comparable(now: QueueMetrics, earlier: Mapping[str, QueueMetrics]) -> QueueMetrics | None:
    """Return a queue as it was; None if it was not there, or other partitions of it answered: their sums are others."""
    before = earlier.get(now.info.name)
    return before if before is not None and _names_in(now) == _names_in(before) else None


def _names_in(queue: QueueMetrics) -> list[str]:
    return [each.info.name for each in partitions_in(queue)]


# --- the cluster ------------------------------------------------------------------------------------------------------


_MENDING_SHARDS: Final = {
    "down": "the supervisor restarts it within seconds; if it does not stay up, read its log, and look at the disk",
    "waiting": "make room on the disk, or see what is wrong with it; it comes back by itself",
    "quarantined": "see docs/operating.md, a damaged shard; it is tried again when its worker is started again",
}


def _shards_down(now: Metrics) -> Iterator[Concern]:
    for obstacle in obstacles(now, "no status") if now.status else ():
        action = _MENDING_SHARDS.get(obstacle["state"], "it is being recovered, and serves in a moment")
        yield Concern(
            "critical", "shard_down", f"{obstacle['text']}: its queues stand still", action, shard=obstacle["shard"]
        )


def _at_risk(now: Metrics) -> Iterator[tuple[Concern, tuple[int, ...]]]:
    """Yield what is wrong with the copies of shards on a replicated log, with the shards."""
    hosts = hosts_in(now)
    for risk in risks(hosts) if hosts else ():
        yield Concern(KINDS[risk.code].severities[0], risk.code, risk.text, risk.action, shard=risk.shard), risk.shards


def _stalled_stores(now: Metrics) -> Iterator[Concern]:
    action = "fewer enqueues, or a faster disk; it ends by itself once compaction has caught up"
    for worker in now.workers:
        for shard in worker.shards:
            if shard.store.stalled:
                left = f"{shard.store.compaction_bytes / 2**20:,.0f} MiB"
                text = f"shard {shard.shard}: RocksDB slows down writes, {left} are left to compact"
                yield Concern("critical", "storage_stalled", text, action, shard=shard.shard)


def _silent_workers(now: Metrics) -> Iterator[Concern]:
    heard = {worker.name for worker in now.workers}
    for worker in now.status.workers if now.status and not hosts_in(now) else ():
        if worker.state == "up" and worker.name not in heard:
            text = f"{worker.name} (pid {worker.pid}) is up, but did not answer within a second"
            action = "it is overloaded or stuck: look at its CPU and its disk; its queues are not shown"
            yield Concern("warning", "worker_silent", text, action)


def _restarted(now: Metrics, before: Metrics | None) -> Iterator[Concern]:
    started_ms = {worker.name: worker.started_ms for worker in before.workers} if before else {}
    for worker in now.workers:
        if started_ms.get(worker.name, worker.started_ms) != worker.started_ms:
            text = f"{worker.name} was restarted; its counters start over"
            action = "if that was not on purpose, its log has the reason; its state was recovered from disk"
            yield Concern("warning", "worker_restarted", text, action)


def _held_places(now: Metrics) -> Iterator[Concern]:
    shards = [shard for worker in now.workers for shard in worker.shards]
    for name in sorted({place.key for shard in shards for place in shard.places if place.full_ms >= PLACES_HELD_MS}):
        places = [place for shard in shards for place in shard.places if place.key == name]
        full_ms, longest_ms = max(place.full_ms for place in places), max(place.longest_ms for place in places)
        if longest_ms >= PLACES_HELD_MS:
            limit, waiting = places[0].concurrency, sum(place.waiting for place in places)
            text = (
                f"{name} has had all {counted(limit, 'place')} in use for {aged(full_ms / 1000)}, the longest lease for "
                f"{aged(longest_ms / 1000)}; {counted(waiting, 'message')} waiting"
            )
            action = "see who holds them: does a consumer hang? If it has to take so long, raise the concurrency"
            yield Concern("warning", "places_held", text, action, throttle_key=name)


def _stuck_moves(now: Metrics) -> Iterator[Concern]:
    workers = {shard.shard: worker.name for worker in now.workers for shard in worker.shards}
    for queue in all_queues(now):
        if queue.move is None or queue.move.still_ms < MOVE_STILL_MS:
            continue
        name, move = queue.info.name, queue_move(queue.move)
        shards = {number: _shard_of(now, partition_name(name, number)) for number in move.waits_for}
        where = {
            number: f"shard {shard} of {workers.get(shard, 'no worker that answers')}" for number, shard in shards.items()
        }
        waits = [f"partition {number} on {where[number]} ({how_far(move, number)})" for number in move.waits_for]
        text = f"{name} {move.text}. Nothing has changed for {aged(queue.move.still_ms / 1000)}: it waits for {_some(waits)}"
        if any(each.leased for each in move.left):
            action = f"`fila-cluster queue browse {name} --state leased` shows who has to settle first, or wait for the leases' end"
        elif any(shard not in workers for shard in shards.values()):
            action = "it goes on when that shard is served again: read the log of its worker"
        else:
            action = f"`fila-cluster why {name}` says what they wait for; read the logs of these workers"
        yield Concern("warning", "partitions_stuck", text, action, name, shards[move.waits_for[0]])


def _shard_of(now: Metrics, queue: str) -> int:
    return shard_of(queue, now.status.shards if now.status else 1)


def _some(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - NAMED_MAX:,} more" if len(texts) > NAMED_MAX else ""
    return ", ".join(texts[:NAMED_MAX]) + more


def _left_out(now: Metrics) -> Iterator[Concern]:
    for worker in now.workers:
        for shard in worker.shards:
            if shard.queues_left_out:
                more = f"{shard.queues_left_out:,} more are not shown"
                text = f"shard {shard.shard} shows its {len(shard.queues):,} busiest queues; {more}"
                action = "`fila-cluster queue list` shows all of them; delete unused ones (idle_expiry does it by itself)"
                yield Concern("info", "queues_left_out", text, action, shard=shard.shard)


# --- queues -----------------------------------------------------------------------------------------------------------


def _refusing(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    if before is None:
        return None
    grown = {code: count - before.rejected.get(code, 0) for code, count in now.rejected.items()}
    grown = {code: count for code, count in grown.items() if count > 0}
    if not grown:
        return None
    name, overloaded = now.info.name, "OVERLOADED" in grown
    counts = ", ".join(f"{count:,} {code}" for code, count in sorted(grown.items()))
    action = (
        f"more consumers, or a higher limit: `fila-cluster why {name}` says which one is reached" if overloaded else _MENDING
    )
    return Concern("critical" if overloaded else "warning", "rejecting", f"{name} refuses messages: {counts}", action, name)


_MENDING: Final = "producers got that error with its reason: fix what they send"


def _breaker_open(now: QueueMetrics, _: QueueMetrics | None) -> Concern | None:
    if now.hooks is None or not now.hooks.breaker_open:
        return None
    name, hooks = now.info.name, now.hooks
    bypassed = f"are bypassed, by {counted(hooks.bypassed, 'message')} so far"
    text = f"{name}: its hooks keep failing ({hooks.failed:,} of {hooks.runs:,} runs) and {bypassed}"
    action = f"`fila-cluster why {name}` shows the failure; fix the script (`hook test`), then `queue update {name}`"
    return Concern("critical", "breaker_open", text, action, name)


def _unserved(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    if not _waits(now) or now.info.consumers or _delivered_since(now, before):
        return None
    name = now.info.name
    oldest = f"the oldest for {aged(now.oldest_pending_ms / 1000)}"
    text = f"{name}: no client receives, {counted(now.info.pending, 'message')} waiting, {oldest}"
    return Concern("warning", "no_consumers", text, "start a consumer, or read the log of the one that should run", name)


def _standing_still(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    if (
        before is None
        or not _waits(now)
        or not before.info.pending
        or not now.info.consumers
        or _delivered_since(now, before)
    ):
        return None
    name = now.info.name
    text = (
        f"{name}: nothing is delivered to its {counted(now.info.consumers, 'consumer')}, "
        f"{counted(now.info.pending, 'message')} waiting, {now.info.in_flight:,} in flight"
    )
    return Concern("warning", "standing_still", text, f"`fila-cluster why {name}` says what they wait for", name)


def _partition_behind(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    """Look for a partition whose shard has all the work while the others wait: a hot key."""
    if not isinstance(now, WholeQueue) or len(now.partitions) < 2 or not _waits(now):
        return None
    most = max(now.partitions, key=lambda each: each.info.pending)
    others = (now.info.pending - most.info.pending) / (len(now.partitions) - 1)
    if most.info.pending < BEHIND_MIN or others > most.info.pending * NEARLY_EMPTY:
        return None
    if not (now.info.consumers or _delivered_since(now, before)):
        return None  # that is told already
    name, number = now.info.name, partition_number(most.info.name)
    key = max(most.keys, key=lambda each: each.pending, default=None)
    text = (
        f"{name}: {counted(most.info.pending, 'message')} waiting in its partition {number} on shard {most.info.shard}, "
        f"{others:,.0f} in each of the others"
    )
    if key is None or key.pending < most.info.pending / 2:
        action = f"`fila-cluster why {name}` says what they wait for; more fairness keys spread better, or spread=message"
    else:
        text += f"; {key.pending:,} of them have the key {key.fairness_key!r}"
        action = (
            "a fairness key has one partition: give it more weight if its messages may come before others, split it into "
            "several keys, or move the messages to a queue with spread=message"
        )
    return Concern("warning", "partition_behind", text, action, name, most.info.shard)


def _dead_letters_grow(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    grown = now.dead_lettered - before.dead_lettered if before else 0
    if grown <= 0:
        return None
    name = now.info.name
    text = f"{name}: {counted(grown, 'message')} failed for good just now"
    action = f"`fila-cluster queue browse {dead_letter_name(name)}` shows their errors; fix the cause, then redrive them"
    return Concern("warning", "dead_letters_growing", text, action, name)


def _leases_expire(now: QueueMetrics, before: QueueMetrics | None) -> Concern | None:
    grown = now.expired - before.expired if before else 0
    if grown <= 0:
        return None
    name = now.info.name
    action = "consumers take longer than the visibility timeout, crash, or forget to settle: see their logs, or extend leases"
    return Concern("warning", "leases_expiring", f"{name}: {counted(grown, 'lease')} ran out just now", action, name)


def _paused(now: QueueMetrics, _: QueueMetrics | None) -> Concern | None:
    if not now.info.paused or not now.info.pending:
        return None
    name = now.info.name
    text = f"{name} is paused, {counted(now.info.pending, 'message')} waiting"
    return Concern("info", "paused", text, f"`fila-cluster queue resume {name}`, once deliveries may begin again", name)


def _dead_letters(now: QueueMetrics, _: QueueMetrics | None) -> Concern | None:
    if not now.info.is_dead_letter or not now.info.depth:
        return None
    name = now.info.name
    text = f"{name.removesuffix(DEAD_LETTER_SUFFIX)} has {counted(now.info.depth, 'dead letter')}"
    others = f"`redrive {name}` sends them back, `queue purge {name}` drops them"
    action = f"`fila-cluster queue browse {name}` shows their errors; {others}"
    return Concern("info", "dead_letters", text, action, name)


_QUEUE_LOOKS: Final[tuple[Callable[[QueueMetrics, QueueMetrics | None], Concern | None], ...]] = (
    _refusing,
    _breaker_open,
    _unserved,
    _standing_still,
    _partition_behind,
    _dead_letters_grow,
    _leases_expire,
    _paused,
    _dead_letters,
)
"""All checks, the more urgent first."""


def _waits(queue: QueueMetrics) -> bool:
    """Return whether messages wait that need a consumer. Dead letters do not."""
    waiting = queue.info.pending > 0 and queue.oldest_pending_ms >= UNSERVED_MS
    return waiting and not queue.info.paused and not queue.info.is_dead_letter


def _delivered_since(now: QueueMetrics, before: QueueMetrics | None) -> bool:
    return before is not None and now.delivered != before.delivered
