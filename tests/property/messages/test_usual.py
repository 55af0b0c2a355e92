"""The short way of usual requests: it answers, and leaves on disk, what the general way would."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    QueueOptions,
    Receive,
    Settle,
    Subscribe,
    UpdateQueue,
    Verb,
)
from fila_proto_zmq.record import seal_envelope
from fila_worker.core.recovery import recover
from fila_worker.core.settings import Limits, ShardSettings
from fila_worker.core.store import Families
from fila_worker.lua import compile_hooks
from fila_worker.process.direct_requests import DirectRequests
from tests.support.shard.shard_process import NAMES, SHARDS_TOTAL
from tests.unit.worker.transport.socket_peers import OTHER, QUEUE, SECRET, SocketPeers

SMALL = Limits(
    enqueue_step_messages=3, acked_messages_max=4, ledger_entries_max=5, priorities_max=2, turn_effort=40, step_effort=10
)
SETTINGS = {"max_payload_bytes": 8, "max_keys_per_queue": 3}
LIMITED = {"max_queue_messages": 4}
# How a batch with a hook is split into steps depends on real time, so hooks are only in stories with single messages.
HOOK = "function on_enqueue(msg) return { weight = 2 } end"

texts = st.binary(max_size=9)
keys = st.sampled_from(["default", "a", "b", "c", "", "k" * 300])
counts = st.integers(0, 4)


@st.composite
def enqueues(draw: Any) -> Enqueue:
    """Most are usual; a column may have values of its own, too few of them, or values out of bounds."""
    count = draw(counts)
    columns: dict[str, Any] = {"fairness_key": draw(st.one_of(keys, st.lists(keys, min_size=count, max_size=count)))}
    for name, values in (("weight", (0, 1, 3, 10**9)), ("priority", (0, 1, -1, 10**9))):
        value = st.sampled_from(values)
        columns[name] = draw(st.one_of(st.just(0), value, st.lists(value, min_size=count, max_size=count), st.just([1])))
    columns |= draw(
        st.sampled_from(
            [{}, {}, {}, {"delay_ms": 5}, {"dedup_id": "x"}, {"throttle_keys": [["t"]]}, {"after": 0}, {"after": 1}]
        )
    )
    return Enqueue([seal_envelope(draw(texts), {"n": draw(counts)}) for _ in range(count)], **columns)


settles = st.builds(
    lambda verb, back, indexes: (verb, back, indexes),
    st.sampled_from([Verb.ACK, Verb.ACK, Verb.ACK, Verb.NACK, Verb.RELEASE]),
    st.integers(0, 3),
    st.sampled_from([[], [], [0], [0, 1], [7]]),
)
updates = st.sampled_from(
    [
        UpdateQueue(QueueOptions(default_ttl_ms=50), ["default_ttl_ms"]),
        UpdateQueue(QueueOptions(), ["default_ttl_ms"]),
        UpdateQueue(QueueOptions(max_in_flight_per_key=1), ["max_in_flight_per_key"]),
        DeleteQueue(),
    ]
)
plain = Enqueue([seal_envelope(b"plain")])
steps = st.one_of(
    st.just(plain),
    st.builds(lambda after: Enqueue([seal_envelope(b"n")], after=after), st.sampled_from([0, 1, 105])),
    enqueues(),
    settles,
    st.builds(Receive, st.integers(1, 3)),
    updates,
    st.sampled_from(["turn", "turn", "turn", "restart", "disk full", "disk free"]),
)


class Side:
    """A worker with both its clients, which keeps what it has sent."""

    def __init__(self, settings: dict[str, Any], limits: Limits) -> None:
        self.settings = ShardSettings(limits=limits, min_free_disk_bytes=10, **settings)
        self.peers = SocketPeers(settings=self.settings)
        self.index = next(index for index, name in NAMES.items() if name == QUEUE)
        self.leases: list[int] = []
        self.sent: list[Any] = []
        self.greet()
        self.peers.create()

    def greet(self) -> None:
        self.producer, self.consumer = self.peers.connect(SECRET), self.peers.connect(OTHER)

    def take(self, step: Any) -> None:
        if isinstance(step, Command):
            self.peers.say(self.consumer if isinstance(step, (Receive, Subscribe)) else self.producer, step, QUEUE)
        elif isinstance(step, tuple):
            verb, back, indexes = step
            lease = self.leases[-1 - back] if back < len(self.leases) else 1
            self.peers.say(self.consumer, Settle(verb, [(lease, list(indexes))]), QUEUE)
        else:
            {"turn": self.turn, "restart": self.restart, "disk full": self.fill, "disk free": self.free}[step]()

    def turn(self) -> None:
        self.peers.now_ms += 1
        self.peers.turn()
        for connection in (self.producer, self.consumer):
            for got in self.peers.got(connection):
                self.sent.append((connection is self.producer, got.opcode, got.request, str(got.content)))
                self.leases += [batch.lease for batch in getattr(got.content, "batches", [])]
        for shard in self.peers.host.shards.values():
            shard.check()

    def fill(self) -> None:
        self.peers.host.shards[self.index].free_disk_bytes = 1

    def free(self) -> None:
        self.peers.host.shards[self.index].free_disk_bytes = 100

    def stored(self) -> dict[str, list[tuple[bytes, bytes]]]:
        store = self.peers.host.shards[self.index].store
        return {name: list(store.scan(b"", b"\xff" * 64, getattr(store.families, name))) for name in Families._fields}

    def restart(self) -> None:
        """Lose what was not committed."""
        slot = self.peers.host.slots[self.index]
        assert slot.shard is not None
        shard = recover(
            slot.shard.store, self.settings, compile_hooks, index=self.index, shards=SHARDS_TOTAL, now_ms=self.peers.now_ms
        )
        slot.frames.clear()
        slot.answers.clear()
        slot.enter(shard)
        self.peers.host.shards[self.index] = shard
        self.peers.turn()
        self.greet()


def compare(story: list[Any], settings: dict[str, Any], **limits: int) -> None:
    """Do the same on both ways; what is sent and stored must not differ after any turn."""
    short, general = (Side(settings, replace(SMALL, **limits, usual=usual)) for usual in (True, False))
    for step in [Subscribe(1, 3), plain, "turn", (Verb.ACK, 0, []), "turn", *story, "turn"]:
        for side in (short, general):
            side.take(step)
        if step == "turn":
            assert short.stored() == general.stored()
            assert sorted(short.sent) == sorted(general.sent)


@given(st.lists(steps, max_size=40), st.sampled_from([SETTINGS, SETTINGS | LIMITED, {}]))
def test_the_short_way_answers_and_stores_what_the_general_way_does(story: list[Any], settings: dict[str, Any]) -> None:
    compare(story, settings)


UNUSUAL = {
    "a full disk": ["disk full", plain, "turn", "disk free", plain],
    "a hook": [UpdateQueue(QueueOptions(on_enqueue=HOOK), ["on_enqueue"]), "turn", plain],
    "no hook any more": [UpdateQueue(QueueOptions(on_enqueue=HOOK), ["on_enqueue"]), "turn", UpdateQueue(QueueOptions(), ["on_enqueue"]), "turn", plain],
    "a time to live": [UpdateQueue(QueueOptions(default_ttl_ms=50), ["default_ttl_ms"]), "turn", plain],
    "an idle expiry": [UpdateQueue(QueueOptions(idle_expiry_ms=60_000), ["idle_expiry_ms"]), "turn", plain],
    "a deleted queue": [DeleteQueue(), plain, "turn", plain],
    "a deleted and a new queue": [DeleteQueue(), "turn", CreateQueue(QueueOptions(default_ttl_ms=50)), plain, "turn", plain],
    "a lost sequence": [Enqueue([seal_envelope(b"n")], after=77)],
    "another verb": [plain, "turn", (Verb.NACK, 0, []), "turn", (Verb.RELEASE, 0, [])],
    "a lease that is over": [plain, "turn", (Verb.ACK, 0, []), (Verb.ACK, 0, []), "turn", (Verb.ACK, 0, [0])],
    "a restart before the turn": [plain, "restart", plain],
    "a column of another length": [Enqueue([seal_envelope(b"n")], ["a", "b"]), Enqueue([seal_envelope(b"n")], priority=[1, 2])],
    "a bound": [Enqueue([seal_envelope(b"n")], priority=10**9), Enqueue([seal_envelope(b"n")], weight=[10**9])],
    "a new priority": [Enqueue([seal_envelope(b"n")], priority=3)],
}  # fmt: skip


@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_not_usual_takes_the_general_way(what: str) -> None:
    compare(UNUSUAL[what], {})


def test_an_enqueue_behind_an_open_job_waits_for_it() -> None:
    compare([Enqueue([seal_envelope(b"many")] * 100), plain, "turn", plain], {}, turn_effort=40, step_effort=10)


@pytest.mark.parametrize(
    "limit", [{"max_queue_messages": 2}, {"max_queue_bytes": 60}, {"max_key_messages": 2}, {"max_keys_per_queue": 1}]
)
def test_limits_of_a_queue_hold_on_the_short_way(limit: dict[str, int]) -> None:
    other = Enqueue([seal_envelope(b"n")], "other")
    full = [plain, plain, plain, "turn", plain, other, "turn", other, plain, "turn"]
    compare([*full, (Verb.ACK, 0, []), "turn", plain, "turn", *full, plain], limit)


def test_usual_requests_take_the_short_way() -> None:
    taken: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        real = DirectRequests.accept_usual

        def accept_usual(*arguments: Any) -> bool:
            taken.append(real(*arguments))
            return taken[-1]

        patch.setattr(DirectRequests, "accept_usual", accept_usual)
        compare([plain, "turn", (Verb.ACK, 0, []), Enqueue([seal_envelope(b"n")] * 3, ["a", "b", "c"], after=0)], {})
    assert taken == [True, False, True, False, True, False], "in turn with the side that has no short way"
