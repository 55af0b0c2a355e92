"""Moves of shards from one worker to another, in steps.

::

    client ── MoveShard ──▶ router ── PrepareShard ──▶ source      flushes, and continues to serve
                            router ── ReleaseShard ──▶ source      answers its requests, names the target on disk, and
                                                                   closes the shard
                            router ── AdoptShards ───▶ target      opens the shard, and registers it
    client ◀─── Done ────── router

Between the release and the registration the router refuses requests for the shard, and its clients try again.

The router only sends requests. Files on disk say where each shard is (:mod:`fila_worker.storage.residence`). So a router that is
restarted during a move forgets it and loses nothing: the target finds the shard by itself. The same holds for each worker.

A drain moves all shards of a worker away, one at a time. The worker reports that it is drained whenever it registers, so the
drain continues after a restart of the router.

In a cluster with several routers each host has copies of the shards, and the hosts agree in the log which copy leads. There a
router moves nothing. For a drain it only sends the request to the worker, which hands its shards to the others.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from fila_admission.in_flight import has_share
from fila_admission.refusals import too_busy
from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import AdoptShards, Done, DrainWorker, MoveShard, PrepareShard, PutDraining, ReleaseShard, Reply
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.events import ShardMoved, ShardNotMoved, WorkerDraining, WorkerUndrained
from fila_proto_zmq.frames import ERROR, Header
from fila_proto_zmq.outages import FOLLOWING, QUARANTINED
from fila_router.core.answers import ReturnAddress, error_in
from fila_router.core.feature import EACH_TICK, NEVER, ClientRequest, Registration, RouterFeature, RouterState
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import WorkerState

MOVE_MS_MAX: Final = 60_000
"""How long a move may take before it is given up with an error. A shard of a million keys opens in ten seconds."""

REPEAT_MS: Final = 1000
"""After this time a step that was not answered is asked for again: its frame is lost if the worker's connection broke."""

PAUSE_MS: Final = 1000
"""How long a drain pauses after a move that failed."""


class MovePhase(Enum):
    """The step that a move waits for."""

    PREPARING = auto()
    RELEASING = auto()
    ADOPTING = auto()


@dataclass(slots=True, eq=False)
class Move:
    """A move under way."""

    shard: int
    source: WorkerState
    target: WorkerState
    deadline_ms: int
    phase: MovePhase = MovePhase.PREPARING
    released_ms: int | None = None
    """When the router began to refuse requests for the shard; None: not yet."""
    asked_ms: int = 0
    """When the source was last asked for a step."""
    clients: list[ReturnAddress] = field(default_factory=list)
    """The clients that wait for it."""

    @property
    def due_ms(self) -> int:
        """When it is given up, or its step is asked for again."""
        again_ms = self.deadline_ms if self.phase is MovePhase.ADOPTING else self.asked_ms + REPEAT_MS
        return min(self.deadline_ms, again_ms)


