"""Workers come, fall silent, return, leave and are replaced; the effects on all parts of the router.

Four parts depend on it: the clients that wait for a worker's answers, the runtime config, the parked throttle keys, and the
token bank.
"""

from typing import Final

from fila_admission.refusals import interrupted
from fila_proto_zmq.codec import encode_reply
from fila_proto_zmq.commands import Done, Park, Pulse, Pulsed, Register, Registered
from fila_proto_zmq.errors import FilaError
from fila_proto_zmq.events import WorkerJoined, WorkerLeft, WorkerLost, WorkerRefused, WorkerReturned
from fila_router.core.answers import Outgoing
from fila_router.core.config_replication import OWNER, ConfigReplication
from fila_router.core.confirmations import Confirmations, Wish
from fila_router.core.fan_in import FanIns
from fila_router.core.limits import RouterLimits
from fila_router.core.moves import Moves
from fila_router.core.routing import RoutingTable
from fila_router.core.tokens.grant_updates import Parks
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import Worker

START_MS_MAX: Final = 3000
"""How long a new router waits for what the owner of shard 0 has: the runtime config, and of several routers the API keys. Then it goes on with what the
workers brought, and with the keys in its file."""

TICK_GAP_MS_MAX: Final = 1000
"""A longer pause between ticks was the router's own: its machine slept, or the process was stopped."""

_KNOCK: Final = [b"", *encode_reply(Pulse.opcode, 0, Pulsed())]
"""An answer to a pulse that was not sent: a worker ignores it, but sending it shows whether there is a connection."""


