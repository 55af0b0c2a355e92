"""Fuzz for as long as you like: ``python -m tests.fuzz --minutes 60``.

Each story has a seed; ``--seed N`` plays one again. Failures are told as the shortest story found, and do not end the run.
With ``--atheris`` (``pip install atheris``) the stories are guided by the coverage of the broker's cores.
"""

import argparse
import random
import sys
import time
from importlib import import_module

from tests.fuzz.bytes_random import BytesRandom

STORY = "tests.fuzz.story"
"""Imported late: a coverage-guided fuzzer has to see how the modules behind it are loaded."""
STEPS = 60


def main() -> int:
    """Run; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="play this one story only")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of a story (default {STEPS})")
    parser.add_argument("--atheris", action="store_true", help="let the coverage guide the stories")
    arguments = parser.parse_args()
    if arguments.atheris:
        return guided(arguments.minutes, arguments.steps)
    seeds = [arguments.seed] if arguments.seed is not None else None
    return 1 if run(arguments.minutes, arguments.steps, seeds) else 0


def run(minutes: float, steps: int, seeds: list[int] | None = None) -> int:
    """Play stories until the time is up; returns how many kinds of failures there were."""
    story = import_module(STORY)
    found: dict[str, int] = {}
    started = time.monotonic()
    first = random.SystemRandom().getrandbits(48)
    number = 0
    while (seeds is not None and number < len(seeds)) or (seeds is None and time.monotonic() - started < 60 * minutes):
        seed = seeds[number] if seeds is not None else first + number
        number += 1
        try:
            story.fuzz(random.Random(seed), steps)
        except story.StoryError as failure:
            kind = str(failure).splitlines()[0]
            if kind not in found:
                print(f"seed {seed}: {failure}\n", flush=True)
            found[kind] = found.get(kind, 0) + 1
    seconds = time.monotonic() - started
    print(f"{number:,} stories of up to {steps} steps in {seconds:.0f} s from seed {seeds[0] if seeds else first}: ", end="")
    print("nothing found" if not found else "".join(f"\n  {count} × {kind}" for kind, count in found.items()))
    return len(found)


def guided(minutes: float, steps: int) -> int:
    """The same under atheris, which chooses what the random numbers are."""
    try:
        import atheris  # noqa: PLC0415
    except ImportError:
        print("atheris is not installed: pip install atheris, or leave --atheris out", file=sys.stderr)
        return 1
    with atheris.instrument_imports(include=["fila_worker.core", "fila_router.core", "fila_proto_zmq"]):
        fuzz = import_module(STORY).fuzz

    def one(data: bytes) -> None:
        fuzz(BytesRandom(data), steps)

    atheris.Setup([sys.argv[0], f"-max_total_time={round(60 * minutes)}", "-max_len=8192", "-len_control=0"], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
