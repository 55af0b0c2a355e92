"""Who leads a shard: one process at a time says what the shard says, and one does say it whenever nothing is wrong for long enough.

Looks inside, where a moment counts that cannot be seen from outside: a leader without proof, and what copies have.
"""

from typing import TYPE_CHECKING

from tests.simulation.faults.host_nature import UNPROVED_MAX
from tests.simulation.world.hosts import HostedCluster, HostWorker

if TYPE_CHECKING:
    from tests.simulation.run import Run

BEHIND_MAX = 20
"""Some beats, and their look."""


def serves(run: "Run") -> None:
    """Nothing is wrong for long enough, so all shards serve."""
    if not run.cluster.is_up():
        cores = [router.core for router in run.cluster.routers]
        owners = [None if core is None else [owner and owner.name for owner in core._table.owners] for core in cores]
        run.history.fail("serves", f"not all shards are served, by the owners {', '.join(map(str, owners))}")


def check_one(run: "Run") -> None:
    """An epoch of a shard is one life of one process, and no process gives out leases of later epochs than its own."""
    cluster = run.cluster
    if not isinstance(cluster, HostedCluster):
        return
    leaders: dict[tuple[int, int], tuple[str, int]] = {}
    own: dict[tuple[int, str, int], int] = {}
    for worker in cluster.workers:
        assert isinstance(worker, HostWorker)
        for shard, epoch, life in worker.opened:
            other = leaders.setdefault((shard, epoch), (worker.name, life))
            if other != (worker.name, life):
                run.history.fail("one leader", f"epoch {epoch} of shard {shard} is one of {other} and of {worker.name}")
            own[shard, worker.name, life] = max(epoch, own.get((shard, worker.name, life), 0))
    for grant in run.history.grants:
        epoch = grant.lease >> 40
        if epoch > own.get((grant.shard, *grant.by), 0):  # a repeated request has a lease of an earlier one
            leader = leaders.get((grant.shard, epoch))
            run.history.fail(
                "one leader", f"{grant.token} is given out by {grant.by} under a lease of {leader}, epoch {epoch}"
            )


def check_proofs(run: "Run") -> None:
    """No process serves a shard for long without a record that shows that it still leads it."""
    cluster = run.cluster
    if not isinstance(cluster, HostedCluster):
        return
    world, longest_us = run.world, UNPROVED_MAX * cluster.nature.leadership.proof_ms_max * 1000
    for machine in cluster.machines:
        for worker in machine.workers:
            if worker.host is None or not worker.resting or worker.paused_until_us > world.now_us - longest_us:
                continue
            for index in worker.host.shards:
                slot = worker.host.slots[index]
                if slot.leaving:
                    continue  # it takes nothing in any more
                member = slot.member
                unproved_us = world.now_us - cluster.logs[index].proofs[member.leadership.epoch]
                if unproved_us > longest_us:
                    run.history.fail(
                        "proof", f"{worker.name} has served shard {index} for {unproved_us / 1e6:.3f} s without proof"
                    )


def check_copies(run: "Run") -> None:
    """All copies have what the log has."""
    cluster = run.cluster
    if not isinstance(cluster, HostedCluster):
        return
    for machine in cluster.machines:
        for worker in machine.workers:
            for slot in worker.host.slots.values() if worker.host is not None else ():
                if slot.member is None:
                    run.history.fail("copies", f"{worker.name} has no copy of shard {slot.index}")
                    continue
                slot.member.copy.compare("at rest")
                behind = cluster.logs[slot.index].end - 1 - slot.member.copy.position.offset
                if behind > BEHIND_MAX:
                    run.history.fail(
                        "copies", f"that of {worker.name} is {behind} records behind the log of shard {slot.index}"
                    )
