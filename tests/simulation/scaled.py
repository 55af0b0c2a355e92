"""Every bound of the product that a run scales down, so that its boundary is crossed in every run.

Most bounds are fields: of the worker core's ``Limits`` and of the router's ``RouterLimits``. Some are module constants, named here as
``module.NAME``. A name that does not exist is an error, so that the tables can't go stale in silence.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from random import Random
from typing import Any

from fila_router.core.limits import RouterLimits
from fila_worker.core.settings import Limits
from tests.simulation.replacing import replaced

CORE = "fila_worker.core."

FIELDS: dict[str, tuple[Any, ...]] = {
    "finished_leases_max": (4, 8, 16, 40),
    "acked_bytes_max": (300, 1 << 20),
    "range_messages_min": (2, 4),
    "turn_expiries_max": (1, 3, 10),
    "unseen_messages_max": (1, 3, 10),
    "lane_disorder_messages_max": (2, 4, 20),
    "refill_messages_max": (1, 3, 10),
    "refill_bytes_max": (100, 1000, 1 << 18),
    "idle_lanes_max": (0, 1, 4),
    "priorities_max": (2, 4),
    "warm_lanes_max": (1, 2, 4, 100),
    "warm_small_lanes_max": (1, 2, 4, 100),
    "warm_ahead_max": (1, 2, 64),
    "cool_steps_min": (1, 4),
    "busy_wait_turns_max": (2, 10, 1000),
    "fresh_turns_max": (1, 5, 100),
    "void_entries_max": (1, 10),
    "turn_messages_max": (2, 5, 20, 100),
    "queue_turn_messages_min": (1, 3),
    "turn_due_max": (1, 3, 10),
    "due_note_bytes_max": (10, 1000),
    "due_read_bytes_max": (100, 1000),
    "due_read_messages_max": (1, 3, 16),
    "dedup_entry_ids_max": (1, 3),
    "transfer_messages_max": (1, 2, 10),
    "transfer_bytes_max": (100, 1 << 20),
    "past_streams_max": (2, 16),
    "purge_lanes_max": (2, 10),
    "purge_messages_max": (2, 7),
    "redrive_messages_max": (2, 5),
    "redrive_look_messages_max": (4, 20),
    "redrive_places_max": (10, 100),
    "recovery_records_max": (1, 5, 50),
    "reserved_bytes_max": (0, 500),
    "browse_cursors_max": (1, 3),
    "ledger_fold_lanes_min": (1, 2, 20),
    "ledger_fold_lanes_max": (20, 40, 2048),
    "transfer_repeat_ms": (200, 1000),
    "purge_bytes_max": (200, 1 << 22),
    "purge_look_messages": (1, 20),
    "turn_effort": (1, 50, 6000),
    "step_effort": (1, 20, 500),
    "jobs_max": (3, 4096, 4096),
    "client_jobs_max": (1, 4, 256),
    "jobs_bytes_max": (1000, 1 << 26, 1 << 26),
    "enqueue_step_messages": (1, 3, 500),
    "walk_keys_max": (1, 2, 1000),
    "paused_keys_max": (1, 2, 1000),
    "stats_keys_max": (1, 2, 1000),
    "turn_waits_max": (1, 2, 1000),
    "returns_max": (1, 3, 1000),
    "sequences_max": (1, 3, 10_000),
    "key_table_part_max": (2, 4, 1000),
}  # fmt: skip
"""Fields of ``Limits``."""

EXEMPT = {
    "rate_wait_ms_max": "namespaces have no rates here", "appointment_wait_ms_max": "belongs to the clients' timeouts",
    "batch_wait_ms_max": "the same", "views_max": "views are not opened here", "view_examined_messages_max": "the same",
    "view_keys_max": "the same", "view_ranges_max": "the same", "view_names_at_once": "the same", "view_wait_ms_max": "the same",
    "idle_lanes_of_shard_max": "the same is tried queue by queue", "waste_bytes_min": "the disks here waste nothing",
    "session_silence_ms": "the router takes ten times the consumers' timeout at least", "inbound_frames": "of the real sockets",
    "acts_max": "nobody asks for acts here",
    "config_edits_max": "nor for the history of the config", "config_edits_bytes_max": "the same",
    "schedules_max": "few schedules are made here", "schedule_bytes_max": "their messages are small", "schedules_bytes_max": "the same",
    "schedule_late_ms": "it only counts", "schedule_skips_counted_max": "the same", "schedule_catch_up_max": "what it leaves out would look lost",
    "config_edits_at_once": "the same", "config_edits_page_bytes_max": "the same",
}  # fmt: skip
"""Fields that are not scaled, and why."""

LINKED = {
    "acked_leases_max": 0.25,
    "acked_messages_max": 1.0,
    "acked_lanes_max": 0.5,
    "ledger_entries_max": 1.0,
    "ledger_counts_max": 2.0,
}
"""Bounds in proportion to the finished leases remembered, as in the product or larger: what lies on disk and what is remembered must not
depend on each other."""

REFILLS = {"refill_messages_min": 0.5}
"""Bounds in proportion to the most messages of a refill."""

ROUTER_FIELDS: dict[str, tuple[Any, ...]] = {
    "sessions_max": (12, 20_000),
    "pipe_frames": (2, 5, 20),
    "unread_little": (300, 1 << 18),
    "unread_probed": (4000, 1 << 23),
    "calls_max": (6, 10_000),
    "relieving_calls_max": (40, 40_000),
    "waits_max": (3, 100_000),
    "client_waits_max": (2, 10_000),
    "pages_max": (2, 256),
    "client_pages_max": (1, 8),
    "page_bytes": (500, 1 << 20),
    "in_flight_bytes_max": (5000, 1 << 27, 1 << 27),
    "questions_max": (2, 1000),
}  # fmt: skip
"""Fields of ``RouterLimits``."""

UNREAD = {"client_unread_refused": 4, "client_unread_max": 16, "unread_max": 32}
"""Bounds of unread bytes in proportion to what is probed, as in the product."""

ACCESS: dict[str, tuple[Any, ...]] = {
    "keys_max": (2, 3, 4096),
    "failures_max": (1, 3, 200),
    "failure_ms": (50, 2000),
    "addresses_max": (1, 2, 10_000),
}
"""Fields of ``RouterLimits`` that are drawn from numbers of their own: the other draws are what they would be without them."""

LOG: dict[str, tuple[Any, ...]] = {"unconfirmed_bytes_max": (100, 2000, 1 << 24)}
"""Fields of ``Limits`` that are drawn from numbers of their own."""

HASTY: dict[str, tuple[Any, ...]] = {
    "enqueue_ms_max": (5, 50, 4000),
    "usual": (False, True, True, True),
    "refusals_max": (1, 3, 1000),
}
"""The same, of an enqueue: its time, its way, and the refusals that are remembered."""

CONSUMERS: dict[str, tuple[Any, ...]] = {
    "client_subscriptions_max": (1, 2, 10_000, 10_000),
    "subscriptions_max": (3, 100_000, 100_000),
}
"""The same, of consumers."""

TIMED: dict[str, tuple[Any, ...]] = {
    "turn_schedules_max": (1, 2, 100),
    "turn_schedules_bytes_max": (1, 1 << 22),
    "schedules_recovered_max": (1, 200),
    "schedule_grace_ms": (1000, 30_000),
}
"""The same, of schedules."""


BATCHES: dict[str, tuple[Any, ...]] = {
    "batches_max": (1, 3, 10_000),
    "batch_parts_max": (1, 3, 10_000),
    "batch_queues_max": (1, 2, 1000),
    "batch_callback_bytes_max": (60, 1 << 28),
    "batch_open_ms_max": (1500, 1 << 27, 1 << 27),
    "ended_batches_max": (1, 2, 8192),
    "batch_waits_max": (1, 1000),
    "batch_waits_bytes_max": (100, 1 << 24),
    "batch_check_ms": (300, 2000),
    "batch_parts_at_once": (1, 2, 500),
    "batch_ends_at_once": (1, 50),
}
"""Fields of ``Limits`` that are drawn from numbers of their own."""

CLIENT: dict[str, tuple[Any, ...]] = {"kept_bytes_max": (8000, 1 << 28, 1 << 28), "pipe_bytes_max": (500, 1 << 23)}
"""Bounds of a client's session, as its parameters."""

