"""The decisions of a run: a list of steps, drawn from the seed before anything happens.

A step says when, who, what, and a number from which all its details follow. So a run may leave steps out, and the others mean the same:
that is how a failure is shrunk.
"""

from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from tests.simulation.options import Options

BEGIN_US = 1_500_000
"""Until then the cluster starts and its queues are made."""


@dataclass(frozen=True)
class Step:
    """``who``: the number of a client, or -1 for the world."""

    at_us: int
    who: int
    what: str
    number: int

    def plain(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


ACTIONS: dict[str, tuple[int, str]] = {
    "enqueue": (10, ""), "enqueue_many": (6, "batches"), "receive": (8, "receive"), "consume": (3, "consume"),
    "leave": (2, "leave"), "cancel": (2, "cancel"), "purge": (1, "purge"), "pause": (1, "pause"), "resume": (2, "pause"),
    "redrive": (2, "redrive"), "browse": (2, "browse"), "throttle": (2, "throttles"), "config": (1, "config"), "reserve": (2, "reserve"),
    "delete": (1, "delete"), "brief": (2, "delete"), "update": (1, "update"), "close": (1, "close"), "stats": (1, "browse"), "why": (1, "browse"),
    "flood": (3, "many"), "twins": (4, "dedup"),
}  # fmt: skip
"""What clients do: how often, and which feature it takes."""
EXTRAS = {
    "crowd": 2,
    "cancelled": 4,
    "piped": 4,
    "move": 8,
    "guest": 6,
    "debounce": 6,
    "timed": 6,
    "together": 5,
    "limits": 8,
    "aside": 5,
    "in_flight": 3,
    "concurrency": 4,
    "holders": 4,
    "partitions": 5,
    "repartition": 6,
}
"""What the features of that name do, and how often at most (see :data:`options.EXTRAS`)."""


def draw_script(options: Options) -> list[Step]:
    """The steps of a seed's run, in order."""
    random = Random(f"{options.seed} script")
    known = [(what, weight) for what, (weight, feature) in ACTIONS.items() if not feature or feature in options.features]
    weights = [weight for _, weight in known]
    steps = []
    for _ in range(options.steps):
        what = random.choices(known, weights)[0][0]
        steps.append(Step(_when(random, options), random.randrange(options.clients), what, random.getrandbits(32)))
    for what, most in EXTRAS.items():
        if what in options.features:
            steps += _extra_steps(options, what, most)
    faults = sorted(options.faults)
    for _ in range(options.fault_count if faults else 0):
        at_us = _when(random, options)
        if random.random() < 0.4:  # when something is under way
            at_us = random.choice(steps).at_us + random.randrange(300_000)
            at_us = min(at_us, BEGIN_US + options.span_us - 1)  # after the end of the script everything is healed, once
        steps.append(Step(at_us, -1, random.choice(faults), random.getrandbits(32)))
    return sorted(steps, key=lambda step: step.at_us)


def _extra_steps(options: Options, what: str, most: int) -> list[Step]:
    random = Random(f"{options.seed} {what} steps")
    return [
        Step(_when(random, options), random.randrange(options.clients), what, random.getrandbits(32))
        for _ in range(random.randint(1, most))
    ]


def _when(random: Random, options: Options) -> int:
    """Anywhere, and often close to something round, so that things happen together."""
    at_us = random.randrange(options.span_us)
    if random.random() < 0.4:
        at_us -= at_us % 500_000
    return BEGIN_US + at_us
