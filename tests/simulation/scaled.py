"""Every bound of the product that a run scales down, in one table, so that its boundary is crossed in every run.

A bound is named by where it lives: a module constant as ``module.NAME``, or a field of the worker core's ``Limits``. Where it has
moved to, only its line here changes. A name that does not exist is an error, so that the table can't go stale in silence.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from importlib import import_module
from random import Random
from typing import Any
from unittest.mock import patch

from fila_worker.core.limits import Limits

CORE = "fila_worker.core."

CONSTANTS: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "graveyard bytes": ((CORE + "graveyard.BYTES_MAX",), (300, 1 << 20)),
    "graveyard run": ((CORE + "graveyard.RUN_MIN",), (2, 4)),
    "spill at": ((CORE + "lanes.SPILL_AT", CORE + "state.SPILL_AT"), (2, 4, 20)),
    "few in a line": ((CORE + "lanes.FEW",), (1, 4)),
    "refill": ((CORE + "reading.REFILL_MESSAGES",), (1, 3, 10)),
    "expiries a turn": ((CORE + "attempts.EXPIRIES_MAX",), (1, 3, 10)),
    "deliveries a turn": ((CORE + "delivery.TURN_MESSAGES_MAX",), (2, 5, 20, 100)),
    "deliveries of a queue": ((CORE + "delivery.QUEUE_MESSAGES_MIN",), (1, 3)),
    "releases a turn": ((CORE + "schedule.RELEASE_MAX",), (1, 3, 10)),
    "priorities remembered": ((CORE + "queues.PRIORITIES_MAX",), (2, 4)),
    "idle lanes": (
        (CORE + "queues.IDLE_LANES_MAX", CORE + "state.IDLE_LANES_MAX"), (0, 1, 4),
    ),
    "redrive step": ((CORE + "redriving.REDRIVE_MAX",), (2, 5)),
    "redrive look": ((CORE + "redriving.LOOK_MAX",), (4, 20)),
    "redrive effort": ((CORE + "redriving.EFFORT_MAX",), (10, 100)),
    "purge lanes": ((CORE + "purging.LANES_MAX",), (2, 10)),
    "purge step": ((CORE + "purging.STEP_MESSAGES_MAX",), (2, 7)),
    "look-up keys": ((CORE + "backlog.LOOK_UP_KEYS",), (2, 10)),
    "dedup entry": ((CORE + "dedup.ENTRY_IDS_MAX",), (1, 3)),
    "outbox frame": ((CORE + "outbox.SEND_MAX",), (1, 2, 10)),
    "kept bytes": ((CORE + "kept.KEPT_BYTES_MAX",), (0, 500)),
    "bookmarks": ((CORE + "bookmarks.BOOKMARKS_MAX",), (1, 3)),
    "want messages": ((CORE + "throttling.WANT_MESSAGES_MAX",), (2, 10)),
    "idle throttles": ((CORE + "throttling.IDLE_THROTTLES_MAX",), (0, 2)),
    "frames a turn": (("fila_worker.link.DRAIN_FRAMES_MAX",), (1, 3, 128)),
    "shards remembered": (("fila_worker.host.SHARD_CACHE_MAX",), (1, 10)),
    "router burst": (("fila_router.loop.BURST_FRAMES",), (1, 5, 500)),
    "keys remembered": (("fila_router.core.routing.CACHED_KEYS_MAX",), (1, 10)),
    "served a look": (("fila_router.core.token_bank.SERVED_MAX",), (1, 500)),
    "calls remembered": (("fila_router.core.in_flight.CALL_MS_MAX",), (12_000,)),
    "router tick": (("fila_router.loop.TICK_MS",), (500,)),
    "sweeps": (("fila_router.core.router.SWEEP_MS",), (2000,)),
    "frames an exchange": (("fila_cluster.client.link.FRAMES_PER_EXCHANGE",), (1, 4, 256)),
}  # fmt: skip

LINKED = {
    CORE + "graveyard.LEASES_MAX": 0.25, CORE + "graveyard.MESSAGES_MAX": 1.0, CORE + "ledger.FOLD_AFTER_ENTRIES": 1.0,
    CORE + "ledger.FOLD_AFTER_COUNTS": 2.0,
}  # fmt: skip
"""What keeps its proportion to the finished leases remembered, as in the product: where bounds depend on each other, only that is a test."""

FIELDS: dict[str, tuple[Any, ...]] = {"finished_leases_max": (4, 8, 16, 40)}
"""Fields of ``Limits``."""


def draw_limits(random: Random) -> Limits:
    """Small limits of the worker's core."""
    known = {field.name for field in fields(Limits)}
    missing = FIELDS.keys() - known
    assert not missing, f"no longer fields of Limits: {missing}"
    return Limits(**{name: random.choice(choices) for name, choices in FIELDS.items()})


@contextmanager
def scaled_down(random: Random, limits: Limits) -> Iterator[dict[str, Any]]:
    """Scale the constants down; what they are."""
    chosen: dict[str, Any] = {}
    for places, choices in CONSTANTS.values():
        value = random.choice(choices)
        chosen |= dict.fromkeys(places, value)
    for place, share in LINKED.items():
        chosen[place] = max(1, int(limits.finished_leases_max * share))
    with ExitStack() as stack:
        for place, value in chosen.items():
            module, name = place.rsplit(".", 1)
            stack.enter_context(patch.object(import_module(module), name, value))
        yield chosen
