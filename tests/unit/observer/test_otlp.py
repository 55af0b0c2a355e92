"""What OpenTelemetry collectors get, decoded from the very bytes."""

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE, Metric
from opentelemetry.sdk.resources import Resource

from fila_cluster.ops.observer.catalogue import SCOPES, UP, families
from fila_cluster.ops.observer.http_api.receivers import DOOR_SCOPES, Receivers, RequestCounts
from fila_cluster.ops.observer.otlp import metrics_data, metrics_endpoint
from tests.unit.observer.told import STARTED_MS, hosted, queue

NOW_NS = 1_800_000_000_000_000_000


@pytest.fixture
def exported() -> dict[str, Metric]:
    counts = RequestCounts(Receivers())
    counts.requests["receive", 200] += 1
    told = hosted(queue("big@0", enqueued=20))
    data = metrics_data([*families(told), *counts.families()], Resource.create({"service.name": "broker"}), NOW_NS)
    request = encode_metrics(data)
    (resource,) = request.resource_metrics
    assert {each.key: each.value.string_value for each in resource.resource.attributes}["service.name"] == "broker"
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "fila_cluster"
    return {metric.name: metric for metric in scope.metrics}


def test_every_metric_of_the_catalogue_is_exported(exported: dict[str, Metric]):
    assert exported.keys() == {UP.name} | {metric.name for scope in (*SCOPES, *DOOR_SCOPES) for metric in scope.metrics}


def test_a_counter_is_a_cumulative_sum_since_its_process_started(exported: dict[str, Metric]):
    enqueued = exported["fila.messages.enqueued"].sum
    assert enqueued.is_monotonic
    assert enqueued.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
    point, other = enqueued.data_points
    assert {each.key: each.value.string_value for each in other.attributes} == {"queue": "big", "partition": "0"}
    assert {each.key: each.value.string_value for each in point.attributes} == {"queue": "orders"}
    assert (point.as_double, point.start_time_unix_nano, point.time_unix_nano) == (10, STARTED_MS * 1_000_000, NOW_NS)


def test_a_gauge_has_the_value_of_now(exported: dict[str, Metric]):
    points = exported["fila.worker.up"].gauge.data_points
    assert {point.attributes[0].value.string_value: point.as_double for point in points} == {"worker-0": 1, "worker-1": 0}


def test_a_histogram_has_its_buckets_one_by_one(exported: dict[str, Metric]):
    metric = exported["fila.messages.dwell_seconds"]
    point, _ = metric.histogram.data_points
    assert (metric.unit, point.count, point.sum) == ("s", 7, 9)
    assert (list(point.explicit_bounds), list(point.bucket_counts)) == ([0.01, 1.0], [1, 2, 4])
    assert not point.HasField("min")
    assert exported["fila.lua.execution_duration_us"].unit == "us"


@pytest.mark.parametrize("endpoint", ["http://c:4318", "http://c:4318/", "http://c:4318/v1/metrics"])
def test_the_endpoint_is_the_collector_or_the_very_place(endpoint: str):
    assert metrics_endpoint(endpoint) == "http://c:4318/v1/metrics"
