"""Measure the rates for payloads from 64 bytes to a megabyte: messages and megabytes a second, in bulk and one after the
other."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import clients
from benchmarks.harness.fila import WAYS, Fila
from benchmarks.harness.messages import Load
from benchmarks.harness.processes import together
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.report.spread import spread
from benchmarks.harness.systems import System
from benchmarks.harness.workload import Benchmark, Run, choice, number

QUEUE = "sized"
MESSAGES = "Messages a second"
MEGABYTES = "Megabytes of payload a second"
WHATS = ("enqueue", "receive + ack", "sequential enqueue")


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    messages: int = number("Messages of each load, at most.")
    megabytes: int = number("Megabytes of payload of each load, at most.")
    rounds: int = number("Rounds.")
    sizes: str = number("Bytes of payloads, divided by commas.", "64,256,1024,4096,16384,65536,262144,1048576")
    way: str = choice("How clients reach the workers.", WAYS)


def compare(run: Run[Scale], systems: Sequence[System]) -> None:
    """Measure systems side by side, round by round, at each size."""
    sizes = [int(size) for size in run.scale.sizes.split(",")]
    variants = [(system, size) for size in sizes for system in systems]
    for system, size in run.rounds(run.scale.rounds, variants, "payloads"):
        _sized(run, system, size)
    for what in WHATS:
        series = [_line(run, system, what, sizes) for system in systems]
        run.chart(
            Chart(f"Megabytes a second by payload: {what}", "bytes of a payload", "MB/s", series, x_log=True, y_log=True)
        )


def _sized(run: Run[Scale], system: System, size: int) -> None:
    load = Load(max(10, min(run.scale.messages, (run.scale.megabytes << 20) // size)), size)
    single = Load(max(5, load.count // 20), size)
    with run.serving(system) as server:
        clients.create(system, server, QUEUE, f"{QUEUE}-single")
        env = system.environment()
        (sent,) = together((clients.produce, system, server.address, QUEUE, load), env=env)
        (taken,) = together((clients.consume, system, server.address, QUEUE, load), env=env)
        run.verify(taken.verified)
        (alone,) = together((clients.send_one_by_one, system, server.address, f"{QUEUE}-single", single), env=env)
        (again,) = together((clients.consume, system, server.address, f"{QUEUE}-single", single), env=env)
        run.verify(again.verified)
    for what, work, count in zip(WHATS, (sent, taken, alone), (load.count, load.count, single.count), strict=True):
        rate = count / work.spent.seconds
        run.figure(MESSAGES, f"{what}, {_name(size)}", system.name, "/s", rate)
        run.figure(MEGABYTES, f"{what}, {_name(size)}", system.name, "MB/s", rate * size / 1e6)


def _name(size: int) -> str:
    """Return a size as tables show it."""
    for bytes_each, unit in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size >= bytes_each:
            return f"{size / bytes_each:g} {unit}"
    return f"{size} B"


def _line(run: Run[Scale], system: System, what: str, sizes: Sequence[int]) -> Series:
    medians = [spread(run.values(MEGABYTES, f"{what}, {_name(size)}", system.name)).median for size in sizes]
    return Series(system.name, [float(size) for size in sizes], medians)


def measure(run: Run[Scale]) -> None:
    """Measure this broker."""
    compare(run, [Fila(way=run.scale.way)])


BENCHMARK = Benchmark("payloads", measure, Scale(100, 2, 1, "64,1048576"), Scale(20_000, 100, 3), Scale(100_000, 500, 3))
