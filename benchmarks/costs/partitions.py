"""Measure a queue with 1, 2, 4 and 8 partitions: rates, and the CPU time of broker and clients for 100,000 messages.

One cluster, one producer and one consumer, each load with a hundred fairness keys, first in and then out. Where a machine has
fewer cores than workers, rates do not grow. The CPU time says what would happen with enough cores: a message may cost 1.1
times as much as in a queue with one partition.
"""

import time
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.report.spread import spread
from benchmarks.harness.systems import Server
from benchmarks.harness.workload import Benchmark, Run, choice, number

PER = 100_000
FLUSH_S = 0.5
KEYS = 100
RATES = "Messages a second"
COSTS = "CPU seconds for 100,000 messages"
ALL = "broker and clients, in and out"
COST_MAX = 1.1


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of each load.")
    rounds: int = number("Rounds.")
    partitions: str = number("Numbers of partitions, divided by commas.", "1,2,4,8")
    workers: int = number("Workers.", 2)
    payload: int = number("Bytes of a payload.", 1024)
    way: str = choice("How clients reach the workers.", WAYS)


def measure(run: Run[Scale]) -> None:
    """Measure each number of partitions in turn, in one cluster for each round."""
    numbers = [int(each) for each in run.scale.partitions.split(",")]
    system = Fila(workers=run.scale.workers, way=run.scale.way)
    for each in run.rounds(run.scale.rounds, [system], "partitions"):
        with run.serving(each) as server:
            for partitions in numbers:
                _measure(run, each, server, partitions)
    one = spread(run.values(COSTS, ALL, _column(numbers[0]))).median
    for partitions in numbers[1:]:
        times = spread(run.values(COSTS, ALL, _column(partitions))).median / max(one, 1e-9)
        text = f"a message in {partitions} partitions costs {times:.2f} times as much as in {numbers[0]}, at most {COST_MAX}"
        run.promise(text, times <= COST_MAX)


def _column(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''}"


def _measure(run: Run[Scale], system: Fila, server: Server, partitions: int) -> None:
    load, queue, column = Load(run.scale.messages, run.scale.payload, KEYS), f"queue-{partitions}", _column(partitions)
    with blocking_client(server.address) as client:
        client.create_queue(queue, partitions=partitions)
        before = sum(server.cpu_seconds().values())
        (sent,) = together((clients.produce, system, server.address, queue, load), env=system.environment())
        (taken,) = together((clients.consume, system, server.address, queue, load), env=system.environment())
        time.sleep(FLUSH_S)
        broker_s = sum(server.cpu_seconds().values()) - before
        client.delete_queue(queue, force=True)
    run.verify(taken.verified)
    run.figure(RATES, "in", column, "/s", load.count / sent.spent.seconds)
    run.figure(RATES, "out", column, "/s", load.count / taken.spent.seconds)
    clients_s = sent.spent.cpu_s + taken.spent.cpu_s
    run.figure(COSTS, "broker, in and out", column, "s", broker_s * PER / load.count)
    run.figure(COSTS, "clients, in and out", column, "s", clients_s * PER / load.count)
    run.figure(COSTS, ALL, column, "s", (broker_s + clients_s) * PER / load.count)


BENCHMARK = Benchmark("partitions", measure, Scale(2_000, 1, "1,2"), Scale(100_000, 3), Scale(400_000, 5))
