"""Questions of clients to every worker: each worker is asked once, and the client gets one joined answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from fila_admission.in_flight import has_share
from fila_admission.refusals import too_busy, unavailable
from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import (
    BackupParts,
    ClusterStatus,
    HostList,
    HostWorker,
    Reply,
    RouterMetrics,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, RequestTimeoutError
from fila_proto_zmq.frames import ERROR, Header
from fila_router.core.answers import error_frame, error_in, reply_frame
from fila_router.core.limits import DEFAULTS

_Page = TypeVar("_Page", bound=Reply)

LIST_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, so that the client gets this error."""

METRICS_MS_MAX: Final = 1000
"""A client that asks every second has no use for older answers."""


class Joining(Protocol):
    """The answers so far. ``strict``: all or nothing; ``ms_max``: how long to wait for the last one."""

    strict: bool
    ms_max: int

    def add(self, body: bytes) -> None:
        """Take in one worker's answer; :class:`InvalidFrameError` if it is malformed."""
        ...

    def whole(self) -> Reply:
        """Return the joined answer."""
        ...


class Pages(Generic[_Page]):
    """Pages of a list, by name. ``join``: makes one page of them."""

    ms_max = LIST_MS_MAX

    def __init__(self, kind: type[_Page], join: Callable[[Iterable[_Page]], _Page], *, strict: bool = True) -> None:
        self._kind, self._join, self.strict = kind, join, strict
        self._pages: list[_Page] = []

    def add(self, body: bytes) -> None:
        """Take in one worker's page."""
        self._pages.append(decode_body(self._kind, body))

    def whole(self) -> _Page:
        """Return all that there is, or a page of it."""
        return self._join(self._pages)


class BackupAnswers:
    """The parts of a backup, of which none may be missing."""

    strict = True
    ms_max = LIST_MS_MAX

    def __init__(self) -> None:
        self._parts: list[BackupParts] = []

    def add(self, body: bytes) -> None:
        """Take in one worker's shards."""
        self._parts.append(decode_body(BackupParts, body))

    def whole(self) -> BackupParts:
        """Return all shards in order."""
        shards = sorted((each for part in self._parts for each in part.shards), key=lambda each: each.shard)
        return BackupParts(shards, sorted({host for part in self._parts for host in part.hosts}))


class Unopened(Reply):
    """:class:`~fila_proto_zmq.commands.Metrics` whose workers stay packed: they may be large, and are not read here."""

    workers: list[msgspec.Raw]
    status: ClusterStatus | None = None
    router: RouterMetrics | None = None


_open = msgspec.msgpack.Decoder(Unopened).decode


class Measurements:
    """Workers' metrics, and the router's own at the end."""

    strict = False
    ms_max = METRICS_MS_MAX

    def __init__(self, own: Callable[[], tuple[ClusterStatus, RouterMetrics]]) -> None:
        self._own = own
        self._workers: list[msgspec.Raw] = []

    def add(self, body: bytes) -> None:
        """Take in one worker's metrics."""
        try:
            self._workers += _open(body).workers
        except msgspec.MsgspecError as cause:
            raise InvalidFrameError(f"body of {len(body)} bytes is no Metrics: {cause}") from None

    def whole(self) -> Unopened:
        """Return the metrics that there are."""
        return Unopened(self._workers, *self._own())


class HostLists:
    """Workers with their copies of shards, and the names of those that are missing."""

    strict = False
    ms_max = METRICS_MS_MAX

    def __init__(self, known: Callable[[], HostList]) -> None:
        """``known``: what the router knows by itself, with all workers as silent ones."""
        self._known = known
        self._workers: list[HostWorker] = []
        self._answered = False

    def add(self, body: bytes) -> None:
        """Take in one worker's copies. It has none if the cluster has no replicated log."""
        self._workers += decode_body(HostList, body).workers
        self._answered = True

    def whole(self) -> HostList:
        """Return the workers that there are, by name."""
        workers = sorted(self._workers, key=lambda worker: worker.name)
        known, heard = self._known(), {worker.name for worker in workers}
        has_hosts = bool(workers) or not self._answered
        silent = [name for name in known.silent if name not in heard] if has_hosts else []
        return HostList(workers, known.shards, silent, known.served)


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
    answers: Joining

    def joined(self) -> list[bytes]:
        """Return the whole answer."""
        return reply_frame(self.client, self.header, self.key, self.answers.whole())

    def failed(self, error: FilaError) -> list[bytes]:
        """Return an error as the answer."""
        return error_frame(self.client, self.header, self.key, error)

    def overdue(self) -> list[bytes]:
        """Return the answer when a worker does not answer in time."""
        if not self.answers.strict:
            return self.joined()
        missing = ", ".join(sorted(identity.decode(errors="replace") for identity in self.waiting))
        return self.failed(RequestTimeoutError(f"no answer from {missing} in {self.answers.ms_max / 1000:g} s: try again"))


class FanIns:
    """All open questions, by the request id that the workers repeat in their answers."""

    def __init__(self, questions_max: int = DEFAULTS.questions_max) -> None:
        self._questions_max = questions_max
        self._open: dict[int, FanIn] = {}
        self._asked = 0

    def ask(self, client: bytes, header: bytes, key: bytes, asked: set[bytes], answers: Joining, now_ms: int) -> int:
        """Note a question to the workers ``asked``; return the request id to use."""
        if not has_share(client, self._open.values(), self._questions_max):
            raise too_busy(f"{len(self._open)} questions to all workers are open")
        self._asked += 1
        self._open[self._asked] = FanIn(client, header, key, now_ms + answers.ms_max, asked, answers)
        return self._asked

    def join(self, identity: bytes, header: Header, body: bytes) -> Frames:
        """Take in one worker's answer."""
        fan_in = self._open.get(header.request)
        if fan_in is None or identity not in fan_in.waiting:
            return []
        try:
            if header.flags & ERROR:
                raise error_in(body)
            fan_in.answers.add(body)
        except FilaError as error:
            return self._miss(header.request, identity, error)
        return self._check_off(header.request, identity)

    def lose(self, identity: bytes, shard: int, *, lives: bool = False) -> Frames:
        """Give up the answers of a worker that has lost ``shard``.

        ``lives``: it has lost no more than that, and will still say what it has. That is enough where a part may be missing.
        """
        waiting = [
            request
            for request, fan_in in self._open.items()
            if identity in fan_in.waiting and (fan_in.answers.strict or not lives)
        ]
        return [frame for request in waiting for frame in self._miss(request, identity, unavailable(shard))]

    def _miss(self, request: int, identity: bytes, error: FilaError) -> Frames:
        """Go on without a worker's answer; return the frames for clients that this completes."""
        if self._open[request].answers.strict:
            return [self._open.pop(request).failed(error)]
        return self._check_off(request, identity)

    def _check_off(self, request: int, identity: bytes) -> Frames:
        self._open[request].waiting.remove(identity)
        return [] if self._open[request].waiting else [self._open.pop(request).joined()]

    def give_up(self, now_ms: int) -> Frames:
        """Give up questions that have waited for too long."""
        overdue = [request for request, fan_in in self._open.items() if fan_in.deadline_ms <= now_ms]
        return [self._open.pop(request).overdue() for request in overdue]
