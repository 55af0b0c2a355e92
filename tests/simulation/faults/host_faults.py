"""What goes wrong with whole hosts, and between them and the log that they share."""

from random import Random
from typing import TYPE_CHECKING

from tests.simulation.world.hosts import HostedCluster, Machine

if TYPE_CHECKING:
    from tests.simulation.run import Run

SHORT_US, LONG_US = (300_000, 1_500_000), (2_500_000, 4_500_000, 8_000_000)
"""Shorter and longer than the silence after which another host takes over."""


def _hosted(run: "Run") -> HostedCluster:
    assert isinstance(run.cluster, HostedCluster)
    return run.cluster


def _one(run: "Run", random: Random) -> Machine:
    return random.choice(_hosted(run).machines)


def _span_us(random: Random) -> int:
    return random.choice(random.choice([SHORT_US, LONG_US]))


def kill_host(run: "Run", random: Random) -> None:
    """A host is gone, and comes back after a while."""
    machine, span_us = _one(run, random), _span_us(random)
    run.world.tell(machine.name, "dies")
    for process in machine.processes:
        process.away = True
        process.doom(random.choice([0, 0, 1, 2, 3, 5, 8, 20]), "die")
        run.world.after(span_us, run.cluster.supervisor.bring_back, process)


def pause_host(run: "Run", random: Random) -> None:
    """All processes of a host are stopped for a while, and go on as if nothing had happened."""
    machine, span_us = _one(run, random), _span_us(random)
    for process in machine.processes:
        process.doom(random.choice([0, 0, 1, 2, 3, 5, 8]), "pause", span_us)


def cut_log(run: "Run", random: Random) -> None:
    """A host reaches no broker."""
    machine, span_us = _one(run, random), _span_us(random)
    run.world.tell(machine.name, f"is cut off the log for {span_us / 1e6:.3f} s")
    machine.off_log_until_us = max(machine.off_log_until_us, run.world.now_us + span_us)


def stall_log(run: "Run", random: Random) -> None:
    """A partition has lost its leader among the brokers."""
    log, span_us = random.choice(_hosted(run).partitions), _span_us(random)
    run.world.tell(log.name, f"stands still for {span_us / 1e6:.3f} s")
    log.stalled_until_us = max(log.stalled_until_us, run.world.now_us + span_us)


def late_log(run: "Run", random: Random) -> None:
    """A host reads old records only."""
    machine, span_us = _one(run, random), _span_us(random)
    run.world.tell(machine.name, f"reads the log late for {span_us / 1e6:.3f} s")
    machine.late_until_us = max(machine.late_until_us, run.world.now_us + span_us)


def cut_router(run: "Run", random: Random) -> None:
    """A host's workers do not reach a router, or some. Its clients and the log, it does."""
    machine, until_us = _one(run, random), run.world.now_us + _span_us(random)
    backs = [router.back for router in run.cluster.routers]
    if len(backs) > 1:
        backs = random.sample(backs, random.randint(1, len(backs)))
    run.world.tell(machine.name, f"is cut off {', '.join(backs)}")
    for worker in machine.workers:
        for back in backs:
            run.network.apart_until_us[worker.name, back] = until_us
    names, kept, late = (
        {worker.name for worker in machine.workers},
        random.choice([0.0, 0.5, 1.0]),
        random.choice([10_000, 2_000_000]),
    )
    for connection in list(run.network.connections.values()):
        if connection.dealer.owner.name in names and connection.router.endpoint in backs:
            connection.cut(kept=kept, notice_us=(0, late))


def kill_all(run: "Run", random: Random) -> None:
    """All hosts die at once, and come back at about the same time. One of them may have lost its disk."""
    lost = _one(run, random) if random.random() < 0.5 else None
    for machine in _hosted(run).machines:
        for process in machine.processes:
            run.cluster.supervisor.keep_away(process, random.choice([200_000, 1_000_000, 3_000_000]))
        if machine is lost:
            _lose_disks(run, machine)


def erase(run: "Run", random: Random) -> None:
    """A host dies, and has new disks when it comes back."""
    machine, span_us = _one(run, random), _span_us(random)
    for process in machine.processes:
        run.cluster.supervisor.keep_away(process, span_us)
    _lose_disks(run, machine)


def _lose_disks(run: "Run", machine: Machine) -> None:
    run.world.tell(machine.name, "has lost its disks")
    for (name, _), disk in run.cluster.disks.items():
        if name == machine.name:
            disk.erase()


def stop_host(run: "Run", random: Random) -> None:
    """A host is asked to stop: it hands its shards over."""
    for process in _one(run, random).processes:
        process.stop()


def hand_over(run: "Run", random: Random) -> None:
    """A host gives up all shards that it leads, to another one that is named or not."""
    machine, to = _one(run, random), random.choice(["", *(each.name for each in _hosted(run).machines)])
    for worker in machine.workers:
        for slot in worker.host.slots.values() if worker.host is not None and worker.resting else ():
            if slot.member is not None:
                run.world.tell(worker.name, f"is to leave shard {slot.index} to {to or 'another host'}")
                slot.member.leadership.leave(to, machine.steady_ms())


def drain(run: "Run", random: Random) -> None:
    """A host is drained for a while: it leaves its shards to the others, one after the other, and later asks for some again."""
    _drain(run, [_one(run, random)], _span_us(random))


def drain_others(run: "Run", random: Random) -> None:
    """All hosts but one are drained for a while."""
    alone = _one(run, random)
    _drain(run, [each for each in _hosted(run).machines if each is not alone], _span_us(random))


def fill_disk(run: "Run", random: Random) -> None:
    """The disk of a host has no room for a while: it refuses messages, and leaves its shards to the others."""
    machine, span_us = _one(run, random), _span_us(random)
    run.world.tell(machine.name, f"has no room on its disk for {span_us / 1e6:.3f} s")
    machine.full_until_us = max(machine.full_until_us, run.world.now_us + span_us)


def _drain(run: "Run", machines: list[Machine], span_us: int) -> None:
    workers = [worker for machine in machines for worker in machine.workers]
    run.world.tell("FAULT", f"drains {', '.join(worker.name for worker in workers)}")
    for worker in workers:
        worker.put_draining(True)
        run.world.after(span_us, worker.put_draining, False)


HOST_FAULTS = (
    kill_host, pause_host, cut_log, stall_log, late_log, cut_router, kill_all, erase, stop_host, hand_over, drain, drain_others, fill_disk,
)  # fmt: skip
