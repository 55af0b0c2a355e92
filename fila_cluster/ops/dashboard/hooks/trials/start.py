"""Starts a trial, and stops it if it does not end: a script that hangs, or takes memory, harms only its own trial.

The engine's limits hold in a broker, too; a process of its own covers the rest. It also keeps the Lua machine, and the
seconds of work for a hundred slow runs, out of the process that watches the cluster.
"""

import asyncio
import sys
from typing import Final

import msgspec

from fila_cluster.ops.dashboard.hooks.trials.plan import Plan, TrialReport

END_S_MAX: Final = 15.0
"""A trial ends by itself well before."""

AT_ONCE_MAX: Final = 2
"""Further trials wait for their turn."""

_MODULE: Final = "fila_cluster.ops.dashboard.hooks.trials"
_turns = asyncio.Semaphore(AT_ONCE_MAX)


class TrialError(Exception):
    """A trial without a result; the text is for people."""


async def try_out(plan: Plan, *, end_s_max: float = END_S_MAX, module: str = _MODULE) -> TrialReport:
    """Run a plan. Raises :class:`TrialError` if its process does not answer; the process is ended then."""
    async with _turns:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", module, stdin=pipe, stdout=pipe, stderr=pipe)
        try:
            answer, complaint = await asyncio.wait_for(child.communicate(msgspec.msgpack.encode(plan)), end_s_max)
        except TimeoutError:
            raise TrialError(f"the scripts did not end within {end_s_max:g} s: they were stopped") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if child.returncode != 0:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise TrialError(f"the trial ended with code {child.returncode}: {last or 'no reason given'}")
    return msgspec.msgpack.decode(answer, type=TrialReport)
