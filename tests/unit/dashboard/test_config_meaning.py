"""What config keys mean, and the throttles among them."""

import pytest

from fila_cluster.ops.dashboard.config import FREE_TEXT, ThrottleRow, meaning, throttle_rows, wrong_field
from fila_proto_zmq import runtime_config
from fila_proto_zmq.commands import ThrottleMetrics, ThrottleStats
from fila_proto_zmq.errors import InvalidConfigError
from tests.unit.observer.told import cluster, shard


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("throttle:a:b:rate", "tokens a second for throttle key a:b"),
        ("throttle:mail:burst", "tokens that throttle key mail may save up"),
        ("throttle:mail:concurrency", "messages with throttle key mail that may be leased at a time"),
        ("throttle:mail:rate_min", "the least rate of throttle key mail after deferrals"),
        ("namespace:eu:max_enqueues_per_minute", "messages a minute into the queues eu/…"),
        ("weight:gold", FREE_TEXT),
        ("rate", FREE_TEXT),
    ],
)
def test_each_key_says_what_it_is_for(key: str, meant: str) -> None:
    assert meaning(key) == meant


def test_throttles_are_joined_with_what_shards_see_of_them() -> None:
    throttles = [
        ThrottleStats("idle", 0.5, 1.0, 1.0),
        ThrottleStats("mail", 5.0, 20.0, 3.5, 4, 3, 7, 1.0, 2.5),
        ThrottleStats("t*", 9.0, 9.0),
    ]
    metrics = cluster()
    shards = metrics.workers[0].shards = [shard(0), shard(1)]
    shards[0].throttles = [ThrottleMetrics("mail", 5, 20, 17.5, 10, 2)]
    shards[1].throttles = [ThrottleMetrics("mail", 5, 20, 3.5, 5, 1)]
    assert throttle_rows(throttles, metrics) == [
        ThrottleRow("idle", 0.5, 1.0, 1.0, None, None, None, 0, None, None),
        ThrottleRow("mail", 5.0, 20.0, 3.5, 2.5, 4, 3, 7, 15, 3),
        ThrottleRow("t*", 9.0, 9.0, None, None, None, None, 0, None, None),
    ]


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("throttle.mail", "x,5", "rate"),
        ("throttle.mail", "5,x", "burst"),
        ("throttle.mail", "5,6,7", "rate"),
        ("throttle:mail:rate", "-1", "rate"),
        ("throttle.", "5,5", "key"),
        ("throttle.\n", "5,5", "key"),
        ("throttle." + 1000 * "k", "5,5", "key"),
    ],
)
def test_an_error_is_shown_at_the_field_that_it_is_about(key: str, value: str, field: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        runtime_config.changes_for(key, value, {})
    assert wrong_field(str(refused.value)) == field
