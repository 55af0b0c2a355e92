"""A router's counters and measurements."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from fila_proto_zmq.commands import RouterMetrics
from fila_router.core.worker_state import WorkerState


@dataclass(slots=True)
class RouterCounters:
    """A router's counters and measurements: frames by their sender and receiver, and refusals."""

    started_ms: int = 0
    rss_bytes: int = 0
    cpu_ms: int = 0
    from_clients: int = 0
    to_clients: int = 0
    from_workers: int = 0
    to_workers: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Requests that the router answered with an error, by its code."""
    refused_last: dict[str, bytes] = field(default_factory=dict)
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
