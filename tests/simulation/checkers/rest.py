"""When nothing happens there is nothing to do, and nothing is kept that nobody needs."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.keys import FIRST, LAST
from tests.simulation.actors.receiving import MADE

if TYPE_CHECKING:
    from tests.simulation.run import Run

BUSY_TURNS_MS = 100
IDLE_S_MAX = 5.0
"""A queue that a template made is gone by now if it may not be idle for longer."""


def busy(run: "Run") -> dict[int, int]:
    """Return the shards that want a turn at once, and in how many milliseconds.

    One may just want it for what has come a moment ago. With nothing to do it must not want one at two looks.
    """
    found = {}
    for process in run.cluster.workers:
        for shard in process.host.shards.values() if process.host is not None else ():
            due_ms = shard.next_due(shard._turn_ms)  # by the clock of its own host
            if due_ms is not None and due_ms < BUSY_TURNS_MS and not shard.due_index.next_due_ms:
                found[shard.index] = due_ms
    return found


def check(run: "Run", were_busy: Collection[int]) -> None:
    """Everything was acked, everybody left, and a minute has passed. ``were_busy``: shards, at an earlier look."""
    history = run.history
    idle_s = [call.said["idle_expiry"] for call in history.calls if call.kind == "put_template"]
    is_one_time = not (history.clock_steps or history.clocks_differ)
    all_idle = is_one_time and all(each <= IDLE_S_MAX for each in idle_s)
    for router in run.cluster.routers:
        if router.core is None:
            history.fail("rest", f"the {router.name} is not there")
            return
        for worker in router.core._table.workers.values():
            if len(worker.in_flight):
                history.fail("memory", f"the {router.name} remembers {len(worker.in_flight)} calls to {worker.name}")
    for index, due_ms in busy(run).items():
        if index in were_busy:
            history.fail("rest", f"shard {index} wants a turn in {due_ms} ms, and there is nothing to do")
    for process in run.cluster.workers:
        if process.host is None:
            history.fail("rest", f"{process.name} is not there")
            continue
        for shard in process.host.shards.values():
            if len(shard.leases) or shard.consumers.by_client:
                history.fail(
                    "memory", f"shard {shard.index}: {len(shard.leases)} leases, {len(shard.consumers)} consumers at rest"
                )
            if all_idle and (made := [name for name in (*shard.queues, *shard.runtime.definitions) if name.startswith(MADE)]):
                history.fail(
                    "rest", f"shard {shard.index} keeps {made}, which a template made, and which are idle for too long"
                )
            sealed = sum(part.sealed for part in shard.batch_parts.parts.values())
            sealed += sum(batch.sealed for batch in shard.part(OwnedBatches).batches.values())
            if (sealed and not history.power_cuts) or shard.batch_parts.asks:
                history.fail("orphans", f"shard {shard.index} keeps {sealed} sealed batches and parts, and all is done")
            families = shard.store.families
            dead = shard.acked.messages
            for name in ("messages", "delayed", "outbox"):
                left = sum(1 for _ in shard.store.scan(FIRST, LAST, getattr(families, name)))
                if left - (dead if name == "messages" else 0):
                    history.fail("orphans", f"shard {shard.index} keeps {left} {name}, and its queues are empty")
