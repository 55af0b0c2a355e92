"""The description of a queue: its options, its consumers, the state of its hooks.

Each consumer has one row, however many subscriptions and leases it has here. To add up its messages, the shard's leases are
walked in steps, half a microsecond for each. Rejected: counters on the hot path, because descriptions are rare.
"""

from collections.abc import Generator
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, ClassVar, Final

from fila_proto_zmq.commands import ConsumerView, DescribeQueue, HookState, QueueDescription
from fila_worker.core.model.component import Component
from fila_worker.core.model.consumers import Consumer, Subscription
from fila_worker.core.model.leases import Holder, Reservation
from fila_worker.core.walking import lease_pieces

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.consumers import Consumer, Demand
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

CONSUMERS_SHOWN_MAX: Final = 100

HOLDERS_AT_ONCE: Final = 4
"""Consumers, or demands of one of them, that are examined for one unit of effort."""

PUSH: Final = "push"
RECEIVE: Final = "receive"
RESERVATION: Final = "reservation"


def describe(state: "State", call: "ClientCall", command: DescribeQueue) -> "Work":
    """Return the description of a queue."""
    queue = state.queues.find(call.queue)
    held = yield from _held(state, queue)
    state.jobs.charge(len(queue.subscribers) // HOLDERS_AT_ONCE)
    everybody: dict[Holder, None] = dict.fromkeys((*queue.subscribers, *held))
    chosen = nlargest(CONSUMERS_SHOWN_MAX, everybody, key=lambda holder: held[holder].messages if holder in held else 0)
    return QueueDescription(
        queue.info(state.index),
        queue.options,
        (queue.source or queue).created_ms,
        queue.size_bytes,
        queue.is_dead_letter or queue.appointed,
        [_view(state, queue, holder, held.get(holder)) for holder in chosen],
        len(everybody) - len(chosen),
        _hooks(queue, call.now_ms),
    )


@dataclass(slots=True)
class _Held:
    """A consumer's leases of a queue: how many messages, its last sign of life, and the end of the first lease."""

    messages: int = 0
    heard_ms: int = 0
    first_expiry_ms: int = 0


def _held(state: "State", queue: "Queue") -> "Generator[int, int, dict[Holder, _Held]]":
    """Return the leases of each holder of a queue. Leases that begin or end meanwhile may be counted or not."""
    held: dict[Holder, _Held] = {}
    for leases, effort in lease_pieces(state, queue):
        for lease in leases:
            one = held.setdefault(lease.holder, _Held())
            expiry_ms = lease.next_expiry()
            one.messages += lease.open
            one.heard_ms = max(one.heard_ms, lease.leased_ms, lease.expires_ms - lease.duration_ms)
            one.first_expiry_ms = min(one.first_expiry_ms or expiry_ms, expiry_ms)
        yield effort
    return held


def _view(state: "State", queue: "Queue", holder: Holder, held: _Held | None) -> ConsumerView:
    in_flight, expiry_ms = (held.messages, held.first_expiry_ms) if held else (0, 0)
    if isinstance(holder, Reservation):
        return ConsumerView(holder.shown, RESERVATION, 0, 0, in_flight, held.heard_ms if held else 0, expiry_ms)
    demands = _demands(holder, queue)
    state.jobs.charge((len(holder.subscriptions) + len(holder.waiters)) // HOLDERS_AT_ONCE)
    kind = PUSH if any(isinstance(each, Subscription) for each in demands) else RECEIVE
    wanted = sum(each.prefetch if isinstance(each, Subscription) else each.count for each in demands)
    credit = sum(max(0, each.credit) for each in demands)
    return ConsumerView(holder.shown, kind, wanted, credit, in_flight, holder.seen_ms, expiry_ms)


def _demands(consumer: "Consumer", queue: "Queue") -> "list[Demand]":
    demands: list[Demand] = [*consumer.subscriptions.values(), *consumer.waiters.values()]
    return [each for each in demands if each.queue is queue]


def _hooks(queue: "Queue", now_ms: int) -> HookState | None:
    guarded = queue.hooks
    if guarded is None:
        return None
    breaker, hooks = guarded.breaker, guarded.hooks
    open_until_ms = 0 if breaker.allows(now_ms) else breaker.open_until_ms
    return HookState(
        sum(hooks.run_ns.counts),
        hooks.failed,
        guarded.bypassed,
        breaker.failures,
        breaker.threshold,
        open_until_ms,
        guarded.last_failure,
    )


class Descriptions(Component):
    """The command that describes a queue."""

    verbs: ClassVar = {DescribeQueue: describe}
