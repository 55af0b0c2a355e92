"""The dashboards of deploy/grafana. Each panel is one line here: its title, its unit, and its queries by their legends.

A query is written without the variables that all panels share: the observer that is asked is added to each metric, because the observers of
several hosts all tell of the whole cluster.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "deploy/grafana"
SHORT, PER_S, SECONDS, BYTES, SHARE = "short", "cps", "s", "bytes", "percentunit"
WIDTH = 24


class Panel(NamedTuple):
    """``queries``: by legend; a legend may name labels, ``{{queue}}``. ``kind``: of Grafana."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    kind: str = "timeseries"

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return (4, 4) if self.kind == "stat" else (12, 8)


class Dashboard(NamedTuple):
    """``variables``: by name, the metric and the label that their values are of; panels may use them as ``$name``."""

    title: str
    about: str
    variables: dict[str, tuple[str, str]]
    panels: tuple[Panel, ...]


def rate(metric: str, by: str = "") -> str:
    """Return the query of a rate, summed over all labels but ``by``."""
    return f"sum{f' by ({by})' if by else ''} (rate({metric}[$__rate_interval]))"


def slowest(metric: str, by: str = "", of: str = "") -> dict[str, str]:
    """Return the queries of the median and of what only one in a hundred exceeds. ``of``: labels that the metric must have."""
    labels, legend = f"le, {by}" if by else "le", f"{{{{{by}}}}} " if by else ""
    return {
        f"{legend}{name}": f"histogram_quantile({share}, {rate(f'{metric}_bucket{of}', labels)})"
        for name, share in (("half", 0.5), ("99 %", 0.99))
    }


def stat(title: str, unit: str, query: str, about: str = "") -> Panel:
    """Return a panel with one number."""
    return Panel(title, unit, {"": query}, about, "stat")


LIVE = '{queue!~".+[.]dlq"}'
DEAD = '{queue=~".+[.]dlq"}'
QUEUE = '{queue="$queue"}'
KEY = '{queue="$queue",fairness_key="$tenant"}'
LIMIT = '{throttle_key="$throttle"}'
FLOWS = ("enqueued", "delivered", "acked", "nacked", "expired", "dead_lettered", "redriven")
LEVELS = ("pending", "in_flight", "delayed")

