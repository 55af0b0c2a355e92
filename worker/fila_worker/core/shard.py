"""A shard: whole queues, one scheduler, one transaction a turn.

The owner of a shard calls, each turn::

    shard.apply(call, command)            # for each frame that came in
    effects = shard.turn(now_ms)          # what is due, deliveries, one batch; then, and only then, send the effects

What a shard does is in its components (:mod:`core.components`): each has its commands, its part of the memory and its timer.

Nothing here reads a clock, a socket or a disk: time is an argument, storage a port. A command either does all that it says
or raises a :class:`FilaError` before it changed anything. Any other error, and a :class:`StorageError`, leaves memory ahead of the
disk, so the owner must drop the shard and recover a new one; there is no other rollback.

Reads see only what is committed. A verb that has to read therefore calls :meth:`State.settle_writes` first, which commits
what the turn has written so far, at a point where what was written is whole.
"""

from types import GeneratorType
from typing import Final

from fila_proto_zmq.commands import (
    Command,
    ConfigChange,
    Enqueue,
    Enqueued,
    Goodbye,
    Grants,
    ListConfig,
    PutConfig,
    Reply,
    SetConfig,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, StorageError
from fila_proto_zmq.events import StorageRecovered, StorageStalled
from fila_worker.core.component import Component, InvariantBroken
from fila_worker.core.components import COMPONENTS, PEER_VERBS, VERBS
from fila_worker.core.effects import Call, Effect, answer
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.jobs import Work
from fila_worker.core.manage.config import put_config, set_config
from fila_worker.core.metrics import meter
from fila_worker.core.model import cold_lanes
from fila_worker.core.model.state import State
from fila_worker.core.settings import ShardSettings
from fila_worker.core.store import Store
from fila_worker.core.timer import NEVER

NO_QUEUE: Final = ""


class Shard(State):
    """A state and what may be done with it."""

    def __init__(
        self,
        store: Store,
        settings: ShardSettings,
        compile_hooks: HookCompiler,
        *,
        index: int,
        shards: int,
        epoch: int,
        entropy: int = 0,
    ) -> None:
        super().__init__(store, settings, compile_hooks, index=index, shards=shards, epoch=epoch, entropy=entropy)
        self.components = tuple(component(self) for component in COMPONENTS)
        timed = [each for each in self.components if type(each).tick is not Component.tick]
        self._timed = [(each.timer, each.tick, each.patient) for each in timed]
        self._awaited = [each.timer for each in timed if not each.in_passing]

    def apply(self, call: Call, command: Command) -> None:
        """Carry out a command. Its answer, or the error that refuses it, joins the turn's effects."""
        verb = VERBS.get(type(command))
        self.consumers.touch(call.client, call.now_ms)
        queue = self.queues.get(call.queue)
        if queue is not None:
            self.touch(queue, call.now_ms)
        try:
            if verb is None:
                raise InvalidFrameError(f"{type(command).__name__} is not for a shard")
            self.pursue(call, command, verb(self, call, command))
        except StorageError:
            raise  # no refusal: what the turn has done is not on the disk, or may not be
        except FilaError as error:
            self.conclude(call, command, error)

    def pursue(self, call: Call, command: Command, outcome: "Reply | Work | None") -> None:
        """Answer with what came of a command, or begin its work: enqueues in their queue's line, most others in their client's.

        There is one line for those that list the config: the answers may be large, and are made one after the other.
        """
        if type(outcome) is not GeneratorType:
            self.conclude(call, command, outcome)  # type: ignore[arg-type]  # it is no work
        elif type(command) is Enqueue:
            self.jobs.start(outcome, call.queue, call, command, sum(map(len, command.envelopes)))
        elif type(command) is ListConfig:
            self.jobs.start(outcome, NO_QUEUE, call, command)
        else:
            self.jobs.start(outcome, call.client, call, command, refusable=type(command) is not Goodbye)

    def conclude(self, call: Call, command: Command, outcome: Reply | FilaError | None) -> None:
        """A command is carried out, or refused: its answer joins the turn's effects. None: it is answered elsewhere."""
        if isinstance(outcome, FilaError):
            meter.note_refusal(self, self.queues.get(call.queue), command, outcome)
        elif outcome is None:
            return
        elif type(outcome) is Enqueued and outcome.faults:
            meter.note_faults(self.queues.get(call.queue), outcome)
        self.effects.append(answer(call, command, outcome))

    # --- the cluster's word -------------------------------------------------------------------------------------------

    def on_peer_message(self, command: Command, now_ms: int) -> None:
        """Take in what another shard says; nothing is answered but by saying something in turn."""
        PEER_VERBS[type(command)](self, command, now_ms)

    def granted(self, grants: Grants, now_ms: int) -> None:
        """Take in tokens of the bank."""
        for component in self.components:
            component.on_grants(grants, now_ms)

    def new_session(self, now_ms: int) -> None:
        """The router knows this shard anew: tokens held are void, and what is wanted is asked for again."""
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

    def set_config(self, command: SetConfig, now_ms: int) -> ConfigChange:
        """Judge and number a change of the runtime config; on shard 0 only. Raises :class:`InvalidConfigError`."""
        change = set_config(self, command, now_ms)
        self._follow_config(now_ms)
        return change

    def put_config(self, put: PutConfig, now_ms: int) -> None:
        """Take over a change of the runtime config, or a page of one."""
        put_config(self, put, now_ms)
        self._follow_config(now_ms)

    def _follow_config(self, now_ms: int) -> None:
        for component in self.components:
            component.on_config(now_ms)

    def parks(self) -> dict[str, int]:
        """The throttle keys that deliver nothing, with the times until when, Unix ms."""
        return dict(self.token_client.parks)

    def look_at_storage(self) -> None:
        """Note when the storage begins or ceases to be slow. Call it now and then."""
        stalled = self.store.metrics().stalled
        if stalled != self.stalled:
            self.stalled = stalled
            self.notes.append((StorageStalled if stalled else StorageRecovered)(self.index))

    # --- a turn -------------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> list[Effect]:
        """Do what is due, in bounded steps, make the turn durable, and return what may be sent now. :meth:`next_due` tells if more is due.

        It comes after the frames that were waiting, so that a heartbeat that was read late still counts. Where some are yet to be
        read (``behind``), what they may renew is left alone.
        """
        return self.commit(ticked=self._act(now_ms))

    def _act(self, now_ms: int) -> bool:
        """Let the components act whose time has come; returns whether any did."""
        ticked = False
        for timer, tick, patient in self._timed:
            if timer.due_ms <= now_ms and not (patient and self.behind):
                ticked = True
                timer.due_ms = NEVER
                due_ms = tick(now_ms)
                if due_ms is not None and due_ms < timer.due_ms:
                    timer.due_ms = due_ms
        return ticked

    def commit(self, *, ticked: bool = True) -> list[Effect]:
        """End the turn: make its changes durable and return what may now be sent. ``ticked``: whether a component acted in it."""
        ledger = self.ledger
        if ticked or self.effects or ledger.changed or ledger.changed_queues or len(self.batch):
            self.settle_writes()
        if len(self.lanes) > self.settings.limits.warm_small_lanes_max:
            cold_lanes.cool_down(self)
        else:
            self.lanes.entered = 0
        self.jobs.left = self.settings.limits.turn_effort
        effects, self.effects = self.effects, []
        return effects

    def check(self) -> None:
        """Raise :class:`InvariantBroken` unless all invariants hold. Reads every message key: not for the hot path."""
        if len(self.batch) or self.ledger.changed:
            raise InvariantBroken("checked in the middle of a turn: commit first")
        for component in self.components:
            component.check()

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until :meth:`turn` has something to do; None: not before a command comes."""
        due_ms = min([timer.due_ms for timer in self._awaited])
        return None if due_ms == NEVER else max(0, due_ms - now_ms)
