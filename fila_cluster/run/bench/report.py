"""A run's figures in a terminal."""

from collections.abc import Iterator
from typing import Final

from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fila_cluster.figures import counted, lasted, paced, shared, sized
from fila_cluster.run.bench.latencies import Latencies
from fila_cluster.run.bench.outcome import Outcome

_BAR_COLUMNS: Final = 30
_NAMES: Final = {"mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}
_BUSY: Final = 0.9
"""CPU seconds a second of one client process, from which on the clients are the limit."""


def report(outcome: Outcome) -> Iterator[RenderableType]:
    """Yield what to print."""
    workload = outcome.workload
    loop = "as fast as answers come" if workload.rate_s is None else f"{paced(workload.rate_s)} messages/s"
    yield (
        f"{counted(outcome.sent, 'message')} of {sized(workload.payload_bytes)}, {loop}: "
        f"{counted(workload.producers, 'producer')}, batches of {counted(workload.batch)}, "
        f"{counted(workload.keys, 'fairness key')}, {counted(workload.consumers, 'consumer')}\n"
    )
    yield _rates(outcome)
    yield ""
    yield _percentiles({"enqueue → confirmed": outcome.confirming, "enqueue → consumer": outcome.delivering})
    yield "\nenqueue → consumer"
    yield _histogram(outcome.delivering)
    yield ""
    yield from _remarks(outcome)


def _table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", no_wrap=True)
    return made


def _rates(outcome: Outcome) -> Table:
    rows = _table("", "#messages/s", "#payload/s")
    for name, rate in (
        ("enqueue", outcome.enqueue_rate),
        ("receive + ack", outcome.receive_rate),
        ("first enqueue to last ack", outcome.rate),
    ):
        rows.add_row(name, paced(rate), sized(round(rate * outcome.workload.payload_bytes)))
    return rows


def _percentiles(measured: dict[str, Latencies]) -> Table:
    rows = _table("", *(f"#{name}" for name in _NAMES.values()))
    for name, latencies in measured.items():
        figures = latencies.figures_s()
        rows.add_row(name, *(lasted(figures[figure] * 1e9) if figures else "–" for figure in _NAMES))
    return rows


def _histogram(latencies: Latencies) -> Table:
    bins = latencies.histogram()
    total, highest = sum(count for *_, count in bins), max((count for *_, count in bins), default=0)
    rows = _table("#up to", "", "#messages", "#")
    for _, high_us, count in bins:
        bar = Bar(highest, 0, count, width=_BAR_COLUMNS)
        rows.add_row(lasted(high_us * 1e3), bar, counted(count), shared(count / total))
    return rows


def _remarks(outcome: Outcome) -> Iterator[RenderableType]:
    workload = outcome.workload
    if not outcome.fault:
        repeated = f", {counted(outcome.repeated)} of them more than once" if outcome.repeated else ", once and whole"
        yield Text(f"verified: {counted(outcome.sent, 'message')} sent, all of them came{repeated}", style="green")
    for name, cpu, processes in (
        ("producers", outcome.producers_cpu, workload.producers),
        ("consumers", outcome.consumers_cpu, workload.consumers),
    ):
        if workload.rate_s is None and cpu > _BUSY * processes:
            yield f"the {name} had no CPU time left: with more of them (--{name}) the broker may do more"
