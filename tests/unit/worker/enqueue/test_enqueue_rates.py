"""The rates of namespaces: enqueues draw on a bucket of the whole cluster, and wait for its word."""

import pytest

from fila_proto_zmq.commands import (
    DeleteQueue,
    Enqueue,
    Enqueued,
    Grant,
    Grants,
    PutConfig,
    PutTemplate,
    QueueOptions,
    Tokens,
)
from fila_proto_zmq.errors import FilaError, QueueNotFoundError, RateLimitedError, ShardUnavailableError
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.runtime_config import bucket_limit
from fila_router.core.tokens.token_bank import TokenBank
from fila_worker.core.enqueue import enqueue_rates
from fila_worker.core.enqueue.enqueue import enqueue_one
from fila_worker.core.settings import Limits
from tests.support.shard.shard import ShardHarness

LIMIT = "namespace:ns:max_enqueues_per_minute"
BUCKET = "\0ns"
MICRO = enqueue_rates.MICRO


class Namespace:
    """A shard with the queue ``ns/q`` and a limit, and what it says to the bank."""

    def __init__(self, per_minute: str = "600") -> None:
        self.harness = ShardHarness()
        self.harness.create("ns/q")
        self.version = 0
        self.set(per_minute)

    def set(self, per_minute: str | None) -> None:
        self.version += 1
        self.harness.shard.put_config(PutConfig(self.version, {LIMIT: per_minute}), self.harness.now_ms)
        self.harness.turn()

    def offer(self, *payloads: bytes, **columns: object) -> int:
        command = Enqueue([seal_envelope(each) for each in payloads], **columns)  # type: ignore[arg-type]
        return self.harness.send(command, "ns/q")

    def want(self) -> tuple[int, int, int, int]:
        """The last report to the bank: least, most, consumed, returned; in messages."""
        tokens = [post.command for post in self.harness.posted if isinstance(post.command, Tokens)]
        (want,) = tokens[-1].wants
        assert want.keys == [BUCKET]
        return tuple(amount // MICRO for amount in (want.least, want.most, want.consumed, want.returned))  # type: ignore[return-value]

    def grant(self, granted: int, wait_ms: int = 0, session: int | None = None) -> None:
        current = self.harness.shard.token_client.session
        grants = Grants(3, current if session is None else session, [Grant([BUCKET], granted * MICRO, wait_ms)])
        self.harness.shard.granted(grants, self.harness.now_ms)
        self.harness.turn()

    def answer(self, request: int) -> Enqueued | FilaError | None:
        return self.harness.late.pop(request, None)  # type: ignore[return-value]


def test_an_enqueue_waits_for_the_banks_word() -> None:
    shard = Namespace()
    request = shard.offer(b"0", b"1", b"2")
    assert shard.answer(request) is None
    assert shard.want() == (1, 3, 0, 0)
    shard.grant(3)
    assert shard.answer(request).count == 3  # type: ignore[union-attr]
    assert shard.want() == (0, 0, 3, 0)
    assert shard.harness.counts("ns/q") == (3, 0, 0)


def test_what_may_not_come_in_is_refused_message_by_message() -> None:
    shard = Namespace()
    request = shard.offer(b"0", b"1", b"2", fairness_key=["a", "b", "c"], throttle_keys=[["t"]], priority=[3, 2, 1])
    shard.grant(2)
    assert shard.want() == (3, 3, 0, 0), "one more than it has would be of use"
    shard.grant(2, wait_ms=700)
    reply = shard.answer(request)
    assert isinstance(reply, Enqueued)
    assert reply.count == 2
    ((index, fault),) = reply.faults
    assert (index, fault.code, fault.retry_after_ms) == (2, RateLimitedError.code, 700)
    assert shard.want() == (0, 0, 2, 0)
    got = shard.harness.receive(9, "ns/q")
    assert sorted((each.key, each.record.priority, each.payload) for each in got) == [("a", 3, b"0"), ("b", 2, b"1")]


def test_all_of_it_may_be_refused() -> None:
    shard = Namespace()
    requests = [shard.offer(b"0", b"1", throttle_keys=[["t"]]), shard.offer(b"2")]
    shard.grant(0, wait_ms=100)
    for request, count in zip(requests, (2, 1), strict=True):
        reply = shard.answer(request)
        assert isinstance(reply, Enqueued)
        assert (reply.count, [index for index, _ in reply.faults]) == (0, list(range(count)))
    assert shard.harness.counts("ns/q") == (0, 0, 0)


def test_held_enqueues_keep_their_order() -> None:
    shard = Namespace()
    requests = [shard.offer(b"%d" % number, b"%d'" % number) for number in range(4)]
    shard.grant(3)
    assert [shard.answer(request) is not None for request in requests] == [True, False, False, False]
    late = shard.offer(b"late")
    shard.grant(9)
    assert all(shard.answer(request) for request in [*requests[1:], late])
    got = shard.harness.receive(99, "ns/q")
    assert [each.payload for each in got] == [b"0", b"0'", b"1", b"1'", b"2", b"2'", b"3", b"3'", b"late"]


def test_tokens_that_are_not_needed_go_back() -> None:
    shard = Namespace()
    shard.offer(b"0")
    shard.grant(5)
    assert shard.want() == (0, 0, 1, 4)
    request = shard.offer(b"1")
    assert shard.answer(request) is None, "what went back is not spent"


def test_other_namespaces_and_queues_without_one_do_not_wait() -> None:
    shard = Namespace()
    for queue in ("q", "other/q", "ns"):
        shard.harness.create(queue)
        shard.harness.enqueue(b"x", queue=queue)


def test_a_limit_that_is_taken_away_lets_them_go() -> None:
    shard = Namespace()
    requests = [shard.offer(b"0"), shard.offer(b"1", b"2")]
    shard.set(None)
    assert [shard.answer(request).count for request in requests] == [1, 2]  # type: ignore[union-attr]
    assert shard.answer(shard.offer(b"3")).count == 1  # type: ignore[union-attr]
    shard.set("60")
    assert shard.answer(shard.offer(b"4")) is None


def test_a_new_session_asks_again_and_forgets_what_was_granted() -> None:
    shard = Namespace()
    request = shard.offer(b"0", b"1")
    shard.grant(1)
    shard.harness.posted.clear()
    old = shard.harness.shard.token_client.session
    shard.harness.shard.new_session(shard.harness.now_ms)
    shard.harness.turn()
    assert shard.want() == (1, 2, 0, 0)
    shard.grant(9, session=old)
    assert shard.answer(request) is None
    shard.grant(2)
    assert shard.answer(request).count == 2  # type: ignore[union-attr]


def test_a_silent_bank_is_an_error_that_says_to_try_again() -> None:
    shard = Namespace()
    requests = [shard.offer(b"0"), shard.offer(b"1")]
    shard.harness.pass_time(Limits().rate_wait_ms_max - 1)
    assert shard.harness.late == {}
    shard.harness.pass_time(1)
    assert all(isinstance(shard.answer(request), ShardUnavailableError) for request in requests)
    assert shard.harness.shard.next_due(shard.harness.now_ms) is None
    shard.grant(2)
    assert shard.want() == (0, 0, 0, 2)
    assert shard.harness.counts("ns/q") == (0, 0, 0)


def test_a_queue_that_went_meanwhile_is_not_found() -> None:
    shard = Namespace()
    request = shard.offer(b"0")
    shard.harness.ask(DeleteQueue(), "ns/q")
    shard.grant(1)
    assert isinstance(shard.answer(request), QueueNotFoundError)


def test_a_bad_message_among_them_gets_its_own_fault() -> None:
    shard = Namespace()
    request = shard.offer(b"0", b"1", b"2", delay_ms=[0, -1, 0])
    shard.grant(2)
    shard.grant(2, wait_ms=400)
    reply = shard.answer(request)
    assert isinstance(reply, Enqueued)
    assert [(index, fault.code) for index, fault in reply.faults] == [(1, "INVALID_ARGUMENT"), (2, "RATE_LIMITED")]


def test_delays_count_from_when_the_enqueue_came() -> None:
    shard = Namespace()
    shard.offer(b"0", delay_ms=5_000)
    shard.harness.now_ms += 1_000
    shard.grant(1)
    shard.harness.pass_time(4_000)
    assert shard.harness.counts("ns/q") == (1, 0, 0)


def test_what_is_not_admitted_makes_no_queue_by_a_template() -> None:
    shard = Namespace()
    harness = shard.harness
    harness.shard.set_config(PutTemplate("ns/*", QueueOptions()), harness.now_ms)
    command = Enqueue([seal_envelope(b"0"), seal_envelope(b"1")])
    requests = [harness.send(command, f"ns/new{number}") for number in range(3)]
    assert "ns/new0" not in harness.shard.queues
    shard.grant(3)
    shard.grant(3, wait_ms=700)
    replies = [shard.answer(request) for request in requests]
    assert [(reply.count, len(reply.faults)) for reply in replies] == [(2, 0), (1, 1), (0, 2)]  # type: ignore[union-attr]
    assert [name in harness.shard.queues for name in ("ns/new0", "ns/new1", "ns/new2")] == [True, True, False]
    with pytest.raises(RateLimitedError):
        enqueue_one(harness.shard, "ns/new3", command, harness.now_ms)
    assert "ns/new3" not in harness.shard.queues


def test_with_a_real_bank_the_rate_is_kept_and_everybody_is_answered() -> None:
    shard = Namespace("600")
    harness, bank = shard.harness, TokenBank()
    bank.limit(BUCKET, bucket_limit(BUCKET, harness.shard.config), harness.now_ms, full=True)
    start_ms, accepted, requests = harness.now_ms, 0, []
    for number in range(600):
        harness.checked = number % 20 == 0
        requests.append(shard.offer(*[b""] * 7))
        for post in harness.posted:
            if isinstance(post.command, Tokens):
                bank.ask(post.command, harness.shard.epoch, harness.now_ms)
        harness.posted.clear()
        for grants in bank.serve(harness.now_ms):
            harness.shard.granted(grants, harness.now_ms)
        harness.pass_time(50)
        harness.ack(harness.receive(500, "ns/q"), "ns/q")
        for request in list(requests):
            reply = shard.answer(request)
            if reply is not None:
                assert isinstance(reply, Enqueued), reply
                accepted += reply.count
                requests.remove(request)
    elapsed_s = (harness.now_ms - start_ms) / 1000
    assert 0.9 * 10 * elapsed_s <= accepted <= 600 + 10 * elapsed_s
    assert len(requests) < 5
