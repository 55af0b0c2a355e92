"""Shards that go from one worker to another, one request after the other.

::

    client ── MoveShard ──▶ router ── PrepareShard ──▶ source      flushes, and serves on
                            router ── ReleaseShard ──▶ source      from here on the router refuses requests for the shard, and its
                                                                   clients ask again; the source answers what it has, names the
                                                                   target on disk, and closes the shard
                            router ── AdoptShards ───▶ target      opens the shard, and registers it
    client ◀─── Done ────── router

The router only sends requests. Files on disk say where each shard is (:mod:`fila_worker.storage.residence`). So a router that is restarted in
the middle forgets the move and loses nothing: the target finds the shard by itself. The same holds for each worker.

A drain moves all shards of a worker away, one at a time. The worker reports that it is drained whenever it registers, so the drain
goes on after a restart of the router.

Of a cluster with several routers each host has copies of the shards, and the hosts agree in the log which copy leads. There a router
moves nothing: it only tells a worker to hand its shards to the others.
"""

from collections.abc import Callable
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
from fila_router.core.answers import Outgoing, error_in
from fila_router.core.routing import RoutingTable
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import Worker

MOVE_MS_MAX: Final = 60_000
"""How long a move may take before it is given up with an error. A shard of a million keys opens in ten seconds."""

PAUSE_MS: Final = 1000
"""When to go on with a drain after a move that failed."""


class Phase(Enum):
    """What a move waits for."""

    PREPARING = auto()
    RELEASING = auto()
    ADOPTING = auto()


@dataclass(slots=True, eq=False)
class Move:
    """A move under way."""

    shard: int
    source: Worker
    target: Worker
    deadline_ms: int
    phase: Phase = Phase.PREPARING
    released_ms: int | None = None
    """When the router began to refuse requests for the shard; None: not yet."""
    clients: list[tuple[bytes, bytes, bytes]] = field(default_factory=list)
    """The clients that wait for it: client, header, routing key."""


@dataclass(slots=True)
class _Waiting:
    client: bytes


