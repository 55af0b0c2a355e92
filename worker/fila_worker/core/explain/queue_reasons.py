"""Reasons that stop messages: pauses, full queues, missing consumers, the turns of other keys, and missing tokens of a lane.

The scheduler checks a message or key in its turn (:mod:`core.deliver.delivery`) and ends at the first obstacle. This module
checks all obstacles, one after the other, so that an answer names them all.

For tokens it names the bucket that keeps the messages longest, its level, and when it will have enough. A shard has the last
level of a bucket that the router's bank sent, and adds the income since at the bucket's rate
(:meth:`BucketLevels.tokens_in`). It does not see the tokens that other shards take meanwhile: a time in an answer is the
earliest one.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.reasons import ReasonCode
from fila_proto_zmq.record import FIXED_BYTES
from fila_worker.core.enqueue import quotas
from fila_worker.core.explain.concurrency import full_queue, place_shortage
from fila_worker.core.explain.estimates import Rivals, is_read
from fila_worker.core.explain.moves import moves
from fila_worker.core.explain.text import counted, reason, span
from fila_worker.core.model.lane_tokens import TOKEN
from fila_worker.core.model.lanes import extension_of, head
from fila_worker.core.model.token_client import MICRO_PER_MILLI

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_proto_zmq.runtime_config import Limit
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State


def queue_reasons(state: "State", queue: "Queue", key_name: str | None, own: "list[Reason]", now_ms: int) -> "list[Reason]":
    """Return all reasons in their order. ``own``: what stops this message or key alone."""
    nobody, full = attendance(state, queue, now_ms), full_queue(state, queue, now_ms)
    who = [nobody] if nobody else []
    forsaken = not queue.in_flight and not is_read(queue, now_ms)
    return [*stops(state, queue, key_name), *([full] if full else []), *(who + own if forsaken else own + who)]


# --- pauses, moves, hooks, limits ---------------------------------------------------------------------------------------------


def stops(state: "State", queue: "Queue", key_name: str | None = None) -> "list[Reason]":
    """Return the pauses of a queue, and of one of its keys, and the ways of messages between partitions."""
    found = []
    if queue.paused:
        text = f"queue {queue.name!r} is paused: resume it with `queue resume {queue.name}`"
        found.append(reason(ReasonCode.QUEUE_PAUSED, text, queue=queue.name))
    if key_name is not None and key_name in queue.paused_keys:
        text = f"fairness key {key_name!r} is paused: resume it with `queue resume {queue.name} --key {key_name}`"
        found.append(reason(ReasonCode.KEY_PAUSED, text, queue=queue.name, fairness_key=key_name))
    return found if queue.partition is None else [*found, *moves(state, queue, key_name)]


def breaker(queue: "Queue", now_ms: int) -> "list[Reason]":
    """Return as a reason that hooks are bypassed, if they are."""
    hooks = queue.hooks
    if hooks is None or hooks.breaker.allows(now_ms):
        return []
    until_ms = hooks.breaker.open_until_ms
    text = (
        f"the hooks of {queue.name!r} failed too often and are bypassed for another {span(until_ms - now_ms)}: until then "
        f"messages keep their enqueue options, and failures are retried; the last failure: {hooks.last_failure}"
    )
    details: dict[str, Any] = {
        "threshold": hooks.breaker.threshold,
        "last_failure": hooks.last_failure,
        "remaining_ms": until_ms - now_ms,
    }
    return [reason(ReasonCode.BREAKER_OPEN, text, until_ms, **details)]


def refusals(state: "State", queue: "Queue", key_name: str, now_ms: int) -> "list[Reason]":
    """Return why enqueues are refused, if they are."""
    if state.disk_is_full:
        return [_refused(quotas.disk_full(state))]
    try:
        quotas.check_room(state, queue, key_name, FIXED_BYTES, now_ms)
    except OverloadedError as error:
        return [_refused(error)]
    return []


def _refused(error: OverloadedError) -> "Reason":
    return reason(ReasonCode.ENQUEUES_REFUSED, f"enqueues are refused: {error.message}", **error.details)


# --- consumers ---------------------------------------------------------------------------------------------------------


def attendance(state: "State", queue: "Queue", now_ms: int) -> "Reason | None":
    """Return as a reason that no consumer would take a message; None if one would."""
    if not queue.subscribers:
        ago_ms = now_ms - queue.served_ms if queue.served_ms else None
        last = "" if ago_ms is None else f"; the last one did {span(ago_ms)} ago"
        text = f"no consumer receives from {queue.name!r}{last}"
        return reason(ReasonCode.NO_CONSUMERS, text, consumers=0, last_asked_ago_ms=ago_ms)
    if any(demand.credit > 0 for demand in queue.demands):
        return None
    return _no_credit(state, queue, now_ms)


def _no_credit(state: "State", queue: "Queue", now_ms: int) -> "Reason":
    consumers = list(queue.subscribers)
    prefetch = sum(each.prefetch for one in consumers for each in one.subscriptions.values() if each.queue is queue)
    leases = [lease for one in consumers for lease in one.leases.values() if lease.queue is queue]
    held = sum(lease.open for lease in leases)
    oldest_ms = min((lease.leased_ms for lease in leases), default=now_ms)
    who = "its consumer has" if len(consumers) == 1 else f"its {len(consumers):,} consumers have"
    if prefetch or held:
        text = (
            f"{who} {counted(held, 'unsettled message')} of {prefetch:,} (prefetch), the oldest for "
            f"{span(now_ms - oldest_ms)}; they get more when they settle some"
        )
    else:
        silent = span(now_ms - max(each.seen_ms for each in consumers))
        text = (
            f"{who} not asked for it, the last frame came {silent} ago: busy with messages of other partitions, or gone, which "
            f"counts after {span(state.settings.consumer_timeout_ms)} of silence"
        )
    details: dict[str, Any] = {
        "consumers": len(consumers),
        "unsettled": held,
        "prefetch": prefetch,
        "oldest_leased_ms": oldest_ms,
    }
    return reason(ReasonCode.NO_CREDIT, text, **details)


# --- other keys --------------------------------------------------------------------------------------------------------


def turns(key: "FairnessKey", rivals: Rivals, now_ms: int) -> "Reason":
    """Return as a reason that other keys take turns with this one."""
    total = key.weight + rivals.weights
    pace = key.queue.delivery_rate.per_second(now_ms)
    lately = f", at {pace:.1f}/s over the queue lately" if pace else ""
    text = (
        f"{key.name!r} takes turns with {counted(rivals.keys, 'other fairness key')} of {key.queue.name!r}, and has "
        f"{key.weight:,} of {total:,} by weight ({key.weight / total:.1%}): before it {counted(rivals.messages, 'message')} "
        f"of others{lately}"
    )
    details: dict[str, Any] = {
        "fairness_key": key.name,
        "keys": rivals.keys,
        "weight": key.weight,
        "weights": total,
        "share": round(key.weight / total, 6),
        "messages": rivals.messages,
        "per_second": round(pace, 3),
    }
    return reason(ReasonCode.KEYS_AHEAD, text, **details)


def busy(queue: "Queue", pending: int, now_ms: int) -> "Reason":
    """Return as a reason that nothing stops the messages: they wait because there are many."""
    pace = queue.delivery_rate.per_second(now_ms)
    lately = f"lately {pace:.1f}/s in queue {queue.name!r}" if pace else "none was delivered lately"
    text = f"nothing stops {counted(pending, 'message')}: they are delivered as consumers take them, {lately}"
    return reason(ReasonCode.BUSY, text, messages=pending, per_second=round(pace, 3))


def nothing(queue: "Queue", now_ms: int) -> "Reason":
    """Return as a reason that a message is next."""
    text = "nothing stops it: it goes with the next delivery"
    return reason(ReasonCode.NEXT, text, per_second=round(queue.delivery_rate.per_second(now_ms), 3))


def tokens(state: "State", lane: "Lane", now_ms: int, need: int | None = None) -> "Reason | None":
    """Return the reason of a lane whose first message waits for tokens or places. ``need``: the message's cost, if it is known."""
    throttling = state.token_client
    if lane.throttle is None:
        return None
    parked_until_ms = throttling.parks.until(lane.throttle_keys)
    if parked_until_ms > now_ms:
        name = max(lane.throttle_keys, key=lambda each: throttling.parks.get(each, 0))
        remaining_ms = parked_until_ms - now_ms
        text = f"throttle key {name!r} delivers nothing for another {span(remaining_ms)}: a consumer deferred a message"
        return reason(ReasonCode.PARKED, text, parked_until_ms, throttle_key=name, remaining_ms=remaining_ms)
    placeless = place_shortage(state, lane, now_ms)
    if placeless is not None:
        return placeless
    limited = [name for name in lane.throttle_keys if name in throttling.limits]
    if not limited:
        return None
    if need is None:
        need = _need(state, lane)
    lacks = [_Lack.of(state, name, need, now_ms) for name in limited]
    worst = max(lacks, key=lambda lack: lack.order)
    if not lane.blocked and (lane.tokens >= need or worst.missing <= 0):
        return None
    return worst.reason(now_ms, [*lane.throttle_keys])


