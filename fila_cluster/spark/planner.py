"""Plan the batches of a query, with the read limits of PySpark since 4.2. Before, a batch always has the usual size."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from fila_cluster.client import Client, QueueInfo
from fila_cluster.client.calls.reservations import Reservations, WantedPart
from fila_cluster.client.forwarding import CommandsAhead
from fila_cluster.spark.options import RETRY_FOR_S, BrokerAccess
from fila_cluster.spark.pushdown import Selection, meant
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.limits import DELIVERY_MESSAGES_MAX
from fila_proto_zmq.names import whole_queue

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # PySpark 4.0 and 4.1

    class ReadLimit:  # type: ignore[no-redef]
        """A limit on a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A number of rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Marks readers that can stop at the messages of now."""


def rows_of(limit: Any, usual: int) -> int | None:
    """Return how many rows a limit allows; None: all there are."""
    if isinstance(limit, ReadAllAvailable):
        return None
    return int(limit.max_rows) if isinstance(limit, ReadMaxRows) else usual


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow", "rows_of"]


VERSION: Final = 1
_MARK: Final = "fila"


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch."""

    stream: str = ""
    """The name of the reader: made with the first batch, and kept in the checkpoint. Empty: no batch yet."""
    batch: int = 0
    """Batches that had messages, counted from 1."""
    endpoint: str = ""
    """The broker's endpoint, as the driver reaches it."""
    queues: Mapping[str, int] = field(default_factory=dict)
    """The number of messages of each queue in it; a partition of a queue counts as a queue."""

    @classmethod
    def of(cls, offset: Mapping[str, Any]) -> Self:
        """Make it of the JSON that Spark kept."""
        if offset.get(_MARK) != VERSION:
            raise ValueError(f"the checkpoint was written by another version, or another source: {dict(offset)!r}")
        return cls(offset["stream"], offset["batch"], offset["endpoint"], offset["queues"])

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Make it of the text of a progress report; None if it is of another source."""
        try:
            offset = msgspec.json.decode(text)
            return cls.of(offset) if isinstance(offset, dict) else None
        except (msgspec.MsgspecError, ValueError, KeyError):
            return None

    def kept(self) -> dict[str, Any]:
        """Return the JSON for Spark to keep."""
        return {
            _MARK: VERSION,
            "stream": self.stream,
            "batch": self.batch,
            "endpoint": self.endpoint,
            "queues": dict(self.queues),
        }

    @property
    def reservation(self) -> str:
        """The name of the reservation that holds its messages."""
        return f"spark/{self.stream}/{self.batch}"

    def following(self, endpoint: str) -> Self:
        """Return the next batch's offset, nothing reserved yet."""
        return replace(self, stream=self.stream or uuid4().hex, batch=self.batch + 1, endpoint=endpoint, queues={})


POLL_S: Final = 0.2
"""How long one request for messages waits for the first of them; Spark asks again at once."""

PARTS_AT_ONCE: Final = 8
"""Parts of each queue that are asked for together: one by one, round trips would take half of the time."""

LOOK_AGAIN_S: Final = 0.5
"""How often to list the queues that match a pattern and have messages."""

LAG_S: Final = 1.0
"""How old a report of the lag may be: with many fairness keys it takes time."""

AGES_MAX: Final = 8
"""Queues whose oldest message is in the report of the lag."""

_log = logging.getLogger(__name__)


