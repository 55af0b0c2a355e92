"""What must hold, written from the contract and not from the code: each checker knows what was seen from outside, and nothing else.

``healed`` runs when faults have ended and everybody had time to get what they can have; ``audited`` when an auditor has taken all
messages, before and after everything was killed once more; ``rested`` when nothing has happened for a while.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

from tests.simulation.checkers import calls, fate, holders, keys, leaders, lives, memory, partitions, replaced, rest
from tests.simulation.checkers.audit import audit, audit_again
from tests.simulation.checkers.delivery import batches, dead_letters, dedup, fairness, moves, order, schedules, throttles
from tests.simulation.checkers.delivery.concurrency import idle_places, report_idle
from tests.simulation.checkers.delivery.credit import report_unknown, unknown_leases
from tests.simulation.checkers.leaders import check_proofs, serves
from tests.simulation.checkers.leased import Leased
from tests.simulation.checkers.partitions import LOOK_US, Asking, strays, unfinished
from tests.simulation.checkers.places import Places
from tests.simulation.checkers.rest import busy

if TYPE_CHECKING:
    from tests.simulation.run import Run

__all__ = [
    "LOOK_US",
    "Asking",
    "Leased",
    "Places",
    "audit",
    "audit_again",
    "audited",
    "busy",
    "check_proofs",
    "healed",
    "idle_places",
    "now_and_then",
    "report_idle",
    "report_unknown",
    "rested",
    "serves",
    "strays",
    "unfinished",
    "unknown_leases",
]


def now_and_then(run: "Run") -> None:
    """Between two things that happen."""
    run.check_invariants()
    memory.check(run)


def healed(run: "Run") -> None:
    """Faults ended a while ago."""
    run.check_invariants()


def audited(run: "Run") -> None:
    """Everything was taken out."""
    history = run.history
    leaders.check_one(run)
    fate.check_lost(history)
    fate.check_returned(history)
    fate.check_stored_once(history)
    fate.check_at_most_once(history)
    fate.check_given_back(history)
    fate.check_settlements(history)
    lives.check(history)
    order.check_line(history)
    order.check_sent(history)
    order.check_strict(history)
    order.check_caps(history)
    dead_letters.check(history)
    dead_letters.check_own_caps(history)
    replaced.check(history)
    replaced.check_kept(history)
    replaced.check_made(history)
    fairness.check(history)
    throttles.check(history)
    holders.check(history)
    moves.check(history)
    batches.check(history)
    dedup.check(history, run.options.shard_settings.dedup_window_ms * 1000)
    schedules.check(history)
    calls.check(history, run.world.now_us)
    keys.check(run)
    partitions.check_prefetch(history)
    partitions.check_places(history)
    partitions.check_paused(history)


def rested(run: "Run", were_busy: Collection[int]) -> None:
    """Nothing has happened for a while. ``were_busy``: shards that wanted a turn at an earlier look."""
    run.check_invariants()
    rest.check(run, were_busy)
    partitions.check_numbers(run)
    leaders.check_copies(run)
