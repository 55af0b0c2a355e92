"""docs/metrics.md lists what the code tells, and nothing else."""

import re
from pathlib import Path

from fila_cluster.observer.catalogue import COUNTER, HISTOGRAM, SCOPES, UP
from fila_proto_zmq.commands import OTHER_KEYS
from fila_worker.core.metrics.meter import KEYS_LOOKED_AT_MAX, QUEUES_SHOWN_MAX, THROTTLES_LOOKED_AT_MAX, THROTTLES_SHOWN
from fila_worker.core.metrics.top_keys import KEYS_SHOWN

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| `fila")]
METRICS = [((), UP), *((scope.labels, metric) for scope in SCOPES for metric in scope.metrics)]


def test_every_metric_is_there_with_its_names_kind_labels_and_meaning():
    wanted = [
        [f"`{metric.prometheus_name}`", f"`{metric.name}`", metric.kind, ", ".join(labels) or "–", metric.meaning]
        for labels, metric in METRICS
    ]
    assert sorted(ROWS) == sorted(wanted)


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


def test_numbers_in_prose_are_those_of_the_code():
    flowing = " ".join(PAGE.split())
    assert f"its {QUEUES_SHOWN_MAX:,} busiest queues" in flowing
    assert f"up to {KEYS_LOOKED_AT_MAX:,} fairness keys" in flowing
    assert f'`fairness_key="{OTHER_KEYS}"`' in flowing
    assert (KEYS_SHOWN, THROTTLES_SHOWN) == (10, 10)  # "the ten keys", "its ten busiest"
    assert f"the first {THROTTLES_LOOKED_AT_MAX:,} that have one" in flowing
