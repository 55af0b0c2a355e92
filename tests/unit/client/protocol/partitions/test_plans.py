"""What a client takes from refusals that name partitions."""

from random import Random

import pytest

from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.errors import ShardUnavailableError
from fila_proto_zmq.errors import PartitionedError, QueueNotFoundError
from fila_proto_zmq.partitions import Plan


def has(**details: object) -> PartitionedError:
    return PartitionedError("it has partitions", details={"spread": "key", **details})


@pytest.fixture
def plans() -> Plans:
    plans = Plans(Random(1))
    plans.learn("q", has(partitions=4, earlier=2, held=4, version=7))
    return plans


def test_a_refusal_says_how_a_queue_is_spread(plans: Plans) -> None:
    assert plans.get("q.dlq@3") == Plan(4, "key", 2, 4, 7)
    assert plans.learn("q", has(partitions="x", held=[], version=-1)) is None
    assert plans.learn("q", has(partitions=2, earlier=None, held="x")) == Plan(2, "key")
    assert plans.learn("q", QueueNotFoundError("it is gone")) is None
    assert plans.get("q") is None


@pytest.mark.parametrize("version", [7, 8])
def test_a_shard_that_knows_as_much_or_more_is_followed(plans: Plans, version: int) -> None:
    refusal = has(partitions=8, version=version)
    assert plans.judged("q@1", refusal) is refusal


def test_a_shard_that_lags_is_asked_again(plans: Plans) -> None:
    error = plans.judged("q@1", has(partitions=2, version=6))
    assert isinstance(error, ShardUnavailableError)
    assert (error.retryable, error.details) == (True, {"refused": True})


@pytest.mark.parametrize("details", [{"template": "q*"}, {"partitions": 2}])
def test_a_refusal_without_a_version_is_followed(plans: Plans, details: dict[str, object]) -> None:
    refusal = has(**details)
    assert plans.judged("q@1", refusal) is refusal


def test_of_a_queue_that_is_not_known_each_refusal_is_followed() -> None:
    refusal = has(partitions=2, version=1)
    assert Plans(Random(1)).judged("q@1", refusal) is refusal
