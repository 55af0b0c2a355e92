"""deploy/alerts.yml looks at metrics that exist, and each alert has a case in which it fires."""

import re
from pathlib import Path

from fila_cluster.ops.observer.catalogue import SCOPES, UP

ROOT = Path(__file__).parents[3]
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text()
NAMES = {UP.prometheus_name} | {metric.prometheus_name for scope in SCOPES for metric in scope.metrics}


def test_every_metric_that_an_alert_looks_at_exists():
    mentioned = set(re.findall(r"\bfila_[a-z_]+", ALERTS))
    assert len(mentioned) > 8
    assert mentioned <= NAMES


def test_every_alert_has_its_case():
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    cases = (ROOT / "tests" / "data" / "alerts_test.yml").read_text()
    assert set(re.findall(r"^        alertname: (\w+)", cases, re.M)) == set(alerts)  # cases in which it fires
