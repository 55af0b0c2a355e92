"""Workers register, fall silent, return, leave and are replaced.

Features that depend on it are called: see the ``on_`` methods of :class:`~core.feature.RouterFeature`.
"""

from typing import Final

from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import GetClusterStatus, Pulse, Pulsed, Register, Registered
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import WorkerJoined, WorkerLeft, WorkerLost, WorkerRefused, WorkerReturned
from fila_router.core.feature import EACH_TICK, Registration, RouterFeature, RouterState
from fila_router.core.routing import CLUSTER_SHARD
from fila_router.core.worker_state import WorkerState

START_MS_MAX: Final = 3000
"""How long a new router waits for the owner of shard 0, which has the runtime config and, with several routers, the API keys.

Then it uses the config of the workers that have registered, and the keys in its own file.
"""

TICK_GAP_MS_MAX: Final = 1000
"""After a longer pause between ticks no worker is lost: the machine slept, or this process was stopped."""

_KNOCK: Final = [b"", *encode_reply(Pulse.opcode, 0, Pulsed())]
"""An answer to a pulse that was not sent. A worker ignores it, but to send it shows whether there is a connection."""


class Membership(RouterFeature):
    """The workers, and the state that they get when they register."""

    def __init__(self, state: RouterState) -> None:
        super().__init__(state)
        self.commands = {GetClusterStatus: lambda request, command: state.status()}
        self._joined: dict[str, WorkerJoined] = {}
        """The last event of each worker, because a worker registers again and again."""
        self._ticked_ms = 0

    def register(self, identity: bytes, offer: Register, now_ms: int) -> Registered:
        """Route to a worker from now on; the answer brings it up to date. Raise for an outdated worker's offer."""
        table, outgoing = self.state.table, self.state.outgoing
        try:
            table.check_offer(identity, offer)
        except FilaError as error:
            outgoing.notes.append(WorkerRefused(identity.decode(errors="replace"), error.code, str(error)))
            raise
        known = table.workers.get(identity)
        if known is not None and known.routable and not known.lost and known.pid != offer.pid:
            # no tick has noticed the loss yet
            self.lose(known, "another process has taken its place", now_ms)
        superseded = table.register(identity, offer, now_ms)
        for previous, shards in superseded:
            self.state.abandon(previous, shards)
        worker = table.workers[identity]
        self.state.started |= any(shard == CLUSTER_SHARD for shard, _ in offer.shards)
        registration = Registration(worker, offer, superseded, Registered(), now_ms)
        for feature in self.state.features:
            feature.on_register(registration)
        serves = table.shards_of(worker)
        joined = WorkerJoined(worker.name, worker.pid, worker.version, serves)
        if serves and joined != self._joined.get(worker.name):  # one that has just started may still be opening its shards
            self._joined[worker.name] = joined
            outgoing.notes.append(joined)
        return registration.answer

    def frame_arrived(self, worker: WorkerState, now_ms: int, *, registers: bool) -> None:
        """Note a frame of a worker. If the worker was lost it is back, and is brought up to date before any other frame.

        ``registers``: the frame is a registration, perhaps of a new process. Then the registration itself brings the worker
        up to date.
        """
        was_routable = worker.routable
        worker.seen(now_ms)
        if worker.routable and not was_routable:
            for feature in self.state.features:
                feature.on_return(worker, now_ms)
            if not registers:
                worker.lost = False
                self.state.outgoing.notes.append(WorkerReturned(worker.name, worker.pid, self.state.table.shards_of(worker)))

    def pulsed(self, worker: WorkerState, pulse: Pulse, now_ms: int) -> Pulsed:
        """Take in a worker's pulse, and return the answer."""
        worker.rss_bytes = pulse.rss_bytes
        worker.queues = pulse.queues
        worker.direct_clients, worker.direct_frames = pulse.direct_clients, pulse.direct_frames
        answer = Pulsed(now_ms)
        for feature in self.state.features:
            feature.on_pulse(worker, pulse, answer, now_ms)
        return answer

    def leave(self, worker: WorkerState, now_ms: int) -> None:
        """Route nothing new to a worker; it answers its open requests."""
        worker.leave()
        shards = self._absent(worker, now_ms)
        self._joined.pop(worker.name, None)
        self.state.outgoing.notes.append(WorkerLeft(worker.name, worker.pid, shards))

    def lose(self, worker: WorkerState, why: str, now_ms: int) -> None:
        """Take a worker for lost, and answer its open requests with errors."""
        was_routable, worker.routable = worker.routable, False
        shards = self._absent(worker, now_ms)
        if was_routable:
            worker.lost = True
            self._joined.pop(worker.name, None)
            self.state.outgoing.notes.append(WorkerLost(worker.name, worker.pid, shards, why))
        self.state.abandon(worker, frozenset(shards))

    def _absent(self, worker: WorkerState, now_ms: int) -> list[int]:
        """Wait no longer for a worker; return its shards."""
        for feature in self.state.features:
            feature.on_absent(worker, now_ms)
        return self.state.table.shards_of(worker)  # with those that it was about to release

    def tick(self, now_ms: int) -> int:
        """Find silent workers, check the connections of the others, and measure how fast workers answer."""
        table = self.state.table
        if table.began_ms is None:
            table.began_ms = self._ticked_ms = now_ms
        if now_ms - self._ticked_ms > TICK_GAP_MS_MAX:
            table.forgive_silence(now_ms)
        self._ticked_ms = now_ms
        self.state.started |= now_ms - table.began_ms >= START_MS_MAX
        for worker in table.workers.values():
            if worker.routable or worker.in_flight:
                self._check_connection(worker, now_ms)
            worker.in_flight.measure(now_ms)
        return EACH_TICK

    def _check_connection(self, worker: WorkerState, now_ms: int) -> None:
        if worker.is_silent(now_ms):
            self.lose(worker, f"silent for {(now_ms - worker.seen_ms) / 1000:.1f} s", now_ms)
        else:
            self.state.outgoing.to_workers.append([worker.identity, *_KNOCK])

    def sweep(self, now_ms: int) -> None:
        """Forget the requests that no client waits for any more."""
        for worker in self.state.table.workers.values():
            worker.in_flight.forget_overdue(now_ms)