class Moves:
    """The moves under way, by the number that workers repeat in their answers."""

    def __init__(
        self,
        table: RoutingTable,
        bank: TokenBank,
        outgoing: Outgoing,
        clients_max: int,
        abandon: Callable[[Worker, frozenset[int]], None],
        *,
        several: bool = False,
    ) -> None:
        """``abandon(worker, shards)``: answers the requests that a worker has for shards and will not answer.

        ``several``: whether the cluster has other routers, and copies of each shard.
        """
        self._several = several
        self._table = table
        self._bank = bank
        self._outgoing = outgoing
        self._clients_max = clients_max
        self._abandon = abandon
        self._open: dict[int, Move] = {}
        self._asked = 0
        self._drain_again_ms: dict[bytes, int] = {}
        """When to go on with the drains whose last move failed."""

    # --- requests -----------------------------------------------------------------------------------------------------

    def ask(self, client: bytes, header: bytes, key: bytes, command: MoveShard, now_ms: int) -> None:
        """Begin a client's move, which is answered when it is done. Raise the error that refuses it."""
        table, shard = self._table, command.shard
        if not 0 <= shard < len(table.owners):
            raise InvalidArgumentError(f"there is no shard {shard}: this cluster has shards 0 to {len(table.owners) - 1}")
        target = self._worker(command.worker)
        if self._several:
            raise InvalidArgumentError(
                f"shard {shard} has copies on several hosts, which agree by themselves where it is led: to have a worker lead nothing, run "
                "`fila-cluster drain WORKER`"
            )
        move = self._move_of(shard)
        if move is None and table.owners[shard] is target and target.routable:
            self._outgoing.answer(client, header, key, Done())
            return
        self._check_fit(target)
        waiting = [_Waiting(each[0]) for other in self._open.values() for each in other.clients]
        if not has_share(client, waiting, self._clients_max):
            raise too_busy(f"{len(waiting)} clients wait for moves of shards")
        if move is None:
            move = self._begin(shard, self._source(shard), target, now_ms)
        elif move.target is not target:
            raise InvalidArgumentError(f"shard {shard} is on its way to {move.target.name}: wait until it is there")
        move.clients.append((client, header, key))

    def drain(self, command: DrainWorker) -> Reply:
        """Drain a worker, so that its shards move to others, or undo that. Raise the error that refuses it."""
        worker = self._worker(command.worker)
        if not worker.routable:
            raise InvalidArgumentError(f"{worker.name} is down: its shards can be moved when it is back")
        if worker.draining is command.undo:
            if not command.undo:
                self._refuse_last(worker)
            worker.draining = not command.undo
            self._outgoing.tell([worker.identity], PutDraining(worker.draining))
            shards = self._table.shards_of(worker)
            self._outgoing.notes.append(
                WorkerDraining(worker.name, shards) if worker.draining else WorkerUndrained(worker.name)
            )
        return Done()

    def _refuse_last(self, worker: Worker) -> None:
        if self._several:
            self._refuse_without_copies(worker)
        elif worker.home and not self._others(worker):
            elsewhere = [each.name for each in self._table.workers.values() if each.routable and each.home != worker.home]
            raise InvalidArgumentError(
                f"{worker.name} is the last worker that takes shards of its data directory, so they would have nowhere to go: "
                "start another worker there, or undo the drain of one"
                + (f" ({', '.join(sorted(elsewhere))} keep their shards elsewhere)" if elsewhere else "")
            )

    def _refuse_without_copies(self, worker: Worker) -> None:
        others = [each for each in self._table.workers.values() if each is not worker and each.routable and not each.draining]
        elsewhere = {outage.shard for other in others for outage in other.outages if outage.state == FOLLOWING}
        alone = [str(shard) for shard in self._table.shards_of(worker) if shard not in elsewhere]
        if alone:
            raise InvalidArgumentError(
                f"no other worker can take shard {', '.join(alone)} from {worker.name}, because none that is up and not drained has a copy: "
                "start the other hosts, or undo the drain of one"
            )

    def _worker(self, name: str) -> Worker:
        worker = self._table.workers.get(name.encode())
        if worker is None:
            known = ", ".join(sorted(each.name for each in self._table.workers.values()))
            raise InvalidArgumentError(f"there is no worker {name[:200]!r}: the workers are {known or 'not here yet'}")
        return worker

    def _source(self, shard: int) -> Worker:
        """Return the worker that serves a shard."""
        owner = self._table.owners[shard]
        if owner is not None and owner.routable:
            return owner
        error = self._table.unavailable(shard)
        if error.details.get("state") == QUARANTINED:
            raise InvalidArgumentError(f"a shard can only be moved while it serves: {error}")
        raise error

    def _check_fit(self, target: Worker) -> None:
        """Raise unless a worker takes shards."""
        if not target.routable:
            raise InvalidArgumentError(f"{target.name} is down: choose a worker that is up")
        if target.draining:
            raise InvalidArgumentError(
                f"{target.name} is drained and takes no shard: choose another worker, or let it take shards again with "
                f"`fila-cluster drain {target.name} --undo`"
            )

    def _others(self, worker: Worker) -> list[Worker]:
        """Return the workers that can take a worker's shards, the one with the fewest shards first."""
        fit = [
            other
            for other in self._table.workers.values()
            if other is not worker and other.routable and not other.draining and _share_a_directory(worker, other)
        ]
        return sorted(fit, key=lambda other: (len(self._table.shards_of(other)), other.identity))

    def _move_of(self, shard: int) -> Move | None:
        return next((move for move in self._open.values() if move.shard == shard), None)

    # --- the steps ----------------------------------------------------------------------------------------------------

    def _begin(self, shard: int, source: Worker, target: Worker, now_ms: int) -> Move:
        if not _share_a_directory(source, target):
            raise InvalidArgumentError(
                f"shard {shard} is in the data directory of {source.name}, and {target.name} uses another one: a shard moves only "
                "between workers of one data directory on one machine"
            )
        self._asked = max(self._asked + 1, now_ms)  # an answer to an earlier router has another number
        move = self._open[self._asked] = Move(shard, source, target, now_ms + MOVE_MS_MAX)
        self._ask_source(self._asked, move)
        return move

    def heard(self, worker: Worker, header: Header, body: bytes, now_ms: int) -> None:
        """Take in the answer of a move's source."""
        number = header.request
        move = self._open.get(number)
        if move is None or move.source is not worker:
            return
        if move.phase is Phase.ADOPTING:
            return  # the request was sent twice
        try:
            if header.flags & ERROR:
                raise error_in(body)
            decode_body(Done, body)
        except FilaError as error:
            self._fail(number, str(error), now_ms)
            return
        if header.opcode == PrepareShard.opcode and move.phase is Phase.PREPARING:
            move.phase, move.released_ms = Phase.RELEASING, now_ms
            self._table.release(move.shard)
            self._bank.suspend([move.shard], now_ms)
            self._ask_source(number, move)
        elif header.opcode == ReleaseShard.opcode and move.phase is Phase.RELEASING:
            self._abandon(worker, frozenset({move.shard}))
            self._adopt(move)

    def _adopt(self, move: Move) -> None:
        move.phase = Phase.ADOPTING
        self._table.hand_on(move.shard, move.target, move.source)
        self._outgoing.tell([move.target.identity], AdoptShards())

    def registered(self, worker: Worker, now_ms: int) -> None:
        """End, continue or give up the moves that a worker's registration concerns. Call it after the registration.

        What its source still has to do is asked for again: the request may be lost with the connection.
        """
        for number, move in list(self._open.items()):
            owner, source = self._table.owners[move.shard], move.source
            if owner is move.target:
                self._end(number, now_ms)
            elif move.phase is Phase.PREPARING and owner is not source:
                self._fail(number, f"{source.name} does not serve it any more", now_ms)
            elif move.phase is Phase.RELEASING and self._table.releasing.get(move.shard) is not source:
                # The source was restarted. It may have named the target on disk before that.
                if owner is None and not any(outage.shard == move.shard for outage in source.outages):
                    self._adopt(move)
                else:
                    self._fail(number, f"{source.name} was restarted before it gave the shard away", now_ms)
            elif move.phase is Phase.ADOPTING and owner is not None:
                self._fail(number, f"it is on {owner.name}", now_ms)
            elif worker is source:
                self._ask_source(number, move)

    def lost(self, worker: Worker, now_ms: int) -> None:
        """Give up the moves that wait for a worker that is lost, or leaves.

        Call it before asking for the worker's shards: a shard that it was about to release is its own again.
        """
        for number, move in list(self._open.items()):
            if move.source is worker and move.phase is not Phase.ADOPTING:
                self._fail(number, f"{worker.name} was lost before it gave the shard away", now_ms)
            elif move.target is worker and move.phase is Phase.PREPARING:
                self._fail(number, f"{worker.name} was lost", now_ms)

    def tick(self, now_ms: int) -> None:
        """Give up moves that take too long, and go on with the drains."""
        for number, move in list(self._open.items()):
            if now_ms >= move.deadline_ms:
                where = "it opens there when that worker can" if move.phase is Phase.ADOPTING else "it stays where it is"
                self._fail(number, f"it takes longer than {MOVE_MS_MAX / 1000:g} s: {where}", now_ms)
        for worker in self._table.workers.values():
            if worker.draining and worker.routable:
                self._drain_on(worker, now_ms)

    def _drain_on(self, worker: Worker, now_ms: int) -> None:
        shards, others = self._table.shards_of(worker), self._others(worker)
        if any(move.source is worker for move in self._open.values()) or not shards or not others:
            return
        if now_ms >= self._drain_again_ms.get(worker.identity, 0):
            shard = shards[self._asked % len(shards)]  # in turn, so that one that cannot be moved does not hold up the others
            self._begin(shard, worker, others[0], now_ms)

    def _ask_source(self, number: int, move: Move) -> None:
        if move.phase is Phase.PREPARING:
            self._outgoing.tell([move.source.identity], PrepareShard(move.shard), number)
        elif move.phase is Phase.RELEASING:
            self._outgoing.tell([move.source.identity], ReleaseShard(move.shard, move.target.name), number)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, number: int, now_ms: int) -> None:
        move = self._open.pop(number)
        outage_ms = 0 if move.released_ms is None else now_ms - move.released_ms
        self._outgoing.notes.append(ShardMoved(move.shard, move.source.name, move.target.name, outage_ms))
        for client, header, key in move.clients:
            self._outgoing.answer(client, header, key, Done())

    def _fail(self, number: int, reason: str, now_ms: int) -> None:
        move = self._open.pop(number)
        self._table.coming.pop(move.shard, None)
        if move.phase is Phase.RELEASING:
            self._table.keep(move.shard)
            self._bank.resume([move.shard], now_ms)
        if move.source.draining:
            self._drain_again_ms = {each: ms for each, ms in self._drain_again_ms.items() if ms > now_ms}
            self._drain_again_ms[move.source.identity] = now_ms + PAUSE_MS
        self._outgoing.notes.append(ShardNotMoved(move.shard, move.source.name, move.target.name, reason))
        error = ShardUnavailableError(
            f"shard {move.shard} was not moved from {move.source.name} to {move.target.name}: {reason}",
            details={"shard": move.shard},
        )
        for client, header, key in move.clients:
            self._outgoing.refuse(client, header, key, error)


def _share_a_directory(one: Worker, other: Worker) -> bool:
    return bool(one.home) and one.home == other.home
