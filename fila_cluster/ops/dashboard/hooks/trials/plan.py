"""The question to a trial and its answer, as msgpack between two processes, and the process that runs the trial.

A process of its own bounds a script that hangs or takes memory, and keeps the Lua machine, and seconds of work for a hundred
slow runs, out of the process that watches the cluster.
"""

import asyncio
import sys
from typing import Any, Final

import msgspec

from fila_proto_zmq.commands.structs import Struct

TIMEOUT_MS: Final = 10
MEMORY_LIMIT_BYTES: Final = 1024 * 1024
"""The limit of brokers without a setting."""


class TrialMessage(Struct):
    """A message, now and after a failed attempt. ``attempts`` counts that one."""

    id: str
    headers: dict[str, str]
    payload_bytes: int
    fairness_key: str = "default"
    weight: int = 1
    throttle_keys: list[str] = msgspec.field(default_factory=list)
    priority: int = 0
    cost: float = 1.0
    attempts: int = 1
    error: str = ""


class TrialPlan(Struct):
    """The scripts of a queue, their limits, and the messages to try them on. None: there is no such script."""

    queue: str
    on_enqueue: str | None
    on_failure: str | None
    timeout_ms: int
    memory_limit_bytes: int
    config: dict[str, str]
    """The runtime config, as it is stored."""
    messages: list[TrialMessage]
    costs: bool = False
    """Whether to measure the cost of a run on the first message."""


class HookVerdict(Struct):
    """The decision of a hook for a message: the fields that it set, named as in scripts; or why it failed."""

    decided: dict[str, Any]
    failure: str = ""


class HookReport(Struct):
    """The results of one hook. There are fewer verdicts than messages if the time was up."""

    verdicts: list[HookVerdict]
    took_us: float
    """For all of them together."""
    cost_us: float = 0.0
    """Of one run in a batch, as a broker runs it, if that was measured."""
    instructions: int = 0


class TrialReport(Struct):
    """The results of a plan. ``refused``: why the scripts do not compile, and on which line; the rest is empty then."""

    refused: str
    hooks: dict[str, HookReport]


END_S_MAX: Final = 15.0
"""A trial ends by itself well before."""

AT_ONCE_MAX: Final = 2
"""Further trials wait for their turn."""

_MODULE: Final = "fila_cluster.ops.dashboard.hooks.trials"
_turns = asyncio.Semaphore(AT_ONCE_MAX)


class TrialError(Exception):
    """A trial without a result; the text is for people."""


async def try_out(plan: TrialPlan, *, end_s_max: float = END_S_MAX, module: str = _MODULE) -> TrialReport:
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
