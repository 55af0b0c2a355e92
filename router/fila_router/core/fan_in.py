"""Questions of clients to all workers. Each worker is asked once, and the client gets one joined answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from fila_admission.in_flight import has_share
from fila_admission.refusals import too_busy, unavailable
from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.errors import FilaError, InvalidFrameError, RequestTimeoutError
from fila_proto_zmq.frames import ERROR, Header
from fila_router.core.answers import Frame, ReturnAddress, error_frame, error_in, reply_frame
from fila_router.core.feature import NEVER, ClientRequest, RouterFeature, RouterState
from fila_router.core.worker_state import WorkerState

_Page = TypeVar("_Page", bound=wire.Reply)

LIST_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, so that the client gets this error."""

METRICS_MS_MAX: Final = 1000
"""A client that asks every second has no use for older answers."""


class Joining(Protocol):
    """The answers so far. ``strict``: whether a missing one fails the question. ``ms_max``: how long to wait for the last."""

    strict: bool
    ms_max: int

    def add(self, body: bytes) -> None:
        """Take in one worker's answer. Raise :class:`InvalidFrameError` if it is malformed."""
        ...

    def whole(self) -> wire.Reply:
        """Return the joined answer."""
        ...


class JoinedPages(Generic[_Page]):
    """Answers of one kind. ``join``: makes one of them."""

    def __init__(
        self, kind: type[_Page], join: Callable[[list[_Page]], _Page], *, strict: bool = True, ms_max: int = LIST_MS_MAX
    ) -> None:
        self._kind, self._join = kind, join
        self.strict, self.ms_max = strict, ms_max
        self._answers: list[_Page] = []

    def add(self, body: bytes) -> None:
        """Take in one worker's answer."""
        self._answers.append(decode_body(self._kind, body))

    def whole(self) -> _Page:
        """Return the joined answer, perhaps a page of it."""
        return self._join(self._answers)


def _joined_backup(parts: list[wire.BackupParts]) -> wire.BackupParts:
    """Return all shards of a backup in order."""
    shards = sorted((each for part in parts for each in part.shards), key=lambda each: each.shard)
    return wire.BackupParts(shards, sorted({host for part in parts for host in part.hosts}))


class Unopened(wire.Reply):
    """:class:`~fila_proto_zmq.commands.Metrics` with packed workers, which may be large and are not read here."""

    workers: list[msgspec.Raw]
    status: wire.ClusterStatus | None = None
    router: wire.RouterMetrics | None = None


_open = msgspec.msgpack.Decoder(Unopened).decode


class Measurements:
    """Workers' metrics, and the router's own at the end."""

    strict = False
    ms_max = METRICS_MS_MAX

    def __init__(self, own: Callable[[], tuple[wire.ClusterStatus, wire.RouterMetrics]]) -> None:
        self._own = own
        self._workers: list[msgspec.Raw] = []

    def add(self, body: bytes) -> None:
        """Take in one worker's metrics."""
        try:
            self._workers += _open(body).workers
        except msgspec.MsgspecError as cause:
            raise InvalidFrameError(f"body of {len(body)} bytes is not Metrics: {cause}") from None

    def whole(self) -> Unopened:
        """Return the metrics so far."""
        return Unopened(self._workers, *self._own())


class HostLists:
    """Workers with their copies of shards, and the names of those that are missing."""

    strict = False
    ms_max = METRICS_MS_MAX

    def __init__(self, known: Callable[[], wire.HostList]) -> None:
        """``known``: returns the router's own state, with all workers as silent ones."""
        self._known = known
        self._workers: list[wire.HostWorker] = []
        self._answered = False

    def add(self, body: bytes) -> None:
        """Take in one worker's copies. It has none if the cluster has no replicated log."""
        self._workers += decode_body(wire.HostList, body).workers
        self._answered = True

    def whole(self) -> wire.HostList:
        """Return the workers so far, by name."""
        workers = sorted(self._workers, key=lambda worker: worker.name)
        known, answered = self._known(), {worker.name for worker in workers}
        has_hosts = bool(workers) or not self._answered
        silent = [name for name in known.silent if name not in answered] if has_hosts else []
        return wire.HostList(workers, known.shards, silent, known.served)


@dataclass(slots=True)
class FanIn:
    """A question under way. Invariant: it is done exactly when ``waiting`` is empty."""

    address: ReturnAddress
    deadline_ms: int
    waiting: set[bytes]
    """Identities of the workers that have not answered yet."""
    answers: Joining

    def joined(self) -> Frame:
        """Return the joined answer."""
        return reply_frame(self.address, self.answers.whole())

    def failed(self, error: FilaError) -> Frame:
        """Return an error as the answer."""
        return error_frame(self.address, error)

    def overdue(self) -> Frame:
        """Return the answer when a worker does not answer in time."""
        if not self.answers.strict:
            return self.joined()
        missing = ", ".join(sorted(identity.decode(errors="replace") for identity in self.waiting))
        return self.failed(RequestTimeoutError(f"no answer from {missing} in {self.answers.ms_max / 1000:g} s: try again"))


