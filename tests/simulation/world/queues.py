"""The queues of a run, drawn from its features."""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.options import Options

TICKS = "ticks"
"""The queue of the schedules' messages, which only the auditor takes."""
ASIDE = "aside"
"""A queue to which backlogs are moved."""
APART = ("brief", TICKS)
"""The beginnings of the names of queues that steps leave alone."""


def draw_queues(options: Options, shard_of: Callable[[str], int]) -> dict[str, dict[str, Any]]:
    """Names and the options of ``create_queue``."""
    random = Random(f"{options.seed} queues")
    has = options.features.__contains__
    queues: dict[str, dict[str, Any]] = {}
    for number in range(options.queues):
        chosen: dict[str, Any] = {}
        if has("max_attempts") and random.random() < 0.6:
            chosen["max_attempts"] = random.choice([1, 2, 3])
        if has("strict") and random.random() < 0.5:
            chosen["max_in_flight_per_key"] = 1
        elif has("caps") and random.random() < 0.5:
            chosen["max_in_flight_per_key"] = random.choice([2, 3])
        if has("at_most_once") and random.random() < 0.4:
            chosen["delivery"] = "at_most_once"
        if has("ttl") and random.random() < 0.3:
            chosen["default_ttl"] = random.choice([1.0, 5.0])
        if has("hooks") and random.random() < 0.6:
            chosen["on_enqueue"] = random.choice(["key", "throttle", "key urgent", "late", "fails key"])
            chosen["on_failure"] = random.choice(["dead", "wait", "fails dead", None])
        if has("long_leases") and random.random() < 0.5:
            chosen["visibility_timeout"] = random.choice([8.0, 600.0])
        if has("idle_expiry") and random.random() < 0.3:
            chosen["idle_expiry"] = random.choice([1.0, 3.0])
        if has("discard") and random.random() < 0.3:
            chosen["dead_letter"] = "discard"
        own = Random(f"{options.seed} in flight of q{number}")  # other seeds do not shift
        if has("in_flight") and own.random() < 0.7:
            chosen["max_in_flight"] = own.choice([1, 2, 3, 8])
        queues[f"q{number}"] = {name: value for name, value in chosen.items() if value is not None}
    if has("elsewhere"):
        _bury_elsewhere(random, queues, shard_of)
    if has("aside"):
        queues[ASIDE] = {}
    if has("timed"):
        queues[TICKS] = {}
    if has("partitions"):
        for name, chosen in queues.items():
            chosen.update(draw_partitions(options.seed, name, chosen))
    return queues


def draw_partitions(seed: int, name: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The partitions of a queue with these options: some have none."""
    own = Random(f"{seed} partitions of {name}")
    partitions, by_message = own.choice([None, 2, 2, 3, 4, 5]), own.random() < 0.3
    if partitions is None:
        return {}
    spread = {"spread": "message"} if by_message and "max_in_flight_per_key" not in chosen else {}
    return {"partitions": partitions, **spread}


def _bury_elsewhere(random: Random, queues: dict[str, dict[str, Any]], shard_of: Callable[[str], int]) -> None:
    """Let one queue's dead letters go to a queue on another shard, if there is one."""
    names = [f"graves{number}" for number in range(20)]
    source = random.choice(sorted(queues))
    others = [name for name in names if shard_of(name) != shard_of(source)]
    target = (others or names)[0]
    queues[target] = {}
    queues[source]["dead_letter"] = target
    if random.random() < 0.7:
        queues[source]["max_attempts"] = random.choice([1, 2])