def tightest(state: "State", lane: "Lane") -> str | None:
    """Return the throttle key that lets a lane's messages through most slowly: by rate, else by places; None: no key does."""
    if lane.throttle is None:
        return None
    client = state.token_client
    rates = {
        name: client.levels.in_force(name, client.limits[name]).rate_milli
        for name in lane.throttle_keys
        if name in client.limits
    }
    if rates:
        return min(rates, key=rates.__getitem__)
    if lane.key.queue.at_most_once:
        return None
    places = {name: limit for name in lane.throttle_keys if (limit := state.places.limit(name)) is not None}
    return min(places, key=places.__getitem__, default=None)


def limits_of(state: "State", name: str, messages: int, now_ms: int) -> dict[str, Any]:
    """Return the limits of a throttle key that so many messages have, None where it has none."""
    levels, limit = state.token_client.levels, state.token_client.limits.get(name)
    details: dict[str, Any] = {"throttle_key": name, "messages": messages, "rate": None, "tokens": None}
    if limit is not None:
        limit = levels.in_force(name, limit)
        details |= {"rate": limit.rate_milli / 1000, "tokens": round(levels.tokens_in(name, limit, now_ms) / TOKEN, 3)}
    return details | {"concurrency": state.places.limit(name)}


def _need(state: "State", lane: "Lane") -> int:
    """Return the cost of a lane's first message, in millionths of a token."""
    if lane.blocked:
        return lane.need
    message_key, kept = head(state, lane)
    return extension_of(kept or state.read([message_key])[0]).cost_milli * MICRO_PER_MILLI