class Planner:
    """Reserves, renews and ends the batches of one query."""

    def __init__(self, connection: BrokerAccess, selection: Selection, timeout_s: float) -> None:
        self._selection = selection
        self._timeout_s = timeout_s
        self._endpoint = connection.endpoint
        with connection.client() as client:
            self._infos(client)  # so that a wrong endpoint or name is an error at once
        self._client = connection.client(timeout_s=RETRY_FOR_S)
        self._reservations = Reservations(CommandsAhead(self._client))
        self._held: dict[str, Offset] = {}
        self._lock = Lock()
        self._closed = Event()
        self._ready: list[str] = []
        self._looked_at = self._lag_at = -float("inf")
        self._lag: dict[str, float] = {}
        self._renewing = Thread(target=self._renew, name="fila-reservations", daemon=True)
        self._renewing.start()

    # --- batches ------------------------------------------------------------------------------------------------------

    def plan(self, start: Offset, rows_max: int, *, patient: bool) -> Offset | None:
        """Reserve the batch after ``start``, up to ``rows_max`` messages; None: none is ready. ``patient``: wait a moment
        then."""
        batch = start.following(self._endpoint)
        counts: dict[str, list[int]] = {}
        self._hold(batch)  # from the first message on
        queues, left = self._queues(), rows_max
        while queues and left > 0:
            share = max(1, left // len(queues))
            wait_s = POLL_S if patient and not counts and len(queues) == 1 else 0.0
            at_once = 1 if wait_s else PARTS_AT_ONCE
            wanted = [part for queue in queues[:left] for part in _next_parts(queue, counts.get(queue, ()), share, at_once)]
            got = self._reservations.reserve(batch.reservation, wanted, self._timeout_s, wait_s=wait_s)
            for part, count in zip(wanted, got, strict=True):
                counts.setdefault(part.queue, []).append(count)
            left -= sum(got)
            queues = [queue for queue in queues[:left] if counts[queue][-1]]
        counts = {queue: parts for queue, parts in counts.items() if any(parts)}
        if not counts:
            self._let_go(batch)
            return None
        batch = replace(batch, queues={queue: sum(parts) for queue, parts in counts.items()})
        self._hold(batch)
        return batch

    def hold(self, batch: Offset) -> Mapping[str, list[tuple[int, int]]]:
        """Keep a batch that this or another process reserved; return what it still has, ``(part, messages)`` by queue."""
        self._hold(batch)
        parts = self._reservations.renew(batch.reservation, batch.queues, self._timeout_s)
        lost = sum(batch.queues.values()) - sum(count for pieces in parts.values() for _, count in pieces)
        if lost:
            _log.warning(
                "%d messages of batch %s are not reserved any more: they were not renewed for %g s, or their queue was "
                "deleted. Those that are still in their queues come again in later batches.",
                lost,
                batch.reservation,
                self._timeout_s,
            )
        return parts

    def complete(self, batch: Offset) -> None:
        """Acknowledge a batch. Doing it again does no harm."""
        self._let_go(batch)
        if batch.queues:
            self._reservations.ack(batch.reservation, batch.queues)

    def close(self) -> None:
        """Stop renewing."""
        self._closed.set()
        self._client.close()
        self._renewing.join()

    # --- queues -------------------------------------------------------------------------------------------------------

    def pending(self) -> int:
        """Return the number of waiting messages in the selected queues."""
        return sum(info.pending for info in self._infos())

    def lag(self) -> dict[str, float]:
        """Return the lag of the stream: messages, and the age of the oldest one in seconds."""
        if monotonic() - self._lag_at > LAG_S:
            infos = self._infos()
            self._lag = {name: sum(getattr(info, name) for info in infos) for name in ("pending", "delayed", "in_flight")}
            busy = sorted((info for info in infos if info.pending), key=lambda info: -info.pending)[:AGES_MAX]
            ages = [self._client.queue_stats(name).oldest_pending_age for name in {whole_queue(info.name) for info in busy}]
            self._lag["oldest_pending_s"] = round(max((age for age in ages if age is not None), default=0.0), 3)
            self._lag_at = monotonic()
        return self._lag

    def _queues(self) -> list[str]:
        """Return the queues to ask for messages: those named, and those that match and have some."""
        if monotonic() - self._looked_at > LOOK_AGAIN_S:
            infos = self._infos()
            self._ready = [info.name for info in infos if info.pending or len(infos) == len(self._selection.names) == 1]
            self._looked_at = monotonic()
        return list(self._ready)

    def _infos(self, client: Client | None = None) -> list[QueueInfo]:
        return meant(client or self._client, self._selection, to_drain=True)

    # --- what is held -------------------------------------------------------------------------------------------------

    def _hold(self, batch: Offset) -> None:
        with self._lock:
            self._held[batch.reservation] = batch

    def _let_go(self, batch: Offset) -> None:
        with self._lock:
            self._held.pop(batch.reservation, None)

    def _renew(self) -> None:
        while not self._closed.wait(self._timeout_s / 3):
            with self._lock:
                held = list(self._held.values())
            for batch in held:
                try:
                    self._reservations.renew(batch.reservation, batch.queues, self._timeout_s)
                except FilaError as error:  # the broker is away: the next time is early enough, or the reservation is over
                    if self._closed.is_set():
                        return
                    _log.warning("could not renew %s: %s", batch.reservation, error)


def _next_parts(queue: str, before: Sequence[int], rows: int, at_once: int) -> Iterator[WantedPart]:
    """Yield the parts to ask for next, up to this many rows, after those that were asked for before."""
    for number in range(len(before), len(before) + at_once):
        if rows <= 0:
            return
        yield WantedPart(queue, number, min(rows, DELIVERY_MESSAGES_MAX))
        rows -= DELIVERY_MESSAGES_MAX
