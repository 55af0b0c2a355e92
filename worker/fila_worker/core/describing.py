"""What a queue is: the options that it has now, who reads it, how its hooks fare.

Consumers are shown one row each, however many subscriptions and leases they have here. To add up what they hold, the shard's leases
are walked, 0.2 µs for each: nothing on the hot path keeps count of it for those who look once in a while.
"""

from collections import Counter
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import ConsumerView, DescribeQueue, HookState, QueueDescription
from fila_worker.core.consumers import Consumer, Subscription
from fila_worker.core.holders import Holder, Reservation

if TYPE_CHECKING:
    from fila_worker.core.consumers import Consumer, Demand
    from fila_worker.core.effects import Call
    from fila_worker.core.leases import Lease
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

CONSUMERS_SHOWN_MAX: Final = 100

PUSH: Final = "push"
RECEIVE: Final = "receive"
RESERVATION: Final = "reservation"


def describe(shard: "State", call: "Call", command: DescribeQueue) -> QueueDescription:
    """Say what a queue is."""
    queue = shard.queue(call.queue)
    held = _held(shard, queue)
    shard.jobs.charge(len(shard.leases.leases) // 8)
    everybody: dict[Holder, None] = dict.fromkeys((*queue.subscribers, *held))
    chosen = nlargest(CONSUMERS_SHOWN_MAX, everybody, key=held.__getitem__)
    return QueueDescription(
        queue.info(shard.index), queue.options, (queue.source or queue).created_ms, queue.size_bytes,
        queue.is_dead_letter or queue.appointed, [_view(queue, holder, held[holder]) for holder in chosen],
        len(everybody) - len(chosen), _hooks(queue, call.now_ms),
    )  # fmt: skip


def _held(shard: "State", queue: "Queue") -> Counter[Holder]:
    """How many messages of a queue each of their holders has."""
    held: Counter[Holder] = Counter()
    for lease in shard.leases.leases.values():
        if lease.queue is queue:
            held[lease.holder] += lease.open
    return held


def _view(queue: "Queue", holder: Holder, in_flight: int) -> ConsumerView:
    if isinstance(holder, Reservation):
        leases = list(holder.leases.values())
        heard_ms = max(max(lease.leased_ms, lease.expires_ms - lease.duration_ms) for lease in leases)
        return ConsumerView(holder.shown, RESERVATION, 0, 0, in_flight, heard_ms, _first_expiry(leases))
    leases = [lease for lease in holder.leases.values() if lease.queue is queue] if in_flight else []
    demands = _demands(holder, queue)
    kind = PUSH if any(isinstance(each, Subscription) for each in demands) else RECEIVE
    wanted = sum(each.prefetch if isinstance(each, Subscription) else each.count for each in demands)
    credit = sum(max(0, each.credit) for each in demands)
    return ConsumerView(holder.shown, kind, wanted, credit, in_flight, holder.seen_ms, _first_expiry(leases))


def _demands(consumer: "Consumer", queue: "Queue") -> "list[Demand]":
    demands: list[Demand] = [*consumer.subscriptions.values(), *consumer.waiters.values()]
    return [each for each in demands if each.queue is queue]


def _first_expiry(leases: "list[Lease]") -> int:
    return min((lease.next_expiry() for lease in leases), default=0)


def _hooks(queue: "Queue", now_ms: int) -> HookState | None:
    guarded = queue.hooks
    if guarded is None:
        return None
    breaker, hooks = guarded.breaker, guarded.hooks
    open_until_ms = 0 if breaker.allows(now_ms) else breaker.open_until_ms
    return HookState(
        sum(hooks.run_ns.counts), hooks.failed, guarded.bypassed, breaker.failures, breaker.threshold, open_until_ms,
        guarded.last_failure,
    )  # fmt: skip
