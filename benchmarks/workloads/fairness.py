"""Measure what fair scheduling costs: rates with 1 to 100,000 fairness keys. With one key a queue is a plain FIFO queue.

It also shows what fairness is for: a noisy tenant enqueues a backlog, then nine quiet tenants a tenth of it each. With all
messages under one key the quiet tenants wait for the whole backlog. With a key for each tenant all have the same share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.fila import WAYS, Fila, blocking_client
from benchmarks.harness.messages import Load
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.report.spread import ratios, spread
from benchmarks.harness.systems import System
from benchmarks.harness.workload import Benchmark, Run, choice, number
from benchmarks.workloads import throughput
from fila_cluster import Message

FIFO_SHARE_MIN = 0.95
FEW, MANY, TIMES_MAX = 10, 10_000, 2.0
QUIET = 9
RATES = throughput.RATES
WAITS = "Messages of the noisy tenant before the last one of a quiet tenant"
ROWS = ("enqueue", "receive + ack", "both at once")


@dataclass(frozen=True)
class Scale(throughput.Scale):
    """The numbers of this benchmark."""

    numbers: str = number("Numbers of fairness keys, divided by commas.", "1,10,100,1000,10000,100000")
    noisy: int = number("Messages of the noisy tenant.", 10_000)
    way: str = choice("How clients reach the workers.", WAYS)


def measure(run: Run[Scale]) -> None:
    """Measure all numbers of keys, and the order of a noisy and nine quiet tenants."""
    system, numbers = Fila(way=run.scale.way), [int(each) for each in run.scale.numbers.split(",")]
    for keys in run.rounds(run.scale.rounds, numbers, "fairness"):
        load = Load(max(run.scale.messages, keys), run.scale.payload, keys)  # each key has a message
        throughput.backlog(run, system, load)
        throughput.both_at_once(run, system, load)
    series = [_line(run, system, row, numbers) for row in ROWS]
    run.chart(Chart("Messages a second by fairness keys", "fairness keys", "messages a second", series, x_log=True))
    _judge(run, system, numbers)
    for name, fair in (("one key for all", False), ("a key for each tenant", True)):
        run.figure(WAITS, name, system.name, "", _noisy_first(run, system, fair))


def _row(what: str, keys: int) -> str:
    return what if keys == 1 else f"{what}, {keys} keys"


def _line(run: Run[Scale], system: System, what: str, numbers: Sequence[int]) -> Series:
    medians = [spread(run.values(RATES, _row(what, keys), system.name)).median for keys in numbers]
    return Series(what, [float(keys) for keys in numbers], medians)


def _judge(run: Run[Scale], system: System, numbers: Sequence[int]) -> None:
    def rates(what: str, keys: int) -> list[float]:
        return run.values(RATES, _row(what, keys), system.name)

    for what in ROWS:
        if {1, FEW} <= set(numbers):
            share = spread(ratios(rates(what, FEW), rates(what, 1))).median
            text = f"{what}: with {FEW} keys {share:.2f} of the rate with one, at least {FIFO_SHARE_MIN}"
            run.promise(text, share >= FIFO_SHARE_MIN)
        if {FEW, MANY} <= set(numbers):
            times = spread(ratios(rates(what, FEW), rates(what, MANY))).median
            run.promise(f"{what}: {MANY:,} keys cost {times:.2f} times {FEW} keys, below {TIMES_MAX:g}", times < TIMES_MAX)


def _noisy_first(run: Run[Scale], system: Fila, fair: bool) -> int:
    """Return how many messages of the noisy tenant are received before the last one of the quiet tenants."""
    noisy, quiet = run.scale.noisy, run.scale.noisy // 10
    with run.serving(system) as server, blocking_client(server.address) as client:
        client.create_queue("tenants")
        tenants = ["noisy"] * noisy + [f"quiet-{number % QUIET}" for number in range(QUIET * quiet)]
        client.enqueue_many("tenants", (Message(name.encode(), fairness_key=name if fair else "default") for name in tenants))
        names: list[bytes] = []
        while len(names) < len(tenants):
            deliveries = client.receive("tenants", 100, wait=5)
            names += [delivery.payload for delivery in deliveries]
            client.ack(deliveries)
    last = max(place for place, name in enumerate(names) if name != b"noisy")
    return names[:last].count(b"noisy")


BENCHMARK = Benchmark(
    "fairness",
    measure,
    tiny=Scale(messages=1_000, numbers="1,10", noisy=500),
    small=Scale(messages=50_000, rounds=3),
    full=Scale(messages=200_000, rounds=5),
)
