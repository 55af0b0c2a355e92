"""Measure a queue with 1, 2, 4 and 8 partitions on as many workers: the CPU time of broker and clients for 100,000 messages, and
what follows from it.

One producer and one consumer, each load with a thousand fairness keys, first in and then out. The broker has half of the cores,
and the clients have the others. A message may cost 1.1 times as much as in a queue with one partition.

Where a machine has fewer cores than workers, the rate does not grow. So there are two rates, each of messages in and out. One is
measured. The other is computed from the CPU time of the busiest process, as if each process of the broker had a core for itself,
and clients kept up.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import on_cores, own_cores, together
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.report.spread import spread
from benchmarks.harness.workload import Benchmark, Run, choice, number

PER = 100_000
FLUSH_S = 0.5
KEYS = 1000
RATES = "Messages a second"
MEASURED, COMPUTED = "in and out, measured", "in and out, computed: a core for each worker"
COSTS = "CPU seconds for 100,000 messages"
ALL = "broker and clients, in and out"
COST_MAX = 1.1


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of each load.")
    rounds: int = number("Rounds.")
    partitions: str = number("Numbers of partitions, divided by commas.", "1,2,4,8")
    workers: int = number("Workers; 0: as many as partitions.", 0)
    payload: int = number("Bytes of a payload.", 1024)
    way: str = choice("How clients reach the workers.", WAYS)


def measure(run: Run[Scale]) -> None:
    """Measure each number of partitions in turn, each in a cluster of its own."""
    numbers = [int(each) for each in run.scale.partitions.split(",")]
    for partitions in run.rounds(run.scale.rounds, numbers, "partitions"):
        _measure(run, Fila(workers=run.scale.workers or partitions, way=run.scale.way), partitions)
    one = spread(run.values(COSTS, ALL, _column(numbers[0]))).median
    for partitions in numbers[1:]:
        times = spread(run.values(COSTS, ALL, _column(partitions))).median / max(one, 1e-9)
        text = f"a message in {partitions} partitions costs {times:.2f} times as much as in {numbers[0]}, at most {COST_MAX}"
        run.promise(text, times <= COST_MAX)
    series = [
        Series(
            what,
            [float(each) for each in numbers],
            [spread(run.values(RATES, what, _column(each))).median for each in numbers],
        )
        for what in (COMPUTED, MEASURED)
    ]
    title = "Messages a second through one queue, by partitions with a worker each"
    run.chart(Chart(title, "workers", "messages a second", series))


def _column(partitions: int) -> str:
    return f"{partitions} partition{'s' if partitions > 1 else ''}"


def _measure(run: Run[Scale], system: Fila, partitions: int) -> None:
    load, queue, column = Load(run.scale.messages, run.scale.payload, KEYS), "clicks", _column(partitions)
    cores = own_cores()
    half = max(1, len(cores) // 2)
    with ExitStack() as stack:
        with on_cores(cores[:half]):
            server = stack.enter_context(run.serving(system))
        stack.enter_context(on_cores(cores[half:] or cores))
        client = stack.enter_context(blocking_client(server.address))
        client.create_queue(queue, partitions=partitions)
        before = _cpu_s(server)
        (sent,) = together((clients.produce, system, server.address, queue, load), env=system.environment())
        (taken,) = together((clients.consume, system, server.address, queue, load), env=system.environment())
        time.sleep(FLUSH_S)
        after = _cpu_s(server)
    run.verify(taken.verified)
    spent = {pid: after[pid] - before[pid] for pid in after}
    broker_s, clients_s = sum(spent.values()), sent.spent.cpu_s + taken.spent.cpu_s
    run.figure(COSTS, "broker, in and out", column, "s", broker_s * PER / load.count)
    run.figure(COSTS, "clients, in and out", column, "s", clients_s * PER / load.count)
    run.figure(COSTS, ALL, column, "s", (broker_s + clients_s) * PER / load.count)
    run.figure(RATES, "in, measured", column, "/s", load.count / sent.spent.seconds)
    run.figure(RATES, "out, measured", column, "/s", load.count / taken.spent.seconds)
    run.figure(RATES, MEASURED, column, "/s", load.count / (sent.spent.seconds + taken.spent.seconds))
    run.figure(RATES, COMPUTED, column, "/s", load.count / max(spent.values()))


def _cpu_s(server: OneCluster) -> dict[int, float]:
    """Return user and system time so far, by process."""
    processes = [process for some in server.processes().values() for process in some]
    return {process.pid: sum(process.cpu_times()[:2]) for process in processes}


BENCHMARK = Benchmark("partitions", measure, Scale(2_000, 1, "1,2"), Scale(100_000, 3), Scale(400_000, 5))