DASHBOARDS = {
    "overview": Dashboard(
        "fila-cluster: overview",
        "All queues together, and the processes that serve them.",
        {},
        (
            stat("Cluster", SHORT, "fila_up", "1 while the router answers."),
            stat("Shards down", SHORT, "sum(1 - fila_shard_up)"),
            stat("Pending", SHORT, f"sum(fila_queue_pending{LIVE})"),
            stat("Oldest message", SECONDS, f"max(fila_queue_oldest_age_seconds{LIVE})"),
            stat("Dead letters", SHORT, f"sum(fila_queue_depth{DEAD})"),
            stat(
                "Alerts",
                SHORT,
                'count(ALERTS{alertname=~"Fila.+",alertstate="firing"}) or vector(0)',
                "Of deploy/alerts.yml.",
            ),
            Panel("Messages a second", PER_S, {name: rate(f"fila_messages_{name}_total{LIVE}") for name in FLOWS[:3]}),
            Panel("Messages held", SHORT, {name: f"sum(fila_queue_{name}{LIVE})" for name in LEVELS}),
            Panel("From the enqueue to the first delivery", SECONDS, slowest("fila_messages_dwell_seconds", of=LIVE)),
            Panel("From the lease to the ack", SECONDS, slowest("fila_messages_settle_seconds", of=LIVE)),
            Panel("Busiest queues", PER_S, {"{{queue}}": f"topk(10, {rate('fila_messages_delivered_total', 'queue')})"}),
            Panel("Deepest queues", SHORT, {"{{queue}}": "topk(10, sum by (queue) (fila_queue_depth))"}),
            Panel("Failures", PER_S, {name: rate(f"fila_messages_{name}_total") for name in FLOWS[3:6]}),
            Panel(
                "Refused messages",
                PER_S,
                {"{{code}}": rate("fila_messages_rejected_total", "code")},
                "OVERLOADED: a limit of the queue, a key or the disk. RATE_LIMITED: the quota of a namespace.",
            ),
            Panel(
                "Turns of workers",
                SECONDS,
                slowest("fila_worker_turn_duration_seconds", "worker"),
                "While one lasts, its shards wait.",
            ),
            Panel("Commits of shards", SECONDS, slowest("fila_storage_commit_duration_seconds", "shard")),
            Panel(
                "CPU, of one core",
                SHARE,
                {
                    "{{worker}}": rate("fila_worker_cpu_seconds_total", "worker"),
                    "router": rate("fila_router_cpu_seconds_total"),
                },
            ),
            Panel("Memory", BYTES, {"{{worker}}": "fila_worker_rss_bytes", "router": "fila_router_rss_bytes"}),
            Panel("Disk", BYTES, {"shard {{shard}}": "fila_storage_disk_bytes + fila_storage_memtable_bytes"}),
            Panel(
                "Held back by the disk",
                SHORT,
                {"shard {{shard}}": "fila_storage_stalled"},
                "1 while RocksDB slows writes down.",
            ),
            Panel(
                "Frames",
                PER_S,
                {
                    "router, {{direction}}": rate("fila_router_frames_total", "direction"),
                    "{{worker}}, direct": rate("fila_worker_direct_frames_total", "worker"),
                },
            ),
            Panel(
                "Requests by HTTP", PER_S, {"{{operation}} {{status}}": rate("fila_http_requests_total", "operation, status")}
            ),
        ),
    ),
    "queue": Dashboard(
        "fila-cluster: a queue",
        "One queue: what comes, waits, is delivered and fails.",
        {"queue": ("fila_queue_depth", "queue")},
        (
            *(stat(name.replace("_", " ").capitalize(), SHORT, f"fila_queue_{name}{QUEUE}") for name in LEVELS),
            stat("Oldest message", SECONDS, f"fila_queue_oldest_age_seconds{QUEUE}"),
            stat("Consumers", SHORT, f"fila_queue_consumers{QUEUE}"),
            stat("Paused", SHORT, f"fila_queue_paused{QUEUE}"),
            Panel("Messages a second", PER_S, {name: rate(f"fila_messages_{name}_total{QUEUE}") for name in FLOWS}),
            Panel("Messages held", SHORT, {name: f"fila_queue_{name}{QUEUE}" for name in LEVELS}),
            Panel("From the enqueue to the first delivery", SECONDS, slowest("fila_messages_dwell_seconds", of=QUEUE)),
            Panel("From the lease to the ack", SECONDS, slowest("fila_messages_settle_seconds", of=QUEUE)),
            Panel(
                "Deliveries by fairness key",
                PER_S,
                {"{{fairness_key}}": rate(f"fila_key_delivered_total{QUEUE}", "fairness_key")},
            ),
            Panel("Pending by fairness key", SHORT, {"{{fairness_key}}": f"fila_key_pending{QUEUE}"}),
            Panel(
                "Fairness keys",
                SHORT,
                {"could deliver": f"fila_scheduler_active_keys{QUEUE}", "known": f"fila_scheduler_known_keys{QUEUE}"},
            ),
            Panel("Refused messages", PER_S, {"{{code}}": rate(f"fila_messages_rejected_total{QUEUE}", "code")}),
            Panel(
                "Leased, and the limit of it",
                SHORT,
                {"leased": f"fila_queue_in_flight{QUEUE}", "max_in_flight": f"fila_queue_max_in_flight{QUEUE}"},
                "Only for a queue with max_in_flight.",
            ),
            Panel(
                "Pending by partition",
                SHORT,
                {"{{partition}}": f"fila_partition_pending{QUEUE}"},
                "Only for a queue with partitions.",
            ),
            Panel("Runs of hooks", "µs", slowest("fila_lua_execution_duration_us", of=QUEUE), "Only for a queue with hooks."),
            Panel(
                "Hooks that failed, and messages without",
                PER_S,
                {name: rate(f"fila_lua_{name}_total{QUEUE}") for name in ("errors", "bypassed")},
                "Only for a queue with hooks.",
            ),
        ),
    ),
    "tenant": Dashboard(
        "fila-cluster: a tenant",
        "One fairness key in a queue: what is due to it and what it gets; and one throttle key with its limits.",
        {
            "queue": ("fila_queue_depth", "queue"),
            "tenant": ('fila_key_weight{queue="$queue"}', "fairness_key"),
            "throttle": ('{instance="$instance",__name__=~"fila_throttle_rate|fila_throttle_concurrency"}', "throttle_key"),
        },
        (
            stat("Pending", SHORT, f"fila_key_pending{KEY}"),
            stat("Weight", SHORT, f"fila_key_weight{KEY}"),
            stat("Due share", SHARE, f"fila_key_fair_share_ratio{KEY}", "0 while it has nothing to deliver."),
            stat("Tokens", SHORT, f"min(fila_throttle_tokens_remaining{LIMIT})", "Of the bucket of the throttle key."),
            stat("Places in use", SHORT, f"sum(fila_throttle_in_use{LIMIT})"),
            stat("Places", SHORT, f"max(fila_throttle_concurrency{LIMIT})"),
            Panel(
                "Share of the queue's deliveries",
                SHARE,
                {
                    "got": f"{rate(f'fila_key_delivered_total{KEY}')} / {rate(f'fila_messages_delivered_total{QUEUE}')}",
                    "due": f"fila_key_fair_share_ratio{KEY}",
                },
                "A tenant that gets less than is due to it is limited by something else: ask `fila-cluster why`.",
            ),
            Panel("Deliveries", PER_S, {"{{fairness_key}}": rate(f"fila_key_delivered_total{KEY}", "fairness_key")}),
            Panel("Pending", SHORT, {"{{fairness_key}}": f"fila_key_pending{KEY}"}),
            Panel(
                "Throttle key: messages that got tokens, and waits",
                PER_S,
                {
                    "passed": rate(f"fila_throttle_key_passes_total{LIMIT}"),
                    "waited": rate(f"fila_throttle_key_hits_total{LIMIT}"),
                },
            ),
            Panel(
                "Throttle key: its bucket",
                SHORT,
                {
                    "tokens": f"min(fila_throttle_tokens_remaining{LIMIT})",
                    "burst": f"max(fila_throttle_burst{LIMIT})",
                    "rate, a second": f"max(fila_throttle_rate{LIMIT})",
                },
            ),
            Panel(
                "Throttle key: its places",
                SHORT,
                {
                    "in use": f"sum(fila_throttle_in_use{LIMIT})",
                    "concurrency": f"max(fila_throttle_concurrency{LIMIT})",
                    "waiting": f"sum(fila_throttle_waiting{LIMIT})",
                },
            ),
            Panel(
                "Throttle key: for how long",
                SECONDS,
                {
                    "all places in use": f"max(fila_throttle_full_seconds{LIMIT})",
                    "longest lease": f"max(fila_throttle_longest_lease_seconds{LIMIT})",
                },
                "Both are long: a consumer may hang.",
            ),
        ),
    ),
    "hosts": Dashboard(
        "fila-cluster: hosts",
        "Several hosts on a replicated log: who leads, how far copies are behind, and how fast the log confirms.",
        {},
        (
            stat("Shards served", SHORT, "sum(fila_shard_up)"),
            stat("Hosts that lead", SHORT, "count(sum by (host) (fila_copy_leads) > 0)"),
            stat(
                "Shards without a standby",
                SHORT,
                "count(count by (shard) (fila_copy_behind_records <= 200) < 2) or vector(0)",
                "If their host is lost, they wait for a recovery from the log.",
            ),
            stat("Brokers in sync", SHORT, "min(fila_log_replicas_in_sync)", "The fewest of any shard."),
            stat("Brokers wanted", SHORT, "max(fila_log_replicas)"),
            stat("Unconfirmed", BYTES, "sum(fila_log_unconfirmed_bytes)"),
            Panel("Shards that a host leads", SHORT, {"{{host}}": "sum by (host) (fila_copy_leads)"}),
            Panel("Leader of each shard", SHORT, {"shard {{shard}}: {{host}}": "fila_copy_leads == 1"}),
            Panel("Records that copies are behind", SHORT, {"{{host}}": "max by (host) (fila_copy_behind_records)"}),
            Panel("Written and not confirmed", BYTES, {"{{host}}": "sum by (host) (fila_log_unconfirmed_bytes)"}),
            Panel("Until the log confirms", SECONDS, slowest("fila_log_confirm_seconds", "host")),
            Panel("Brokers in sync", SHORT, {"shard {{shard}}": "min by (shard) (fila_log_replicas_in_sync)"}),
            Panel("Memory", BYTES, {"{{worker}}": "fila_worker_rss_bytes"}),
            Panel(
                "CPU, of one core",
                SHARE,
                {"{{worker}}": rate("fila_worker_cpu_seconds_total", "worker")},
            ),
        ),
    ),
}