class Membership:
    """The workers, and the state that they get when they come. ``started``: clients' frames may be forwarded."""

    def __init__(
        self,
        table: RoutingTable,
        bank: TokenBank,
        fan_ins: FanIns,
        outgoing: Outgoing,
        limits: RouterLimits,
        *,
        several: bool = False,
        waits: bool = True,
    ) -> None:
        """``several``: whether the cluster has other routers. ``waits``: for the owner of shard 0, before clients' frames are forwarded."""
        self.started = not waits
        self.config_replication = ConfigReplication(table, bank, outgoing, limits.questions_max, several=several)
        self.moves = Moves(table, bank, outgoing, limits.questions_max, self._abandon, several=several)
        self._several = several
        self._table = table
        self._bank = bank
        self._fan_ins = fan_ins
        self._outgoing = outgoing
        self._parks = Parks()
        self._parkings = Confirmations()
        self._joined: dict[str, WorkerJoined] = {}
        """What the log says of each worker: it registers again and again."""
        self.wall_ahead_ms = 0
        """How far the workers' time, by which parks end, is ahead of the router's."""
        self._ticked_ms = 0

    # --- coming -------------------------------------------------------------------------------------------------------

    def register(self, identity: bytes, offer: Register, now_ms: int) -> Registered:
        """Route to a worker from now on; the answer brings it up to date. Raises for an outdated worker's offer."""
        try:
            self._table.check_offer(identity, offer)
        except FilaError as error:
            self._outgoing.notes.append(WorkerRefused(identity.decode(errors="replace"), error.code, str(error)))
            raise
        known = self._table.workers.get(identity)
        if known is not None and known.routable and not known.lost and known.pid != offer.pid:
            # no tick has noticed the loss yet
            self.lose(known, "another process has taken its place", now_ms)
        superseded = self._table.register(identity, offer, now_ms)
        for worker, shards in superseded:
            self._abandon(worker, shards)
        worker = self._table.workers[identity]
        self._begin_sessions({shard for shard, _ in offer.shards}, superseded, now_ms)
        config = self.config_replication.greet(worker, offer, now_ms)
        self.park(worker, offer.parks, now_ms)
        self.started |= any(shard == OWNER for shard, _ in offer.shards)
        self.moves.registered(worker, now_ms)
        self.config_replication.settle()
        serves = self._table.shards_of(worker)
        joined = WorkerJoined(worker.name, worker.pid, worker.version, serves)
        if serves and joined != self._joined.get(worker.name):  # one that has just started may still be opening its shards
            self._joined[worker.name] = joined
            self._outgoing.notes.append(joined)
        return Registered(
            self.config_replication.version, config, self._parks.unknown_to(offer.parks, now_ms + self.wall_ahead_ms)
        )

    def _begin_sessions(self, offered: set[int], superseded: list[tuple[Worker, frozenset[int]]], now_ms: int) -> None:
        """End the token sessions that a registration ends.

        A worker with one router begins new sessions when it registers. One with several begins them when another router holds the bank,
        because it registers at each router.
        """
        void = set[int]().union(*(shards for _, shards in superseded))
        for shard in void if self._several else void | offered:
            self._bank.close(shard, now_ms)
        if self._several:  # those of a worker that was about to leave
            self._bank.resume(offered, now_ms)

    def heard(self, worker: Worker, now_ms: int, *, registers: bool = False) -> None:
        """Note a frame of a worker. If the worker was lost it is back, and is brought up to date before any other frame.

        ``registers``: the frame is a registration, perhaps of a new process; then the registration itself brings it up to
        date.
        """
        was_routable = worker.routable
        worker.seen(now_ms)
        if worker.routable and not was_routable:
            self.config_replication.bring_up(worker)
            parks = self._parks.unknown_to({}, now_ms + self.wall_ahead_ms)
            if parks:
                self._outgoing.tell([worker.identity], Park(parks))
            shards = self._table.shards_of(worker)
            self._bank.resume(shards, now_ms)
            if not registers:
                worker.lost = False
                self._outgoing.notes.append(WorkerReturned(worker.name, worker.pid, shards))

    def park(self, source: Worker, parks: dict[str, int], now_ms: int, request: int = 0) -> None:
        """Pass a worker's parked throttle keys on to the others. A ``request`` is answered when all have heard it."""
        new_parks = self._parks.merge(parks, now_ms + self.wall_ahead_ms)
        others = [worker.identity for worker in self._table.workers.values() if worker.routable and worker is not source]
        if not request:
            if new_parks:
                self._outgoing.tell(others, Park(new_parks))
        elif others:
            number = self._parkings.ask(source.identity, request, set(others))
            self._outgoing.tell(others, Park(parks), number)
        else:
            self._confirm(Wish(source.identity, request, set()))

    def parked(self, worker: Worker, number: int) -> None:
        """Note that a worker has parked the keys of another one."""
        wish = self._parkings.heard(number, worker.identity)
        if wish is not None:
            self._confirm(wish)

    def _confirm(self, wish: Wish) -> None:
        self._outgoing.to_workers.append([wish.origin, b"", *encode_reply(Park.opcode, wish.request, Done())])

    # --- going --------------------------------------------------------------------------------------------------------

    def leave(self, worker: Worker, now_ms: int) -> None:
        """Route nothing new to a worker; it answers its open requests."""
        self.moves.lost(worker, now_ms)
        worker.leave()
        shards = self._table.shards_of(worker)
        self._bank.suspend(shards, now_ms)
        self._lose_parkings(worker)
        self._joined.pop(worker.name, None)
        self._outgoing.notes.append(WorkerLeft(worker.name, worker.pid, shards))
        self.config_replication.settle()

    def lose(self, worker: Worker, why: str, now_ms: int) -> None:
        """Take a worker for lost, and answer its open requests with errors."""
        self.moves.lost(worker, now_ms)
        shards = self._table.shards_of(worker)
        if worker.routable:
            worker.routable, worker.lost = False, True
            self._joined.pop(worker.name, None)
            self._outgoing.notes.append(WorkerLost(worker.name, worker.pid, shards, why))
        self._bank.suspend(shards, now_ms)
        self._lose_parkings(worker)
        self._abandon(worker, frozenset(shards))
        self.config_replication.settle()

    def _lose_parkings(self, worker: Worker) -> None:
        for wish in self._parkings.lose(worker.identity):
            self._confirm(wish)

    def _abandon(self, worker: Worker, shards: frozenset[int]) -> None:
        """Answer the requests for ``shards`` that ``worker`` can't answer any more."""
        for client, header, key, shard, *_ in worker.in_flight.take(shards):
            self._outgoing.refuse(client, header, key, interrupted(shard))
        self._outgoing.to_clients += self._fan_ins.lose(worker.identity, min(shards, default=0), lives=worker.routable)
        if OWNER in shards:
            self.config_replication.lose_owner()

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Find silent workers and check the connections of the others."""
        if self._table.began_ms is None:
            self._table.began_ms = self._ticked_ms = now_ms
        if now_ms - self._ticked_ms > TICK_GAP_MS_MAX:
            self._table.forgive_silence(now_ms)
        self._ticked_ms = now_ms
        self.started |= now_ms - self._table.began_ms >= START_MS_MAX
        for worker in self._table.workers.values():
            if worker.routable or worker.in_flight:
                self._look_after(worker, now_ms)
        self.moves.tick(now_ms)
        self.config_replication.give_up(now_ms)

    def _look_after(self, worker: Worker, now_ms: int) -> None:
        if worker.is_silent(now_ms):
            self.lose(worker, f"silent for {(now_ms - worker.seen_ms) / 1000:.1f} s", now_ms)
        else:
            self._outgoing.to_workers.append([worker.identity, *_KNOCK])
