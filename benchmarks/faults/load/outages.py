"""Probes of each shard while processes die, and what their gaps say: how long queues were away, and where that time went."""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

from fila_cluster import Client
from fila_cluster.errors import FilaError
from tests.support.cluster.client_records import SLOW_MACHINE_S

PROBE_S = 0.05
PROBE_TIMEOUT_S = 2.0
AWAY_S_MIN = 0.5
"""A shorter span without success comes from the machine, because everything runs on the same cores."""


@dataclass
class Fault:
    """A kill or a pause, and how long each shard was away because of it."""

    kind: str
    victims: tuple[str, ...]
    began: float
    ended: float = 0.0
    away_s: dict[int, float] = field(default_factory=dict)

    def concerns(self, shard: int) -> bool:
        """Tell whether a shard's own worker is among the victims."""
        return f"worker-{shard}" in self.victims


MACHINE = -1
"""Instead of a shard: a thread that only sleeps. Its delay is the machine's."""


def probe(endpoint: str, queues: list[str], pipe: Connection) -> None:
    """Ask each shard all the time, in a process of its own, until the pipe says stop. Send the times of success, and calls
    that took too long."""
    stop = threading.Event()
    moments: dict[int, list[float]] = {shard: [time.monotonic()] for shard in (MACHINE, *range(len(queues)))}
    late: list[float] = []
    threads = [threading.Thread(target=_sleep, args=(moments[MACHINE], stop))]
    with Client(endpoint, timeout=PROBE_TIMEOUT_S) as client:
        threads += [
            threading.Thread(target=_ask, args=(client, queue, moments[shard], late, stop))
            for shard, queue in enumerate(queues)
        ]
        for thread in threads:
            thread.start()
        pipe.recv()
        stop.set()
        for thread in threads:
            thread.join()
    pipe.send((moments, late))


def _sleep(moments: list[float], stop: threading.Event) -> None:
    while not stop.wait(PROBE_S):
        moments.append(time.monotonic())


def _ask(client: Client, queue: str, moments: list[float], late: list[float], stop: threading.Event) -> None:
    while not stop.wait(PROBE_S):
        started = time.monotonic()
        with suppress(FilaError):
            client.enqueue(queue, b"probe")
            moments.append(time.monotonic())
        if time.monotonic() - started > PROBE_TIMEOUT_S + SLOW_MACHINE_S:
            late.append(time.monotonic() - started)


STAGES = (
    "until the supervisor has started another",
    "interpreter, modules",
    "RocksDB, recovery",
    "registration, and a probe that asks again",
)


def stages(faults: list[Fault], events: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the stages of the outage of each killed worker's queues."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for fault in faults:
        for shard, away in fault.away_s.items():
            if fault.kind == "killed" and fault.concerns(shard) and "router" not in fault.victims:
                for stage, span in zip(STAGES, _divided(fault, shard, away, events), strict=False):
                    found[stage].append(span)
    return {stage: sorted(spans) for stage, spans in found.items() if spans}


def _divided(fault: Fault, shard: int, away: float, events: list[dict[str, Any]]) -> list[float]:
    """Return the stages of one outage, or none if the log lacks a part of it."""
    name, clock_s = f"worker-{shard}", time.time() - time.monotonic()

    def at(event: str) -> list[tuple[float, dict[str, Any]]]:
        noted = [
            (datetime.fromisoformat(each["timestamp"]).timestamp() - clock_s, each)
            for each in events
            if each["event"] == event
        ]
        return [(when, each) for when, each in noted if fault.began <= when <= fault.ended + 0.1 and name in each.values()]

    started, opened = at("child.started"), at("shard.opened")
    if len(started) != 1 or len(opened) != 1:
        return []
    recovered_s = opened[0][1]["recovery_ms"] / 1000
    edges = [fault.began, started[0][0], opened[0][0] - recovered_s, opened[0][0], fault.began + away]
    return [later - earlier for earlier, later in pairwise(edges)]


def away_s(moments: list[float], fault: Fault) -> float:
    """Return how long the longest span without success was that began with a fault or after it."""
    began, ended = longest_gap(moments, fault)
    return ended - began


def longest_gap(moments: list[float], fault: Fault) -> tuple[float, float]:
    """Return the longest span without success that began with a fault or after it, up to the end of the fault."""
    first = fault.began - AWAY_S_MIN / 2  # a span that began before belongs to an earlier fault
    # All was served when it ended: what a span has after that belongs to the next fault.
    spans = ((began, min(ended, fault.ended)) for began, ended in pairwise(moments) if first <= began < fault.ended)
    return max(spans, key=lambda span: span[1] - span[0], default=(fault.began, fault.began))


def outages(faults: list[Fault]) -> dict[str, list[float]]:
    """Return the spans by kind of fault, the shortest first."""
    found: dict[str, list[float]] = {}
    for fault in faults:
        for shard, away_s in fault.away_s.items():
            found.setdefault(whose(fault, shard), []).append(away_s)
    return {name: sorted(spans) for name, spans in sorted(found.items())}


def whose(fault: Fault, shard: int) -> str:
    """Return the kind of fault, and of queues, that a span belongs to."""
    if shard == MACHINE:
        return "(a thread that only sleeps)"
    if "router" in fault.victims:
        return f"all queues, router {fault.kind}"
    return f"queues of the worker {fault.kind}" if fault.concerns(shard) else f"all other queues, worker {fault.kind}"


def percentile(spans: list[float], share: float) -> float:
    """Return a quantile of sorted values."""
    return spans[min(len(spans) - 1, int(share * len(spans)))]
