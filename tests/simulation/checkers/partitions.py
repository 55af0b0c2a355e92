"""Queues with several partitions: a consumer holds no more than its prefetch over all of them, messages are where their keys belong, and no
partition starves. When the number of partitions changes, all moves end.

Looks inside for what is in a wrong partition, and for what a partition could deliver while a consumer has credit.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fila_proto_zmq.names import PARTITION_MARK, is_dead_letter, partition_name, root_name, whole_queue
from fila_proto_zmq.partitions import partition_of
from tests.simulation.history import History

if TYPE_CHECKING:
    from tests.simulation.run import Run

SETTLED = ("ack", "nack", "retry", "fail", "defer")
LOOK_US = 250_000
"""Between two looks at whether a partition starves."""
STARVES_US = 3_000_000
"""How long a consumer may have credit, and a partition messages, and none goes."""
GRACE_US = 6_000_000
"""After a fault: as long as an answer that was lost is waited for, and a reconnect."""


# --- what a consumer holds --------------------------------------------------------------------------------------------


def check_prefetch(history: History) -> None:
    """Count what a ``consume()`` surely held at each moment: what it got until the settlement, of which one was confirmed."""
    ends = _ends(history)
    held: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for each in history.handed:
        end_us = ends.get((each.place, each.lease, each.index))
        if each.consumer is None or each.place == each.queue or not each.lease or end_us is None:
            continue
        grant = history.grant_of(history.shard_of(each.place), each.lease, each.index)
        if grant is not None:
            held[each.consumer] += [(grant.at_us, 1), (end_us, -1)]
    for number, changes in held.items():
        prefetch, now_held = history.prefetches[number], 0
        for at_us, change in sorted(changes):
            now_held += change
            if now_held > prefetch:
                history.fail("prefetch", f"a consumer with prefetch={prefetch} held {now_held} messages at {at_us / 1e6:.6f}")
                return


def _ends(history: History) -> dict[tuple[str, int, int], int]:
    """By place, lease and index: when the first settlement of a delivery began, if one was confirmed."""
    began: dict[tuple[str, int, int], int] = {}
    confirmed: set[tuple[str, int, int]] = set()
    for call in history.calls:
        if call.kind in SETTLED and "index" in call.said:
            fence = call.said.get("place", call.queue), call.said["lease"], call.said["index"]
            began.setdefault(fence, call.started_us)
            if call.ok:
                confirmed.add(fence)
    return {fence: began[fence] for fence in confirmed}


# --- where messages are -----------------------------------------------------------------------------------------------


def check_places(history: History) -> None:
    """A key's messages are given out by its partition only. A batch counts its members where they were enqueued: so they stay."""
    if history.batches or history.power_cuts:
        return
    for grant in history.grants:
        if grant.place != grant.queue and not is_dead_letter(grant.place):
            numbers = history.numbers_of(grant.queue, grant.at_us, grant.at_us)
            own = {_place_of(history, grant.queue, grant.key, number) for number in numbers}
            if not own & {None, grant.place}:
                history.fail("strays", f"{grant.token} of the key {grant.key} is given out by {grant.place}, not by {own}")
                return


def _place_of(history: History, queue: str, key: str, partitions: int) -> str | None:
    """The partition of a key; None: all have it."""
    return None if history.spread_of(queue)[1] == "message" else partition_name(queue, partition_of(key, partitions))


def partitions_of(run: "Run") -> dict[str, tuple[int, Any]]:
    """Return the queues with partitions: how many these are, and how far a move of their messages has come. Nothing while shard 0,
    which has that, is not open."""
    first = [shard.runtime.definitions for shard in _shards(run) if shard.index == 0]
    definitions = {name: each.find(name) for each in first for name in each}
    return {name: (each.plan.partitions, each.move) for name, each in definitions.items()}


def _shards(run: "Run") -> list[Any]:
    return [shard for worker in run.cluster.workers if worker.host is not None for shard in worker.host.shards.values()]


def _partitions(run: "Run") -> list[Any]:
    return [
        queue for shard in _shards(run) for queue in shard.queues.values() if PARTITION_MARK in queue.name and not queue.gone
    ]


def strays(run: "Run") -> Counter[str]:
    """Return how many messages of keys of other partitions each partition has."""
    found, counts = Counter[str](), partitions_of(run)
    for queue in _partitions(run):
        if not is_dead_letter(queue.name) and whole_queue(queue.name) in counts:
            found += _strays_of(run.history, queue, counts[whole_queue(queue.name)][0])
    return found


def _strays_of(history: History, queue: Any, partitions: int) -> Counter[str]:
    found = Counter[str]()
    for key in list(queue.keys.values()):
        own = _place_of(history, whole_queue(queue.name), key.name, partitions)
        is_away = own not in (None, queue.name) or queue.partition.number >= partitions
        if is_away and not (history.batches and key.name in queue.partition.settled):
            found[f"{key.name} of {own} in {queue.name}"] += key.pending + sum(view.delayed for view in key.views)
    return +found


# --- another number of partitions -------------------------------------------------------------------------------------


def unfinished(run: "Run") -> list[str]:
    """Return what is left of changes of the number of partitions, but what waits for leased messages; and what is paused."""
    found = [f"{name} moves: {move}" for name, (_, move) in partitions_of(run).items() if move and not move.is_drained]
    for queue in _partitions(run):
        if queue.reshaping or queue.partition.held_back:
            held = sorted(key.name for key in queue.partition.held_back)
            found.append(f"{queue.name} holds {held} back, {queue.reshaping} walks over its keys go on")
        if queue.paused or queue.paused_keys:
            found.append(f"{queue.name} is paused, {queue.paused}, or keys of it, {sorted(queue.paused_keys)}")
    return found