class _Lack(NamedTuple):
    """The shortage of a bucket for a message. Amounts are in millionths of a token."""

    name: str
    need: int
    level: int
    limit: "Limit"

    @classmethod
    def of(cls, state: "State", name: str, need: int, now_ms: int) -> "_Lack":
        levels = state.token_client.levels
        limit = levels.in_force(name, state.token_client.limits[name])
        level = levels.tokens_in(name, limit, now_ms)
        return cls(name, need, level, limit)

    @property
    def missing(self) -> int:
        return self.limit.level_for(self.need) - self.level

    @property
    def wait_ms(self) -> int | None:
        """How long until the bucket has enough; None: for ever."""
        if self.missing <= 0:
            return 0
        rate = self.limit.rate_milli  # millionths a millisecond
        return -(-self.missing // rate) if rate else None

    @property
    def order(self) -> tuple[float, int]:
        """The sort key: of several lacks, the largest one ends last."""
        wait_ms = self.wait_ms
        return (float("inf") if wait_ms is None else wait_ms, self.missing)

    def reason(self, now_ms: int, throttle_keys: list[str]) -> "Reason":
        level, burst, rate, cost, wait_ms = (
            self.level / TOKEN,
            self.limit.burst_micro / TOKEN,
            self.limit.rate_milli / 1000,
            self.need / TOKEN,
            self.wait_ms,
        )
        what = "the next one" if cost == 1 else f"the {cost:g} that it costs"
        when = (
            "none will come"
            if wait_ms is None
            else f"{what} in {span(wait_ms)}"
            if wait_ms
            else "requested, perhaps by other shards too"
        )
        text = f"throttled by {self.name}: {level:.1f} of {burst:g} tokens, {rate:g}/s, {when}"
        details = {
            "throttle_key": self.name,
            "tokens": round(level, 3),
            "burst": burst,
            "rate": rate,
            "cost": cost,
            "wait_ms": wait_ms,
            "throttle_keys": throttle_keys,
        }
        return reason(ReasonCode.THROTTLED, text, now_ms + wait_ms if wait_ms else 0, **details)