class FanIns(RouterFeature):
    """All open questions, by the request id that the workers repeat in their answers."""

    def __init__(self, state: RouterState) -> None:
        super().__init__(state)
        self.commands = {
            wire.ListQueues: self._list_queues,
            wire.ListSchedules: self._list_schedules,
            wire.ListThrottles: self._list_throttles,
            wire.BeginBackup: self._back_up,
            wire.CutBackup: self._back_up,
            wire.KeepBackup: self._back_up,
            wire.GetMetrics: self._get_metrics,
            wire.GetHosts: self._get_hosts,
        }
        self.answers = dict.fromkeys((*self.commands, wire.DescribeClients, wire.EndClient), self._answered)
        self._open: dict[int, FanIn] = {}
        self._asked = 0

    # --- commands of clients ------------------------------------------------------------------------------------------

    def _list_queues(self, request: ClientRequest, command: wire.ListQueues) -> wire.Reply | None:
        command.within = request.session.key.permissions.patterns if request.session.key else None
        pages = JoinedPages[wire.QueueList](wire.QueueList, wire.joined, strict=not command.partial)
        if command.partial:
            return self._ask_live(request, encode_body(command), pages)
        self._ask_all_shards(request, encode_body(command), pages)
        return None

    def _list_schedules(self, request: ClientRequest, command: wire.ListSchedules) -> None:
        command.within = request.session.key.permissions.patterns if request.session.key else None
        self._ask_all_shards(
            request, encode_body(command), JoinedPages[wire.ScheduleList](wire.ScheduleList, wire.joined_schedules)
        )

    def _list_throttles(self, request: ClientRequest, command: wire.ListThrottles) -> None:
        self._ask_all_shards(request, request.body, JoinedPages[wire.ThrottleList](wire.ThrottleList, wire.joined_throttles))

    def _back_up(self, request: ClientRequest, command: wire.BeginBackup | wire.CutBackup | wire.KeepBackup) -> None:
        self._ask_all_shards(request, request.body, JoinedPages[wire.BackupParts](wire.BackupParts, _joined_backup))
        # The joined answer does not end the act, so the question does.
        outgoing = self.state.outgoing
        outgoing.note(outgoing.audit.end(request.session.client, request.header))

    def _get_metrics(self, request: ClientRequest, command: wire.GetMetrics) -> wire.Reply | None:
        return self._ask_live(request, request.body, Measurements(self._own_metrics))

    def _get_hosts(self, request: ClientRequest, command: wire.GetHosts) -> wire.Reply | None:
        return self._ask_live(request, request.body, HostLists(self._known_hosts))

    def _own_metrics(self) -> tuple[wire.ClusterStatus, wire.RouterMetrics]:
        return self.state.status(), self.state.counters.metrics(self.state.table.workers.values())

    def _known_hosts(self) -> wire.HostList:
        table = self.state.table
        served = [shard for shard, owner in enumerate(table.owners) if owner is not None and owner.routable]
        return wire.HostList([], len(table.owners), sorted(worker.name for worker in table.workers.values()), served)

    # --- questions ----------------------------------------------------------------------------------------------------

    def _ask_all_shards(self, request: ClientRequest, body: bytes, answers: Joining) -> None:
        """Ask the workers of all shards; raise if one of those is down."""
        self.state.check_started()
        table = self.state.table
        asked = {table.live_owner(shard).identity for shard in range(len(table.owners))}
        self.ask(request, asked, request.header[3], body, answers)

    def _ask_live(self, request: ClientRequest, body: bytes, answers: Joining) -> wire.Reply | None:
        """Ask the workers that are up, even if a shard has no worker: the answer shows which are missing."""
        asked = self.live_workers()
        if not asked:
            return answers.whole()
        self.ask(request, asked, request.header[3], body, answers)
        return None

    def live_workers(self) -> set[bytes]:
        """Return the identities of the workers that are up."""
        return {worker.identity for worker in self.state.table.workers.values() if worker.routable}

    def ask(self, request: ClientRequest, workers: set[bytes], opcode: int, body: bytes, answers: Joining) -> None:
        """Send a question to ``workers``, at least one. Raise :class:`OverloadedError` if too many questions are open."""
        address = request.address
        if not has_share(address.client, [each.address for each in self._open.values()], self.state.limits.questions_max):
            raise too_busy(f"{len(self._open)} questions to all workers are open")
        self._asked += 1
        deadline_ms = request.now_ms + answers.ms_max
        self._open[self._asked] = FanIn(address, deadline_ms, set(workers), answers)
        self.due_ms = min(self.due_ms, deadline_ms)
        self.state.outgoing.send_body(sorted(workers), opcode, body, self._asked)

    def _answered(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        """Take in one worker's answer."""
        fan_in = self._open.get(header.request)
        if fan_in is None or worker.identity not in fan_in.waiting:
            return
        try:
            if header.flags & ERROR:
                raise error_in(body)
            fan_in.answers.add(body)
        except FilaError as error:
            self._miss(header.request, worker.identity, error)
        else:
            self._check_off(header.request, worker.identity)

    def on_abandoned(self, worker: WorkerState, shards: frozenset[int]) -> None:
        """Give up the answers of a worker that has lost shards. One that still lives may answer for the others."""
        error = unavailable(min(shards, default=0))
        for request, fan_in in list(self._open.items()):
            if worker.identity in fan_in.waiting and (fan_in.answers.strict or not worker.routable):
                self._miss(request, worker.identity, error)

    def _miss(self, request: int, identity: bytes, error: FilaError) -> None:
        """Continue without a worker's answer, or fail the question."""
        if self._open[request].answers.strict:
            self.state.outgoing.to_clients.append(self._open.pop(request).failed(error))
        else:
            self._check_off(request, identity)

    def _check_off(self, request: int, identity: bytes) -> None:
        self._open[request].waiting.remove(identity)
        if not self._open[request].waiting:
            self.state.outgoing.to_clients.append(self._open.pop(request).joined())

    def tick(self, now_ms: int) -> int:
        """Give up questions that have waited for too long."""
        overdue = [request for request, fan_in in self._open.items() if fan_in.deadline_ms <= now_ms]
        self.state.outgoing.to_clients += (self._open.pop(request).overdue() for request in overdue)
        return min((fan_in.deadline_ms for fan_in in self._open.values()), default=NEVER)
