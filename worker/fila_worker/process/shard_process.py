"""The shards of one process: frames in, frames out, one turn of each shard at a time.

A shard that fails affects only itself: its memory is dropped and recovered in place, a step a turn, while the others go on
(:mod:`slots`). Whenever a shard begins or ceases to serve, ``offers`` increases, and the owner registers with the router
again. The router then answers for the requests that were in flight there. A command that makes its shard fail twice is
refused (:class:`suspects.Suspects`).

There are no sockets and no clock here, so a test, or an application that embeds the broker, can drive a host.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, get_args

from fila_admission.refusals import moved, too_busy, unavailable
from fila_admission.requests import OF_WORKERS
from fila_proto_zmq import outages
from fila_proto_zmq.codec import decode_command
from fila_proto_zmq.commands import (
    AdoptShards,
    Appoint,
    Appointed,
    BatchJoined,
    BeginBackup,
    ChangesConfig,
    ClientsDescribed,
    Command,
    ConfigTaken,
    CutBackup,
    DescribeClients,
    Done,
    EndClient,
    Explain,
    FetchKeys,
    ForgetParts,
    GetHosts,
    GetMetrics,
    Grants,
    HostList,
    HostWorker,
    JoinBatch,
    KeepBackup,
    ListConfig,
    ListConfigHistory,
    ListQueues,
    ListSchedules,
    MessagesTransferred,
    Metrics,
    Park,
    PrepareShard,
    PutConfig,
    PutDraining,
    Registered,
    ReleaseShard,
    Reply,
    ReportParts,
    SealParts,
    ShardOutage,
    StoreKeys,
    TransferMessages,
    WorkerMetrics,
    joined,
    joined_schedules,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidFrameError,
    ShardUnavailableError,
    StorageError,
)
from fila_proto_zmq.events import (
    CommandRefused,
    CopyBeginning,
    Event,
    ProcessFailed,
    ShardFailed,
    ShardFollowed,
    ShardOpened,
    ShardQuarantined,
    ShardReleased,
    StorageFailed,
)
from fila_proto_zmq.frames import check_version, epoch_tag, unpack_header
from fila_proto_zmq.names import check_queue_name, shard_of
from fila_worker.core.effects import ANY_LINK, Answer, Call, Effect, Post, answer
from fila_worker.core.explain.explain import explain_without_log
from fila_worker.core.manage.queue_commands import list_queues
from fila_worker.core.measures import SPAN_NS, Histogram
from fila_worker.core.metrics.meter import report
from fila_worker.core.schedules.schedules import list_schedules
from fila_worker.core.shard import VERBS, Shard
from fila_worker.core.store import UnfitStoreError
from fila_worker.log.leadership import Proof
from fila_worker.process.backup_cuts import BackupCuts
from fila_worker.process.client_work import work_of
from fila_worker.process.config_copies import CONFIG_OWNER, OF_THE_CONFIG, ConfigCopies
from fila_worker.process.departures import Departures
from fila_worker.process.held import HeldForAll
from fila_worker.process.pauses import GAP_MS, Pauses
from fila_worker.process.slots import Frame, Patience, Slot
from fila_worker.process.suspects import Suspects
from fila_worker.replication.replicated import ReplicatedShards

_Result = TypeVar("_Result")

BETWEEN_SHARDS: Final = (
    TransferMessages, MessagesTransferred, Appoint, Appointed, JoinBatch, BatchJoined, SealParts, ReportParts, ForgetParts,
)  # fmt: skip
ONE_WAY: Final = (Grants, Park, EndClient, AdoptShards, PutDraining, *BETWEEN_SHARDS)
"""Commands without an answer."""
OF_A_BACKUP: Final = (BeginBackup, CutBackup, KeepBackup)
OF_THE_CLUSTER: Final = (ListQueues, ListSchedules, DescribeClients, *OF_THE_CONFIG, *OF_A_BACKUP)
"""Commands that the router sends, for itself or for a client, without the name of a queue."""
OF_A_MOVE: Final = (PrepareShard, ReleaseShard)
OF_THE_OWNER: Final = (*get_args(ChangesConfig), StoreKeys, FetchKeys)
"""What the owner of the config numbers or keeps."""
AT_ONCE: Final = (GetMetrics, GetHosts)
"""Questions that nothing holds up: somebody may ask because the log is slow."""
OF_A_QUEUE: Final = frozenset(VERBS) - {
    *ONE_WAY, PutConfig, *OF_A_MOVE, ListConfig, ListConfigHistory, *OF_THE_OWNER, *AT_ONCE, *OF_THE_CLUSTER,
}  # fmt: skip
"""The usual commands: each is for the shard of its queue."""

LOOK_MS: Final = 2
"""How often to check whether a shard to be cut is flushed, or a leaving shard has done its work."""

LOG_FULL_MS: Final = 100
"""How long a host reads no frames because the log of one of its shards has too much to confirm."""

SHARD_CACHE_MAX: Final = 100_000
"""Queue names whose shard is cached."""


class HostAddress(NamedTuple):
    """A host among others: its name, where the others reach it, and how many of them should be ready to take over each of its shards."""

    host: str
    address: str
    standbys: int = 1


class ShardProcess:
    """Several shards behind one link to the router. ``shards``: those that are open, by index."""

    def __init__(
        self,
        shards: Iterable[Shard],
        shards_total: int,
        now_ms: int = 0,
        name: str = "",
        *,
        opening: Iterable[Slot] = (),
        patience: Patience | None = None,
        suspects: Suspects | None = None,
        checkpoints: BackupCuts | None = None,
        departures: Departures | None = None,
        place: HostAddress | None = None,
        links: int = 1,
        replicated: ReplicatedShards | None = None,
    ) -> None:
        """``opening``: slots of shards that :meth:`turn` opens, a step a turn. ``place``: of the host, if other hosts have
        copies of the shards.

        ``checkpoints``: for backups; None without a disk. ``departures``: for shards that move; None if they cannot. ``links``: how
        many routers there are. ``replicated``: the slots on a replicated log, which are opened, too.
        """
        self.slots = {
            slot.index: slot for slot in (*map(Slot.of, shards), *opening, *(replicated.slots if replicated else []))
        }
        self.shards = {slot.index: slot.shard for slot in self.slots.values() if slot.shard is not None}
        self.offers = 1
        """Increases whenever what this host offers to the routers changes."""
        self._taken = [0] * links
        """For each link, the offer that its router has taken last."""
        self.failed: list[int] = []
        """Shards whose memory was dropped: the owner answers the requests that came directly, and takes them out."""
        self.dropped = False
        """Set when a shard's memory was dropped; the owner frees the memory and resets this."""
        self.recovered = False
        """Set when a shard was opened; the owner has the collector spare its objects, and resets this."""
        self._lacks_something = False
        """Whether a shard has to be registered again."""
        self._shards_total = shards_total
        self._patience = patience or Patience()
        self._suspects = suspects or Suspects()
        self._checkpoints = checkpoints
        self._departures = departures
        self._place = place
        self._replicated = replicated
        self.draining = False
        """Whether all shards of this worker go to others, and none comes here."""
        self.apart = False
        """Whether no router of another host is reached. The loop sets it."""
        self.answers_wait = False
        """Whether the owner still has answers of earlier turns to send."""
        self._failures = 0
        self._slot_of_queue: dict[str, Slot] = {}
        self._effects: list[Effect] = []
        """What the host itself answers. It waits until all that was committed is confirmed."""
        self._at_once: list[Effect] = []
        """What waits for nothing: figures, and refusals of what no shard has begun."""
        self._held = HeldForAll()
        self.log_is_full = False
        """Whether so much is unconfirmed that no frames are read at this moment."""
        self.config = ConfigCopies(self.slots, self._guarded)
        self._between: list[Command] = []
        """Commands between shards of this host, for the next turn."""
        self.notes: list[Event] = []
        """Events of the shards, for the operator; the owner writes them to the log and takes them out."""
        self.heard_at_door: Callable[[bytes], int] = lambda client: 0
        """When a client was last heard of at the worker's own door, Unix ms; 0: it is not connected there."""
        self._name, self._started_ms, self._cpu_ms = name, now_ms, 0
        self._free_disk_bytes: int | None = None
        self._pauses, self._turn_ms = Pauses(), now_ms
        self.turn_ns = Histogram(SPAN_NS)
        """How long turns took, from the first frame read to the last one sent. The owner has the clock and adds to it."""
        self.config.level(now_ms)

    def accept(self, frame: Frame, now_ms: int, link: int = 0) -> None:
        """Carry out one frame that came by a link. Its answer comes with :meth:`turn`."""
        if len(frame) != 4:
            return  # the router sends no such frames; there is no client to answer
        client, raw_header, key, body = frame
        try:
            header = unpack_header(raw_header)
        except InvalidFrameError:
            return
        call = Call(client, header.request, key.decode(errors="replace"), now_ms, link)
        try:
            check_version(header)
            self._carry_out(call, decode_command(header, body), frame)
        except FilaError as error:
            if client or header.request:  # else it is one of the commands without an answer
                self._at_once.append(Answer(call, header.opcode, error))

    def accept_direct(self, frame: Frame, queue: str, slot: Slot, now_ms: int) -> None:
        """Carry out one frame of a client that came without the router: it names the epoch of the shard that it is for."""
        client, raw_header, _, body = frame
        header = unpack_header(raw_header)
        call = Call(client, header.request, queue, now_ms, ANY_LINK)
        try:
            if slot.outage is not None:
                raise outages.unavailable(slot.outage)
            if (
                slot.leaving
                or slot.fence > max(self._taken)
                or slot.shard is None
                or header.epoch != epoch_tag(slot.shard.epoch)
            ):
                raise moved(slot.index)
            self._apply(slot, call, decode_command(header, body), frame)
        except FilaError as error:
            self._at_once.append(Answer(call, header.opcode, error))

    def slot_of(self, queue: str) -> Slot:
        """Return the slot of a queue's shard. Raise :class:`InvalidArgumentError` for what is no name, or
        :class:`ShardUnavailableError` if the shard is not here."""
        slot = self._slot_of_queue.get(queue)
        if slot is None:
            index = shard_of(check_queue_name(queue), self._shards_total)
            if index not in self.slots:
                raise moved(index)
            slot = self._slot(queue)
        return slot

    def _carry_out(self, call: Call, command: Command, frame: Frame) -> None:
        if call.client and command.opcode >= OF_WORKERS:
            raise InvalidFrameError(f"{type(command).__name__} is not a command for clients")
        if type(command) in OF_A_QUEUE:
            self._apply(self._slot(call.queue), call, command, frame)
        elif isinstance(command, ONE_WAY):
            self._heed(command, call.now_ms)
            if call.request:  # the router waits until this worker has heard it
                self._effects.append(answer(call, command, Done()))
        elif isinstance(command, PutConfig):
            self._put_config(call, command)
        elif isinstance(command, OF_A_MOVE):
            self._begin_departure(call, command)
        elif isinstance(command, ListConfig) and self.shards:
            self._apply(self.slots[min(self.shards)], call, command, frame)  # the router sent it to that shard
        elif isinstance(command, ListConfigHistory):
            self._apply(self.config.owner(), call, command, frame)
        elif isinstance(command, OF_THE_OWNER):
            self.config.owner().answers.append(answer(call, command, self._reply(call, command)))
        elif isinstance(command, AT_ONCE):
            self._at_once.append(answer(call, command, self._reply(call, command)))
        elif isinstance(command, OF_THE_CLUSTER):
            self._effects.append(answer(call, command, self._reply(call, command)))
        else:
            self._apply(self._slot(call.queue), call, command, frame)

    def _put_config(self, call: Call, put: PutConfig) -> None:
        if not self.config.put(put, call.now_ms):
            return
        if put.page and self.shards and self.config.version < put.version:
            self.offers += 1  # a page was lost: the router sends all again when it sees what is registered
        else:
            self._effects.append(answer(call, put, ConfigTaken(self.config.having(put.version))))

    def _apply(self, slot: Slot, call: Call, command: Command, frame: Frame) -> None:
        if slot.fence and call.link != ANY_LINK and slot.fence > self._taken[call.link]:
            return  # it was sent to an earlier life of the shard, and the router has answered for it
        if slot.leaving:
            raise unavailable(slot.index)
        if slot.outage is not None:
            raise outages.unavailable(slot.outage)
        if type(command) is Explain and (why := slot.log_problem(call.now_ms)):
            assert slot.shard is not None
            self._at_once.append(answer(call, command, explain_without_log(slot.shard, call.queue, why)))
            return
        if slot.log_full_ms is not None and slot.log_full_ms >= LOG_FULL_MS:
            assert slot.shard is not None
            slot.shard.consumers.touch(call.client, call.now_ms)
            raise too_busy(slot.log_trouble)
        if self._suspects.files:
            self._apply_suspect(slot, call, command, frame)
        else:
            self._apply_in_turn(slot, call, command, frame)

    def _apply_in_turn(self, slot: Slot, call: Call, command: Command, frame: Frame) -> None:
        assert slot.shard is not None
        slot.frames.append(frame)
        try:
            slot.shard.apply(call, command)
        except Exception as error:
            if isinstance(error, FilaError) and not isinstance(error, StorageError):
                raise
            slot.frames[:] = [frame]  # this command is to blame
            self._fail(slot, error, call.now_ms)

    def _apply_suspect(self, slot: Slot, call: Call, command: Command, frame: Frame) -> None:
        """Carry out a command while there are suspects: a suspect gets a turn of its own, a convicted command is refused."""
        name = self._suspects.examine(call, command, slot.index)
        if name is None:
            self._apply_in_turn(slot, call, command, frame)
            return
        self._turn_of(slot, call.now_ms, self._effects)
        if slot.shard is None:
            return  # it failed because of an earlier command
        self._apply_in_turn(slot, call, command, frame)
        self._turn_of(slot, call.now_ms, self._effects)
        if slot.shard is not None:
            self._suspects.on_trial[name] = slot, call
            self._suspects.acquit_done()

    def _slot(self, queue: str) -> Slot:
        slot = self._slot_of_queue.get(queue)
        if slot is None:
            slot = self._find_slot(queue)
            if len(self._slot_of_queue) >= SHARD_CACHE_MAX:
                self._slot_of_queue.clear()
            self._slot_of_queue[queue] = slot
        return slot

    def _find_slot(self, queue: str) -> Slot:
        if not queue:
            raise InvalidArgumentError("a command on a queue needs the queue's name as its routing key")
        index = shard_of(queue, self._shards_total)
        if index not in self.slots:
            raise ShardUnavailableError(f"queue {queue!r} is on shard {index}, which is not here", details={"refused": True})
        return self.slots[index]

    # --- failures -----------------------------------------------------------------------------------------------------

    def _fail(self, slot: Slot, error: Exception, now_ms: int) -> None:
        """Handle a shard's failure: drop its memory, note what happened, and find out which command is to blame."""
        self._failures += 1
        failure = f"{self._started_ms:x}-{slot.index}-{self._failures}"
        if isinstance(error, UnfitStoreError) and not slot.opened_once:
            raise error  # another process has the store, or it is of another cluster: the start was a mistake
        was_open = slot.shard is not None
        blameless = isinstance(error, StorageError) or not self._blame(slot, failure, now_ms)
        told = ProcessFailed.of(error)
        reason = told.reason or f"failure {failure} ({told.error}) in its worker's log"
        before = slot.outage
        outage = slot.fail(error, reason, self._patience, now_ms, blameless=blameless)
        self.shards.pop(slot.index, None)
        if outage.state == outages.BEGINNING:
            self._note_beginning(slot)
        elif isinstance(error, StorageError):
            if outage != before:
                self.notes.append(StorageFailed(slot.index, failure, reason))
        else:
            self.notes.append(ShardFailed(slot.index, failure, told.error, told.reason, told.trace))
        if outage.state == outages.QUARANTINED:
            self.notes.append(ShardQuarantined(slot.index, failure, reason))
        _forget_frames(error)
        self.dropped |= was_open
        if was_open or outage != before:
            self.offers += 1
        if was_open:
            slot.fence = self.offers
            self.failed.append(slot.index)

    def _note_beginning(self, slot: Slot) -> None:
        if slot.outage is not None and slot.outage.state == outages.BEGINNING:
            self.notes.append(CopyBeginning(slot.index, slot.outage.reason))

    def _blame(self, slot: Slot, failure: str, now_ms: int) -> bool:
        """Find out which command made a shard fail. Return whether one is refused from now on."""
        convicted = self._suspects.blame(slot, failure, now_ms)
        if convicted is None:
            return False
        command, queue = convicted
        slot.forgive()
        self.notes.append(CommandRefused(slot.index, failure, type(command).__name__, queue))
        return True

    def _guarded(self, slot: Slot, now_ms: int, action: Callable[[Shard], _Result]) -> _Result | None:
        """Have a shard do something that no client's command causes; return None if it is not open, or fails."""
        if slot.shard is None:
            return None
        try:
            return action(slot.shard)
        except Exception as error:
            if isinstance(error, FilaError) and not isinstance(error, StorageError):
                raise
            slot.frames.clear()
            self._fail(slot, error, now_ms)
            return None

    def _each(self, now_ms: int, action: Callable[[Shard], _Result]) -> list[_Result]:
        """Do the same with all shards; return the results of the open ones."""
        results = [self._guarded(slot, now_ms, action) for slot in self.slots.values()]
        return [result for result in results if result is not None]

    def _step(self, slot: Slot, now_ms: int) -> None:
        """Take a step of opening a shard, if it is time for one."""
        if now_ms < slot.retry_at_ms:
            return
        before = slot.outage
        try:
            shard = slot.step(now_ms)
        except Exception as error:
            self._fail(slot, error, now_ms)
            return
        if slot.outage != before:
            self.offers += 1
            self._note_beginning(slot)
        if shard is not None:
            slot.enter(shard)
            shard.free_disk_bytes = self._free_disk_bytes  # it was measured before, and is measured next in a second
            self.recovered = True
            self.shards[slot.index] = shard
            self.offers += 1
            self.notes.append(_opened(shard, now_ms - slot.since_ms))
            self.config.level(now_ms, shard)
        elif slot.outage is not before:
            self.offers += 1

    @property
    def outages(self) -> list[ShardOutage]:
        """The outages of the shards that do not serve."""
        return [slot.outage for slot in self.slots.values() if slot.outage is not None]

    @property
    def opening(self) -> bool:
        """Whether a shard's disk is being read."""
        return any(slot.is_starting for slot in self.slots.values())

    # --- shards that come and go ----------------------------------------------------------------------------------------

    @property
    def home(self) -> str:
        """The name of the data directory. Empty if shards cannot move to and from here."""
        return "" if self._departures is None else self._departures.home

    def _begin_departure(self, call: Call, command: PrepareShard | ReleaseShard) -> None:
        if self._departures is None:
            raise InvalidArgumentError("this worker's shards cannot move: it shares no data directory")
        if isinstance(command, PrepareShard):
            self._departures.prepare(call, command, self.slots)
        else:
            self._departures.release(call, command, self.slots, call.now_ms)

    def look_for_arrivals(self, *, asked: bool = False) -> None:
        """Begin to open the shards that other workers have released for this one. Call it once a second: a request may be lost.

        ``asked``: the router asks for it.
        """
        arrivals = [] if self._departures is None else self._departures.arrivals(self.slots, asked=asked)
        for slot in arrivals:
            self.slots[slot.index] = slot
            self.offers += 1

    def _depart(self, effects: list[Effect], now_ms: int) -> None:
        """Close the shards that are to leave and have done their work."""
        assert self._departures is not None
        answers = self._departures.left()
        if answers:  # the router learns of them from the next registration, too
            effects += answers
            self.offers += 1
        effects += self._departures.flushed(self.slots)
        for slot, call, command in self._departures.ready(self.slots, now_ms, answers_wait=self.answers_wait):
            shard = slot.shard
            if not self._departures.close(slot, call, command) or shard is None:
                continue
            del self.slots[slot.index], self.shards[slot.index]
            self._slot_of_queue.clear()
            self.failed.append(slot.index)
            self.dropped = True
            self.notes.append(ShardReleased(slot.index, shard.epoch, command.worker))

    # --- the cluster --------------------------------------------------------------------------------------------------

    def _reply(self, call: Call, command: Command) -> Reply:
        """Answer a command for the whole cluster, or for all its workers."""
        if isinstance(command, OF_THE_CONFIG):
            return self.config.reply(command, call.now_ms)
        if isinstance(command, DescribeClients):
            return ClientsDescribed(work_of(command.clients, self.shards.values(), self.heard_at_door))
        if isinstance(command, GetMetrics):
            return Metrics([self._metrics(call.now_ms)])
        if isinstance(command, GetHosts):
            hosted = self._hosted()
            return HostList([] if hosted is None else [hosted])
        if isinstance(command, OF_A_BACKUP):
            if self._checkpoints is None:
                raise InvalidArgumentError(
                    "this worker makes no backups: its shards are in memory, or on a replicated log (see docs/checkpoints.md)"
                )
            return self._checkpoints.carry_out(command, self.slots, call.now_ms)
        return self._list(call, command)

    def _list(self, call: Call, command: Command) -> Reply:
        """Return what there is of a kind on all shards, by name."""
        if isinstance(command, ListSchedules):
            wanted = command
            return joined_schedules(self._each(call.now_ms, lambda shard: list_schedules(shard, call, wanted)))
        assert isinstance(command, ListQueues)
        asked = command
        return joined(self._each(call.now_ms, lambda shard: list_queues(shard, call, asked)))

    def _metrics(self, now_ms: int) -> WorkerMetrics:
        shards = self._each(now_ms, lambda shard: report(shard, now_ms))
        return WorkerMetrics(self._name, self._started_ms, self._cpu_ms, self.turn_ns.wire(), shards, self._hosted())

    def _hosted(self) -> HostWorker | None:
        """Return this process's copies of shards; None: no other host may have any."""
        if self._place is None:
            return None
        copies = [copy for slot in self.slots.values() if (copy := slot.copy_view()) is not None]
        place, replicated = self._place, self._replicated
        problems = ("", "") if replicated is None else (replicated.problem, replicated.log_problem)
        return HostWorker(place.host, self._name, place.address, copies, self.draining, place.standbys, *problems)

    def _heed(self, command: Command, now_ms: int) -> None:
        """Apply a command of the bank, of another shard, or about where shards are.

        It is skipped if its shard is not here: it was for that shard's last host.
        """
        if isinstance(command, EndClient):
            client = command.client
            self._each(now_ms, lambda shard: shard.end_client(client, now_ms))
        elif isinstance(command, AdoptShards):
            self.look_for_arrivals(asked=True)
        elif isinstance(command, PutDraining):
            self.draining = command.draining
            self.offers += 1
        elif isinstance(command, Park):
            parks = command.parks
            self._each(now_ms, lambda shard: shard.park(parks, now_ms))
        elif isinstance(command, Grants):
            grants = command
            if grants.shard in self.slots:
                self._guarded(self.slots[grants.shard], now_ms, lambda shard: shard.granted(grants, now_ms))
        elif isinstance(command, BETWEEN_SHARDS) and command.to_shard in self.slots:
            told = command
            self._guarded(self.slots[told.to_shard], now_ms, lambda shard: shard.on_peer_message(told, now_ms))

    def add_link(self) -> None:
        """Note that there is one router more."""
        self._taken.append(0)

    @property
    def routers(self) -> set[str]:
        """Where the routers of the cluster listen for workers, as far as the log says so."""
        return set() if self._replicated is None else self._replicated.routers

    def bank_proof(self) -> Proof | None:
        """Return the proof that this process may lend the token bank: that it leads shard 0, if that stands on a replicated log."""
        slot = self.slots.get(CONFIG_OWNER)
        return None if slot is None else slot.proof()

    def new_session(self, now_ms: int) -> None:
        """Begin a session with the token bank: what was granted to the shards before is void."""
        self._each(now_ms, lambda shard: shard.new_session(now_ms))

    def registered(self, reply: Registered, now_ms: int, offer: int | None = None, link: int = 0) -> None:
        """Catch up with what the router of a link knows. Its frames from now on were sent after it took the offer: links keep order.

        ``offer``: the value of ``offers`` that was registered; the current one by default.
        """
        self.config.registered(reply, now_ms)
        self._taken[link] = max(self._taken[link], self.offers if offer is None else offer)

    def paused(self, for_ms: int) -> None:
        """Excuse all clients for a time without turns, or a step of the clock: their frames could not be read meanwhile."""
        for shard in self.shards.values():
            shard.consumers.excuse(for_ms)

    def measured(self, free_disk_bytes: int, cpu_ms: int = 0, now_ms: int = 0) -> None:
        """Take in the free space on the disk, and the CPU time spent so far."""
        self._cpu_ms, self._free_disk_bytes = cpu_ms, free_disk_bytes

        def look(shard: Shard) -> None:
            shard.free_disk_bytes = free_disk_bytes
            shard.look_at_storage()

        self._each(now_ms, look)

    # --- turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self, now_ms: int) -> None:
        """A turn begins, before its frames are accepted: see whether the process was away."""
        gap_ms, self._turn_ms = now_ms - self._turn_ms, now_ms
        if gap_ms > GAP_MS or self._pauses.forgiving:
            self._pauses.begin_turn(now_ms, gap_ms)
        if self._replicated is not None:
            self._replicated.tend(drains=self.draining, apart=self.apart, free_disk_bytes=self._free_disk_bytes)
            for slot in self.slots.values():
                self._tend(slot, now_ms)
        forgiving, log_is_full = self._pauses.forgiving, False
        for slot in self.slots.values():
            behind = forgiving
            if slot.watches_log:
                log_is_full = self._look_at_log(slot, now_ms) or log_is_full
                behind = behind or slot.held.wait_long(now_ms)
            if slot.shard is not None:
                slot.shard.behind = behind
        self.log_is_full = log_is_full

    def _tend(self, slot: Slot, now_ms: int) -> None:
        """Let a shard's slot look at what the shard stands on, and put the shard down if it has to."""
        if slot.shard is None:
            return
        try:
            reason = slot.tend(now_ms)
        except Exception as error:
            self._fail(slot, error, now_ms)
            return
        if reason:
            epoch = slot.shard.epoch
            slot.put_down(reason)
            del self.shards[slot.index]
            self.offers += 1
            slot.fence = self.offers
            self.failed.append(slot.index)
            self.dropped = True
            self.notes.append(ShardFollowed(slot.index, epoch, reason))

    def retire(self) -> None:
        """Begin to give up the shards that other hosts can take over: the process is about to end."""
        if self._replicated is not None:
            self._replicated.retire()

    @property
    def retires(self) -> bool:
        """Whether shards are being handed over to other hosts."""
        return any(slot.retires for slot in self.slots.values())

    def _look_at_log(self, slot: Slot, now_ms: int) -> bool:
        """Return whether to read nothing for the moment, because the log of a shard has too much to confirm.

        A log that is only slower than the load is waited for. One that does not go on must not stop the other shards: soon its
        shard refuses requests (:meth:`_apply`), and frames are read again.
        """
        slot.look_at_log(now_ms)
        return slot.log_full_ms is not None and slot.log_full_ms < LOG_FULL_MS

    def turn(self, now_ms: int, *, drained: bool = True) -> list[Effect]:
        """Do what is due, deliver and commit on every shard; return what may be sent.

        ``drained``: whether no more frames waited when those of this turn were read.
        """
        if drained and self._pauses.forgiving:
            self._pauses.drained()
            for slot in self.slots.values():
                if slot.shard is not None:
                    slot.shard.behind = slot.held.wait_long(now_ms)
        effects: list[Effect] = []
        if self._departures is not None and self._departures.looks_again:
            self._depart(effects, now_ms)
        self._release(effects, now_ms)
        between, self._between = self._between, []
        self.config.begin_turn(now_ms)
        for command in between:
            with suppress(FilaError):  # as if it had come over the wire: no client waits for an answer
                self._heed(command, now_ms)
        for slot in self.slots.values():
            if slot.shard is not None:
                if not slot.pauses:
                    self._turn_of(slot, now_ms, effects)
            elif slot.opening:
                self._step(slot, now_ms)
        if self._checkpoints is not None:
            self._checkpoints.turn(self.slots, now_ms)
        if self._effects or self._at_once:
            effects[:0] = self._own_effects()
        if self._lacks_something:  # the router sees it when all shards are registered again
            self._lacks_something = False
            self.offers += 1
        return effects

    def _turn_of(self, slot: Slot, now_ms: int, effects: list[Effect]) -> None:
        """End a shard's turn after its commands are carried out; add what may be sent to ``effects``."""
        shard = slot.shard
        if shard is None:
            return
        try:
            committed = shard.turn(now_ms)
            if slot.answers:
                committed, slot.answers = slot.answers + committed, []
            committed = slot.end_turn(committed, now_ms)
        except Exception as error:
            self._fail(slot, error, now_ms)
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
            if type(effect) is not Post or not self._stays(effect):
                effects.append(effect)  # noqa: PERF401  # a comprehension is a call

    def _release(self, effects: list[Effect], now_ms: int) -> None:
        """Add the effects of earlier turns that are confirmed by now to ``effects``."""
        for slot in self.slots.values():
            if slot.shard is None or not slot.watches_log:
                continue
            if (failure := slot.shard.store.failure) is not None:
                self._fail(slot, failure, now_ms)
            elif slot.held:
                self._pass_on(slot.held.release(slot.shard.store), effects)
        if self._held.entries:
            effects += self._held.release(self.shards.values())

    def _own_effects(self) -> list[Effect]:
        """Return the host's own answers that may be sent now; hold the others."""
        own, self._effects = self._effects, []
        at_once, self._at_once = self._at_once, []
        return at_once + self._held.hold(self.shards.values(), own) if own else at_once

    def _stays(self, effect: Post) -> bool:
        """Return whether a command is for a shard of this host; then it does not leave the process."""
        command = effect.command
        if isinstance(command, Park):
            self._between.append(command)  # for the other shards here, and for all other workers
        elif isinstance(command, BETWEEN_SHARDS) and command.to_shard in self.shards:
            self._between.append(command)
            return True
        return False

    @property
    def full(self) -> bool:
        """Whether a shard has enough to do in this turn: further frames are for the next turn."""
        if self.config.page_read or self.config.pages or self.log_is_full:
            return True
        for shard in self.shards.values():  # noqa: SIM110  # asked for each frame, and any() would make a generator
            if shard.jobs.full:
                return True
        return False

    def next_due(self, now_ms: int) -> int | None:
        """Return the milliseconds until a turn has something to do without a frame; None: never."""
        if self._between or self.config.pages:
            return 0
        looks_again = (self._checkpoints is not None and self._checkpoints.looks_again) or (
            self._departures is not None and self._departures.looks_again
        )
        soonest = LOOK_MS if looks_again else None
        for slot in self.slots.values():
            shard = None if slot.pauses else slot.shard
            due = _due_of(slot, now_ms) if shard is None else shard.next_due(now_ms)
            if due is not None and (soonest is None or due < soonest):
                soonest = due
        return soonest

    @property
    def holds_effects(self) -> bool:
        """Whether effects of earlier turns wait to be confirmed."""
        return bool(self._held.entries) or any(slot.held for slot in self.slots.values())

    @property
    def is_alone(self) -> bool:
        """Whether this host serves all shards of the cluster."""
        return len(self.shards) == self._shards_total

    @property
    def queues(self) -> int:
        """How many queues are here, without dead letter queues."""
        return sum(1 for shard in self.shards.values() for queue in shard.queues.values() if not queue.is_dead_letter)

    def close(self) -> None:
        """Flush and close all stores, and remove checkpoints."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._replicated is not None:
            self._replicated.close()
        for slot in self.slots.values():
            slot.close()


def _due_of(slot: Slot, now_ms: int) -> int | None:
    """Return how soon to look at a shard that pauses, or to take the next step of opening it; None: when something arrives."""
    if slot.pauses:
        return LOOK_MS
    due = slot.due_ms if slot.opening else None
    return None if due is None else max(due, slot.retry_at_ms - now_ms)


def _opened(shard: Shard, recovery_ms: int) -> ShardOpened:
    queues = shard.queues.values()
    return ShardOpened(
        shard.index, shard.epoch, len(queues), sum(len(queue.keys) for queue in queues), sum(queue.pending for queue in queues),
        sum(queue.in_flight for queue in queues), sum(queue.delayed for queue in queues), recovery_ms,
    )  # fmt: skip


def _forget_frames(error: BaseException) -> None:
    """Clear the tracebacks of an error: they keep all of the failed shard alive, and iterators that lock its store."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