class Moves(RouterFeature):
    """The moves under way, by the number that workers repeat in their answers."""

    def __init__(self, state: RouterState, bank: TokenBank) -> None:
        super().__init__(state)
        self.commands = {MoveShard: self._move, DrainWorker: self._drain}
        self.answers = {PrepareShard: self._answered, ReleaseShard: self._answered}
        self._several = state.settings.several
        self._table = state.table
        self._outgoing = state.outgoing
        self._bank = bank
        self._open: dict[int, Move] = {}
        self._asked = 0
        self._drain_again_ms: dict[bytes, int] = {}
        """When to continue the drains whose last move failed."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def _move(self, request: ClientRequest, command: MoveShard) -> Reply | None:
        """Begin a client's move, which is answered when it is done. Raise the error that refuses it."""
        self.state.check_started()
        table, shard = self._table, command.shard
        if not 0 <= shard < len(table.owners):
            raise InvalidArgumentError(f"there is no shard {shard}: this cluster has shards 0 to {len(table.owners) - 1}")
        target = self._worker(command.worker)
        if self._several:
            raise InvalidArgumentError(
                f"shard {shard} has copies on several hosts, which agree by themselves where it is led: "
                "to have a worker lead nothing, run `fila-cluster drain WORKER`"
            )
        move = next((each for each in self._open.values() if each.shard == shard), None)
        if move is None and table.owners[shard] is target and target.routable:
            return Done()
        self._check_fit(target)
        waiting = [address for other in self._open.values() for address in other.clients]
        if not has_share(request.session.client, waiting, self.state.limits.questions_max):
            raise too_busy(f"{len(waiting)} clients wait for moves of shards")
        if move is None:
            move = self._begin(shard, self._source(shard), target, request.now_ms)
        elif move.target is not target:
            raise InvalidArgumentError(f"shard {shard} is on its way to {move.target.name}: wait until it is there")
        move.clients.append(request.address)
        return None

    def _drain(self, request: ClientRequest, command: DrainWorker) -> Reply:
        """Drain a worker, so that its shards move to others, or undo that. Raise the error that refuses it."""
        self.state.check_started()
        worker = self._worker(command.worker)
        if not worker.routable:
            raise InvalidArgumentError(f"{worker.name} is down: its shards can be moved when it is back")
        if worker.draining is command.undo:
            if not command.undo:
                self._refuse_last(worker)
            worker.draining, self.due_ms = not command.undo, EACH_TICK
            self._outgoing.send([worker.identity], PutDraining(worker.draining))
            shards = self._table.shards_of(worker)
            self._outgoing.notes.append(
                WorkerDraining(worker.name, shards) if worker.draining else WorkerUndrained(worker.name)
            )
        return Done()

    def _refuse_last(self, worker: WorkerState) -> None:
        if self._several:
            self._refuse_without_copies(worker)
        elif worker.home and not self._others(worker):
            elsewhere = [each.name for each in self._table.workers.values() if each.routable and each.home != worker.home]
            raise InvalidArgumentError(
                f"{worker.name} is the last worker that takes shards of its data directory, "
                "so they would have nowhere to go: start another worker there, or undo the drain of one"
                + (f" ({', '.join(sorted(elsewhere))} keep their shards elsewhere)" if elsewhere else "")
            )

    def _refuse_without_copies(self, worker: WorkerState) -> None:
        others = [each for each in self._table.workers.values() if each is not worker and each.routable and not each.draining]
        elsewhere = {outage.shard for other in others for outage in other.outages if outage.state == FOLLOWING}
        alone = [str(shard) for shard in self._table.shards_of(worker) if shard not in elsewhere]
        if alone:
            raise InvalidArgumentError(
                f"no other worker can take shard {', '.join(alone)} from {worker.name}, "
                "because none that is up and not drained has a copy: start the other hosts, or undo the drain of one"
            )

    def _worker(self, name: str) -> WorkerState:
        worker = self._table.workers.get(name.encode())
        if worker is None:
            known = ", ".join(sorted(each.name for each in self._table.workers.values()))
            raise InvalidArgumentError(f"there is no worker {name[:200]!r}: the workers are {known or 'not here yet'}")
        return worker

    def _source(self, shard: int) -> WorkerState:
        """Return the worker that serves a shard."""
        owner = self._table.owners[shard]
        if owner is not None and owner.routable:
            return owner
        error = self._table.unavailable(shard)
        if error.details.get("state") == QUARANTINED:
            raise InvalidArgumentError(f"a shard can only be moved while it serves: {error}")
        raise error

    def _check_fit(self, target: WorkerState) -> None:
        """Raise unless a worker takes shards."""
        if not target.routable:
            raise InvalidArgumentError(f"{target.name} is down: choose a worker that is up")
        if target.draining:
            raise InvalidArgumentError(
                f"{target.name} is drained and takes no shard: choose another worker, or let it take shards again with "
                f"`fila-cluster drain {target.name} --undo`"
            )

    def _others(self, worker: WorkerState) -> list[WorkerState]:
        """Return the workers that can take a worker's shards, the one with the fewest shards first."""
        fit = [
            other
            for other in self._table.workers.values()
            if other is not worker and other.routable and not other.draining and _share_a_directory(worker, other)
        ]
        return sorted(fit, key=lambda other: (len(self._table.shards_of(other)), other.identity))

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _begin(self, shard: int, source: WorkerState, target: WorkerState, now_ms: int) -> Move:
        if not _share_a_directory(source, target):
            raise InvalidArgumentError(
                f"shard {shard} is in the data directory of {source.name}, and {target.name} uses another one: "
                "a shard moves only between workers of one data directory on one machine"
            )
        self._asked = max(self._asked + 1, now_ms)  # an answer to an earlier router has another number
        move = self._open[self._asked] = Move(shard, source, target, now_ms + MOVE_MS_MAX)
        self._ask_source(self._asked, move, now_ms)
        return move

    def _answered(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        """Take in the answer of a move's source."""
        number = header.request
        move = self._open.get(number)
        if move is None or move.source is not worker:
            return
        if move.phase is MovePhase.ADOPTING:
            return  # the request was sent twice
        try:
            if header.flags & ERROR:
                raise error_in(body)
            decode_body(Done, body)
        except FilaError as error:
            self._fail(number, str(error), now_ms)
            return
        if header.opcode == PrepareShard.opcode and move.phase is MovePhase.PREPARING:
            move.phase, move.released_ms = MovePhase.RELEASING, now_ms
            self._table.release(move.shard)
            self._bank.suspend([move.shard], now_ms)
            self._ask_source(number, move, now_ms)
        elif header.opcode == ReleaseShard.opcode and move.phase is MovePhase.RELEASING:
            self.state.abandon(worker, frozenset({move.shard}))
            self._adopt(move)

    def _adopt(self, move: Move) -> None:
        move.phase = MovePhase.ADOPTING
        self._table.hand_on(move.shard, move.target, move.source)
        self._outgoing.send([move.target.identity], AdoptShards())

    def on_register(self, registration: Registration) -> None:
        """End, continue or give up the moves that a registration concerns. A request without an answer is sent again."""
        worker, now_ms = registration.worker, registration.now_ms
        if worker.draining:
            self.due_ms = EACH_TICK
        for number, move in list(self._open.items()):
            owner, source = self._table.owners[move.shard], move.source
            if owner is move.target:
                self._end(number, now_ms)
            elif move.phase is MovePhase.PREPARING and owner is not source:
                self._fail(number, f"{source.name} does not serve it any more", now_ms)
            elif move.phase is MovePhase.RELEASING and self._table.releasing.get(move.shard) is not source:
                # The source was restarted. It may have named the target on disk before that.
                if owner is None and not any(outage.shard == move.shard for outage in source.outages):
                    self._adopt(move)
                else:
                    self._fail(number, f"{source.name} was restarted before it gave the shard away", now_ms)
            elif move.phase is MovePhase.ADOPTING and owner is not None:
                self._fail(number, f"it is on {owner.name}", now_ms)
            elif worker is source:
                self._ask_source(number, move, now_ms)

    def on_absent(self, worker: WorkerState, now_ms: int) -> None:
        """Give up the moves that wait for a worker that is lost, or leaves. Its shards that are not released stay its own."""
        for number, move in list(self._open.items()):
            if move.source is worker and move.phase is not MovePhase.ADOPTING:
                self._fail(number, f"{worker.name} was lost before it gave the shard away", now_ms)
            elif move.target is worker and move.phase is MovePhase.PREPARING:
                self._fail(number, f"{worker.name} was lost", now_ms)

    def tick(self, now_ms: int) -> int:
        """Give up moves that take too long, and continue the drains."""
        for number, move in list(self._open.items()):
            if now_ms >= move.deadline_ms:
                where = "it opens there when that worker can" if move.phase is MovePhase.ADOPTING else "it stays where it is"
                self._fail(number, f"it takes longer than {MOVE_MS_MAX / 1000:g} s: {where}", now_ms)
            elif move.phase is not MovePhase.ADOPTING and now_ms >= move.asked_ms + REPEAT_MS:
                self._ask_source(number, move, now_ms)
        draining = [worker for worker in self._table.workers.values() if worker.draining]
        for worker in draining:
            if worker.routable:
                self._continue_drain(worker, now_ms)
        if draining:
            return EACH_TICK
        return min((move.due_ms for move in self._open.values()), default=NEVER)

    def _continue_drain(self, worker: WorkerState, now_ms: int) -> None:
        shards, others = self._table.shards_of(worker), self._others(worker)
        if any(move.source is worker for move in self._open.values()) or not shards or not others:
            return
        if now_ms >= self._drain_again_ms.get(worker.identity, 0):
            shard = shards[self._asked % len(shards)]  # in turn, so that one that can't be moved does not delay the others
            self._begin(shard, worker, others[0], now_ms)

    def _ask_source(self, number: int, move: Move, now_ms: int) -> None:
        move.asked_ms = now_ms
        self.due_ms = min(self.due_ms, now_ms + REPEAT_MS)
        if move.phase is MovePhase.PREPARING:
            self._outgoing.send([move.source.identity], PrepareShard(move.shard), number)
        elif move.phase is MovePhase.RELEASING:
            self._outgoing.send([move.source.identity], ReleaseShard(move.shard, move.target.name), number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, number: int, now_ms: int) -> None:
        move = self._open.pop(number)
        outage_ms = 0 if move.released_ms is None else now_ms - move.released_ms
        self._outgoing.notes.append(ShardMoved(move.shard, move.source.name, move.target.name, outage_ms))
        for address in move.clients:
            self._outgoing.answer(address, Done())

    def _fail(self, number: int, reason: str, now_ms: int) -> None:
        move = self._open.pop(number)
        self._table.coming.pop(move.shard, None)
        if move.phase is MovePhase.RELEASING:
            self._table.keep(move.shard)
            if move.source.routable:  # else its tokens count as spent, until it returns
                self._bank.resume([move.shard], now_ms)
        if move.source.draining:
            self._drain_again_ms = {each: ms for each, ms in self._drain_again_ms.items() if ms > now_ms}
            self._drain_again_ms[move.source.identity] = now_ms + PAUSE_MS
        self._outgoing.notes.append(ShardNotMoved(move.shard, move.source.name, move.target.name, reason))
        error = ShardUnavailableError(
            f"shard {move.shard} was not moved from {move.source.name} to {move.target.name}: {reason}",
            details={"shard": move.shard},
        )
        for address in move.clients:
            self._outgoing.refuse(address, error)


def _share_a_directory(one: WorkerState, other: WorkerState) -> bool:
    return bool(one.home) and one.home == other.home
