"""``python -P -m fila_cluster.ops.dashboard.hooks.trials``: a plan on standard input, a report on standard output."""

import resource
import sys
from typing import Final

import msgspec

from fila_cluster.ops.dashboard.hooks.trials.plan import TrialPlan
from fila_cluster.ops.dashboard.hooks.trials.run import run

CPU_S_MAX: Final = 30
"""The bound if the process that started this one is gone and can't stop it."""


def main() -> None:
    """Run one trial."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    plan = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrialPlan)
    sys.stdout.buffer.write(msgspec.msgpack.encode(run(plan)))


if __name__ == "__main__":
    main()
