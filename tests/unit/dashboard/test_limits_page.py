"""The page of limits: its rows, what its form changes, and where it shows errors."""

import pytest

from fila_cluster.client.calls.cluster import throttle_changes
from fila_cluster.ops.dashboard.limits import (
    ThrottleRow,
    changed_limits,
    holder_rows,
    limited_queues,
    throttle_rows,
    wrong_field,
)
from fila_proto_zmq.commands import ThrottleHolder, ThrottleMetrics, ThrottleStats
from fila_proto_zmq.errors import FilaError
from tests.unit.observer.told import cluster, queue, shard


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
        ThrottleRow("idle", 0.5, None, 1.0, 1.0, None, None, None, 0, None, None),
        ThrottleRow("mail", 5.0, 2.5, 20.0, 3.5, 1.0, 4, 3, 7, 15, 3),
        ThrottleRow("t*", 9.0, None, 9.0, None, None, None, None, 0, None, None),
    ]


def test_queues_with_a_limit_are_shown() -> None:
    told = cluster(queue("orders"), queue("free", max_in_flight=None))
    assert limited_queues(told) == [{"name": "orders", "in_use": 2, "limit": 50, "pending": 3}]


def test_a_holder_has_its_age_and_a_link_to_its_message() -> None:
    (row,) = holder_rows([ThrottleHolder("m/1", "orders", "acme", "c1", 1_000_000)], 1060.5)
    assert (row["since"], row["href"]) == (60.5, "/why?queue=orders&id=m%2F1")


def test_only_what_differs_is_changed() -> None:
    config = {"throttle:a:rate": "5", "throttle:a:burst": "7", "throttle:b:rate": "9"}
    fields = {"rate": "5", "burst": "", "concurrency": "3", "rate_min": ""}
    assert changed_limits("a", fields, config) == {"burst": None, "concurrency": "3"}


@pytest.mark.parametrize("key", ["mail", "it's", 'a "b"', "a:rate"])
@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"rate": "x"}, "rate"),
        ({"rate": "5", "burst": "-1"}, "burst"),
        ({"concurrency": "1.5"}, "concurrency"),
        ({"rate_min": "9e99"}, "rate_min"),
    ],
)
def test_an_error_is_shown_at_the_limit_that_it_is_about(key: str, limits: dict[str, str], field: str) -> None:
    with pytest.raises(FilaError) as refused:
        throttle_changes(key, limits)
    assert wrong_field(str(refused.value)) == field


@pytest.mark.parametrize("key", ["", "\n", 1000 * "k"])
def test_an_error_of_the_key_is_shown_there(key: str) -> None:
    with pytest.raises(FilaError) as refused:
        throttle_changes(key, {"rate": "5"})
    assert wrong_field(str(refused.value)) == "key"
