"""Keys that have something to deliver all the time share what their queue gives out by their weights.

The bound: while two keys stay in the ring and each has had a turn, their turns alternate, and a turn gives ``weight`` units of cost. So what
they got, each divided by its weight, differs by one turn at most in any window. What a message costs beyond the rest of a turn is paid with
the next turns: that is the largest cost over the weight, for each of the two. One more turn is allowed for keys that pay such debts, since
their rounds are counted and not served.

It is checked where it surely applies. In such a window of deliveries each of the two keys has a witness at each moment: a plain message that was
confirmed before and is given out afterwards. None of the keys' messages waits for tokens, the queue has no cap, its weights stay the same, and
no call may have moved messages other than by a delivery. Credit is not asked for: without it no key gets anything.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, groupby

from fila_proto_zmq.names import whole_queue
from tests.simulation.history import Grant, History

HARMLESS = frozenset((
    "enqueue", "enqueue_many", "receive", "consume", "leave", "close", "ack", "nack", "retry", "fail", "defer", "extend", "browse",
    "queue_stats", "list_queues", "why", "set_config", "get_config", "delete_config",
))  # fmt: skip
"""Calls that change nothing about which keys are in the ring but by deliveries and by what comes into line."""
SPARE_TURNS = 2


@dataclass
class Share:
    """What a key got in a window so far. ``cost_max``: of a single delivery; 0 if all cost 1, and nothing is left to pay."""

    weight: int
    units: float = 0.0
    cost_max: float = 0.0
    plain: bool = True

    def add(self, grants: list[Grant]) -> None:
        """The key got these."""
        for grant in grants:
            self.units += grant.cost
            self.cost_max = max(self.cost_max, grant.cost)
            self.plain = self.plain and grant.cost == 1

    @property
    def turns(self) -> float:
        return self.units / self.weight

    @property
    def debt(self) -> float:
        """How many turns a delivery may be paid with."""
        return 0.0 if self.plain else self.cost_max / self.weight


@dataclass
class Pair:
    """Two keys in a window that goes on."""

    shares: tuple[Share, Share]
    lags: list[float] = field(default_factory=list)
    """How many turns the first was ahead, since both had their first."""

    def add(self, one: list[Grant], other: list[Grant]) -> None:
        """They got these in one turn of the shard."""
        for share, grants in zip(self.shares, (one, other), strict=True):
            share.add(grants)
        if all(share.units for share in self.shares):
            self.lags.append(self.shares[0].turns - self.shares[1].turns)

    @property
    def bound(self) -> float:
        return SPARE_TURNS + sum(share.debt for share in self.shares)

    @property
    def spread(self) -> float:
        """By how much the one got ahead in the window where it did most."""
        return max(self.lags) - min(self.lags) if self.lags else 0.0


def check(history: History) -> int:
    """Look at every two keys of each queue or partition, as long as both are backlogged. Returns how many windows were long enough to tell."""
    telling = 0
    by_place: dict[str, list[Grant]] = defaultdict(list)
    for grant in history.grants:
        by_place[grant.place].append(grant)
    for place, grants in by_place.items():
        queue = whole_queue(place)
        if _applies(history, queue):
            for names, pair in _windows(history, queue, _once(grants)):
                telling += max(share.turns for share in pair.shares) > pair.bound
                if pair.spread > pair.bound + 1e-9:
                    history.fail(
                        "fairness",
                        f"{names} of {place} were backlogged, and one got {pair.spread:.2f} turns ahead of the other (bound {pair.bound:.2f})",
                    )
                    break
    return telling


def _applies(history: History, queue: str) -> bool:
    options = history.queues.get(queue)
    if options is None or options.keys() & {"max_in_flight_per_key", "delivery"}:
        return False
    if history.is_repartitioned(queue):
        return False  # a witness may be elsewhere
    return not any(
        call.queue == queue and (call.kind in ("pause", "reserve") or "actual_cost" in call.said) for call in history.calls
    )


def _once(grants: list[Grant]) -> list[Grant]:
    """Without answers that were sent again."""
    first: dict[tuple[int, int], Grant] = {}
    return [grant for grant in grants if first.setdefault(grant.fence, grant) is grant]


def _windows(history: History, queue: str, grants: list[Grant]) -> Iterator[tuple[tuple[str, str], Pair]]:
    """The longest windows in which two keys were backlogged, with what they got."""
    rounds = [(at_us, list(together)) for at_us, together in groupby(grants, key=lambda grant: grant.at_us)]
    shares = [_by_key(together) for _, together in rounds]
    backlogged = _backlogged(history, rounds)
    cuts = _cuts(history, queue, [at_us for at_us, _ in rounds])
    steady = {key: weights.pop() for key, weights in _weights(grants).items() if len(weights) == 1}
    # a limit, or a delivery that was put off with its throttle keys
    limited = any(
        call.kind in {"defer", "set_throttle"} or (call.kind == "set_config" and "throttle" in call.said["key"])
        for call in history.calls
    )
    labelled = {grant.key for grant in grants if grant.throttle_keys and limited}
    for names in combinations(sorted(steady.keys() - labelled), 2):
        pair: Pair | None = None
        for number, got in enumerate(shares):
            if not all(number in backlogged[name] for name in names) or number in cuts:
                if pair is not None:
                    yield names, pair
                pair = None
                if not all(number in backlogged[name] for name in names):
                    continue
            pair = pair or Pair((Share(steady[names[0]]), Share(steady[names[1]])))
            pair.add(got.get(names[0], []), got.get(names[1], []))
        if pair is not None:
            yield names, pair


def _by_key(grants: list[Grant]) -> dict[str, list[Grant]]:
    found: dict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        found[grant.key].append(grant)
    return found


def _weights(grants: list[Grant]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for grant in grants:
        found[grant.key].add(grant.weight)
    return found


def _backlogged(history: History, rounds: list[tuple[int, list[Grant]]]) -> dict[str, set[int]]:
    """By key, the numbers of the rounds all through which it had a witness."""
    times = [at_us for at_us, _ in rounds]
    found: dict[str, set[int]] = defaultdict(set)
    seen: Counter[str] = Counter()
    for number, (_, grants) in enumerate(rounds):
        for grant in grants:
            seen[grant.token] += 1
            sent = history.sent.get(grant.token)
            if seen[grant.token] > 1 or sent is None or sent.id != grant.id or not _is_plain(history, grant):
                continue
            confirmed_us = sent.call.ended_us
            if confirmed_us is not None:
                found[grant.key].update(range(bisect_left(times, confirmed_us + 1), number))
    return found


def _is_plain(history: History, grant: Grant) -> bool:
    """Whether a message was in line from the moment in which it was stored until it was given out for the first time."""
    sent = history.sent[grant.token]
    options = history.queues[grant.queue]
    if sent.queue != grant.queue or grant.attempts or "default_ttl" in options or "late" in str(options.get("on_enqueue")):
        return False
    return not sent.options.keys() & {"delay", "ttl"}


def _cuts(history: History, queue: str, times: list[int]) -> set[int]:
    """The numbers of the rounds with which windows begin anew, because something else may have happened since the one before."""
    spans = [(at_us, at_us) for at_us in history.worker_deaths()]
    spans += [
        (call.started_us, call.ended_us if call.ok and call.ended_us is not None else 1 << 60)
        for call in history.calls
        if call.queue == queue and call.kind not in HARMLESS
    ]
    return {
        number
        for since_us, until_us in spans
        for number in range(bisect_left(times, since_us), min(len(times), bisect_left(times, until_us) + 1))
    }
