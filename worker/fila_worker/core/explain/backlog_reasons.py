"""Why a fairness key or a queue delivers nothing, or why its messages wait although it delivers.

A bounded number of keys is examined, because different reasons may stop different keys. The answer groups them: the number of
keys with the same reason, and one of them as the example.
"""

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fila_proto_zmq.commands import Explained
from fila_proto_zmq.limits import EXPLAINED_KEYS_MAX
from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.explain import queue_reasons
from fila_worker.core.explain.estimates import LANES_MAX, QueuePosition, delivery_ms, rivals_of
from fila_worker.core.explain.in_flight_reasons import DELAYED_MAX, cap, delayed_of, held_of
from fila_worker.core.explain.queue_reasons import limits_of, tightest, tokens
from fila_worker.core.explain.text import counted, reason, span
from fila_worker.core.inspect.backlog import DELAYED, LEASED, PENDING
from fila_worker.core.keys import FIRST_PLACE
from fila_worker.core.model.due_index import parse_delayed
from fila_worker.core.model.lane_tokens import TOKEN
from fila_worker.core.model.lanes import head
from fila_worker.core.walking import VIEWS_AT_ONCE, View, again, lease_pieces, pieces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from fila_proto_zmq.commands import Reason
    from fila_worker.core.jobs import Work
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.leases import Holder
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

EMPTY: Final = "empty"
"""The state of a key or a queue without messages."""

KEY_COST: Final = 2
"""Effort to examine one key."""

LIMITED_LANES_MAX: Final = 2000
"""Lanes that are examined for what limits them."""

LIMITS_SHOWN: Final = 100
"""Throttle keys with the most messages that are named one by one; the others are added up."""


# --- a fairness key ----------------------------------------------------------------------------------------------------


def explain_key(state: "State", queue: "Queue", name: str, now_ms: int) -> Explained:
    """Return why a fairness key's messages wait. An unknown key is an empty one: a key exists only while it has messages."""
    key = queue.keys.get(name)
    lanes = list(key.lanes.values()) if key else []
    about = f"fairness key {name!r}"
    stops, more = queue_reasons.stops(state, queue, name), _for_producers(state, queue, name, now_ms)
    if key is not None and key.pending:
        reasons = _of_pending_key(state, key, more, now_ms)
        return Explained(PENDING, reasons, None, _next_ms(state, key, now_ms))
    delayed = sum(lane.delayed for lane in lanes)
    if delayed:
        return Explained(DELAYED, [_delayed(state, lanes, delayed, about, now_ms), *stops, *more])
    if key is not None and any(lane.leased for lane in lanes):  # acked messages may still be stored
        return Explained(LEASED, [_leased_of_key(state, key, about, now_ms), *stops, *more])
    return Explained(EMPTY, [*stops, *more, _empty(about)])


def _of_pending_key(state: "State", key: "FairnessKey", more: "list[Reason]", now_ms: int) -> "list[Reason]":
    capped, (short, some) = cap(state, key, now_ms), _shortages(state, key, now_ms)
    own = [each for each in (capped, short) if each is not None]
    ways = queue_reasons.queue_reasons(state, key.queue, key.name, own, now_ms)
    rivals = rivals_of(key, 0)
    turns = [queue_reasons.turns(key, rivals, now_ms)] if rivals.keys and key.deliverable else []
    if ways:
        return [*ways, *turns, *some, *more]
    return [*more, *(turns or [queue_reasons.busy(key.queue, key.pending, now_ms)]), *some]


def _shortages(state: "State", key: "FairnessKey", now_ms: int) -> "tuple[Reason | None, list[Reason]]":
    """Return the shortage of all of a key's lanes that ends first; else that of some lanes."""
    lanes = list(islice((lane for lane in key.lanes.values() if lane.pending), LANES_MAX))
    if key.queue.options.max_in_flight_per_key == 1:
        lanes = [min(lanes, key=lambda lane: head(state, lane)[0][8:])]
    lacks = [lack for lane in lanes if (lack := tokens(state, lane, now_ms)) is not None]
    lacks.sort(key=lambda lack: (not lack.until_ms, lack.until_ms))
    if len(lacks) == len(lanes):
        return lacks[0], []
    return None, list({lack.details["throttle_key"]: lack for lack in reversed(lacks)}.values())