CONSTANTS: dict[str, tuple[Any, ...]] = {
    CORE + "model.lanes.FEW": (1, 4),
    CORE + "inspect.backlog.LOOK_UP_KEYS": (2, 10),
    CORE + "model.token_client.WANT_MESSAGES_MAX": (2, 10),
    CORE + "model.token_client.IDLE_THROTTLES_MAX": (0, 2),
    "fila_worker.transport.link.DRAIN_FRAMES_MAX": (1, 3, 128),
    "fila_worker.process.slots.SHARD_CACHE_MAX": (1, 10),
    "fila_router.loop.BURST_FRAMES": (1, 5, 500),
    "fila_router.loop.TICK_MS": (900,),
    "fila_router.core.routing.CACHED_KEYS_MAX": (1, 10),
    "fila_router.core.tokens.token_bank.SERVED_MAX": (1, 500),
    "fila_admission.in_flight.CALL_MS_MAX": (7_000,),
    "fila_router.core.router.SWEEP_MS": (2000,),
    "fila_cluster.client.io.link.FRAMES_PER_EXCHANGE": (1, 4, 256),
    CORE + "model.token_client.SETTLED_MAX": (1, 3, 1000),
    CORE + "model.token_client.FOLLOWING_MIN": (1, 250),
    CORE + "manage.config.LISTED_AT_ONCE": (1, 400),
    "fila_proto_zmq.runtime_config.PAGE_KEYS_MAX": (1, 2, 500),
    "fila_cluster.client.protocol.settling.NACKED_MAX": (1, 2),
    CORE + "manage.throttles.LIST_THROTTLES_MAX": (1, 1000),
    "fila_proto_zmq.commands.config.LIST_THROTTLES_MAX": (1, 1000),
    CORE + "places.bank.KEYS_KEPT_MAX": (0, 1, 10_000),
    CORE + "places.bank.GRANTS_MAX": (1, 3, 1000),
    CORE + "places.bank.OPENINGS_AT_ONCE": (1, 200),
    CORE + "places.accounts.PASSES_MAX": (1, 10_000),
    CORE + "places.dispatch.ITEMS_MAX": (1, 2, 500),
    CORE + "places.dispatch.CONFIRMED_MAX": (1, 64),
    CORE + "places.holdings.WANTED_MAX": (1, 2, 1000),
    CORE + "held_places.FORGOTTEN_AT_ONCE": (1, 1000),
    CORE + "held_places.TOUCHED_AT_ONCE": (1, 2, 1000),
    CORE + "held_places.DEALT_MAX": (1, 2, 1000),
    CORE + "places.holdings.POSTPONED_AT_ONCE": (1, 2, 1000),
    CORE + "places.accounts.SERVED_FORGOTTEN_MAX": (1, 2000),
    CORE + "model.consumers.ENDED_MAX": (1, 16),
    CORE + "model.token_client.FEW_THROTTLES": (1, 4),
    "fila_proto_zmq.bucket_limits.CHANGES_KEPT_MAX": (1, 1000),
    CORE + "manage.partition_moves.KEYS_AT_ONCE": (1, 100),
    CORE + "manage.partition_moves.IDS_AT_ONCE": (1, 100),
}
"""Constants of modules."""


