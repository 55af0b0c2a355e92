"""The simulation in ``make test``: the kept cases, the planted bugs, and that a seed is one run; and in ``make test-all`` the first seeds.

``test_seeds.py`` has the other seeds of ``make test-all``. Many more: ``python -m tests.simulation --seeds 100000``.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fila_router.core.limits import RouterLimits
from fila_worker.core.settings import Limits
from tests.simulation import scaled
from tests.simulation.calling import COUNTED, simulate
from tests.simulation.checkers import busy
from tests.simulation.faults.script import BEGIN_US, draw_script
from tests.simulation.options import draw


@dataclass(frozen=True)
class Caught:
    """``checker`` finds the bug within so many ``seeds`` from ``first`` on that have these ``features``.

    ``first`` is a few seeds before the one that finds it today: most of the time goes into those that don't.
    """

    checker: str
    seeds: int
    features: str = ""
    first: int = 10_000


BUGS = {
    "commit_after_reply": Caught("acked returns", 300, first=10_088),
    "forgotten_fence": Caught("acked returns", 300, "receive,consume,lone_acks,pause_client,batches", 10_050),
    "unreturned_lease": Caught("audit", 60),
    "unbounded_buffer": Caught("memory", 60, "large"),
    "late_dedup_entry": Caught("dedup", 60, "dedup"),
    "token_counted_twice": Caught("throttles", 300, "throttles", 10_025),
    "pattern_over_own": Caught("throttles", 300, "limits,consume,receive,batches", 10_198),
    "forgotten_debt": Caught("throttles", 40, "limits,consume,receive,batches,many,kill_client,costs", 34_660),
    "unpaid_work": Caught("throttles", 300, "priced,limits,consume,receive,costs", 10_204),
    "refund_of_all": Caught("throttles", 300, "priced,limits,consume,receive,costs", 10_210),
    "deaf_to_deferrals": Caught("throttles", 60, "limits,verbs,consume,receive,many", 13_070),
    "last_page": Caught("listed", 60, "limits", 10_008),
    "whole_queue_moves": Caught("moves", 60, "aside", 10_005),
    "kept_original": Caught("one place", 100, "aside", 10_005),
    "endless_turn": Caught("fairness", 60, "crowd", 10_008),
    "early_burial": Caught("dead letters", 60, "max_attempts,verbs", 10_018),
    "lost_letter": Caught("dead letters", 100, "verbs,consume"),
    "late_timeout": Caught("in time", 300, "away", 10_028),
    "forgotten_call": Caught("in time", 60, first=10_040),
    "counted_deferral": Caught("lives", 60),
    "any_incarnation": Caught("given back", 60, "consume,kill_router", 10_030),
    "broken_sequence": Caught("sent order", 60, "piped", 10_020),
    "unheard_revocation": Caught("keys", 300, "guest,direct", 10_058),
    "lease_to_nobody": Caught("invariants", 60, "direct,consume,receive", 10_008),
    "deaf_routers": Caught("keys", 20, "guest,hosts,routers", 10_096),
    "any_kind_will_do": Caught("keys", 60, "guest"),
    "half_a_replacement": Caught("replaced", 60, "debounce"),
    "hasty_answer": Caught("lost", 60, "lag,kill_worker", 10_030),
    "lost_arrival": Caught("audit", 100, "move,kill_router,kill_worker", 10_024),
    "hasty_claim": Caught("log", 10, "hosts,late_log,kill_host"),
    "endless_proof": Caught("proof", 10, "hosts,cut_log", 10_018),
    "undeposed_leader": Caught("crash", 10, "hosts,pause_host"),
    "hasty_flush": Caught("copies", 10, "hosts,kill_host,cut_log"),
    "late_progress": Caught("schedules", 60, "timed,kill_worker", 10_050),
    "hasty_callback": Caught("batches", 60, "together,consume,receive"),
    "idle_queue_kept": Caught("rest", 60, "debounce"),
    "dropped_update": Caught("replaced", 60, "debounce"),
    "old_number": Caught("crash", 40, "rewind,elsewhere,verbs,receive,max_attempts", 20_040),
    "kept_letter": Caught("audit", 10, "hosts,elsewhere"),
    "place_counted_twice": Caught("concurrency", 60, "concurrency,consume"),
    "forgotten_place": Caught("concurrency", 60, "concurrency,kill_worker,consume,long_leases", 10_050),
    "hasty_return": Caught("concurrency", 60, "concurrency,lag", 10_250),
    "forgetful_bank": Caught("invariants", 60, "concurrency,kill_worker,consume"),
    "anybody_holds": Caught("holders", 60, "holders,concurrency,consume"),
    "uncounted_lease": Caught("in flight", 100, "in_flight,kill_worker,long_leases", 10_040),
    "forgotten_asks": Caught("prefetch", 60, "partitions,consume"),
    "left_strays": Caught("strays", 60, "partitions,hooks"),
    "unwatched_partition": Caught("starved", 60, "partitions,consume"),
    "each_for_itself": Caught("concurrency", 60, "partitions,in_flight,consume"),
    "lasting_definition": Caught("rest", 60, "partitions,debounce"),
    "broken_promise": Caught("lost", 100, "partitions,debounce", 10_040),
    "hasty_removal": Caught("lost", 60, "repartition,consume", 10_055),
    "unrepeated_report": Caught("unfinished", 60, "repartition,kill_worker", 10_490),
    "forgotten_ids": Caught("dedup", 60, "repartition,dedup,receive", 10_110),
}


def test_kept_cases_break_no_promise_and_those_of_planted_bugs_catch_them() -> None:
    done = simulate("--cases")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.whole  # the kept cases catch each of them, too
@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_caught_by_its_checker(bug: str) -> None:
    caught = BUGS[bug]
    check_caught(bug, caught.checker, caught.seeds, caught.features, caught.first)


def check_caught(bug: str, checker: str, seeds: int, features: str, first: int) -> None:
    """Plant a bug, and make sure that its checker finds it."""
    done = simulate(
        "--bug", bug, "--until", checker, "--with", features, "--start", str(first), "--seeds", str(seeds)
    )  # fmt: skip
    assert f"FAILED {checker}:" in done.stdout, f"not caught within {seeds} seeds\n{done.stdout}{done.stderr}"
    assert "harness" not in done.stdout, done.stdout


def test_each_planted_bug_has_a_kept_case() -> None:
    kept = {path.stem.removeprefix("planted_") for path in (Path(__file__).parent / "cases").glob("planted_*.json")}
    assert kept == set(BUGS) == set(_names_of_bugs())


def _names_of_bugs() -> list[str]:
    return simulate("--bugs").stdout.split()


def test_a_failure_is_shrunk_to_the_steps_that_it_needs() -> None:
    found = ("--seed", "10001", "--bug", "late_dedup_entry", "--with", "dedup", "--until", "dedup")
    whole, shrunk = (simulate(*found, "--steps", *more).stdout for more in ((), ("--shrink",)))
    assert whole.count("Step(") > 5
    # What is left are senders of twins. That one of them is enough depends on when the other's came.
    assert shrunk.count("Step(") == shrunk.count("what='twins'") in (1, 2), shrunk
    assert "FAILED dedup" in shrunk


def test_a_seed_is_one_run_to_the_byte() -> None:
    first, second = (simulate("--seed", "4", "--story").stdout for _ in range(2))
    assert first.splitlines()[:-2] == second.splitlines()[:-2]
    assert len(first.splitlines()) > 100


def test_no_fault_comes_after_the_cluster_was_healed() -> None:
    for seed in range(7000, 7200):  # one of 7095 did
        options = draw(seed)
        assert all(step.at_us < BEGIN_US + options.span_us for step in draw_script(options)), seed


def test_a_shard_wants_a_turn_by_the_clock_of_its_own_host() -> None:
    due_ms = 100_000
    shard = SimpleNamespace(
        index=2,
        _turn_ms=due_ms - 40_000,
        next_due=lambda now_ms: max(0, due_ms - now_ms),
        due_index=SimpleNamespace(next_due_ms=0),
    )
    process = SimpleNamespace(
        host=SimpleNamespace(shards={2: shard}), now_ms=lambda: due_ms + 20_000
    )  # it is a minute behind
    run: Any = SimpleNamespace(cluster=SimpleNamespace(workers=[process]))
    assert busy(run) == {}
    shard._turn_ms = due_ms
    assert busy(run) == {2: 0}


@pytest.mark.whole
def test_the_first_seeds_break_no_promise_and_cross_every_boundary() -> None:
    done = simulate("--seeds", str(COUNTED), "--crossings")
    assert done.returncode == 0, done.stdout + done.stderr
    table = re.findall(r"^ +(\d+) +(\d+)  (.+)$", done.stdout, re.MULTILINE)
    assert len(table) > 20, done.stdout
    assert [what for times, _, what in table if times == "0"] == [], done.stdout


def test_every_bound_of_a_core_is_scaled_or_said_not_to_be() -> None:
    fields_ = {field.name for limits in (Limits, RouterLimits) for field in fields(limits)}
    named = [
        *scaled.FIELDS,
        *scaled.LINKED,
        *scaled.REFILLS,
        *scaled.ROUTER_FIELDS,
        *scaled.UNREAD,
        *scaled.ACCESS,
        *scaled.LOG,
        *scaled.TIMED,
        *scaled.HASTY,
        *scaled.CONSUMERS,
        *scaled.BATCHES,
        *scaled.EXEMPT,
    ]
    assert sorted(named) == sorted(fields_)
