"""What the logs of the hosts say about outages: the reasons of the longest ones, and the parts of take-overs."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from benchmarks.faults.load.host_load import Strike
from benchmarks.faults.load.outages import MACHINE, PROBE_S, longest_gap
from tests.support.hosts.nodes import Node

LONG_S: Final = 1.0
STORIES_MAX: Final = 12
BEFORE_S: Final = 1.0
TOLD: Final = (
    "shard.opened",
    "shard.followed",
    "shard.quarantined",
    "storage.failed",
    "process.deposed",
    "process.failed",
    "child.died",
    "child.started",
    "worker.lost",
    "worker.returned",
    "worker.refused",
)
PARTS: Final = (
    "until a standby leads: silence, a last look, its marker",
    "recovery",
    "registration, and a probe that asks again",
)
FIELDS: Final = ("child", "worker", "exit", "reason")


def stories(nodes: Iterable[Node], strikes: Iterable[Strike], moments: Mapping[int, list[float]]) -> list[str]:
    """Return a line for each of the longest outages, the longest first. ``moments``: of each shard's successes, by the steady
    clock."""
    events = _events(nodes, *TOLD)
    found = []
    for strike in strikes:
        for shard, successes in moments.items():
            began, ended = longest_gap(successes, strike)
            if shard != MACHINE and ended - began > LONG_S:
                told = [
                    _told(when - began, host, event)
                    for when, host, event in events
                    if began - BEFORE_S <= when <= ended + PROBE_S and event.get("shard", shard) == shard
                ]
                head = f"{ended - began:.1f} s, shard {shard}, {strike.whose(shard)} ({began - strike.began:+.1f} s)"
                found.append((ended - began, f"{head}: {'; '.join(told) or 'nothing was logged'}"))
    return [line for _, line in sorted(found, reverse=True)[:STORIES_MAX]]


def take_over_parts(
    nodes: Iterable[Node], strikes: Iterable[Strike], moments: Mapping[int, list[float]], kind: str
) -> dict[str, list[float]]:
    """Return the parts of the outages of shards that another host led after a strike of a kind, in seconds, the shortest
    first."""
    events = _events(nodes, "shard.opened")
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    for strike in (each for each in strikes if each.kind == kind):
        for shard in strike.led:
            began, ended = longest_gap(moments[shard], strike)
            opened = [each for each in events if each[2]["shard"] == shard and began <= each[0] <= ended + PROBE_S]
            if len(opened) == 1:
                when, _, event = opened[0]
                recovery_s = event["recovery_ms"] / 1000
                for part, span in zip(PARTS, (when - recovery_s - began, recovery_s, ended - when), strict=True):
                    parts[part].append(span)
    return {part: sorted(spans) for part, spans in parts.items() if spans}


def _events(nodes: Iterable[Node], *names: str) -> list[tuple[float, str, dict[str, Any]]]:
    """Return what the hosts have logged, by the steady clock."""
    clock_s = time.time() - time.monotonic()
    found = [
        (datetime.fromisoformat(event["timestamp"]).timestamp() - clock_s, node.name, event)
        for node in nodes
        for event in node.events(*names)
    ]
    return sorted(found, key=lambda each: each[:2])


def _told(when: float, host: str, event: Mapping[str, Any]) -> str:
    text = ", ".join(str(event[name])[:60] for name in FIELDS if event.get(name))
    return f"{when:+.1f} {host} {event['process']} {event['event']}{f' ({text})' if text else ''}"
