"""Producers and ``enqueue_many`` keep their order whatever is refused: a session against a real shard, with a bad way between them.

The way refuses frames, loses connections and answers, and restarts the shard. Confirmed messages must be in the queue once, in the
order of each fairness key in which they were sent; a message whose error says that it was refused must not be there.
"""

from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_cluster import Message
from fila_cluster.client.protocol.pipelining import FULL, Pipeline
from fila_cluster.client.protocol.producing import Bulk
from fila_cluster.errors import BatchError, FilaError, OverloadedError, ShardUnavailableError
from fila_proto_zmq.commands import Enqueue, Reply
from fila_worker.core.effects import ClientCall
from tests.support.shard.shard import ShardHarness
from tests.unit.client.peer import WELCOME, Peer, row

pytestmark = pytest.mark.whole

CLIENT = b"client"
LOST = ShardUnavailableError("the worker was lost before it answered", details={"shard": 3})


class Future:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.result: str | FilaError | None = None

    def conclude(self, result: str | FilaError) -> None:
        self.result = result

    def disown(self, error: FilaError) -> None:
        raise NotImplementedError


class BadWay:
    """A session, a shard, and a router between them that refuses, loses and restarts by chance."""

    def __init__(self, random: Random, trouble: float) -> None:
        self.random = random
        self.trouble = trouble
        self.peer = Peer(timeout_s=60.0)
        self.shard = ShardHarness(checked=False)
        self.shard.create("q")
        self.inbox: deque = deque()
        """What the router has forwarded, and the shard has not read."""
        self.answers: list = []
        """What is on its way back; a router's refusals overtake a shard's answers."""

    def step(self) -> None:
        """Let a little happen."""
        self._take(self.peer.sent(Enqueue))
        chance = self.random.random()
        if chance < self.trouble / 10:
            self._restart_shard()
        elif chance < self.trouble / 5:
            self._lose_connection()
        elif self.inbox and chance < 0.6:
            self._apply(self.inbox.popleft())
        elif self.answers:
            sent, answer = self.answers.pop(0 if self.random.random() < 0.7 else self.random.randrange(len(self.answers)))
            if isinstance(answer, Reply):
                self.peer.reply(sent, answer)
            else:
                self.peer.refuse(sent, answer)
        self.peer.advance(self.random.choice((0.0, 0.001, 0.02)))

    def _take(self, frames: list) -> None:
        for sent in frames:
            if self.random.random() < self.trouble:
                kind = self.random.choice((OverloadedError, ShardUnavailableError))
                self.answers.append((sent, kind("refused", details={"refused": True})))
            else:
                self.inbox.append(sent)

    def _apply(self, sent: object) -> None:
        request = sent.header.request  # type: ignore[attr-defined]
        self.shard.shard.apply(ClientCall(CLIENT, request, sent.key, self.shard.now_ms), sent.command)  # type: ignore[attr-defined]
        self.shard.turn()
        self.answers.append((sent, self.shard.late.pop(request)))

    def _restart_shard(self) -> None:
        self.shard.restart()
        self.answers += [(sent, LOST) for sent in self.inbox]
        self.inbox.clear()

    def _lose_connection(self) -> None:
        """Frames that the router has read go on; answers do not arrive."""
        self.peer.session.disconnected(self.peer.now)
        self.answers.clear()
        for sent in self.peer.sent():
            if type(sent.command).__name__ == "Hello":
                self.peer.reply(sent, WELCOME)

    def stored(self) -> list[bytes]:
        """All payloads of the queue, key by key, in order."""
        while self.inbox:
            self._apply(self.inbox.popleft())
        payloads: list[bytes] = []
        while got := self.shard.receive(500):
            payloads += [each.payload for each in got]
        return payloads


def check(stored: list[bytes], results: dict[bytes, str | FilaError | None], *, dedup: bool) -> None:
    confirmed = [payload for payload, result in results.items() if isinstance(result, str)]
    refused = {
        payload
        for payload, result in results.items()
        if isinstance(result, FilaError) and result.details.get("refused") is True
    }
    assert all(result is not None for result in results.values())
    assert len(set(stored)) == len(stored), "a message is stored twice"
    assert not refused & set(stored)
    assert set(confirmed) <= set(stored)
    for key in {payload.split()[0] for payload in confirmed}:
        sent = [payload for payload in confirmed if payload.split()[0] == key]
        assert [payload for payload in stored if payload in set(sent)] == sent
    if dedup:
        assert len(confirmed) == len(results), "what may be repeated is, until it is in"


@given(seed=st.integers(0, 2**32), trouble=st.sampled_from((0.0, 0.1, 0.3, 0.6)), dedup=st.booleans())
def test_a_producer_keeps_its_order(seed: int, trouble: float, dedup: bool) -> None:
    random = Random(seed)
    way = BadWay(random, trouble)
    pipe = Pipeline(
        way.peer.session.pipelines, random.choice((0.0, 0.005)), random.randint(1, 5), random.choice((3, 20, 1000))
    )
    futures = []
    for number in range(60):
        key = random.choice("abc")
        future = Future(b"%s %d" % (key.encode(), number))
        sealed = row(future.payload, fairness_key=key, dedup_id=str(number) if dedup else None)
        while pipe.put("q", sealed, future) == FULL:
            pipe.want_room(way.peer.now)
            way.step()
        pipe.tend(way.peer.now)
        futures.append(future)
        if random.random() < 0.5:
            way.step()
    flush = pipe.flush(way.peer.now, None)
    while not flush.done:
        way.step()
    way.peer.session.pipelines.resolve()
    check(way.stored(), {future.payload: future.result for future in futures}, dedup=dedup)


@given(seed=st.integers(0, 2**32), trouble=st.sampled_from((0.1, 0.3, 0.6)))
def test_enqueue_many_keeps_its_order(seed: int, trouble: float) -> None:
    random = Random(seed)
    way = BadWay(random, trouble)
    messages = [
        Message(b"%s %d" % (key.encode(), number), fairness_key=key)
        for number, key in enumerate(random.choices("abc", k=700))
    ]
    bulk, line = Bulk("q", messages), way.peer.session.sender("q")
    for chunk in bulk.chunks():
        way.peer.session.send(line, chunk, way.peer.now)
        while not line.idle and random.random() < 0.8:
            way.step()
    while not line.idle:
        way.step()
    try:
        results: list[str | FilaError | None] = [*bulk.ids()]
    except BatchError as error:
        results = error.results
    check(way.stored(), {bytes(each.payload): result for each, result in zip(messages, results, strict=True)}, dedup=False)


def test_the_check_sees_a_wrong_order() -> None:
    results: dict[bytes, str | FilaError | None] = {b"a 1": "id1", b"a 2": "id2"}
    check([b"a 1", b"a 2"], results, dedup=False)
    with pytest.raises(AssertionError):
        check([b"a 2", b"a 1"], results, dedup=False)
