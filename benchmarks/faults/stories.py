"""What the logs of the hosts say about the longest outages, so that each has a reason: a move, a take-over, a process that ended, or none."""

import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from benchmarks.faults.host_load import Strike
from benchmarks.faults.outages import MACHINE, PROBE_S, longest_gap
from tests.support.nodes import Node

LONG_S: Final = 1.0
STORIES_MAX: Final = 12
BEFORE_S: Final = 1.0
TOLD: Final = (
    "shard.opened", "shard.followed", "shard.quarantined", "storage.failed", "process.deposed", "process.failed", "child.died", "child.started",
    "worker.lost", "worker.returned", "worker.refused",
)  # fmt: skip
FIELDS: Final = ("child", "worker", "exit", "reason")


def stories(nodes: Iterable[Node], strikes: Iterable[Strike], moments: Mapping[int, list[float]]) -> list[str]:
    """Return a line for each of the longest outages, the longest first. ``moments``: of each shard's successes, by the steady clock."""
    clock_s = time.time() - time.monotonic()
    events = sorted(
        (datetime.fromisoformat(event["timestamp"]).timestamp() - clock_s, node.name, event)
        for node in nodes
        for event in node.events(*TOLD)
    )  # fmt: skip
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


def _told(when: float, host: str, event: Mapping[str, Any]) -> str:
    text = ", ".join(str(event[name])[:60] for name in FIELDS if event.get(name))
    return f"{when:+.1f} {host} {event['process']} {event['event']}{f' ({text})' if text else ''}"
