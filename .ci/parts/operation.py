"""What operators look up: reasons, metrics, alerts, events, and what needs attention."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from fila_cluster.ops.analysis.attention import KINDS
from fila_cluster.ops.observer.catalogue import SCOPES, UP
from fila_cluster.ops.observer.http_api.receivers import DOOR_SCOPES
from fila_proto_zmq.events import CATALOGUE
from fila_proto_zmq.reasons import MEANINGS
from parts.markdown import codes, prose, table

ALERTS = Path(__file__).parents[2] / "deploy/alerts.yml"


def reasons() -> str:
    """Return the table of reasons for waiting."""
    rows = ((f"`{code}`", *meaning) for code, meaning in MEANINGS.items())
    return "\n".join(table(["code", "what it means, and what to do", "`until`", "`details`"], rows))


def concerns() -> str:
    """Return the table of what needs attention."""
    rows = ((f"`{code}`", ", ".join(kind.severities), kind.meaning) for code, kind in KINDS.items())
    return "\n".join(table(["code", "severity", "what it means"], rows))


def _metrics(prefixes: str) -> str:
    named = [((), UP), *((scope.labels, metric) for scope in (*SCOPES, *DOOR_SCOPES) for metric in scope.metrics)]
    rows = (
        (f"`{metric.prometheus_name}`", f"`{metric.name}`", metric.kind, ", ".join(labels), metric.meaning)
        for labels, metric in named
        if re.match(rf"fila\.({prefixes})\b", metric.name)
    )
    return "\n".join(table(["Prometheus", "OpenTelemetry", "kind", "labels", "meaning"], rows))


METRICS: dict[str, Callable[[], str]] = {
    "cluster": partial(_metrics, "up|router|worker|shard"),
    "queues": partial(_metrics, "messages|queue|partition"),
    "fairness": partial(_metrics, "scheduler|key"),
    "throttling": partial(_metrics, "throttle"),
    "hooks": partial(_metrics, "lua"),
    "schedules": partial(_metrics, "schedules"),
    "storage": partial(_metrics, "storage"),
    "hosts": partial(_metrics, "copy|log"),
    "http": partial(_metrics, "http"),
}
"""The metrics by group."""


def alerts() -> str:
    """Return the table of alerts; the comment above each one says when it fires."""
    found = re.findall(r"((?: +# .*\n)+) +- alert: (\w+)\n((?:.*\S.*\n?)+)", ALERTS.read_text())
    return "\n".join(table(["alert", "severity", "fires when", "for"], (_alert(*each) for each in found)))


def _alert(comment: str, name: str, rule: str) -> Iterable[str]:
    severity, span = re.search(r"severity: (\w+)", rule), re.search(r"for: (\w+)", rule)
    return name, severity[1] if severity else "", " ".join(comment.replace("#", " ").split()), span[1] if span else ""


def _events(names: str) -> str:
    rows = (
        (f"`{name}`", kind.level, codes(kind.__struct_fields__), prose(kind.__doc__), kind.advice)
        for name, kind in CATALOGUE.items()
        if re.match(names, name)
    )
    return "\n".join(table(["event", "level", "fields", "meaning", "what to do"], rows))


EVENTS: dict[str, Callable[[], str]] = {
    "cluster": partial(_events, r"cluster\.|data_dir\.|child\.|backup\.|checkpoint\."),
    "processes": partial(_events, r"process\.|log\."),
    "router": partial(_events, r"router\.|worker\.(?!admitted)|config\.not_taken|client\.(?!left)"),
    "workers": partial(
        _events,
        r"shard|host\.|worker\.admitted|queue|template|schedule|config\.(?!not)|hook|breaker|consumer|client\.left|storage|command",
    ),
    "observer": partial(_events, r"observer|dashboard|export|library"),
}
"""The events by the processes that log them."""