def draw_limits(random: Random) -> Limits:
    """Small limits of the worker's core."""
    drawn = {name: random.choice(choices) for name, choices in FIELDS.items()}
    proportion = random.choice([1, 4, 12])
    linked = {name: max(1, int(proportion * drawn["finished_leases_max"] * share)) for name, share in LINKED.items()}
    refills = {name: max(1, int(drawn["refill_messages_max"] * share)) for name, share in REFILLS.items()}
    own = Random(f"log {drawn}")
    log = {name: own.choice(choices) for name, choices in LOG.items()}
    own, of_batches = Random(f"timed {drawn}"), Random(f"batches {drawn}")
    timed = {name: own.choice(choices) for name, choices in TIMED.items()}
    batches = {name: of_batches.choice(choices) for name, choices in BATCHES.items()}
    of_haste = Random(f"haste {drawn}")
    hasty = {name: of_haste.choice(choices) for name, choices in HASTY.items()}
    of_consumers = Random(f"consumers {drawn}")
    consumers = {name: of_consumers.choice(choices) for name, choices in CONSUMERS.items()}
    return Limits(**drawn, **linked, **refills, **log, **timed, **batches, **hasty, **consumers)


def draw_router_limits(random: Random) -> RouterLimits:
    """Small limits of the router's core."""
    drawn = {name: random.choice(choices) for name, choices in ROUTER_FIELDS.items()}
    unread = {name: share * drawn["unread_probed"] for name, share in UNREAD.items()}
    own = Random(f"access {drawn}")
    access = {name: own.choice(choices) for name, choices in ACCESS.items()}
    return RouterLimits(**drawn, **unread, **access)


def draw_client_limits(random: Random) -> dict[str, int]:
    """Small limits of the clients."""
    return {name: random.choice(choices) for name, choices in CLIENT.items()}


@contextmanager
def scaled_down(random: Random) -> Iterator[None]:
    """Scale the constants down."""
    places = ((place.rsplit(".", 1), choices) for place, choices in CONSTANTS.items())
    with replaced((import_module(module), name, random.choice(choices)) for (module, name), choices in places):
        yield
