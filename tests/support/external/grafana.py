"""The dashboards of deploy/grafana as Grafana reads them: each query of their panels, asked of a Prometheus server."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from tests.support.external.prometheus import Prometheus

GRAFANA = Path(__file__).parents[3] / "deploy" / "grafana"


def dashboard(name: str) -> dict[str, Any]:
    """A dashboard by the name of its file."""
    made: dict[str, Any] = json.loads((GRAFANA / f"{name}.json").read_text())
    return made


def queries(name: str) -> list[tuple[str, str]]:
    """The title of each panel with each of its queries."""
    return [(panel["title"], target["expr"]) for panel in dashboard(name)["panels"] for target in panel["targets"]]


def panels_without_data(prometheus: Prometheus, name: str, **variables: str) -> list[str]:
    """The panels of which a query has no number, by the values of the dashboard's variables."""
    values: Mapping[str, str] = {"__rate_interval": "1m", **variables}
    empty = []
    for title, query in queries(name):
        numbers = prometheus.query(Template(query).substitute(values)).values()
        if all(math.isnan(each) for each in numbers):
            empty.append(f"{title}: {query}")
    return empty
