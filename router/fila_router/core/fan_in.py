"""Clients' questions to every worker: asked once each, answered with one joined reply.

All or nothing: a list that silently lacks a shard would be a lie, so the first worker that fails or is lost fails the
whole, and so does the clock.
"""

from dataclasses import dataclass, field
from typing import Final

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import QueueInfo, QueueList
from fila_proto_zmq.errors import FilaError, RequestTimeoutError
from fila_proto_zmq.frames import ERROR, Header
from fila_router.core.answers import error_frame, error_in, reply_frame, too_busy, unavailable

FAN_IN_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, which so learns what happened."""

FAN_INS_MAX: Final = 1000
"""Questions under way at once."""

Frames = list[list[bytes]]
"""Multipart frames for clients, address first."""


@dataclass(slots=True)
class FanIn:
    """A question under way. Invariant: it is done exactly when ``waiting`` is empty."""

    client: bytes
    header: bytes
    key: bytes
    deadline_ms: int
    waiting: set[bytes]
    """Identities of the workers that have not answered yet."""
    queues: list[QueueInfo] = field(default_factory=list)

    def joined(self) -> list[bytes]:
        """The whole answer, sorted by name."""
        whole = QueueList(sorted(self.queues, key=lambda queue: queue.name))
        return reply_frame(self.client, self.header, self.key, whole)

    def failed(self, error: FilaError) -> list[bytes]:
        """The answer that there is none."""
        return error_frame(self.client, self.header, self.key, error)

    def overdue(self) -> list[bytes]:
        """The answer when somebody does not answer."""
        missing = ", ".join(sorted(identity.decode(errors="replace") for identity in self.waiting))
        return self.failed(RequestTimeoutError(f"no answer from {missing} in {FAN_IN_MS_MAX / 1000:g} s: try again"))


class FanIns:
    """All questions under way, by the request id that the workers repeat in their answers."""

    def __init__(self) -> None:
        self._open: dict[int, FanIn] = {}
        self._asked = 0

    def ask(self, client: bytes, header: bytes, key: bytes, asked: set[bytes], now_ms: int) -> int:
        """Note a question to the workers ``asked``; returns the request id to use."""
        if len(self._open) >= FAN_INS_MAX:
            raise too_busy(f"{FAN_INS_MAX} questions to all workers are open")
        self._asked += 1
        self._open[self._asked] = FanIn(client, header, key, now_ms + FAN_IN_MS_MAX, asked)
        return self._asked

    def join(self, identity: bytes, header: Header, body: bytes) -> Frames:
        """Take in one worker's answer."""
        fan_in = self._open.get(header.request)
        if fan_in is None or identity not in fan_in.waiting:
            return []
        try:
            fan_in.queues.extend(_queues_of(header, body))
        except FilaError as error:
            return [self._open.pop(header.request).failed(error)]
        fan_in.waiting.remove(identity)
        return [] if fan_in.waiting else [self._open.pop(header.request).joined()]

    def lose(self, identity: bytes, shard: int) -> Frames:
        """Give up what waits for a lost worker, the holder of ``shard``."""
        waiting = [request for request, fan_in in self._open.items() if identity in fan_in.waiting]
        return [self._open.pop(request).failed(unavailable(shard)) for request in waiting]

    def give_up(self, now_ms: int) -> Frames:
        """Give up what has waited for too long."""
        overdue = [request for request, fan_in in self._open.items() if fan_in.deadline_ms <= now_ms]
        return [self._open.pop(request).overdue() for request in overdue]


def _queues_of(header: Header, body: bytes) -> list[QueueInfo]:
    if header.flags & ERROR:
        raise error_in(body)
    return decode_body(QueueList, body).queues
