"""What goes wrong: each fault is a function of the run and of its step's own numbers."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.actors.peers import hostile, unread
from tests.simulation.faults.host_faults import HOST_FAULTS

if TYPE_CHECKING:
    from tests.simulation.run import Run

Fault = Callable[["Run", Random], None]


def _touches(random: Random) -> int:
    """How many times a process may still touch the outside: often none, so that it happens while it waits."""
    return random.choice([0, 1, 2, 3, 5, 8, 20])


def kill_worker(run: "Run", random: Random) -> None:
    random.choice(run.cluster.workers).doom(_touches(random), "die")


def endanger(run: "Run", random: Random) -> None:
    """Perhaps a process dies at one of the next steps of what has just begun, if this run has such faults."""
    process = random.choice(run.cluster.processes)
    fault = "kill_router" if process in run.cluster.routers else "kill_worker"
    if fault in run.options.faults and random.random() < 0.5:
        process.doom(random.randrange(1, 25), "die")


def away(run: "Run", random: Random) -> None:
    """A worker is away for longer than some calls take."""
    run.cluster.supervisor.keep_away(
        random.choice(run.cluster.workers), random.choice([1_000_000, 4_000_000, 7_000_000, 10_000_000])
    )


def kill_router(run: "Run", random: Random) -> None:
    run.cluster.one_router(random).doom(_touches(random), "die")


def kill_client(run: "Run", random: Random) -> None:
    number = random.randrange(len(run.clients))
    run.clients[number].process.die()
    run.replace_client(number)


def pause_worker(run: "Run", random: Random) -> None:
    span_us = random.choice([200_000, 1_000_000, 2_500_000, 5_000_000])
    random.choice(run.cluster.workers).doom(_touches(random), "pause", span_us)


def pause_router(run: "Run", random: Random) -> None:
    run.cluster.one_router(random).doom(_touches(random), "pause", random.choice([200_000, 1_000_000, 3_500_000]))


def pause_client(run: "Run", random: Random) -> None:
    random.choice(run.clients).process.pause(random.choice([100_000, 1_000_000, 4_000_000, 8_000_000]))


def cut(run: "Run", random: Random) -> None:
    connections = [*run.network.connections.values(), *run.network.streams.values()]
    for connection in random.sample(connections, min(len(connections), random.choice([1, 1, 2, 9]))):
        run.world.tell("FAULT", f"cuts {connection}")
        connection.cut(kept=random.choice([0.0, 0.5, 1.0]), notice_us=random.choice([(0, 10_000), (0, 800_000)]))


def fail_commit(run: "Run", random: Random) -> None:
    random.choice(list(run.cluster.disks.values())).fail_in = random.randint(1, 5)


def fail_log(run: "Run", random: Random) -> None:
    log = random.choice(list(run.cluster.disks.values())).slow_log
    if log is not None:
        log.fails = True


def power_cut(run: "Run", random: Random) -> None:
    shards = sorted(run.cluster.disks)
    hit = random.sample(shards, random.randint(1, len(shards)))
    run.cluster.cut_power({shard: random.choice([1, 300_000, 2_000_000, 5_000_000]) for shard in hit})


def rewind(run: "Run", random: Random) -> None:
    """One shard's directory is put back to an earlier state; the other shards keep theirs."""
    shards = [
        run.cluster.shard_of(queue)
        for queue, options in run.history.queues.items()
        if options.get("dead_letter", "dlq") not in ("dlq", "discard")  # its messages may be on another shard, too
    ]
    shard = random.choice(shards or sorted(run.cluster.disks))
    run.cluster.put_back({shard: random.choice([300_000, 2_000_000, 5_000_000, 20_000_000])})
    run.world.at(run.world.now_us + random.choice([1_000_000, 3_000_000]), _redrive_all, run, random.randrange(1 << 30))


def _redrive_all(run: "Run", seed: int) -> None:
    """What an operator does then: dead letters go back to the shard that may have their messages again."""
    for queue in list(run.history.queues):
        programs = Random(f"{seed} {queue}").choice(run.clients)
        programs.process.spawn(programs.redrive(Random(f"{seed} {queue} again"), queue))


def clock(run: "Run", random: Random) -> None:
    process = random.choice(run.cluster.processes)
    run.cluster.step_clock(process.name, random.choice([-1_500_000, -200_000, 200_000, 1_500_000]))
    if random.random() < 0.5:
        process.doom(_touches(random), "die")


def stop(run: "Run", random: Random) -> None:
    random.choice(run.cluster.processes).stop()


def unreachable(run: "Run", random: Random) -> None:
    endpoint = random.choice(run.cluster.endpoints)
    until_us = run.world.now_us + random.choice([300_000, 2_000_000, 4_000_000])
    run.network.refusing_until_us[endpoint] = max(until_us, run.network.refusing_until_us.get(endpoint, 0))
    for connection in list(run.network.connections.values()):
        if connection.router.endpoint == endpoint:
            run.network.cut(connection)


def shut_doors(run: "Run", random: Random) -> None:
    """Clients can't reach the workers' doors for a while, and lose the connections that they have."""
    until_us = run.world.now_us + random.choice([300_000, 2_000_000, 4_000_000])
    run.network.refusing_until_us["doors"] = max(until_us, run.network.refusing_until_us.get("doors", 0))
    for stream in list(run.network.streams.values()):
        stream.cut()


FAULTS_BY_NAME: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill_worker, kill_router, kill_client, pause_worker, pause_router, pause_client, cut, fail_commit, power_cut, clock, stop,
        unreachable, away, hostile, unread, shut_doors,
        fail_log, rewind,
        *HOST_FAULTS,
    )
}  # fmt: skip
