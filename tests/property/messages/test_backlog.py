"""What lies in a queue, against a model that a reader can check (:mod:`tests.support.shard.backlog`).

Delays, times to live, dedup ids, quotas, cancelling, purging, browsing, dead letter policies, redriving, changed options and
crashes, in any order, with so little memory and such small steps that everything spills and nothing is done in one go. The shard's
invariants (sizes among them) are checked after every turn; the model says which message must be where.
"""

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fila_proto_zmq.commands import Browse, Cancel, Enqueue, Enqueued, PurgeQueue, Redrive, UpdateQueue, Verb
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import format_id, parse_id
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import record_id, seal_envelope
from fila_worker.core.inspect import backlog, browse
from fila_worker.core.model import lanes
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.storage.memory import MemoryStore
from tests.support.shard.backlog import DISCARD, OWN, Backlog, Known
from tests.support.shard.linked_shards import name_on
from tests.support.shard.shard import ADMIN, SHARDS, Got, ShardHarness

HERE = shard_of("q", SHARDS)
NAMED = name_on(HERE, "named")
QUEUES = st.sampled_from(["q", "q", "q", OWN, NAMED])
KEYS = st.sampled_from(["a", "b", "c"])
LEASE_MS = 20_000
WINDOW_MS = 40_000
SECONDS = st.sampled_from([0, 0, 0, 2_000, 5_000, 30_000])

TINY = Limits(
    refill_messages_max=3, lane_disorder_messages_max=4, ledger_counts_max=40, ledger_fold_lanes_min=3, acked_messages_max=9, range_messages_min=2,
    purge_lanes_max=3, purge_messages_max=6, purge_look_messages=1, turn_due_max=4, due_read_messages_max=2,
    due_read_bytes_max=150, views_max=1000, view_examined_messages_max=7, view_keys_max=2,
    warm_lanes_max=2, warm_small_lanes_max=2, warm_ahead_max=2,
    walk_keys_max=2, view_names_at_once=2, turn_effort=3, step_effort=1, enqueue_step_messages=3,
)  # fmt: skip
"""Bounds of the broker, made small."""

FEW = {(lanes, "FEW"): 2, (backlog, "LOOK_UP_KEYS"): 3, (browse, "FEW_STORED"): 5}
"""Numbers from which on another way is quicker, made small."""

OPTIONS: dict[str, list[Any]] = {
    "max_attempts": [None, 1, 2],
    "default_ttl_ms": [None, 3_000, 30_000],
    "max_in_flight_per_key": [None, 1, 2],
    "dead_letter": ["dlq", DISCARD, NAMED],
}


