"""Leave out of a failing run what its failure does not need: delta debugging over its steps (Zeller & Hildebrandt, 2002)."""

from dataclasses import replace

from tests.simulation.faults.script import BEGIN_US, Step
from tests.simulation.run import Result, run

TRIES_MAX = 300


def shrunk(result: Result, checker: str | None = None) -> Result:
    """The run with the fewest steps found that still fails a checker: without a name, the first that it failed."""
    checker = checker or result.failures[0][0]
    tries = 0

    def fails(steps: list[Step], span_us: int) -> Result | None:
        nonlocal tries
        tries += 1
        again = run(options=replace(result.options, span_us=span_us), steps=steps)
        return again if checker in {name for name, _ in again.failures} else None

    size = max(1, len(result.steps) // 2)
    while tries < TRIES_MAX:
        removed = False
        start = 0
        while start < len(result.steps) and tries < TRIES_MAX:
            fewer = result.steps[:start] + result.steps[start + size :]
            smaller = fails(fewer, result.options.span_us)
            if smaller is None:
                start += size
            else:
                result, removed = smaller, True
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    shortest_us = max([step.at_us - BEGIN_US for step in result.steps], default=0) + 1_000_000
    return fails(result.steps, min(shortest_us, result.options.span_us)) or result
