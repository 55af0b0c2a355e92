"""The figures of a run, and whether every message came, once and whole."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from rich.bar import Bar
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fila_cluster.figures import counted, lasted, paced, shared, sized
from fila_cluster.run.bench.latencies import Latencies, joined, missing, surplus
from fila_cluster.run.bench.workload import Consumed, Produced, Workload


@dataclass(slots=True)
class BenchOutcome:
    """The figures of a run. Rates are messages a second, durations seconds.

    ``enqueue_rate``: from the first intended time to the last confirmation; ``receive_rate``: from the first delivery to the
    last confirmed acknowledgement; ``rate``: from the first intended time to the last acknowledgement. ``confirming``: from a
    message's intended time to its confirmation; ``delivering``: from there to the consumer's program.
    """

    workload: Workload
    sent: int
    received: int
    lost: int
    repeated: int
    damaged: int
    example: str
    seconds: float
    enqueue_rate: float
    receive_rate: float
    rate: float
    confirming: Latencies = field(default_factory=Latencies)
    delivering: Latencies = field(default_factory=Latencies)
    producers_cpu: float = 0.0
    """CPU seconds a second of all producers: near their number, they and not the broker are the limit."""
    consumers_cpu: float = 0.0

    @property
    def fault(self) -> str:
        """The failures of the broker, for people; empty if all is well. Repeated messages are not a fault: at least once."""
        faults = [f"{counted(self.lost, 'message')} never came"] if self.lost else []
        if self.damaged:
            faults.append(f"{counted(self.damaged, 'message')} came that nobody sent so ({self.example})")
        return "; ".join(faults)

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "workload": msgspec.to_builtins(self.workload),
            **{name: getattr(self, name) for name in ("sent", "received", "lost", "repeated", "damaged", "seconds")},
            **{name: getattr(self, name) for name in ("enqueue_rate", "receive_rate", "rate")},
            "enqueue_latency": self.confirming.figures_s(),
            "delivery_latency": self.delivering.figures_s(),
            "delivery_histogram": [
                {"from": low / 1e6, "to": high / 1e6, "count": count} for low, high, count in self.delivering.histogram()
            ],
            "producers_cpu": self.producers_cpu,
            "consumers_cpu": self.consumers_cpu,
        }


def outcome_of(workload: Workload, produced: Sequence[Produced], consumed: Sequence[Consumed]) -> BenchOutcome:
    """Join the results of the children. A message that was never sent counts as damaged."""
    sent = sum(each.sent for each in produced)
    bitmaps = {number: joined(each.seen.get(number, b"") for each in consumed) for number in range(len(produced))}
    unknown = sum(surplus(bitmaps[number], each.sent) for number, each in enumerate(produced))
    unique = sum(bitmap.bit_count() for bitmap in bitmaps.values())
    damaged = sum(each.damaged for each in consumed)
    received = sum(each.received for each in consumed)
    first_ns, last_ns = min(each.first_ns for each in produced), max(each.last_ns for each in consumed)
    receiving_s = _seconds(min((each.first_ns for each in consumed if each.received), default=last_ns), last_ns)
    enqueuing_s = _seconds(first_ns, max(each.last_ns for each in produced))
    outcome = BenchOutcome(
        workload=workload,
        sent=sent,
        received=received,
        lost=sum(missing(bitmaps[number], each.sent) for number, each in enumerate(produced)),
        repeated=received - damaged - unique,
        damaged=damaged + unknown,
        example=next((each.wrong for each in consumed if each.wrong), "a number beyond the last one"),
        seconds=_seconds(first_ns, last_ns),
        enqueue_rate=_rate(sent, enqueuing_s),
        receive_rate=_rate(received, receiving_s),
        rate=_rate(received, _seconds(first_ns, last_ns)),
        producers_cpu=_rate(sum(each.cpu_s for each in produced), enqueuing_s),
        consumers_cpu=_rate(sum(each.cpu_s for each in consumed), receiving_s),
    )
    for producer in produced:
        outcome.confirming.merge(producer.latencies)
    for consumer in consumed:
        outcome.delivering.merge(consumer.latencies)
    return outcome


def _seconds(first_ns: int, last_ns: int) -> float:
    return max(0, last_ns - first_ns) / 1e9


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else 0.0


_BAR_COLUMNS: Final = 30
_NAMES: Final = {"mean": "mean", "p50": "p50", "p90": "p90", "p99": "p99", "p999": "p99.9", "max": "max"}
_BUSY: Final = 0.9
"""CPU seconds a second of one client process, from which on the clients are the limit."""


def report(outcome: BenchOutcome) -> Iterator[RenderableType]:
    """Yield the texts to print."""
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


def _rates(outcome: BenchOutcome) -> Table:
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


def _remarks(outcome: BenchOutcome) -> Iterator[RenderableType]:
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
