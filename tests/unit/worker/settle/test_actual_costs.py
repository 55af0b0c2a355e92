"""What deliveries really cost: the bank counts the differences once, and limits hold for the sum of actual costs."""

import pytest

from fila_proto_zmq.commands import CostCharge, Grants, Settle, Tokens, Verb
from fila_proto_zmq.errors import InvalidArgumentError
from fila_worker.core.settle.actual_costs import CostCharges
from tests.support.shard.cluster_of_shards import ClusterOfShards, Consumer
from tests.support.shard.shard import Got, ShardHarness, fences
from tests.unit.worker.tokens.throttled import BURST, RATE, cluster_of

ALL_VERBS = [Verb.ACK, Verb.NACK, Verb.RETRY, Verb.FAIL, Verb.RELEASE, Verb.DEFER]


def settling(verb: Verb, cost_milli: int) -> object:
    def settle(cluster: ClusterOfShards, consumer: Consumer, got: list[Got]) -> None:
        costs = [(each.lease, each.index, cost_milli) for each in got]
        cluster.shards[consumer.shard].settle(verb, got, consumer.queue, costs=costs)

    return settle


@pytest.mark.parametrize("loss", [0.0, 0.4])
@pytest.mark.parametrize("cost_milli", [250, 3_000])
def test_the_rate_holds_for_the_sum_of_actual_costs(cost_milli: int, loss: float) -> None:
    cluster = cluster_of(2, loss=loss, seed=3)
    for shard in range(2):
        cluster.enqueue(shard, 2000, "t")
        cluster.consume(shard, prefetch=5, settle=settling(Verb.ACK, cost_milli))  # type: ignore[arg-type]
    cluster.run(5_000)
    spent = len(cluster.deliveries) * cost_milli / 1000
    in_flight = 2 * 5 * cost_milli / 1000 + BURST
    assert spent <= BURST + RATE * 5 + in_flight
    assert loss or spent >= 0.85 * RATE * 5


@pytest.mark.parametrize("verb", ALL_VERBS)
def test_each_verb_charges_once_however_often_it_comes(verb: Verb) -> None:
    cluster = cluster_of(1)
    cluster.enqueue(0, 1, "t")
    cluster.consume(0, hold_ms=10_000_000)
    cluster.run(50)
    (got,) = [each.got for each in cluster.deliveries]
    shard = cluster.shards[0]
    for _ in range(3):
        shard.ask(Settle(verb, fences([got]), after_ms=60_000, costs=[(got.lease, got.index, 5_000)]), "q", b"consumer 0")
    cluster.run(0)
    cluster.run(3)
    left = BURST - 4  # and 1 less where it is delivered again
    assert left - 1 <= cluster.bank.buckets["t"].level / 1_000_000 <= left + 0.5


def test_a_refused_settlement_charges_nothing() -> None:
    shard = ShardHarness()
    shard.create("q")
    shard.enqueue(b"x")
    (got,) = shard.receive()
    credit = shard.shard.queues["q"].keys["default"].spent
    shard.ask(Settle(Verb.ACK, [(got.lease + 7, [0])], costs=[(got.lease + 7, 0, 9_000), (got.lease, 0, 9_000)]))
    assert shard.shard.queues["q"].keys["default"].spent == credit


@pytest.mark.parametrize("cost_milli", [-1, 10**12])
def test_costs_that_will_not_do(cost_milli: int) -> None:
    shard = ShardHarness()
    shard.create("q")
    with pytest.raises(InvalidArgumentError, match="cost"):
        shard.ask(Settle(Verb.ACK, [(1, [0])], costs=[(1, 0, cost_milli)]))


def test_a_key_without_a_limit_tells_the_bank_nothing() -> None:
    shard = ShardHarness()
    shard.create("q")
    shard.enqueue(b"x", throttle_keys=[["free"]])  # type: ignore[arg-type]
    (got,) = shard.receive()
    shard.ask(Settle(Verb.ACK, fences([got]), costs=[(got.lease, got.index, 9_000)]))
    assert not [post for post in shard.posted if isinstance(post.command, Tokens)]


# --- batches ----------------------------------------------------------------------------------------------------------


def test_one_batch_at_a_time_is_sent_until_it_is_confirmed() -> None:
    charges = CostCharges()
    charges.add(("a",), 5)
    charges.add(("a",), 2)
    charges.add(("b", "c"), -4)
    first = (1, [CostCharge(["a"], 7), CostCharge(["b", "c"], -4)])
    assert charges.next_batch() == first
    charges.add(("a",), 1)
    assert charges.next_batch() == first
    charges.confirmed(0)
    assert charges.next_batch() == first
    charges.confirmed(1)
    assert charges.next_batch() == (2, [CostCharge(["a"], 1)])


def test_after_a_new_session_only_what_takes_tokens_away_is_sent_again() -> None:
    charges = CostCharges()
    charges.add(("a",), 5)
    charges.add(("b",), -4)
    charges.next_batch()
    charges.add(("c",), -3)
    charges.new_session()
    assert charges.next_batch() == (2, [CostCharge(["c"], -3), CostCharge(["a"], 5)])


def test_the_bank_takes_each_batch_once_and_confirms_it_each_time() -> None:
    cluster = cluster_of(1)
    bank = cluster.bank
    for number, level in ((1, 7), (1, 7), (2, 4), (1, 4)):
        bank.ask(Tokens(0, 1, [], number, [CostCharge(["t", "t", "free"], 3_000_000)]), 5, cluster.now_ms)
        assert bank.serve(cluster.now_ms) == [Grants(0, 1, [], [], number)]
        assert bank.buckets["t"].level == level * 1_000_000
    bank.ask(Tokens(0, 1, [], 1, [CostCharge(["t"], -9_000_000)]), 6, cluster.now_ms)  # the shard was opened again
    assert bank.buckets["t"].level == BURST * 1_000_000, "no more than the burst"


def test_a_lone_ack_charges_in_a_plain_queue_too() -> None:
    shard = ShardHarness()
    shard.create("q")
    shard.enqueue(b"x", b"y")
    first, second = shard.receive(1) + shard.receive(1)
    key = shard.shard.queues["q"].keys["default"]
    before = key.spent
    shard.ask(Settle(Verb.ACK, fences([first])))
    assert key.spent == before
    shard.ask(Settle(Verb.ACK, fences([second]), costs=[(second.lease, second.index, 3_500)]))
    assert key.spent == before + 2_500
