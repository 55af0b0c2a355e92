"""A shard: whole queues, one scheduler, one transaction a turn.

The owner of a shard calls, each turn::

    shard.apply(call, command)            # for each frame that came in
    shard.advance(now_ms)                 # what is due: expired leases, delayed messages, lost consumers
    shard.deliver(now_ms)                 # messages to whoever wants them
    effects = shard.commit()              # one batch; then, and only then, send the effects

Nothing here reads a clock, a socket or a disk: time is an argument, storage a port. A command either does all that it says
or raises a :class:`FilaError` before it changed anything. Any other error, and a :class:`StorageError`, leaves memory ahead of the
disk, so the owner must drop the shard and recover a new one; there is no other rollback.

Reads see only what is committed. A verb that has to read therefore calls :meth:`State.settle_writes` first, which commits
what the turn has written so far, at a point where what was written is whole.
"""

from collections.abc import Callable, Iterable
from types import GeneratorType
from typing import Any, Final, TypeAlias

from fila_proto_zmq.commands import (
    Appoint,
    Appointed,
    Browse,
    BrowseView,
    Cancel,
    CancelReceive,
    Command,
    ConfigChange,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    EndReservation,
    Enqueue,
    Enqueued,
    Explain,
    Extend,
    FetchReserved,
    GetQueueStats,
    Goodbye,
    Grants,
    Heartbeat,
    ListConfig,
    ListQueues,
    MessagesTransferred,
    OpenView,
    Pause,
    PurgeQueue,
    PutConfig,
    Receive,
    Redrive,
    RenewReservation,
    Reply,
    Reserve,
    SetConfig,
    Settle,
    Subscribe,
    Tokens,
    TransferMessages,
    Unsubscribe,
    UpdateQueue,
)
from fila_proto_zmq.errors import FilaError, InvalidFrameError, StorageError
from fila_proto_zmq.events import StorageRecovered, StorageStalled
from fila_worker.core import timers
from fila_worker.core.deliver import delivery, reservations, subscriptions
from fila_worker.core.effects import Call, Effect, Post, answer
from fila_worker.core.enqueue import enqueue
from fila_worker.core.enqueue.enqueue_rates import Verdict
from fila_worker.core.explain import explain
from fila_worker.core.inspect import backlog, browse, views
from fila_worker.core.jobs import Work
from fila_worker.core.manage import dead_letter_targets, purge, queue_commands, redrive
from fila_worker.core.metrics import describe, meter
from fila_worker.core.model import acked_messages, cold_lanes
from fila_worker.core.model.runtime_config import drop_draft, is_stuck, list_config, put_config, set_config
from fila_worker.core.settle import failed_attempts, settle, transfers
from fila_worker.core.state import State

Verb: TypeAlias = Callable[[State, Call, Any], "Reply | Work | None"]
"""Carries out one kind of command. Returns None if the answer comes later, or never; work if it may take long."""

NO_QUEUE: Final = ""