def check_numbers(run: "Run") -> None:
    """At rest each queue has the number of partitions that somebody asked for last, and no others."""
    history, now_us = run.history, run.world.now_us
    counts = partitions_of(run)
    for name, (partitions, move) in counts.items():
        numbers = history.numbers_of(name, now_us, now_us)
        if partitions not in numbers and not history.power_cuts:
            history.fail("numbers", f"{name} has {partitions} partitions, and should have one of {numbers}")
        if move is not None:
            history.fail("rest", f"{name} still moves: {move}")
    for queue in _partitions(run):
        partitions = counts.get(whole_queue(root_name(queue.name)), (0, None))[0]
        if queue.partition.number >= partitions:
            history.fail("rest", f"{queue.name} is still there, and its queue has {partitions} partitions")


def check_paused(history: History) -> None:
    """While a queue or a key is paused, nothing of it is given out, also when the number of partitions changes."""
    if history.power_cuts or history.saw("delete_queue"):
        return
    for pause in history.calls:
        if pause.kind != "pause" or not pause.ok or "idle_expiry" in history.queues[pause.queue]:
            continue
        until_us = _paused_until_us(history, pause)
        for grant in history.grants:
            is_meant = grant.queue == pause.queue and pause.said["key"] in (None, grant.key) and not grant.repeated
            leased_us = history.leased_us.get((grant.shard, grant.lease), grant.at_us)  # the first answer may be lost
            if is_meant and pause.ended_us < leased_us and grant.at_us < until_us:  # type: ignore[operator]
                history.fail("paused", f"{grant.token} of {grant.place}/{grant.key} is given out after #{pause.number}")
                return


def _paused_until_us(history: History, pause: Any) -> int:
    """When a resume may have taken effect; one without an answer may do so at any time."""
    resumed = (call for call in history.calls if call.kind == "resume" and call.queue == pause.queue)
    return min(
        (
            call.started_us
            for call in resumed
            if call.said["key"] == pause.said["key"] and (not call.ok or call.ended_us >= pause.started_us)
        ),
        default=history.audit_us,
    )


# --- which partitions are asked ---------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """A partition that has something to deliver and gives out nothing, and a consumer: since when that is so, and it has had credit."""

    ready_us: int
    credit_us: int


@dataclass
class Asking:
    """Looks at the consumers of a run, and at the partitions of their queues."""

    run: "Run"
    _waiting: dict[tuple[str, int, str], Waiting] = field(default_factory=dict)
    """By client, feed and partition."""
    _grants: int = 0
    """How many were seen."""

    def look(self) -> None:
        """Look at all of them now."""
        history = self.run.history
        given = {grant.place for grant in history.grants[self._grants :]}
        self._grants = len(history.grants)
        waits = self._with_messages() - given
        before, self._waiting = self._waiting, {}
        for programs in self.run.clients:
            process = programs.process
            if not process.alive or process.closed_us is not None or process.paused_until_us > history.world.now_us:
                continue
            for number, feed in programs.client._session._consumption._feeds._open.items():
                for place in feed.plan.names(feed.subscription.queue):
                    if place in waits and not feed.closed:
                        key = process.name, number, place
                        self._go_on(key, before.get(key), has_credit=_has_credit(feed))

    def _with_messages(self) -> set[str]:
        """The partitions that can deliver something now, where their workers run."""
        return {
            queue.name
            for worker in self.run.cluster.workers
            if worker.host is not None and worker.paused_until_us <= self.run.world.now_us
            for shard in worker.host.shards.values()
            for queue in shard.queues.values()
            if PARTITION_MARK in queue.name and queue.weight
        }

    def _go_on(self, key: tuple[str, int, str], waiting: Waiting | None, *, has_credit: bool) -> None:
        now_us, (client, _, place) = self.run.world.now_us, key
        if waiting is None or self._is_disturbed():
            waiting = Waiting(now_us, now_us)
        if not has_credit:
            waiting.credit_us = now_us
        if now_us - waiting.credit_us <= STARVES_US:
            self._waiting[key] = waiting
        elif not self._is_overloaded(waiting.ready_us):
            span_s = (now_us - waiting.credit_us) / 1e6
            self.run.history.fail(
                "starved", f"{place} has had messages and {client} credit for {span_s:.3f} s, and none went"
            )

    def _is_overloaded(self, since_us: int) -> bool:
        """Whether a call was refused for the moment, or had no answer."""
        ended = (call for call in self.run.history.calls if call.ended_us is not None and call.ended_us >= since_us)
        return any(getattr(call.error, "retryable", False) for call in ended)

    def _is_disturbed(self) -> bool:
        """Whether something was wrong a moment ago."""
        now_us, healed_us = self.run.world.now_us, self.run.history.healed_us
        times = [step.at_us for step in self.run.steps if (step.who < 0 or step.what == "move") and step.at_us <= now_us]
        return bool(times) and now_us - (healed_us or times[-1]) < GRACE_US


def _has_credit(feed: Any) -> bool:
    """Whether a consumer can take a quarter of its prefetch, or has nothing left for its program."""
    held = sum(lease.unsettled for member in feed.members for lease in member.leases.values())
    room = feed.subscription.prefetch - held - sum(len(member.lapsing) for member in feed.members)
    return bool(room >= max(1, feed.subscription.prefetch // 4) or (room > 0 and not feed.subscription.ready))