def asked(query: str) -> str:
    """Return a query of the chosen observer only."""
    if "$instance" in query:
        return query
    query = re.sub(r"\b(fila_[a-z_]+|ALERTS)\b(?!\{)", r"\1{}", query)
    return re.sub(r"\b(fila_[a-z_]+|ALERTS)\{", r'\1{instance="$instance",', query).replace(",}", "}")


def files() -> dict[Path, str]:
    """Return each file of a dashboard, with its text."""
    return {FOLDER / f"{name}.json": json.dumps(_dashboard(name, each), indent=1) + "\n" for name, each in DASHBOARDS.items()}


def _dashboard(name: str, made: Dashboard) -> dict[str, Any]:
    variables = {variable: (asked(metric), label) for variable, (metric, label) in made.variables.items()}
    return {
        "uid": f"fila-{name}",
        "title": made.title,
        "description": made.about,
        "tags": ["fila-cluster"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["fila-cluster"], "asDropdown": True, "includeVars": True, "title": "fila-cluster"}
        ],
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                *(_variable(variable, *of) for variable, of in {"instance": ("fila_up", "instance"), **variables}.items()),
            ]
        },
        "panels": _placed(made.panels),
    }


def _variable(name: str, metric: str, label: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "definition": query,
        "refresh": 2,
        "sort": 1,
    }


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Return panels from left to right, a new row where the next one has no room."""
    placed, left, top, height = [], 0, 0, 0
    for number, panel in enumerate(panels, 1):
        width, rows = panel.size
        if left + width > WIDTH:
            left, top, height = 0, top + height, 0
        placed.append(_panel(number, panel) | {"gridPos": {"x": left, "y": top, "w": width, "h": rows}})
        left, height = left + width, max(height, rows)
    return placed


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": asked(query), "legendFormat": legend, "range": True}
        for place, (legend, query) in enumerate(panel.queries.items())
    ]
    calmed: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    lines = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": calmed if panel.kind == "stat" else lines,
        "targets": targets,
    }
