"""deploy/alerts.yml speaks of metrics that exist, and docs/metrics.md of its alerts."""

import re
from pathlib import Path

from fila_cluster.observer.catalogue import SCOPES, UP

ROOT = Path(__file__).parents[3]
ALERTS = (ROOT / "deploy" / "alerts.yml").read_text()
NAMES = {UP.prometheus_name} | {metric.prometheus_name for scope in SCOPES for metric in scope.metrics}


def test_every_metric_that_an_alert_looks_at_exists():
    mentioned = set(re.findall(r"\bfila_[a-z_]+", ALERTS))
    assert len(mentioned) > 8
    assert mentioned <= NAMES


def test_every_alert_is_on_the_page_and_has_its_case():
    alerts = re.findall(r"alert: (\w+)", ALERTS)
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert re.findall(r"^\| (Fila\w+) \|", page, re.M) == alerts
    cases = (ROOT / "tests" / "data" / "alerts_test.yml").read_text()
    assert set(re.findall(r"^        alertname: (\w+)", cases, re.M)) == set(alerts)  # cases in which it fires


def test_the_page_says_for_how_long():
    spans = dict(re.findall(r"alert: (\w+)(?:(?!alert:).)*?for: (\w+)", ALERTS, re.S))
    page = (ROOT / "docs" / "metrics.md").read_text()
    shown = {
        name: span.replace(" min", "m").replace(" s", "s")
        for name, span in re.findall(r"^\| (Fila\w+) \|.*\| (.*) \|$", page, re.M)
        if span
    }
    assert shown == spans
