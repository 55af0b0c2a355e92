"""What a router counts of itself: integers only, read by whoever asks for metrics."""

from collections.abc import Iterable

from fila_proto_zmq.commands import RouterMetrics
from fila_router.core.worker import Worker


class Tally:
    """Frames by where they came from and went to, and refusals."""

    __slots__ = ("from_clients", "from_workers", "refused", "started_ms", "to_clients", "to_workers")

    def __init__(self) -> None:
        self.started_ms = 0
        self.from_clients = self.to_clients = self.from_workers = self.to_workers = 0
        self.refused: dict[str, int] = {}
        """Requests that were answered with an error here, by its code."""

    def refuse(self, code: str) -> None:
        """A request was refused."""
        self.refused[code] = self.refused.get(code, 0) + 1

    def metrics(self, workers: Iterable[Worker]) -> RouterMetrics:
        """All of it, with what waits at the workers."""
        open_requests = {worker.name: len(worker.in_flight) for worker in workers}
        open_bytes = {worker.name: worker.in_flight.bytes for worker in workers}
        return RouterMetrics(
            self.started_ms, self.from_clients, self.to_clients, self.from_workers, self.to_workers, dict(self.refused),
            open_requests, open_bytes,
        )  # fmt: skip
