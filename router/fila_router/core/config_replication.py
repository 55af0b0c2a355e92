"""Changes of the runtime config, each of which reaches every worker before its client is answered.

::

    client ── SetConfig ──▶ router ──▶ owner of shard 0      checks it, makes it durable, numbers it
    client                  router ◀── ConfigChange
                            router ── PutConfig ──▶ every live worker
    client ◀─ ConfigChange ─ router ◀── Done from each of them, or they are lost

The router keeps a copy. The token buckets follow it, and a worker that returns is brought up to date from it before any other
frame is sent to the worker. The copy is not on disk: a new router gets the config from the workers as they register, and
the highest version wins. A client waits for a version, not for certain frames; so a lost frame does no harm.

With several routers the owner answers all of them, and each of them sends the change to every worker, so workers often get
versions that they have. A router may not have noticed there that another worker leads a shard by now. So a change is
confirmed when the log of every shard has it: then each later leader of the shard has it, too.
"""

from dataclasses import dataclass
from typing import Final, get_args

from fila_admission.in_flight import has_share
from fila_admission.limits import TRUST_MS
from fila_admission.refusals import interrupted, too_busy, unavailable
from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body, encode_error
from fila_proto_zmq.errors import FilaError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.events import ConfigNotTaken
from fila_proto_zmq.frames import ERROR, Header
from fila_router.core.answers import ReturnAddress, error_in
from fila_router.core.feature import EACH_TICK, NEVER, ClientRequest, Forward, Registration, RouterFeature, RouterState
from fila_router.core.routing import CLUSTER_SHARD
from fila_router.core.tokens.token_bank import TokenBank
from fila_router.core.worker_state import WorkerState

CHANGE_MS_MAX: Final = 4000
"""Just below the usual timeout of a client, so that the client gets this error."""


@dataclass(slots=True)
class PendingConfigChange:
    """A client's change under way. ``made``: the owner's answer, once it has come."""

    address: ReturnAddress
    deadline_ms: int
    made: wire.ConfigChange | None = None


