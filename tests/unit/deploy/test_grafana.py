"""The dashboards of deploy/grafana ask for metrics that exist, and their panels have room."""

import re
from itertools import combinations

import pytest

from fila_cluster.ops.observer.catalogue import HISTOGRAM, SCOPES, UP
from fila_cluster.ops.observer.http_api.receivers import DOOR_SCOPES
from tests.support.external.grafana import GRAFANA, dashboard, queries

METRICS = [UP, *(metric for scope in (*SCOPES, *DOOR_SCOPES) for metric in scope.metrics)]
NAMES = {metric.prometheus_name + ("_bucket" if metric.kind == HISTOGRAM else "") for metric in METRICS}
DASHBOARDS = sorted(file.stem for file in GRAFANA.glob("*.json"))


def test_there_are_four() -> None:
    assert DASHBOARDS == ["hosts", "overview", "queue", "tenant"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_that_a_panel_asks_for_exists_and_is_asked_of_one_observer(name: str) -> None:
    for title, query in queries(name):
        mentioned = re.findall(r"\b(fila_[a-z_]+|ALERTS)(\S*)", query)
        assert mentioned, title
        assert {metric for metric, _ in mentioned} <= NAMES | {"ALERTS"}, title
        assert all(labels.startswith('{instance="$instance"') for _, labels in mentioned), title


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_lie_on_each_other_and_use_variables_that_there_are(name: str) -> None:
    made = dashboard(name)
    known = {each["name"] for each in made["templating"]["list"]} | {"__rate_interval"}
    assert {variable for _, query in queries(name) for variable in re.findall(r"\$(\w+)", query)} <= known
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    for one, other in combinations([panel["gridPos"] for panel in made["panels"]], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert one["x"] + one["w"] <= 24
