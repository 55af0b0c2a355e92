"""A router's counters and measurements, for metrics."""

from collections.abc import Iterable

from fila_proto_zmq.commands import RouterMetrics
from fila_router.core.worker_state import WorkerState


class RouterCounters:
    """Frames by their sender and receiver, and refusals."""

    __slots__ = (
        "cpu_ms",
        "from_clients",
        "from_workers",
        "refused",
        "refused_last",
        "rss_bytes",
        "started_ms",
        "to_clients",
        "to_workers",
    )

    def __init__(self) -> None:
        self.started_ms = 0
        self.rss_bytes = self.cpu_ms = 0
        self.from_clients = self.to_clients = self.from_workers = self.to_workers = 0
        self.refused: dict[str, int] = {}
        """Requests that the router answered with an error, by its code."""
        self.refused_last: dict[str, bytes] = {}
        """The last refused client, by the error's code."""

    def refuse(self, code: str, client: bytes) -> None:
        """Count a refused request."""
        self.refused_last[code] = client
        self.refused[code] = self.refused.get(code, 0) + 1

    def metrics(self, workers: Iterable[WorkerState]) -> RouterMetrics:
        """Return all counters, with the open requests of the workers."""
        workers = list(workers)
        open_requests = {worker.name: len(worker.in_flight) for worker in workers}
        open_bytes = {worker.name: worker.in_flight.size_bytes for worker in workers}
        return RouterMetrics(
            self.started_ms,
            self.from_clients,
            self.to_clients,
            self.from_workers,
            self.to_workers,
            dict(self.refused),
            open_requests,
            open_bytes,
            self.rss_bytes,
            self.cpu_ms,
            {worker.name: worker.direct_clients for worker in workers},
            {worker.name: worker.direct_frames for worker in workers},
        )