class ConfigReplication(RouterFeature):
    """The copy of the config, and the changes under way, by the number that the owner repeats in its answer."""

    def __init__(self, state: RouterState, bank: TokenBank) -> None:
        super().__init__(state)
        changes = get_args(wire.ChangesConfig)
        self.commands = {
            **dict.fromkeys(changes, self._propose),
            **dict.fromkeys((wire.GetConfig, wire.ListConfig, wire.GetTemplate, wire.ListTemplates), self._from_any),
            wire.ListConfigHistory: self._from_owner,
        }
        self.answers = {**dict.fromkeys(changes, self._checked), wire.PutConfig: self._taken}
        self.version = 0
        self._several = state.settings.several
        self._in_logs = [0] * state.settings.shards_total
        """The version that the log of each shard has for certain."""
        self._table = state.table
        self._outgoing = state.outgoing
        self._bank = bank
        self._open: dict[int, PendingConfigChange] = {}
        self._asked = 0
        self._now_ms = 0
        bank.adopt({}, 0)

    @property
    def values(self) -> dict[str, str]:
        """The stored keys. The bank has them, because its limits follow."""
        return self._bank.limits.values

    # --- reads --------------------------------------------------------------------------------------------------------

    def _from_owner(self, request: ClientRequest, command: wire.ListConfigHistory) -> Forward:
        """Only the owner of shard 0 has the history."""
        self.state.check_started()
        return Forward(self._table.live_owner(CLUSTER_SHARD), CLUSTER_SHARD)

    def _from_any(self, request: ClientRequest, command: object) -> Forward:
        """Choose the first worker that serves a shard: all have the config."""
        self.state.check_started()
        for shard, worker in enumerate(self._table.owners):
            if worker is not None and worker.routable:
                return Forward(worker, shard)
        raise unavailable(0)

    # --- changes ------------------------------------------------------------------------------------------------------

    def _propose(self, request: ClientRequest, command: wire.ChangesConfig) -> None:
        """Send a client's change to the owner of shard 0, which checks it."""
        self.state.check_started()
        command.by = request.session.key.name if request.session.key else ""
        owner = self._table.live_owner(CLUSTER_SHARD)
        address, now_ms = request.address, request.now_ms
        if not has_share(address.client, [each.address for each in self._open.values()], self.state.limits.questions_max):
            raise too_busy(f"{len(self._open)} changes of the runtime config are under way")
        self._asked = max(self._asked + 1, now_ms)  # an answer to an earlier router has another number
        self._now_ms, self.due_ms = now_ms, EACH_TICK
        self._open[self._asked] = PendingConfigChange(address, now_ms + CHANGE_MS_MAX)
        self._outgoing.send([owner.identity], command, self._asked)

    def _checked(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        """Take in the owner's answer, also if the client waits no longer."""
        if not self._table.holds(worker, CLUSTER_SHARD):
            return
        try:
            if header.flags & ERROR:
                raise error_in(body)
            made = decode_body(wire.ConfigChange, body)
        except FilaError as error:
            self._refuse([header.request], error)
            return
        if header.request in self._open:
            self._open[header.request].made = made
        if made.version == self.version + 1:
            self._bank.follow(made.changes, now_ms)
            self.version = made.version
            self._send(self._live(), made.changes)
        elif made.version > self.version:
            # An earlier change was lost. The worker registers again, and sends the whole config with that.
            lost = ShardUnavailableError("changes of the runtime config were lost: register again")
            self._outgoing.to_workers.append([worker.identity, b"", *encode_error(wire.Pulse.opcode, 0, lost)])
        self._settle()

    def _taken(self, worker: WorkerState, header: Header, body: bytes, now_ms: int) -> None:
        """Take in a worker's answer to a change; the change's version is its request id."""
        if header.flags & ERROR:
            worker.config_sent = -1  # send the whole next time
            error = error_in(body)
            self._outgoing.notes.append(ConfigNotTaken(worker.name, header.request, error.code))
            self._refuse([number for number, change in self._open.items() if change.made], error)
            return
        version = min(header.request, worker.config_sent)
        worker.config_has = max(worker.config_has, version)
        for shard in _shards_in(body):
            if 0 <= shard < len(self._in_logs):
                self._in_logs[shard] = max(self._in_logs[shard], version)
        self._settle()

    def _settle(self) -> None:
        """Answer the clients whose version is everywhere."""
        if not self._open:
            return
        everywhere = min(self._in_logs) if self._several else self._at_workers()
        for number, change in list(self._open.items()):
            if change.made is not None and change.made.version <= min(everywhere, self.version):
                del self._open[number]
                self._outgoing.answer(change.address, change.made)

    def _at_workers(self) -> int:
        """Return the version that every worker has that may serve clients."""
        if self._now_ms < self._alone_from_ms():
            return -1
        return min((worker.config_has for worker in self._live()), default=0)

    def _alone_from_ms(self) -> int:
        """Return the time after which the workers that are not up take no more frames of clients.

        Clients may be connected directly to such a worker. It uses the config as it was until it has been without an answer
        of its router for too long.
        """
        began_ms = self._table.began_ms
        unknown = [self._now_ms if began_ms is None else began_ms] if None in self._table.owners else []
        away = [worker.seen_ms for worker in self._table.workers.values() if worker.door and not worker.routable]
        return max([*unknown, *away], default=-TRUST_MS) + TRUST_MS

    # --- workers ------------------------------------------------------------------------------------------------------

    def on_register(self, registration: Registration) -> None:
        """Take over a newer config, or send the config that the worker lacks."""
        registration.answer.config = self._exchange(registration.worker, registration.offer, registration.now_ms)
        registration.answer.config_version = self.version
        self._settle()

    def _exchange(self, worker: WorkerState, offer: wire.Register, now_ms: int) -> dict[str, str] | None:
        """Take over a newer config; return the config that the worker lacks. None: it lacks nothing, or gets it in pages.

        Two configs may have one version, as after a restored backup. Then that of the owner of shard 0 is the valid one.
        """
        differs = offer.config_version != self.version or offer.config != self.values
        from_owner = any(shard == CLUSTER_SHARD for shard, _ in offer.shards)
        if offer.config_version > self.version or (offer.config_version == self.version and differs and from_owner):
            self.version = offer.config_version
            self._bank.adopt(offer.config, now_ms)
            differs = False
            self._send([other for other in self._live() if other is not worker], None)
        worker.config_sent = worker.config_has = self.version  # it reads the answer before any later frame
        if not differs:
            if any(self._in_logs[shard] < self.version for shard, _ in offer.shards) and self._several:
                self._outgoing.send([worker.identity], wire.PutConfig(self.version, {}), self.version)
            return None
        whole = wire.put_whole(self.version, self.values)
        if len(whole) == 1 and not self._several:
            return dict(self.values)
        self._send_whole([worker], whole)
        return None

    def on_return(self, worker: WorkerState, now_ms: int) -> None:
        """Send the whole config to a worker that was lost and is back."""
        if self.version:
            self._send([worker], None)
        worker.config_has = self.version

    def on_absent(self, worker: WorkerState, now_ms: int) -> None:
        """Answer the clients that waited for this worker only."""
        self._settle()

    # --- ends without an answer ---------------------------------------------------------------------------------------

    def on_abandoned(self, worker: WorkerState, shards: frozenset[int]) -> None:
        """Fail the changes that wait for the owner, if it was lost."""
        if CLUSTER_SHARD in shards:
            self._refuse([number for number, change in self._open.items() if change.made is None], interrupted(CLUSTER_SHARD))

    def tick(self, now_ms: int) -> int:
        """Answer changes that have waited long enough, and fail those that wait for too long."""
        self._now_ms = now_ms
        self._settle()
        overdue = [number for number, change in self._open.items() if change.deadline_ms <= now_ms]
        if overdue:
            behind = ", ".join(self._behind() or ["the owner of shard 0"])
            self._refuse(
                overdue,
                RequestTimeoutError(
                    f"the change may be made, but {behind} did not answer in {CHANGE_MS_MAX / 1000:g} s: set it again"
                ),
            )
        return EACH_TICK if self._open else NEVER

    def _behind(self) -> list[str]:
        """Return the workers or shards that have not confirmed the newest version, for people."""
        if not self._several:
            return [worker.name for worker in self._live() if worker.config_has < self.version]
        owners = self._table.owners
        lacking = [shard for shard, version in enumerate(self._in_logs) if version < self.version]
        return [
            f"shard {shard} ({'no worker leads it' if owner is None or not owner.routable else owner.name})"
            for shard, owner in ((shard, owners[shard]) for shard in lacking)
        ]

    def _refuse(self, numbers: list[int], error: FilaError) -> None:
        for number in numbers:
            change = self._open.pop(number, None)
            if change is not None:
                self._outgoing.refuse(change.address, error)

    # --- the copy -----------------------------------------------------------------------------------------------------

    def _live(self) -> list[WorkerState]:
        return [worker for worker in self._table.workers.values() if worker.routable]

    def _send(self, workers: list[WorkerState], changes: dict[str, str | None] | None) -> None:
        """Send the newest version: its changes (None: unknown) to workers with the version before, the whole to others."""
        up_to_date = [worker for worker in workers if changes is not None and worker.config_sent == self.version - 1]
        behind = [worker for worker in workers if worker not in up_to_date]
        if up_to_date and changes is not None:
            self._outgoing.send(
                [worker.identity for worker in up_to_date], wire.PutConfig(self.version, changes), self.version
            )
        if behind:
            self._send_whole(behind, wire.put_whole(self.version, self.values))
        for worker in workers:
            worker.config_sent = self.version

    def _send_whole(self, workers: list[WorkerState], whole: list[wire.PutConfig]) -> None:
        identities = [worker.identity for worker in workers]
        for put in whole:
            self._outgoing.send(identities, put, 0 if put.more else self.version)


def _shards_in(body: bytes) -> list[int]:
    """Return the shards that a worker's answer names. The list is empty if it can't be read."""
    try:
        return decode_body(wire.ConfigTaken, body).shards
    except FilaError:
        return []