class Shard(State):
    """A state and what may be done with it."""

    def apply(self, call: Call, command: Command) -> None:
        """Carry out a command. Its answer, or the error that refuses it, joins the turn's effects."""
        verb = _VERBS.get(type(command))
        self.consumers.touch(call.client, call.now_ms)
        queue = self.queues.get(call.queue)
        if queue is not None:
            self.touch(queue, call.now_ms)
        try:
            if verb is None:
                raise InvalidFrameError(f"{type(command).__name__} is not for a shard")
            self._pursue(call, command, verb(self, call, command))
        except StorageError:
            raise  # no refusal: what the turn has done is not on the disk, or may not be
        except FilaError as error:
            self.conclude(call, command, error)

    def _pursue(self, call: Call, command: Command, outcome: "Reply | Work | None") -> None:
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
        if isinstance(command, TransferMessages):
            transfers.take(self, command, now_ms)
        elif isinstance(command, MessagesTransferred):
            transfers.confirm(self, command)
        elif isinstance(command, Appoint):
            dead_letter_targets.answer_appoint(self, command)
        elif isinstance(command, Appointed):
            dead_letter_targets.resume(self, command, now_ms)

    def granted(self, grants: Grants, now_ms: int) -> None:
        """Take in tokens of the bank."""
        self.wake(self.token_client.granted(grants, now_ms), now_ms)
        if grants.session == self.token_client.session:
            for grant in grants.grants:
                self._go_on(self.enqueue_rates.granted(grant))

    def new_session(self, now_ms: int) -> None:
        """The router knows this shard anew: tokens held are void, and what is wanted is asked for again."""
        self.token_client.new_session(self.token_client.session + 1)
        self.enqueue_rates.new_session()

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
        self._go_on(self.enqueue_rates.follow(self.runtime.limits))
        return change

    def put_config(self, put: PutConfig, now_ms: int) -> None:
        """Take over a change of the runtime config, or a page of one."""
        put_config(self, put, now_ms)
        self._go_on(self.enqueue_rates.follow(self.runtime.limits))

    def give_config_up(self, now_ms: int) -> bool:
        """Give up a config whose next page does not come; whether there was one."""
        if not is_stuck(self, now_ms):
            return False
        drop_draft(self)
        return True

    def _go_on(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            call, command = verdict.call, verdict.command
            try:
                self._pursue(call, command, enqueue.enqueue_held(self, *verdict))
            except FilaError as error:
                self.conclude(call, command, error)

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

    def advance(self, now_ms: int) -> None:
        """Do what is due at ``now_ms``, in bounded steps: :meth:`next_due` tells if more is.

        It comes after the frames that were waiting, so that a heartbeat that was read late still counts. Where some are yet to be
        read (``behind``), what they may renew is left alone.
        """
        if not self.behind:
            failed_attempts.expire_leases(self, now_ms)
        timers.act_on_due(self, now_ms)
        if not self.behind:
            subscriptions.drop_lost(self, now_ms)
        subscriptions.give_back_unseen(self, now_ms)
        if self.jobs.open:
            self.jobs.run(now_ms)
        self.unpark(now_ms)
        self.token_client.let_go(now_ms)
        for call, command, error in self.enqueue_rates.overdue(now_ms):
            meter.note_refusal(self, self.queues.get(call.queue), command, error)
            self.effects.append(answer(call, command, error))
        dead_letter_targets.time_out(self, now_ms)
        self.views.close_idle(now_ms)

    def deliver(self, now_ms: int) -> None:
        """Lease messages to whoever wants them, ask for the tokens that were missing, answer the receives whose time is up."""
        delivery.deliver(self, now_ms)
        self._ask_the_bank(now_ms)
        subscriptions.answer_waiters(self, now_ms)
        transfers.send_due(self, now_ms)

    def _ask_the_bank(self, now_ms: int) -> None:
        self.unblock(self.token_client.settle(now_ms))
        wants = self.token_client.repeat(now_ms) + self.token_client.wants(now_ms) + self.enqueue_rates.wants()
        if wants:
            self.effects.append(Post(Tokens(self.index, self.token_client.session, wants)))

    def commit(self) -> list[Effect]:
        """End the turn: make its changes durable and return what may now be sent."""
        if self.ledger.fold_due:
            if not self.ledger.folding:
                acked_messages.purge(self)  # a lane is idle once its dead are gone
            self.fold()
        self.settle_writes()
        cold_lanes.cool_down(self)
        self.jobs.end_turn()
        effects, self.effects = self.effects, []
        return effects

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until :meth:`advance` or :meth:`deliver` has something to do; None: not before a command comes."""
        if self.runnable or self.consumers.unseen or (self.jobs.open and not self.jobs.wait_ms):
            return 0
        times = (
            self.leases.next_expiry(), self.due_index.next_due_ms, self.consumers.next_deadline(), self.token_client.next_due(),
            self.enqueue_rates.next_due(), self.outbox.next_due(), dead_letter_targets.next_due(self),
            self.views.next_due(),
        )  # fmt: skip
        due = min((time for time in times if time is not None), default=None)
        if self.jobs.open:
            due = now_ms + self.jobs.wait_ms if due is None else min(due, now_ms + self.jobs.wait_ms)
        return None if due is None else max(0, due - now_ms)


_VERBS: dict[type[Command], Verb] = {
    CreateQueue: queue_commands.create_queue,
    DeleteQueue: queue_commands.delete_queue,
    GetQueueStats: queue_commands.queue_stats,
    DescribeQueue: describe.describe,
    ListQueues: queue_commands.list_queues,
    ListConfig: list_config,
    Enqueue: enqueue.enqueue,
    Receive: subscriptions.receive,
    Subscribe: subscriptions.subscribe,
    Unsubscribe: subscriptions.unsubscribe,
    Heartbeat: subscriptions.heartbeat,
    Goodbye: subscriptions.goodbye,
    CancelReceive: subscriptions.cancel_receive,
    UpdateQueue: queue_commands.update_queue,
    Pause: queue_commands.pause,
    Browse: browse.browse,
    OpenView: views.open_view,
    BrowseView: views.browse_view,
    Cancel: backlog.cancel,
    Explain: explain.explain,
    PurgeQueue: purge.purge,
    Settle: settle.settle,
    Extend: settle.extend,
    Redrive: redrive.redrive,
    Reserve: reservations.reserve,
    FetchReserved: reservations.fetch,
    RenewReservation: reservations.renew_reservation,
    EndReservation: reservations.end_reservation,
}
