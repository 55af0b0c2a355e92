"""The numbers of one moment under their names, before they are encoded."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fila_cluster.ops.observer.catalogue import SCOPES, UP, Metric, Scope
from fila_proto_zmq.commands import Histogram, Metrics

Number: TypeAlias = float | Histogram


@dataclass(slots=True)
class Sample:
    """A number of one source; unscaled. ``since_ms``: the start of its counting, Unix ms (0: not known)."""

    labels: tuple[str, ...]
    number: Number
    since_ms: int


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of a metric."""

    metric: Metric
    labels: tuple[str, ...]
    samples: Sequence[Sample]


def families(metrics: Metrics | None) -> list[Family]:
    """Return all samples; for ``None`` only the one that there is no answer."""
    up = Family(UP, (), [Sample((), float(metrics is not None), 0)])
    if metrics is None:
        return [up]
    return [up, *families_of(SCOPES, metrics)]


def families_of(scopes: Iterable[Scope], told: Any) -> list[Family]:
    """Return the samples of some scopes; ``told`` is what their sources take their numbers from."""
    known = []
    for scope in scopes:
        sources = list(scope.sources(told))
        for metric in scope.metrics:
            numbers = ((source, metric.read(source.counts)) for source in sources)
            samples = [Sample(each.labels, number, each.since_ms) for each, number in numbers if number is not None]
            if samples:
                known.append(Family(metric, scope.labels, samples))
    return known
