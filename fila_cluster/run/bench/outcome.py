"""The figures of a run, and whether every message came, once and whole."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fila_cluster.figures import counted
from fila_cluster.run.bench.latencies import Latencies
from fila_cluster.run.bench.seen import joined, missing, surplus
from fila_cluster.run.bench.workload import Consumed, Produced, Workload


@dataclass(slots=True)
class Outcome:
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
        """What a broker must not do, for people; empty if all is well. Repeated messages are no fault: at least once."""
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


def outcome_of(workload: Workload, produced: Sequence[Produced], consumed: Sequence[Consumed]) -> Outcome:
    """Join what the children found. A message that nobody has sent counts as damaged."""
    sent = sum(each.sent for each in produced)
    bitmaps = {number: joined(each.seen.get(number, b"") for each in consumed) for number in range(len(produced))}
    unknown = sum(surplus(bitmaps[number], each.sent) for number, each in enumerate(produced))
    unique = sum(bitmap.bit_count() for bitmap in bitmaps.values())
    damaged = sum(each.damaged for each in consumed)
    received = sum(each.received for each in consumed)
    first_ns, last_ns = min(each.first_ns for each in produced), max(each.last_ns for each in consumed)
    receiving_s = _seconds(min((each.first_ns for each in consumed if each.received), default=last_ns), last_ns)
    enqueuing_s = _seconds(first_ns, max(each.last_ns for each in produced))
    outcome = Outcome(
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
