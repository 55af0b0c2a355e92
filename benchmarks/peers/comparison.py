"""Measure this broker beside Redis Streams, NATS JetStream, RabbitMQ and beanstalkd: in batches, and messages that travel
alone.

The workloads are those of ``throughput`` and ``unary``. Each system is used as a good user of it would (the modules of
``benchmarks/peers`` say how), each message is verified, and rounds alternate between the systems. Like is compared with like:
what confirms a message when it is in the hands of the operating system stands beside ``durability = "os"``, what confirms it
when it is on the disk beside ``"fsync"``. A confirmed message survives the end of any process in the first group, and a power
cut in the second one. beanstalkd syncs every 50 ms, Redis with ``everysec`` each second, NATS every two minutes; they are in
the first group. Servers are reached over tcp where a name does not say otherwise; clients on the broker's own host would take
its Unix socket.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.fila import Fila, FilaBlocking
from benchmarks.harness.systems import System
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.peers import promises
from benchmarks.peers.beanstalk import Beanstalkd
from benchmarks.peers.doors import OverTcp
from benchmarks.peers.nats_jetstream import Nats
from benchmarks.peers.programs import find
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.redis_streams import Redis
from benchmarks.workloads import throughput, unary

OS = OverTcp(Fila("os", label="fila-cluster, os"))
FSYNC = OverTcp(Fila("fsync", label="fila-cluster, fsync"))
ALONE = FilaBlocking("os", way="direct", label="fila-cluster, os, Unix socket")
ALONE_TCP = OverTcp(FilaBlocking("os", way="direct", label="fila-cluster, os, tcp"))
ALONE_ROUTED = FilaBlocking("os", way="router", label="fila-cluster, os, by the router")
ALONE_FSYNC = OverTcp(FilaBlocking("fsync", way="direct", label="fila-cluster, fsync, tcp"))
REDIS, REDIS_ALWAYS, REDIS_SOCKET = Redis(), Redis("always"), Redis(socket=True)
NATS, BEANSTALKD, RABBITMQ = Nats(), Beanstalkd(), RabbitMQ()

IN_BATCHES: Sequence[System] = (OS, REDIS, NATS, BEANSTALKD, FSYNC, REDIS_ALWAYS, RABBITMQ)
ONE_BY_ONE: Sequence[System] = (
    ALONE,
    ALONE_TCP,
    ALONE_ROUTED,
    REDIS,
    REDIS_SOCKET,
    NATS,
    BEANSTALKD,
    ALONE_FSYNC,
    REDIS_ALWAYS,
    RABBITMQ,
)
PROGRAMS = {"Redis": "redis-server", "NATS": "nats-server", "RabbitMQ": "rabbitmq-server", "beanstalkd": "beanstalkd"}


@dataclass(frozen=True)
class Scale(throughput.Scale, unary.Scale):
    """The numbers of both workloads, and which systems to measure."""

    systems: str = number("Only systems whose names begin so, divided by semicolons.", "")


def chosen(run: Run[Scale], systems: Sequence[System]) -> list[System]:
    """Return the systems to measure. Those whose server is not installed are named below the tables."""
    wanted = tuple(run.scale.systems.split(";"))
    return [each for each in systems if each.name.startswith(wanted) and each.name.split()[0].strip(",") not in missing()]


def missing() -> list[str]:
    """Return the systems whose server is not installed."""
    return [name for name, program in PROGRAMS.items() if find(program) is None]


def measure(run: Run[Scale]) -> None:
    """Measure the systems, and judge."""
    for name in missing():
        run.note(f"{name} is not measured: there is no {PROGRAMS[name]} here.")
    throughput.compare(run, chosen(run, IN_BATCHES))
    unary.compare(run, chosen(run, ONE_BY_ONE))
    promises.judge_batches(run, OS.name, [REDIS.name, NATS.name, BEANSTALKD.name])
    promises.judge_lone(run, ALONE_TCP.name, REDIS.name)
    promises.judge_sequential(run, {ALONE.name: 0.7, ALONE_TCP.name: 0.5}, REDIS.name, NATS.name)
    promises.judge_costs(run, OS.name, ALONE_TCP.name, REDIS.name)
    promises.judge_fsync(run, (FSYNC.name, ALONE_FSYNC.name), OS.name, REDIS_ALWAYS.name)


BENCHMARK = Benchmark(
    "peers",
    measure,
    tiny=Scale(messages=1_000, sequential=100, lone=50, rounds=1, systems="fila-cluster, fsync;Redis Streams, AOF always"),
    small=Scale(messages=50_000, sequential=2_000, lone=1_000, rounds=3),
    full=Scale(messages=200_000, sequential=10_000, lone=5_000, rounds=5),
)