class BacklogMachine(RuleBasedStateMachine):
    store_of: type[MemoryStore] = MemoryStore

    @initialize(limit=st.sampled_from(["none", "queue", "key"]))
    def start(self, limit: str) -> None:
        queue_max, key_max = (25 if limit == "queue" else None), (8 if limit == "key" else None)
        self.harness = ShardHarness(
            store=self.store_of(),
            index=HERE,
            settings=ShardSettings(
                consumer_timeout_ms=10**12, buffer_bytes=400, dedup_window_ms=WINDOW_MS, visibility_timeout_ms=LEASE_MS,
                max_queue_messages=queue_max, max_key_messages=key_max, limits=TINY,
            ),
        )  # fmt: skip
        self.harness.create(NAMED)
        self.harness.create("q")
        self.model = Backlog(NAMED, queue_max, key_max, self.harness.now_ms)
        self.held: dict[str, Got] = {}
        self.dedup: dict[str, tuple[int, str]] = {}

    # --- in and out ---------------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), key=KEYS, priority=st.sampled_from([0, 0, 0, -1, 5]),
        delay_ms=SECONDS, ttl_ms=SECONDS, throttled=st.booleans(), ids=st.sampled_from([None, None, "xyzxxyzz", "uvwxyzuv"]),
    )  # fmt: skip
    def enqueue(
        self, sizes: list[int], key: str, priority: int, delay_ms: int, ttl_ms: int, throttled: bool, ids: str | None
    ) -> None:
        dedup_ids = list((ids or "")[: len(sizes)]) or [""] * len(sizes)
        command = Enqueue(
            [seal_envelope(bytes(size)) for size in sizes], key, 0, priority, delay_ms, ttl_ms=ttl_ms,
            dedup_id=dedup_ids if ids else "", throttle_keys=[["t"]] if throttled else [],
        )  # fmt: skip
        reply = self.harness.ask(command, client=b"producer")
        assert isinstance(reply, Enqueued)
        known = {index: format_id(high, low) for index, high, low in reply.known}
        faults = {index for index, _ in reply.faults}
        low = reply.id_low
        for index, dedup_id in enumerate(dedup_ids):
            window_ends_ms, first = self.dedup.get(dedup_id, (0, ""))
            if dedup_id and window_ends_ms > self.model.now_ms:
                assert known.get(index) == first
            elif not self.model.has_room(key):
                assert index in faults
            else:
                assert index not in known.keys() | faults
                identity = format_id(reply.id_high, low)
                self.model.add(identity, Known(priority, low, key, throttled), delay_ms, ttl_ms)
                self.dedup[dedup_id] = self.model.now_ms + WINDOW_MS, identity
                low += 1
        assert low - reply.id_low == reply.count

    @rule(count=st.integers(1, 12))
    def receive(self, count: int) -> None:
        expected = min(count, self.model.deliverable())
        got = self.harness.receive(count)
        assert len(got) == expected
        for each in got:
            known = self.model.known[each.id]
            assert (known.queue, known.state, known.attempts) == ("q", "pending", each.attempts)
            assert known.place == self.model.first_in_line(known.key)
            known.state, known.lease_ends_ms = "leased", self.model.now_ms + LEASE_MS
            self.held[each.id] = each

    @precondition(lambda self: self.held)
    @rule(data=st.data(), verb=st.sampled_from(list(Verb)), after_ms=SECONDS)
    def settle(self, data: st.DataObject, verb: Verb, after_ms: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, max_size=6, unique=True))
        if verb is Verb.DEFER:  # would park the throttle key
            chosen = [identity for identity in chosen if not self.model.known[identity].throttled]
        for identity in chosen:
            self.settle_one(self.model.known[identity], verb, after_ms)
        settled = self.harness.settle(verb, [self.held.pop(identity) for identity in chosen], after_ms=after_ms)
        assert settled.faults == []
        self.harness.pass_time(0)

    def settle_one(self, known: Known, verb: Verb, after_ms: int) -> None:
        match verb:
            case Verb.ACK:
                known.state = "gone"
            case Verb.FAIL:
                known.attempts += 1
                self.model.bury(known)
            case Verb.RELEASE | Verb.DEFER:
                self.model.put_back(known, after_ms if verb is Verb.DEFER else 0)
            case _:
                self.model.fail_attempt(known, after_ms if verb is Verb.RETRY else 0)

    # --- what is done to a backlog ------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.known)
    @rule(data=st.data(), queue=QUEUES)
    def cancel(self, data: st.DataObject, queue: str) -> None:
        identity = data.draw(st.sampled_from(sorted(self.model.known)))
        known = self.model.known[identity]
        try:
            removed = self.ask(Cancel(*parse_id(identity)), queue).removed
        except MessageNotFoundError:
            assert known not in self.model.here(queue)
            return
        assert known in self.model.here(queue)
        assert removed == (known.state != "leased")
        if removed:
            known.state = "gone"

    @rule(key=st.sampled_from([None, "a", "b"]), queue=QUEUES)
    def purge(self, key: str | None, queue: str) -> None:
        doomed = [known for known in self.model.here(queue, key) if known.state != "leased"]
        purged = self.ask(PurgeQueue(key), queue)
        count = purged.count
        while purged.remaining:
            assert purged.count, "a step without progress"
            purged = self.ask(PurgeQueue(key), queue)
            count += purged.count
        assert count == len(doomed)
        for known in doomed:
            known.state = "gone"

    @rule(
        queue=QUEUES, key=st.sampled_from([None, None, "a"]), limit=st.integers(1, 9),
        state=st.sampled_from([None, None, "pending", "delayed", "leased"]), disturbed=st.booleans(),
    )  # fmt: skip
    def browse(self, queue: str, key: str | None, limit: int, state: str | None, disturbed: bool) -> None:
        expected = [known for known in self.model.here(queue, key) if state in {None, known.state}]
        expected.sort(key=lambda known: (known.key, known.place))
        found: list[Known] = []
        page = self.ask(Browse(limit, None, key, state), queue)
        found += map(self.seen, page.messages)
        while page.more:
            last = record_id(page.messages[-1].record)
            if disturbed and found[-1].state != "leased":  # the next page is asked for by a message that is gone
                assert self.ask(Cancel(*last), queue).removed
                found[-1].state = "gone"
            page = self.ask(Browse(limit, last, key, state), queue)
            found += map(self.seen, page.messages)
        assert found == expected

    def seen(self, view: Any) -> Known:
        known = self.model.known[format_id(*record_id(view.record))]
        assert known.state == view.state
        return known

    @precondition(lambda self: self.harness.shard.queues[NAMED].appointed)
    @rule(queue=st.sampled_from([OWN, NAMED]), key=st.sampled_from([None, None, "a"]))
    def redrive(self, queue: str, key: str | None) -> None:
        letters = self.model.here(queue, key)
        assert self.ask(Redrive(0, key), queue).count == len(letters)
        for known in letters:
            self.model.begin(known)

    @precondition(lambda self: self.harness.shard.queues[NAMED].appointed and self.model.known)
    @rule(queue=st.sampled_from([OWN, NAMED]), data=st.data())
    def redrive_picked(self, queue: str, data: st.DataObject) -> None:
        known = self.model.known
        letters = sorted(identity for identity in known if known[identity].queue == queue and known[identity].state != "gone")
        picked = data.draw(st.lists(st.sampled_from([*letters, *letters, *sorted(known)[:5]]), max_size=9))
        there = set(picked) & set(letters)
        redriven = self.ask(Redrive(0, None, [parse_id(identity) for identity in picked]), queue)
        assert (redriven.count, redriven.looked_at) == (len(there), len(picked))
        for identity in there:
            self.model.begin(known[identity])

    @rule(given=st.dictionaries(st.sampled_from(sorted(OPTIONS)), st.integers(0, 2), min_size=1))
    def update(self, given: dict[str, int]) -> None:
        for name, index in given.items():
            setattr(self.model.options, name, OPTIONS[name][index])
        self.ask(UpdateQueue(self.model.options, list(given)), "q")

    # --- what time and crashes do -------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 2, 5, 19, 45]))
    def pass_time(self, seconds: int) -> None:
        for identity in self.model.pass_time(self.harness.now_ms + seconds * 1_000):
            del self.held[identity]
        self.harness.pass_time(seconds * 1_000)

    @rule()
    def crash_and_recover(self) -> None:
        self.harness.restart()

    def ask(self, command: Any, queue: str) -> Any:
        return self.harness.ask(command, queue, ADMIN)

    @invariant()
    def every_message_is_where_it_should_be(self) -> None:
        for queue in ("q", OWN, NAMED) if hasattr(self, "model") else ():
            states = [known.state for known in self.model.here(queue)]
            expected = (states.count("pending"), states.count("leased"), states.count("delayed"))
            assert self.harness.counts(queue) == expected, queue


class TestBacklog(BacklogMachine.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=60, stateful_step_count=40)

    def runTest(self) -> None:  # noqa: N802
        with ExitStack() as stack:
            for (module, name), value in FEW.items():
                stack.enter_context(patch.object(module, name, value))
            super().runTest()
