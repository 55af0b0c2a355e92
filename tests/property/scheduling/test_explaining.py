"""``why`` in every state that a backlog can get into: it knows where each message is, who is before it, and changes nothing.

And with tokens: what it says is in the way is, and nothing else is.

The commands of :mod:`tests.property.messages.test_backlog`; after each of them every message, key and queue is asked about. The shard's invariants are
checked after every question.
"""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

from fila_proto_zmq.commands import Browse, Browsed, Explain, Explained, Verb
from fila_proto_zmq.errors import MessageNotFoundError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.record import record_id
from fila_worker.core.explain import estimates
from tests.property.messages.test_backlog import FEW, NAMED, BacklogMachine
from tests.property.scheduling.test_throttled import moody
from tests.support.shard.backlog import OWN, Known
from tests.support.shard.cluster_of_shards import ClusterOfShards
from tests.support.shard.explained import check, codes
from tests.support.shard.shard import ADMIN, ShardHarness

pytestmark = pytest.mark.whole

LAST_IN_LINE = {"no_consumers", "behind", "keys_ahead", "ordered_behind", "in_flight_cap", "expires", "next"}


class Explaining(BacklogMachine):
    @invariant()
    def why_knows_where_every_message_is(self) -> None:
        for identity, known in list(self.model.known.items()) if hasattr(self, "model") else []:
            command = Explain(parse_id(identity))
            if known.state == "gone":
                with pytest.raises(MessageNotFoundError):
                    self.ask(command, known.queue)
                continue
            told = self.ask(command, known.queue)
            check(told)
            if known.queue == "q":
                self.is_right(known, told)
            else:
                assert codes(told)[0] in {"dead_lettered", "expired"}
                assert told.state == "dead_lettered"

    def is_right(self, known: Known, told: Explained) -> None:
        first = told.reasons[0]
        assert told.state == known.state
        match known.state:
            case "leased":
                assert (first.code, first.until_ms) == ("leased", known.lease_ends_ms)
            case "delayed":
                assert first.code in {"delayed", "retry_wait", "deferred"}
                assert first.until_ms == known.due_ms
            case "pending":
                assert set(codes(told)) <= LAST_IN_LINE
                before = [
                    each for each in self.model.here("q", known.key) if each.state == "pending" and each.place < known.place
                ]
                behind = {each.code: each.details for each in told.reasons}.get("behind", {"exact": True})
                assert told.position == len(before) if behind["exact"] else told.position is not None
                capped = first.code in {"ordered_behind", "in_flight_cap"}
                assert capped or self.key_is_open(known.key) or first.code == "no_consumers"

    def key_is_open(self, key: str) -> bool:
        held = [each for each in self.model.here("q", key) if each.state == "leased" or each.retrying]
        return len(held) < (self.model.options.max_in_flight_per_key or len(held) + 1)

    @invariant()
    def why_has_a_word_for_every_key_and_queue(self) -> None:
        for queue in ("q", OWN, NAMED) if hasattr(self, "model") else ():
            states = {known.state for known in self.model.here(queue)}
            expected = next((state for state in ("pending", "delayed", "leased") if state in states), "empty")
            told = self.ask(Explain(), queue)
            check(told)
            assert told.state == expected
            for key in "abc":
                check(self.ask(Explain(None, key), queue))


class TestExplaining(Explaining.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(deadline=None, max_examples=25, stateful_step_count=25)

    def runTest(self) -> None:  # noqa: N802
        with ExitStack() as stack:
            for (module, name), value in {**FEW, (estimates, "READ_MAX"): 3}.items():
                stack.enter_context(patch.object(module, name, value))
            super().runTest()


# --- tokens ------------------------------------------------------------------------------------------------------------

LIMITS = {"t": (20, 5), "u": (5, 20), "v": (0, 3)}
"""Rate and burst of each throttle key."""

BACKLOG = st.lists(
    st.tuples(
        st.sampled_from(["", "t", "u", "v", "t u", "w"]), st.sampled_from("abc"), st.integers(1, 12), st.sampled_from([1000, 300, 7000])
    ),
    min_size=1, max_size=8,
)  # fmt: skip
VERBS = st.lists(st.sampled_from([Verb.ACK, Verb.ACK, Verb.RETRY, Verb.DEFER, Verb.NACK]), min_size=1, max_size=4)


@settings(deadline=None, max_examples=40)
@given(
    backlog=BACKLOG, verbs=VERBS, waits=st.lists(st.sampled_from([1, 40, 700, 15_000]), min_size=1, max_size=5),
    cap=st.sampled_from([None, None, 1, 2]), consumers=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 80])), max_size=2),
)  # fmt: skip
def test_something_is_in_the_way_of_all_that_is_still_in_line(
    backlog: list[tuple[str, str, int, int]],
    verbs: list[Verb],
    waits: list[int],
    cap: int | None,
    consumers: list[tuple[int, int]],
) -> None:
    cluster = ClusterOfShards(1)
    cluster.create(0, max_in_flight_per_key=cap)
    for name, (rate, burst) in LIMITS.items():
        cluster.limit(name, rate, burst)
    for prefetch, hold_ms in consumers:
        cluster.consume(0, prefetch=prefetch, hold_ms=hold_ms, settle=moody(verbs))  # type: ignore[arg-type]
    for throttles, key, count, cost_milli in backlog:
        cluster.enqueue(0, count, throttles, key, cost_milli=cost_milli)
    for wait_ms in waits:
        cluster.run(wait_ms)
        ask_about_everything(cluster.shards[0])


def ask_about_everything(harness: ShardHarness) -> None:
    page = harness.ask(Browse(1000), "q", ADMIN)
    assert isinstance(page, Browsed)
    for command in (
        Explain(),
        *(Explain(None, key) for key in "abc"),
        *(Explain(record_id(each.record)) for each in page.messages),
    ):
        told = harness.ask(command, "q", ADMIN)
        assert isinstance(told, Explained)
        check(told)
        if command == Explain():
            counted = [each.details["messages"] for each in told.reasons if "keys" in each.details or each.code == "limited"]
            assert sum(counted) <= harness.stats().info.pending, "each message is counted once"
        if told.state == "pending":
            assert codes(told)[0] not in {"next", "busy", "keys_ahead", "behind"}, told
            assert told.estimated_ms == 0 or told.estimated_ms >= harness.now_ms
