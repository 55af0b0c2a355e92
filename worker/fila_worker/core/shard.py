"""A shard: whole queues, one scheduler, one transaction a turn.

The owner of a shard calls, each turn::

    shard.apply(call, command)            # for each frame that came in
    effects = shard.turn(now_ms)          # what is due, deliveries, one batch; then, and only then, send the effects

The features of a shard are its components, listed in :data:`COMPONENTS`. Each has its commands, its part of the memory and
its due time.

The shard does not read a clock, a socket or a disk: time is an argument, storage a port. A command either takes full effect,
or raises a :class:`FilaError` before it changes anything. Any other error, and a :class:`StorageError`, leaves memory ahead
of the disk. Then the owner must drop the shard and recover a new one: there is no other rollback.

Reads see only committed data. A command that has to read therefore calls :meth:`State.settle_writes` first. It commits the
writes of the turn so far, at a point where they are consistent.
"""

from collections.abc import Callable
from types import GeneratorType
from typing import Final, TypeAlias

from fila_proto_zmq.commands import (
    ChangesByBroker,
    ChangesConfig,
    Command,
    ConfigChange,
    CreateByTemplate,
    CreatePartitioned,
    DeletePartitioned,
    DeleteTemplate,
    Enqueue,
    Enqueued,
    FetchKeys,
    Goodbye,
    Grants,
    ListConfig,
    MakeByTemplate,
    PartitionIdle,
    PartitionsClosed,
    PutConfig,
    PutTemplate,
    Reply,
    ReportMove,
    SetConfig,
    Settle,
    Settled,
    StoreKeys,
    UndoConfig,
    UpdatePartitioned,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, QueueNotFoundError, StorageError
from fila_proto_zmq.events import StorageRecovered, StorageStalled
from fila_proto_zmq.templates import Templates
from fila_worker.core.callback_groups.batches import Batches
from fila_worker.core.deliver.delivery import BankRequests, Deliveries, IdleTokens
from fila_worker.core.deliver.reservations import ReservedMessages
from fila_worker.core.deliver.subscriptions import Subscriptions, UnseenLeases, WaitingReceives, end_client, lose_way
from fila_worker.core.due_time import AT_ONCE, NEVER, Agenda, DueTime
from fila_worker.core.effects import Answer, ClientCall, Effect
from fila_worker.core.enqueue.closing import check_open, is_closing
from fila_worker.core.enqueue.enqueue import Enqueues, enqueue_usual
from fila_worker.core.explain.explain import Explanations
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.inspect.backlog import Backlog
from fila_worker.core.inspect.browse import Browses
from fila_worker.core.inspect.views import OpenViews
from fila_worker.core.jobs import Work
from fila_worker.core.manage import idle_partitions, partition_moves, partitions, templates
from fila_worker.core.manage.api_keys import KeysVersion, StoredApiKeys, fetch_keys, store_keys
from fila_worker.core.manage.config import ConfigCopy, put_config, set_config, undo_config
from fila_worker.core.manage.dead_letter_targets import DeadLetterTargets
from fila_worker.core.manage.idle_partitions import IdlePartitions
from fila_worker.core.manage.move import BacklogMoves
from fila_worker.core.manage.partitions import Partitions
from fila_worker.core.manage.purge import Purges
from fila_worker.core.manage.queue_commands import QueueCommands
from fila_worker.core.manage.redrive import Redrives
from fila_worker.core.manage.throttles import ThrottleLists
from fila_worker.core.metrics import meter
from fila_worker.core.metrics.describe import Descriptions
from fila_worker.core.metrics.meter import Reports
from fila_worker.core.model import cold_lanes
from fila_worker.core.model.component import Component, InvariantBroken, PeerVerb, Verb
from fila_worker.core.model.queues import Queue
from fila_worker.core.model.state import Opening, State
from fila_worker.core.places.bank import PlaceBank
from fila_worker.core.places.holdings import PlaceDeals, PlaceReports
from fila_worker.core.schedules.schedules import Schedules
from fila_worker.core.settings import ShardSettings
from fila_worker.core.settle.actual_costs import ActualCosts
from fila_worker.core.settle.settle import Settlements, settle_usual
from fila_worker.core.settle.transfers import Transfers
from fila_worker.core.store import DiskSpace, Store
from fila_worker.core.stored.messages import LedgerFolds, StoredMessages
from fila_worker.core.timers import DueEntries, OpenJobs

COMPONENTS: Final[tuple[type[Component], ...]] = (
    ConfigCopy,
    StoredApiKeys,
    StoredMessages,
    Settlements,
    DueEntries,
    Batches,
    Subscriptions,
    UnseenLeases,
    OpenJobs,
    IdleTokens,
    Enqueues,
    DeadLetterTargets,
    OpenViews,
    PlaceDeals,
    Deliveries,
    ActualCosts,
    BankRequests,
    PlaceReports,
    PlaceBank,
    WaitingReceives,
    Schedules,
    Transfers,
    LedgerFolds,
    QueueCommands,
    ThrottleLists,
    ReservedMessages,
    Backlog,
    Browses,
    Purges,
    Redrives,
    BacklogMoves,
    IdlePartitions,
    Partitions,
    Descriptions,
    Reports,
    Explanations,
)
"""The components, in the order of a turn: first those that may put messages in line, then the delivery, then those that need
its results. It is also the order of recovery: the config, then the stored messages, then the components that need them.
"""

VERBS: Final[dict[type[Command], Verb]] = {
    command: verb for component in COMPONENTS for command, verb in component.verbs.items()
}
PEER_VERBS: Final[dict[type[Command], PeerVerb]] = {
    command: verb for component in COMPONENTS for command, verb in component.peer_verbs.items()
}
"""The functions that carry out each kind of command: of clients, and of other shards."""

_CHANGES: Final[dict[type[Command], Callable[..., ConfigChange]]] = {
    SetConfig: set_config,
    UndoConfig: undo_config,
    PutTemplate: templates.put_template,
    DeleteTemplate: templates.delete_template,
    CreatePartitioned: partitions.create_partitioned,
    CreateByTemplate: partitions.create_by_template,
    UpdatePartitioned: partitions.update_partitioned,
    DeletePartitioned: partitions.delete_partitioned,
    MakeByTemplate: partitions.create_by_template,
    PartitionIdle: idle_partitions.note_idle,
    PartitionsClosed: idle_partitions.note_closed,
    ReportMove: partition_moves.take_report,
}
"""The functions that make each kind of change of the runtime config."""

NO_QUEUE: Final = ""

Timed: TypeAlias = tuple[DueTime, Callable[[int], int | None], bool]
"""When a component is due, its tick, and whether it is patient."""


class Shard(State):
    """A state, and the methods for its owner."""

    def __init__(self, store: Store, settings: ShardSettings, compile_hooks: HookCompiler, opening: Opening) -> None:
        super().__init__(store, settings, compile_hooks, opening)
        self.components = tuple(component(self) for component in COMPONENTS)
        timed = [each for each in self.components if type(each).tick is not Component.tick]
        self._timed = [(each.timer, each.tick, each.patient) for each in timed]
        self._at_delivery = [timer for timer, _, _ in self._timed].index(self.delivery)
        self._agenda = Agenda()
        """Of all components but the delivery, which is due in most turns."""
        for each in timed:
            if each.timer is not self.delivery:
                each.timer.enter(self._agenda)
        self._turn_ms = 0
        self._disk_space = DiskSpace(settings.limits.waste_bytes_min)
        self._stalled = False
        """Whether the storage was slow at the last check."""
        self._awaited = [each.timer for each in timed if not each.in_passing]
        self._awaited_behind = [each.timer for each in timed if not (each.in_passing or each.patient)]

    def apply(self, call: ClientCall, command: Command) -> None:
        """Carry out a command. Its answer, or its error, is added to the turn's effects."""
        verb = VERBS.get(type(command))
        self.consumers.touch(call.client, call.now_ms)
        queue = self.queues.get(call.queue)
        if queue is not None and not queue.usual:
            self.touch(queue, call.now_ms)
        try:
            if self.closing:
                check_open(self, call.queue)
            if queue is None and len(self.runtime.definitions):
                met = partitions.meet(self, call, command)
                if met is None:
                    return
                call = met
            if verb is None:
                raise InvalidFrameError(f"{type(command).__name__} is not for a shard")
            outcome = verb(self, call, command)
            if type(outcome) is GeneratorType:
                self.pursue(call, command, outcome)
            else:
                self.conclude(call, command, outcome)  # type: ignore[arg-type]  # not work
        except StorageError:
            raise  # not a refusal: the turn's changes may not be on disk
        except FilaError as error:
            self.conclude(call, command, error)

    def take_in_usual(self, call: ClientCall, command: Enqueue | Settle) -> Reply | None:
        """Carry out a usual request, and return its reply; None: it is not usual, and nothing is done.

        The caller sends the reply with the effects of this turn.
        """
        reply: Enqueued | Settled | None
        if isinstance(command, Settle):
            reply = settle_usual(self, call, command)
        elif (reply := enqueue_usual(self, call, command)) is not None and reply.faults:
            meter.note_faults(self.queues.get(call.queue), reply)
        if reply is not None:
            self.consumers.touch(call.client, call.now_ms)
        return reply

    def queue_by_template(self, name: str, now_ms: int) -> Queue:
        """Make and return a missing queue. Raise :class:`QueueNotFoundError` if its name matches no template."""
        return templates.queue_by_template(self, name, now_ms)

    def entrance(self, name: str, now_ms: int) -> Queue | None:
        """Return the queue here that takes in what is sent to a name: the queue itself, or a partition; None: there is none."""
        queue = self.queues.get(name)
        if self.closing and is_closing(self, name):
            return None
        if queue is None and len(self.runtime.definitions):
            return partitions.entrance(self, name, now_ms)
        return queue

    def pursue(self, call: ClientCall, command: Command, outcome: "Reply | Work | None") -> None:
        """Answer with the outcome of a command, or begin its work.

        Enqueues are in their queue's line, most other commands in their client's. Commands that list the config have one
        common line: their answers may be large, and are made one after the other.
        """
        if type(outcome) is not GeneratorType:
            self.conclude(call, command, outcome)  # type: ignore[arg-type]  # not work
        elif type(command) is Enqueue:
            self.jobs.start(outcome, call.queue, call, command, sum(map(len, command.envelopes)))
        elif type(command) is ListConfig:
            self.jobs.start(outcome, NO_QUEUE, call, command)
        else:
            self.jobs.start(outcome, call.client, call, command, refusable=type(command) is not Goodbye)

    def conclude(self, call: ClientCall, command: Command, outcome: Reply | FilaError | None) -> None:
        """Add the answer or the error of a command to the turn's effects. None: it is answered elsewhere."""
        if outcome is None:
            return
        if isinstance(outcome, FilaError):
            if type(outcome) is QueueNotFoundError:
                outcome = templates.with_hint(self, call.queue, outcome)
            meter.note_refusal(self, self.queues.get(call.queue), command, outcome)
        elif type(outcome) is Enqueued and outcome.faults:
            meter.note_faults(self.queues.get(call.queue), outcome)
        self.effects.append(Answer(call, command.opcode, outcome))

    # --- messages of the cluster --------------------------------------------------------------------------------------

    def on_peer_message(self, command: Command, now_ms: int) -> None:
        """Take in a message of another shard. An answer is another message."""
        PEER_VERBS[type(command)](self, command, now_ms)

    def granted(self, grants: Grants, now_ms: int) -> None:
        """Take in tokens of the bank."""
        for component in self.components:
            component.on_grants(grants, now_ms)

    def new_session(self, now_ms: int) -> None:
        """Begin a session: the router has registered this shard again. Held tokens are void, and wants are sent again."""
        for component in self.components:
            component.on_session(now_ms)

    @property
    def config_version(self) -> int:
        """The version of the runtime config."""
        return self.runtime.version

    @property
    def config(self) -> dict[str, str]:
        """The runtime config."""
        return self.runtime.values

    @property
    def templates(self) -> Templates:
        """The queue templates."""
        return self.runtime.templates

    def set_config(self, command: ChangesConfig | ChangesByBroker, now_ms: int) -> ConfigChange:
        """Return a checked and numbered change of the runtime config, on shard 0 only. Raise :class:`InvalidConfigError`."""
        change = _CHANGES[type(command)](self, command, now_ms)
        self._follow_config(now_ms)
        return change

    @property
    def keys_version(self) -> int:
        """The version of the API keys that are kept here; 0: none."""
        return self.part(KeysVersion).number

    def keep_keys(self, command: StoreKeys | FetchKeys) -> Reply:
        """Keep the API keys of the cluster, or return them, on shard 0 only. Raise :class:`InvalidArgumentError`."""
        return store_keys(self, command) if isinstance(command, StoreKeys) else fetch_keys(self)

    def put_config(self, put: PutConfig, now_ms: int) -> None:
        """Apply a change of the runtime config, or a page of one."""
        put_config(self, put, now_ms)
        self._follow_config(now_ms)

    def _follow_config(self, now_ms: int) -> None:
        for component in self.components:
            component.on_config(now_ms)

    def parks(self) -> dict[str, int]:
        """Return the parked throttle keys, which deliver nothing, with the end of each park, Unix ms."""
        return dict(self.token_client.parks)

    def end_client(self, client: bytes, now_ms: int) -> None:
        """Give back all messages of a client whose session has ended, and end its demands."""
        end_client(self, client, now_ms)

    def lose_way(self, client: bytes, link: int, now_ms: int) -> list[tuple[int, int]]:
        """Push nothing more to a client by a link: its connection is gone. Return opcode and request of the direct receives that
        ended so, without an answer."""
        return [(waiter.opcode, waiter.call.request) for waiter in lose_way(self, client, link, now_ms)]

    def rest_transfers(self, until_ms: int) -> None:
        """Pause the transfers to other shards until a time, Unix ms; 0: continue now."""
        self.outbox.rest(until_ms)

    def transfers_rest(self, now_ms: int) -> bool:
        """Return whether the transfers to other shards rest."""
        return self.outbox.rests(now_ms)

    def look_at_storage(self) -> None:
        """Note when the storage begins or ceases to be slow, and have it give back disk space. Call it once a second."""
        metrics = self.store.metrics()
        stalled = metrics.stalled
        if stalled != self._stalled:
            self._stalled = stalled
            self.notes.append((StorageStalled if stalled else StorageRecovered)(self.index))
        if self._disk_space.look(metrics.disk_bytes, self._held_bytes, sum(metrics.commit_ns.counts)):
            self.store.tidy()

    def _held_bytes(self) -> int:
        return sum(queue.size_bytes for queue in self.queues.values())

    # --- a turn -------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> list[Effect]:
        """Do the due work in bounded steps, make the turn durable, and return the effects to send.

        :meth:`next_due` returns when more is due. Call it after the waiting frames were applied, so that a heartbeat that was
        read late still counts. If some frames are not read yet (``behind``), leases that they may renew do not end.
        """
        if now_ms < self._turn_ms:  # the clock was set back, so all due times are in doubt
            for timer, _, _ in self._timed:
                timer.by(AT_ONCE)
        self._turn_ms = now_ms
        return self.commit(ticked=self._act(now_ms))

    def _act(self, now_ms: int) -> bool:
        """Call the components that are due. Return whether any was."""
        agenda, first, ticked = self._agenda, 0, False
        if agenda.due_ms > now_ms:
            if self.delivery.due_ms > now_ms:
                return False
            ticked, first = self._call(self._timed[self._at_delivery], now_ms), self._at_delivery + 1
            if agenda.due_ms > now_ms:
                return ticked
        for timed in self._timed[first:]:
            if timed[0].due_ms <= now_ms:
                ticked = self._call(timed, now_ms) or ticked
        agenda.due_ms = min([timer.due_ms for timer, _, _ in self._timed if timer is not self.delivery])
        return ticked

    def _call(self, timed: Timed, now_ms: int) -> bool:
        """Call a component that is due, unless it waits while earlier frames may be unread."""
        timer, tick, patient = timed
        if patient and self.behind:
            return False
        timer.due_ms = NEVER
        timer.by(tick(now_ms))
        return True

    def commit(self, *, ticked: bool = True) -> list[Effect]:
        """End the turn: make its changes durable, and return the effects to send. ``ticked``: whether a component acted."""
        ledger = self.ledger
        if ledger.changed or ticked or self.effects or ledger.changed_queues or len(self.batch):
            self.settle_writes()
        if len(self.lanes) > self.settings.limits.warm_small_lanes_max:
            cold_lanes.cool_down(self)
        else:
            self.lanes.entered = 0
        self.jobs.left = self.settings.limits.turn_effort
        effects, self.effects = self.effects, []
        return effects

    @property
    def has_much_unconfirmed(self) -> bool:
        """Whether what the log has yet to confirm is more than should be held in memory."""
        store = self.store
        return store.confirmed != store.committed and store.unconfirmed_bytes > self.settings.limits.unconfirmed_bytes_max

    def check(self) -> None:
        """Raise :class:`InvariantBroken` unless all invariants hold. Reads every message key: not for the hot path."""
        if len(self.batch) or self.ledger.changed:
            raise InvariantBroken("checked in the middle of a turn: commit first")
        for component in self.components:
            component.check()

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until :meth:`turn` has work to do; None: not before a command comes."""
        due_ms = min(self._agenda.due_ms, self.delivery.due_ms)
        if due_ms <= now_ms:  # perhaps of a component that causes no turn at this moment
            due_ms = min([timer.due_ms for timer in (self._awaited_behind if self.behind else self._awaited)])
        return None if due_ms == NEVER else max(0, due_ms - now_ms)