def _next_ms(state: "State", key: "FairnessKey", now_ms: int) -> int:
    """Return when the next of a key's messages will be delivered."""
    lanes = islice((lane for lane in key.lanes.values() if lane.pending), LANES_MAX)
    place, rivals = QueuePosition(0, 0, True), rivals_of(key, 0)
    times = [delivery_ms(state, lane, FIRST_PLACE, place, rivals, lane.need // 1000 or 1000, now_ms) for lane in lanes]
    return min((time for time in times if time), default=0)


# --- a queue -----------------------------------------------------------------------------------------------------------


def explain_queue(state: "State", queue: "Queue", now_ms: int) -> "Work":
    """Return why a queue's messages wait, and why the queue refuses new ones, if it does."""
    about = f"queue {queue.name!r}"
    stops, more = queue_reasons.stops(state, queue), _for_producers(state, queue, "", now_ms)
    if queue.pending:
        reasons, held = _of_pending_queue(state, queue, more, now_ms)
        yield 1
        return Explained(PENDING, [*reasons, *_limited(state, queue, held, now_ms)])
    if queue.delayed:
        lanes = yield from _delayed_lanes(state, queue)
        if lanes:
            return Explained(DELAYED, [_delayed(state, lanes, queue.delayed, about, now_ms), *stops, *more])
    if queue.in_flight:
        leased = yield from _leased(state, queue, about, now_ms)
        return Explained(LEASED, [leased, *stops, *more])
    return Explained(EMPTY, [*stops, *more, _empty(about)])


def _of_pending_queue(
    state: "State", queue: "Queue", more: "list[Reason]", now_ms: int
) -> "tuple[list[Reason], frozenset[str]]":
    """Return the reasons, and the keys that something stops."""
    groups, held, free = _groups(state, queue, now_ms)
    ways = queue_reasons.queue_reasons(state, queue, None, [] if free else groups, now_ms)
    if ways:
        return [*ways, *(groups if free else []), *more], held
    return [*more, queue_reasons.busy(queue, queue.pending, now_ms), *groups], held


def _groups(state: "State", queue: "Queue", now_ms: int) -> "tuple[list[Reason], frozenset[str], bool]":
    """Return what stops keys, by falling number of messages, which keys those are, and whether any other may deliver."""
    found: dict[tuple[str, str], list[FairnessKey]] = {}
    free = len(queue.keys) > EXPLAINED_KEYS_MAX
    state.jobs.charge(KEY_COST * min(EXPLAINED_KEYS_MAX, len(queue.keys)))
    for key in queue.keys.portion(0, EXPLAINED_KEYS_MAX):
        if key.active or key.pending:
            what = _holdup(state, key, now_ms)
            free |= what is None
            if what is not None and what[0] != ReasonCode.LEAVING:  # the partition has a reason for all of these
                found.setdefault(what, []).append(key)
    reasons = [_group(state, code, keys, now_ms) for (code, _), keys in found.items()]
    held = frozenset(key.name for keys in found.values() for key in keys)
    return sorted(reasons, key=lambda each: -each.details["messages"]), held, free


def _limited(state: "State", queue: "Queue", held: frozenset[str], now_ms: int) -> "list[Reason]":
    """Return as a reason that throttle keys let messages through only so fast, of keys that nothing stops; empty if none does."""
    keys = (key for key in queue.keys.portion(0, EXPLAINED_KEYS_MAX) if key.cold is None and key.name not in held)
    lanes = list(islice((lane for key in keys for lane in key.lanes.values()), LIMITED_LANES_MAX))
    state.jobs.charge(len(lanes))
    messages: Counter[str] = Counter()
    for lane in lanes:
        if lane.pending and (name := tightest(state, lane)) is not None:
            messages[name] += lane.pending
    if not messages:
        return []
    limits = [limits_of(state, name, count, now_ms) for name, count in messages.most_common()]
    shown, others = limits[:LIMITS_SHOWN], limits[LIMITS_SHOWN:]
    if others:
        columns = {name: [each[name] for each in others] for name in ("messages", "rate", "tokens", "concurrency")}
        sums = {name: None if None in numbers else sum(numbers) for name, numbers in columns.items()}
        shown.append({"throttle_key": None} | sums)
    first = limits[0]
    pace = f"{first['concurrency']:,} at a time" if first["rate"] is None else f"{first['rate']:g}/s"
    text = f"throttle keys let messages through only so fast, most of them {first['throttle_key']!r}: {pace}"
    return [reason(ReasonCode.LIMITED, text, messages=messages.total(), limits=shown)]


def _holdup(state: "State", key: "FairnessKey", now_ms: int) -> tuple[str, str] | None:
    """Return why a key delivers nothing, by code and, for tokens, throttle key; None if it delivers."""
    if key.paused:
        code = ReasonCode.KEY_PAUSED if key.name in key.queue.paused_keys else _way_of(key)
        return code.value, ""
    if not key.open:
        return (
            ReasonCode.ORDERED_BEHIND if key.queue.options.max_in_flight_per_key == 1 else ReasonCode.IN_FLIGHT_CAP
        ).value, ""
    if key.cold is not None:
        return None  # it needs no tokens
    lack = None
    for lane in islice((lane for lane in key.lanes.values() if lane.pending), LANES_MAX):
        lacks = tokens(state, lane, now_ms, lane.need or TOKEN)
        if lacks is None and not key.blocked_head:
            return None
        lack = lacks or lack
    return (lack.code, lack.details["throttle_key"]) if lack else None


def _way_of(key: "FairnessKey") -> ReasonCode:
    """Return why a key that is not paused delivers nothing: it waits for messages of another partition, or goes to one."""
    partition = key.queue.partition
    return ReasonCode.MOVING if partition is not None and partition.awaited(key.name) else ReasonCode.LEAVING


def _group(state: "State", code: str, keys: "list[FairnessKey]", now_ms: int) -> "Reason":
    """Return one reason for all keys that the same thing stops."""
    example, messages = keys[0], sum(key.pending for key in keys)
    if code in {ReasonCode.KEY_PAUSED, ReasonCode.MOVING}:
        found = next(each for each in queue_reasons.stops(state, example.queue, example.name) if each.code == code)
    else:
        held = cap(state, example, now_ms) if code in {ReasonCode.ORDERED_BEHIND, ReasonCode.IN_FLIGHT_CAP} else None
        found = (
            held or _shortages(state, example, now_ms)[0] or reason(ReasonCode(code), f"fairness key {example.name!r} waits")
        )
    those = f"{counted(len(keys), 'fairness key')} with {counted(messages, 'message')}"
    first = "" if len(keys) == 1 else f"for example {example.name!r}: "
    details = found.details | {"keys": len(keys), "messages": messages, "fairness_key": example.name}
    return reason(ReasonCode(found.code), f"{those}: {first}{found.text}", found.until_ms, **details)


# --- both --------------------------------------------------------------------------------------------------------------


def _for_producers(state: "State", queue: "Queue", key_name: str, now_ms: int) -> "list[Reason]":
    return [*queue_reasons.refusals(state, queue, key_name, now_ms), *queue_reasons.breaker(queue, now_ms)]


def _empty(about: str) -> "Reason":
    return reason(ReasonCode.EMPTY, f"{about} has no messages: nothing waits")


def _delayed_lanes(state: "State", queue: "Queue") -> "Generator[int, int, list[View]]":
    """Return the lanes of a queue that have delayed messages; only the first ones if there are many."""
    found: list[View] = []
    for views in pieces(state, queue, state.settings.limits.step_effort):
        found += [view for view in views if view.delayed]
        if len(found) >= LANES_MAX:
            break
        yield 1 + len(views) // VIEWS_AT_ONCE
    return [view for view in (again(state, each) for each in found[:LANES_MAX]) if view is not None and view.delayed]


def _delayed(state: "State", lanes: "Iterable[View]", count: int, about: str, now_ms: int) -> "Reason":
    """Return as a reason that no message can be delivered yet, and when the first of the examined delayed messages is due."""
    state.settle_writes()
    due: list[int] = []
    for lane in lanes:
        if lane.delayed and len(due) < DELAYED_MAX:
            due += [parse_delayed(value).due_ms for _, value in islice(delayed_of(state, lane), DELAYED_MAX - len(due))]
    first_ms = min(due)
    text = (
        f"all waiting messages of {about} are delayed: {counted(count, 'message')}, the first is due in "
        f"{span(first_ms - now_ms)}"
    )
    return reason(ReasonCode.DELAYED, text, first_ms, messages=count, remaining_ms=max(0, first_ms - now_ms))


def _leased(state: "State", queue: "Queue", about: str, now_ms: int) -> "Generator[int, int, Reason]":
    """Return which consumers hold a queue's messages. Leases that begin or end meanwhile may be counted or not."""
    consumers: set[Holder] = set()
    oldest_ms = first_ms = 0
    for leases, effort in lease_pieces(state, queue):
        for lease in leases:
            consumers.add(lease.holder)
            expiry_ms = lease.next_expiry()
            oldest_ms = min(oldest_ms or lease.leased_ms, lease.leased_ms)
            first_ms = min(first_ms or expiry_ms, expiry_ms)
        yield effort
    return _all_leased(about, len(consumers), queue.in_flight, oldest_ms or now_ms, first_ms or now_ms, now_ms)


def _leased_of_key(state: "State", key: "FairnessKey", about: str, now_ms: int) -> "Reason":
    held = list(held_of(state, key))
    oldest_ms = min((each.lease.leased_ms for each in held), default=now_ms)
    consumers = len({each.lease.holder for each in held})
    count = sum(len(lane.leased) for lane in key.lanes.values())
    return _all_leased(about, consumers, count, oldest_ms, min((each.expires_ms for each in held), default=now_ms), now_ms)


def _all_leased(about: str, consumers: int, count: int, oldest_ms: int, first_ms: int, now_ms: int) -> "Reason":
    text = (
        f"nothing waits in {about}: {counted(count, 'message')} leased by {counted(consumers, 'consumer')}, the oldest for "
        f"{span(now_ms - oldest_ms)}; the first lease ends in {span(first_ms - now_ms)}"
    )
    details: dict[str, Any] = {"messages": count, "consumers": consumers, "leased_ms": oldest_ms, "expires_ms": first_ms}
    return reason(ReasonCode.LEASED, text, first_ms, **details)
