"""The recipes of deploy/autoscaling ask what this version answers."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from fila_cluster.ops.analysis.scaling import Scale
from fila_cluster.ops.observer.catalogue import SCOPES
from fila_cluster.ops.observer.http_api.openapi import DESCRIBED

RECIPES = Path(__file__).parents[3] / "deploy" / "autoscaling"
NAMES = {metric.prometheus_name for scope in SCOPES for metric in scope.metrics}


def documents(file: str) -> dict[str, Any]:
    return {each.get("kind", ""): each for each in yaml.safe_load_all((RECIPES / file).read_text())}


@pytest.mark.parametrize("file", ["keda-prometheus.yml", "prometheus-adapter.yml"])
def test_every_metric_that_a_query_names_exists(file: str) -> None:
    mentioned = set(re.findall(r"\bfila_[a-z_]+", (RECIPES / file).read_text())) - {"fila_consumers_wanted"}
    assert len(mentioned) == 3
    assert mentioned <= NAMES


def test_keda_asks_the_broker_with_a_key() -> None:
    found = documents("keda-http.yml")
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == found["TriggerAuthentication"]["metadata"]["name"]
    asked, url = trigger["metadata"], urlsplit(trigger["metadata"]["url"])
    (described,) = (each for each in DESCRIBED if each.name == "scale")
    assert re.fullmatch(described.path.replace("{queue}", "[a-z]+"), url.path)
    assert [*parse_qs(url.query)] == [described.parameter]
    assert asked["valueLocation"] in Scale.__struct_fields__
    assert (asked["authMode"], found["TriggerAuthentication"]["spec"]["secretTargetRef"][0]["parameter"]) == (
        "bearer",
        "token",
    )
    stabilization = found["ScaledObject"]["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert stabilization["stabilizationWindowSeconds"] >= int(parse_qs(url.query)["drain"][0])


def test_the_metric_of_the_autoscaler_is_made_by_the_adapter() -> None:
    (rule,) = documents("prometheus-adapter.yml")[""]["rules"]["external"]
    (metric,) = documents("hpa.yml")["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == rule["name"]["as"]
    assert "sum by (queue)" in rule["metricsQuery"], "which the selector of the metric picks one of"
