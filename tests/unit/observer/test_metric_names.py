"""The names of metrics are as Prometheus and OpenTelemetry want them."""

import re

from fila_cluster.ops.observer.catalogue import COUNTER, HISTOGRAM, SCOPES, UP
from fila_cluster.ops.observer.http_api.receivers import DOOR_SCOPES

METRICS = [((), UP), *((scope.labels, metric) for scope in (*SCOPES, *DOOR_SCOPES) for metric in scope.metrics)]


def test_no_name_is_used_twice():
    names = [metric.name for _, metric in METRICS]
    assert len(set(names)) == len(names)


def test_names_are_as_both_worlds_want_them():
    for _, metric in METRICS:
        assert re.fullmatch(r"fila(\.[a-z]+)*\.[a-z_]+", metric.name), metric.name
        assert re.fullmatch(r"fila[a-z_]+", metric.prometheus_name)
        assert metric.prometheus_name.endswith("_total") == (metric.kind == COUNTER)
        assert metric.meaning.endswith(".")
        assert not {"\n", "\\"} & set(metric.meaning)


def test_the_names_that_were_promised_are_there():
    names = {metric.name: metric.kind for _, metric in METRICS}
    assert names["fila.messages.enqueued"] == names["fila.scheduler.drr.rounds"] == COUNTER
    assert names["fila.lua.execution_duration_us"] == HISTOGRAM
    assert "fila.throttle.tokens_remaining" in names
