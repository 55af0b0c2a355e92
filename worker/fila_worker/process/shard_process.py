"""The shards of one process: frames in, frames out, one turn of each shard at a time.

A shard that fails affects only itself: its memory is dropped and recovered in place, a step a turn, while the others serve
(:mod:`~fila_worker.process.slots`). When a shard begins or ceases to serve, ``offers`` increases, and the owner registers
with the router again. The router then answers the requests that were in flight there. A command that makes its shard fail
twice is refused (:mod:`~fila_worker.process.failures`).

Each other topic of the process is a feature (:mod:`~fila_worker.process.feature`).

There are no sockets and no clock here, so a test, or an application that embeds the broker, can drive a process.
"""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fila_admission.refusals import too_busy, unavailable
from fila_admission.requests import OF_WORKERS
from fila_proto_zmq import outages
from fila_proto_zmq.codec import decode_command
from fila_proto_zmq.commands import (
    BeginBackup,
    Command,
    CutBackup,
    Done,
    Explain,
    KeepBackup,
    PrepareShard,
    Registered,
    ReleaseShard,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, InvalidFrameError, StorageError
from fila_proto_zmq.events import Event, ShardOpened
from fila_proto_zmq.frames import check_version, unpack_header
from fila_worker.core.due_time import NEVER
from fila_worker.core.effects import ANY_LINK, Answer, ClientCall, DirectReply, Effect, Post, answer
from fila_worker.core.explain.explain import explain_without_log
from fila_worker.core.shard import Shard
from fila_worker.process.cluster_lists import ClusterLists
from fila_worker.process.config_copies import ConfigCopies
from fila_worker.process.direct_requests import DirectRequests
from fila_worker.process.failures import ShardFailures
from fila_worker.process.feature import Features, ProcessFeature
from fila_worker.process.held import HeldForAll
from fila_worker.process.pauses import GAP_MS, Pauses
from fila_worker.process.process_metrics import ProcessMetrics
from fila_worker.process.shard_messages import ShardMessages
from fila_worker.process.slots import Frame, Slot, Slots

_Result = TypeVar("_Result")

LOOK_MS: Final = 2
"""How often to check whether a shard still pauses."""

LOG_FULL_MS: Final = 100
"""How long a host reads no frames because the log of one of its shards has too much to confirm."""

_NO_MOVES: Final = "this worker's shards cannot move: it shares no data directory"
_NO_BACKUPS: Final = (
    "this worker makes no backups: its shards are in memory, or on a replicated log (see docs/checkpoints.md)"
)
WITHOUT_FEATURE: Final[dict[type[Command], str]] = {
    PrepareShard: _NO_MOVES,
    ReleaseShard: _NO_MOVES,
    BeginBackup: _NO_BACKUPS,
    CutBackup: _NO_BACKUPS,
    KeepBackup: _NO_BACKUPS,
}
"""Why a process without the feature for it refuses a command."""


class ShardProcess:
    """Several shards behind the links to the routers. ``shards``: those that are open, by index."""

    def __init__(
        self,
        slots: Iterable[Slot],
        shards_total: int,
        now_ms: int = 0,
        name: str = "",
        features: Iterable[ProcessFeature] = (),
        failures: ShardFailures | None = None,
    ) -> None:
        """``slots``: their shards are open, or are opened by :meth:`turn`, a step a turn. ``name``: the worker's.
        ``features``: those besides the ones that each process has. They come first in the list."""
        self.slots = Slots(slots, shards_total)
        self.shards = {slot.index: slot.shard for slot in self.slots.values() if slot.shard is not None}
        self._shards_total = shards_total
        self.offers = 1
        """Increases whenever what this host offers to the routers changes."""
        self._taken = [0]
        """For each link, the offer that its router has taken last."""
        self._lost = 0, 0
        """The shard that was lost last, and the offer that says so."""
        self._lacks_something = False
        """Whether a shard has to be registered again."""
        self.home = ""
        """The name of the data directory. Empty if shards cannot move to and from here."""
        self.draining = False
        """Whether all shards of this worker move to others, so that no shard may come here."""
        self.apart = False
        """Whether no router of another host is reached. The loop sets it."""
        self.failed: list[int] = []
        """Shards whose memory was dropped. The owner answers their direct requests, and clears the list."""
        self.unanswered: list[tuple[int, DirectReply]] = []
        """Replies to usual requests that were dropped with the memory of a shard. The owner answers these requests, too."""
        self.dropped = False
        """Whether a shard's memory was dropped; the owner frees the memory and resets this."""
        self.recovered = False
        """Whether a shard was opened; the owner excludes its objects from collection, and resets this."""
        self.notes: list[Event] = []
        """Events of the shards, for the operator; the owner logs them and clears the list."""
        self.held = HeldForAll()
        self.answers_wait = False
        """Whether answers of earlier turns were not sent yet, although the commits that they depend on are confirmed."""
        self.log_is_full = False
        """Whether so much is unconfirmed that no frames are read at this moment."""
        self._pauses, self._turn_ms = Pauses(), now_ms
        self._calm = False
        """Whether the next turn has nothing to begin, if it comes soon."""
        self.last_frame_ms: Callable[[bytes], int] = lambda client: 0
        """Returns when the last frame of a client came to the client socket, Unix ms; 0: it is not connected there."""
        self.failures = failures or ShardFailures()
        self.failures.process = self
        self._suspects = self.failures.suspects
        self.direct = DirectRequests(self)
        self.metrics, self.config = ProcessMetrics(name, now_ms), ConfigCopies()
        self.features = Features()
        for feature in (*features, self.metrics, self.config, ShardMessages(), ClusterLists()):
            self.add(feature, now_ms)

    def add(self, feature: ProcessFeature, now_ms: int) -> None:
        """Append a feature to the list."""
        self.features.add(feature)
        feature.attach(self, now_ms)

    # --- frames -------------------------------------------------------------------------------------------------------

    def accept(self, frame: Frame, now_ms: int, link: int = 0) -> None:
        """Carry out one frame that came by a link. Its answer comes with :meth:`turn`."""
        if len(frame) != 4:
            return  # the router sends no such frames, and no client waits
        client, raw_header, key, body = frame
        try:
            header = unpack_header(raw_header)
        except InvalidFrameError:
            return
        call = ClientCall(client, header.request, key.decode(errors="replace"), now_ms, link)
        try:
            check_version(header)
            self._carry_out(call, decode_command(header, body), frame)
        except FilaError as error:
            if client or header.request:  # else it is one of the commands without an answer
                self.held.at_once.append(Answer(call, header.opcode, error))

    def _carry_out(self, call: ClientCall, command: Command, frame: Frame) -> None:
        kind = type(command)
        if call.client and command.opcode >= OF_WORKERS:
            raise InvalidFrameError(f"{kind.__name__} is not a command for clients")
        if (carry_out := self.features.commands.get(kind)) is not None:
            outcome = carry_out(call, command)
            if isinstance(outcome, Slot):
                self.take(outcome, call, command, frame)
            elif outcome is not None:
                self.held.answers.append(answer(call, command, outcome))
        elif (take_in := self.features.messages.get(kind)) is not None:
            take_in(command, call.now_ms)
            if call.request:  # the router waits until this worker has taken it in
                self.held.answers.append(answer(call, command, Done()))
        elif kind in WITHOUT_FEATURE:
            raise InvalidArgumentError(WITHOUT_FEATURE[kind])
        else:
            self.take(self.slots.find(call.queue), call, command, frame)

    def take(self, slot: Slot, call: ClientCall, command: Command, frame: Frame) -> None:
        """Carry out a command, unless its shard cannot do that now."""
        if slot.fence and call.link != ANY_LINK and slot.fence > self._taken[call.link]:
            return  # it was for an earlier opening of the shard, and the router has answered it
        if slot.leaving:
            raise unavailable(slot.index)
        if slot.outage is not None:
            raise outages.unavailable(slot.outage)
        if type(command) is Explain and (why := slot.log_problem(call.now_ms)):
            assert slot.shard is not None
            self.held.at_once.append(answer(call, command, explain_without_log(slot.shard, call.queue, why)))
            return
        if slot.log_full_ms is not None and slot.log_full_ms >= LOG_FULL_MS:
            assert slot.shard is not None
            slot.shard.consumers.touch(call.client, call.now_ms)
            raise too_busy(slot.log_trouble)
        if self._suspects.files:
            self.failures.apply(slot, call, command, frame)
        else:
            self.apply(slot, call, command, frame)

    def apply(self, slot: Slot, call: ClientCall, command: Command, frame: Frame) -> None:
        """Carry out a command that nothing refuses."""
        assert slot.shard is not None
        slot.frames.append(frame)
        try:
            slot.shard.apply(call, command)
        except Exception as error:
            if isinstance(error, FilaError) and not isinstance(error, StorageError):
                raise
            slot.frames[:] = [frame]  # this command is to blame
            self.failures.fail(slot, error, call.now_ms)

    # --- shards -------------------------------------------------------------------------------------------------------

    def guarded(self, slot: Slot, now_ms: int, action: Callable[[Shard], _Result]) -> _Result | None:
        """Apply something to a shard that no client's command causes. Return None if the shard is not open, or fails."""
        if slot.shard is None:
            return None
        try:
            return action(slot.shard)
        except Exception as error:
            if isinstance(error, FilaError) and not isinstance(error, StorageError):
                raise
            slot.frames.clear()
            self.failures.fail(slot, error, now_ms)
            return None

    def each(self, now_ms: int, action: Callable[[Shard], _Result]) -> list[_Result]:
        """Apply the same to all shards. Return the results of the open ones."""
        results = [self.guarded(slot, now_ms, action) for slot in self.slots.values()]
        return [result for result in results if result is not None]

    def _step(self, slot: Slot, now_ms: int) -> None:
        """Take a step of opening a shard, if it is time for one."""
        if now_ms < slot.retry_at_ms:
            return
        before = slot.outage
        try:
            shard = slot.step(now_ms)
        except Exception as error:
            self.failures.fail(slot, error, now_ms)
            return
        if slot.outage != before:
            self.offers += 1
            self.failures.note_beginning(slot)
        if shard is not None:
            slot.enter(shard)
            self.recovered = True
            self.shards[slot.index] = shard
            self.offers += 1
            self.notes.append(_opened(shard, now_ms - slot.since_ms))
            for feature in self.features:
                feature.on_open(shard, now_ms)
        elif slot.outage is not before:
            self.offers += 1

    def enter(self, slot: Slot) -> None:
        """Take in a slot whose shard is to be opened."""
        self.slots[slot.index] = slot
        self.offers += 1

    def put_down(self, slot: Slot) -> None:
        """Take a shard whose memory was dropped out of service. Its slot opens it again."""
        self.shards.pop(slot.index, None)
        self.offers += 1
        slot.fence = self.offers
        self._lost = slot.index, self.offers
        self._note_failed(slot)
        self.dropped = True

    def remove(self, slot: Slot) -> None:
        """Remove a shard that was closed for good. The caller increases ``offers`` once the store is free."""
        self.slots.remove(slot)
        del self.shards[slot.index]
        self._lost = slot.index, self.offers + 1
        self._note_failed(slot)
        self.dropped = True

    def _note_failed(self, slot: Slot) -> None:
        self.failed.append(slot.index)
        self.unanswered += [(slot.index, reply) for reply in slot.unanswered]
        slot.unanswered.clear()

    def has_taken(self, offer: int) -> bool:
        """Return whether a router has taken an offer, or a later one."""
        return offer <= max(self._taken)

    def check_known(self, call: ClientCall) -> None:
        """Raise :class:`ShardUnavailableError` if the router that asks for all shards here may not know yet that one was lost.

        An answer without that shard would look whole to the router.
        """
        shard, offer = self._lost
        if call.link == ANY_LINK or offer <= self._taken[call.link]:
            return
        outage = self.slots[shard].outage if shard in self.slots else None
        raise unavailable(shard) if outage is None else outages.unavailable(outage)

    def add_link(self) -> None:
        """Note that there is one router more."""
        self._taken.append(0)

    def new_session(self, now_ms: int) -> None:
        """Begin a session with the token bank: earlier grants to the shards are void."""
        self.each(now_ms, lambda shard: shard.new_session(now_ms))

    def registered(self, reply: Registered, now_ms: int, offer: int | None = None, link: int = 0) -> None:
        """Note the answer to a registration. Later frames of this router were sent after it took the offer: links keep order.

        ``offer``: the registered value of ``offers``; by default the current one.
        """
        self.config.registered(reply, now_ms)
        self._taken[link] = max(self._taken[link], self.offers if offer is None else offer)

    def paused(self, for_ms: int) -> None:
        """Excuse all clients for a time without turns, or a step of the clock: their frames could not be read meanwhile."""
        for shard in self.shards.values():
            shard.consumers.excuse(for_ms)

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now_ms: int) -> None:
        """Begin a turn, before its frames are accepted. Find out whether the process was paused before it."""
        gap_ms, self._turn_ms = now_ms - self._turn_ms, now_ms
        if self._calm and 0 <= gap_ms <= GAP_MS:
            return
        if gap_ms > GAP_MS or self._pauses.forgiving:
            self._pauses.begin_turn(now_ms, gap_ms)
        elif gap_ms < 0:  # the clock was set back, so all due times are in doubt
            self.features.call_all()
        for begin in self.features.beginning:
            begin(now_ms)
        forgiving, log_is_full = self._pauses.forgiving, False
        for slot in self.slots.values():
            behind = forgiving
            if slot.watches_log:
                log_is_full = self._look_at_log(slot, now_ms) or log_is_full
                behind = behind or slot.held.wait_long(now_ms)
            if slot.shard is not None:
                slot.shard.behind = behind
        self.log_is_full = log_is_full

    def _look_at_log(self, slot: Slot, now_ms: int) -> bool:
        """Return whether to read nothing for the moment, because the log of a shard has too much to confirm.

        The process waits for a log that is only slower than the load. A log that confirms nothing must not stop the other
        shards: soon its shard refuses requests (:meth:`take`), and frames are read again.
        """
        slot.look_at_log(now_ms)
        return slot.log_full_ms is not None and slot.log_full_ms < LOG_FULL_MS

    def _catch_up(self, now_ms: int) -> None:
        """End what has expired in a pause of the process: all frames that came meanwhile were read."""
        self._pauses.drained()
        for slot in self.slots.values():
            if slot.shard is not None:
                slot.shard.behind = slot.held.wait_long(now_ms)

    def turn(self, now_ms: int, *, drained: bool = True) -> list[Effect]:
        """Do what is due, deliver and commit on every shard; return the effects that may be sent.

        ``drained``: whether no more frames waited after those of this turn.
        """
        if drained and self._pauses.forgiving:
            self._catch_up(now_ms)
        self.features.turn(now_ms)
        effects: list[Effect] = []
        self._calm = not (self._pauses.forgiving or self.log_is_full or self.features.beginning)
        for slot in self.slots.values():
            if slot.shard is not None:
                if slot.watches_log:
                    self._release(slot, effects, now_ms)
                if not slot.pauses:
                    self.end_turn(slot, now_ms, effects)
            elif slot.opening:
                self._step(slot, now_ms)
            if slot.watches_log or slot.shard is None or slot.shard.behind:
                self._calm = False
        if self.held.entries:
            effects += self.held.release(self.shards.values())
        if self.held.answers or self.held.at_once:
            effects[:0] = self.held.take(self.shards.values())
        if self._lacks_something:  # the router sees it when all shards are registered again
            self._lacks_something = False
            self.offers += 1
        return effects

    def end_turn(self, slot: Slot, now_ms: int, effects: list[Effect]) -> None:
        """End a shard's turn after its commands are carried out; add the effects that may be sent to ``effects``."""
        shard = slot.shard
        if shard is None:
            return
        try:
            committed = shard.turn(now_ms)
            if slot.answers:
                committed, slot.answers = slot.answers + committed, []
            if shard.wrote or slot.watches_log:
                shard.wrote = False
                committed = slot.end_turn(committed, now_ms)
        except Exception as error:
            self.failures.fail(slot, error, now_ms)
            return
        slot.frames.clear()
        if self._suspects.on_trial:
            self._suspects.acquit_done()
        if committed:
            self._pass_on(committed, effects)
        if shard.to_be_registered:
            shard.to_be_registered = False
            self._lacks_something = True
        if shard.notes:
            self.notes += shard.notes
            shard.notes.clear()

    def _pass_on(self, confirmed: list[Effect], effects: list[Effect]) -> None:
        """Add what leaves the process to ``effects``."""
        for effect in confirmed:
            if type(effect) is not Post or True not in [stays(effect) for stays in self.features.posted]:
                effects.append(effect)  # noqa: PERF401  # a comprehension is a call

    def _release(self, slot: Slot, effects: list[Effect], now_ms: int) -> None:
        """Add the effects of a shard's earlier turns that are confirmed by now to ``effects``."""
        assert slot.shard is not None
        if (failure := slot.shard.store.failure) is not None:
            self.failures.fail(slot, failure, now_ms)
        elif slot.held:
            self._pass_on(slot.held.release(slot.shard.store), effects)

    @property
    def full(self) -> bool:
        """Whether a shard has enough to do in this turn: further frames are for the next turn."""
        if self.config.page_read or self.config.pages or self.log_is_full:
            return True
        for shard in self.shards.values():  # noqa: SIM110  # asked for each frame, and any() would make a generator
            if shard.jobs.left <= 0:
                return True
        return False

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until a turn has something to do without a frame; None: never."""
        due_ms = self.features.next_due()
        soonest = None if due_ms == NEVER else max(0, due_ms - now_ms)
        for slot in self.slots.values():
            shard = None if slot.pauses else slot.shard
            due = _due_of(slot, now_ms) if shard is None else shard.next_due(now_ms)
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    @property
    def holds_effects(self) -> bool:
        """Whether effects of earlier turns wait to be confirmed."""
        return bool(self.held.entries) or any(slot.held for slot in self.slots.values())

    @property
    def is_alone(self) -> bool:
        """Whether this host serves all shards of the cluster."""
        return len(self.shards) == self._shards_total

    @property
    def queues(self) -> int:
        """The number of queues here, without dead letter queues."""
        return sum(1 for shard in self.shards.values() for queue in shard.queues.values() if not queue.is_dead_letter)

    def retire(self) -> None:
        """Begin to give up the shards that other hosts can take over, because the process is about to end."""
        for feature in self.features:
            feature.retire()

    def close(self) -> None:
        """Flush and close all stores, and what the features have."""
        for feature in self.features:
            feature.close()
        for slot in self.slots.values():
            slot.close()


def _due_of(slot: Slot, now_ms: int) -> int | None:
    """Return how soon to check a paused shard, or to take the next step of opening; None: at the next frame."""
    if slot.pauses:
        return LOOK_MS
    due = slot.due_ms if slot.opening else None
    return None if due is None else max(due, slot.retry_at_ms - now_ms)


def _opened(shard: Shard, recovery_ms: int) -> ShardOpened:
    queues = shard.queues.values()
    return ShardOpened(
        shard.index,
        shard.epoch,
        len(queues),
        sum(len(queue.keys) for queue in queues),
        sum(queue.pending for queue in queues),
        sum(queue.in_flight for queue in queues),
        sum(queue.delayed for queue in queues),
        recovery_ms,
    )
