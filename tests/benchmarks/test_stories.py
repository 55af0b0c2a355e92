"""The reasons of long outages, found in the logs of hosts."""

import time
from datetime import UTC, datetime
from typing import Any

from benchmarks.faults.load.host_load import Strike
from benchmarks.faults.load.outages import MACHINE
from benchmarks.faults.load.stories import PARTS, stories, take_over_parts

NOW, CLOCK = time.monotonic(), time.time()


class LoggedNode:
    def __init__(self, name: str, *events: tuple[float, dict[str, Any]]) -> None:
        self.name = name
        self._events = [
            {"timestamp": datetime.fromtimestamp(CLOCK + at, UTC).isoformat(), "process": f"{name}/worker-0", **event}
            for at, event in events
        ]

    def events(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event["event"] in names]


def test_a_long_outage_has_the_events_of_its_shard_meanwhile() -> None:
    a = LoggedNode(
        "a",
        (-30.0, {"event": "shard.opened", "shard": 1}),
        (2.0, {"event": "shard.followed", "shard": 1, "reason": "another host is to lead it"}),
        (2.1, {"event": "shard.followed", "shard": 0, "reason": "of another shard"}),
        (2.2, {"event": "checkpoint.kept"}),
    )
    b = LoggedNode(
        "b",
        (1.5, {"event": "child.died", "child": "worker-0", "exit": "was deposed"}),
        (4.0, {"event": "shard.opened", "shard": 1}),
    )
    strike = Strike("router killed", (), NOW, NOW + 10)
    moments = {
        MACHINE: [NOW, NOW + 9],
        0: [NOW + tenth / 10 for tenth in range(100)],
        1: [NOW - 5, NOW + 0.1, NOW + 2.0, NOW + 4.1, NOW + 4.2],
    }
    assert stories([a, b], [strike], moments) == [  # type: ignore[list-item]  # it has what is needed of a node
        "2.1 s, shard 1, router killed: all other queues (+2.0 s): -0.5 b b/worker-0 child.died (worker-0, was deposed); "
        "+0.0 a a/worker-0 shard.followed (another host is to lead it); +2.0 b b/worker-0 shard.opened"
    ]  # fmt: skip


def test_a_take_over_has_parts() -> None:
    b = LoggedNode("b", (6.5, {"event": "shard.opened", "shard": 1, "recovery_ms": 200}))
    strike = Strike("host killed", ("a/",), NOW, NOW + 10, led=frozenset({1}))
    moments = {MACHINE: [NOW], 1: [NOW - 5, NOW + 0.0, NOW + 6.75, NOW + 6.8]}
    parts = take_over_parts([b], [strike], moments, "host killed")  # type: ignore[list-item]
    assert {part: [round(span, 2) for span in spans] for part, spans in parts.items()} == dict(
        zip(PARTS, ([6.3], [0.2], [0.25]), strict=True)
    )
    assert take_over_parts([b], [strike], moments, "router killed") == {}  # type: ignore[list-item]
