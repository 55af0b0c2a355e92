"""How the answers of all workers become one.

A list of queues that silently lacks a shard would be a lie, so there the first worker that fails, fails the whole. Metrics are asked
for to see what is wrong: there whoever does not answer is left out.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import ClusterStatus, QueueList, Reply, RouterMetrics, joined
from fila_proto_zmq.errors import InvalidFrameError

LIST_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, which so learns what happened."""

METRICS_MS_MAX: Final = 1000
"""Who asks every second has nothing from older answers."""


class Joining(Protocol):
    """Answers so far. ``strict``: all or nothing; ``ms_max``: how long to wait for the last one."""

    strict: bool
    ms_max: int

    def add(self, body: bytes) -> None:
        """Take in one worker's answer; :class:`InvalidFrameError` if it is none."""
        ...

    def whole(self) -> Reply:
        """The joined answer."""
        ...


class QueueLists:
    """Lists of queues, by name."""

    strict = True
    ms_max = LIST_MS_MAX

    def __init__(self) -> None:
        self._lists: list[QueueList] = []

    def add(self, body: bytes) -> None:
        """One worker's queues."""
        self._lists.append(decode_body(QueueList, body))

    def whole(self) -> QueueList:
        """All queues, or a page of them."""
        return joined(self._lists)


class Unopened(Reply):
    """:class:`~fila_proto_zmq.commands.Metrics` whose workers stay packed: they may be large, and are passed on as they are."""

    workers: list[msgspec.Raw]
    status: ClusterStatus | None = None
    router: RouterMetrics | None = None


_open = msgspec.msgpack.Decoder(Unopened).decode


class Measurements:
    """Workers' metrics, and the router's own as of the end."""

    strict = False
    ms_max = METRICS_MS_MAX

    def __init__(self, own: Callable[[], tuple[ClusterStatus, RouterMetrics]]) -> None:
        self._own = own
        self._workers: list[msgspec.Raw] = []

    def add(self, body: bytes) -> None:
        """One worker's metrics."""
        try:
            self._workers += _open(body).workers
        except msgspec.MsgspecError as cause:
            raise InvalidFrameError(f"body of {len(body)} bytes is no Metrics: {cause}") from None

    def whole(self) -> Unopened:
        """What there is."""
        return Unopened(self._workers, *self._own())
