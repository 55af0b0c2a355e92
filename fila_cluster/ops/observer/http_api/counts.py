"""The door's counts for ``/metrics``."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from fila_cluster.ops.observer.catalogue import COUNTER, GAUGE, Family, Metric, Scope, families_of
from fila_cluster.ops.observer.http_api.receivers import Receivers
from fila_cluster.ops.observer.sources import Source


class RequestCounts:
    """Numbers since the observer started. There are as many entries as operations and statuses."""

    def __init__(self, receivers: Receivers) -> None:
        self.since_ms = time.time_ns() // 1_000_000
        self.requests: Counter[tuple[str, int]] = Counter()
        self.receivers = receivers

    def families(self) -> list[Family]:
        """Return all of them under their names."""
        return families_of(DOOR_SCOPES, self)


def _requests(counts: RequestCounts) -> Iterator[Source]:
    for (operation, status), number in list(counts.requests.items()):  # at once: this is a thread beside the loop that counts
        yield Source((operation, str(status)), number, counts.since_ms)


def _receivers(counts: RequestCounts) -> Iterator[Source]:
    yield Source((), counts.receivers, counts.since_ms)


DOOR_SCOPES: Final = (
    Scope(
        ("operation", "status"),
        _requests,
        (Metric("fila.http.requests", COUNTER, "Requests at the HTTP door that were answered, by status.", float),),
    ),
    Scope(
        (),
        _receivers,
        (
            Metric("fila.http.waiting", GAUGE, "Requests at the HTTP door that wait for messages.", lambda it: it.waiting),
            Metric("fila.http.leased", GAUGE, "Messages that are leased to clients of the HTTP door.", lambda it: it.leased),
        ),
    ),
)
