"""A shard on a replicated log: the slot of a host that follows it until it leads it.

The slot's steps read the log into this host's copy. When its member of the log leads, they recover the shard from the copy,
and the host serves it as any other. From then on the host calls :meth:`ReplicatedSlot.tend` in each turn. It applies the
confirmations of the log, and returns why the shard must be put down: another host leads it, or the proof is too old.

A copy that can't follow the log begins again: from a checkpoint, or with the log
(:mod:`fila_worker.replication.log_checkpoints`).
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from fila_proto_zmq.commands import HostCopy, HostWorker, ShardOutage
from fila_proto_zmq.commands.hosts import BEGINS
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import CheckpointFailed, ShardFollowed
from fila_proto_zmq.outages import BEGINNING, FOLLOWING, NO_QUORUM, OPENING, QUARANTINED, WAITING
from fila_worker.core.effects import Effect
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store, UnfitStoreError
from fila_worker.log.bodies import Node
from fila_worker.log.leadership import Proof
from fila_worker.log.member import CAUSES, RECORD_BYTES_MAX, Member, copy_view, has_proof, problem
from fila_worker.log.partition import TrimmedError
from fila_worker.log.placement import Placing
from fila_worker.lua import compile_hooks
from fila_worker.process.feature import ProcessFeature
from fila_worker.process.held import is_confirmed
from fila_worker.process.slots import Patience, Slot, random_64
from fila_worker.replication.log_checkpoints.cutting import Cutting
from fila_worker.replication.log_checkpoints.exchange import Beginning, Exchange
from fila_worker.settings import Replication, WorkerSettings
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.replica import DivergedError, Replica

if TYPE_CHECKING:
    from fila_worker.process.shard_process import ShardProcess

WELL_MS: Final = 120_000
"""How long no write may have failed. A shard that comes back and goes again costs two hand-overs."""
ROOM_FACTOR: Final = 1.25
"""So much more room than the least it must have, once it had less."""


class DiskHealth:
    """Whether the disk takes writes, or hosts with room should lead. ``least_bytes``: must stay free. Times are of a steady
    clock.

    A failed node is well only after a while, and with more room than it needs: else its shards would move to and fro.
    """

    def __init__(self, least_bytes: int, well_ms: int = WELL_MS) -> None:
        self._least_bytes, self._well_ms = least_bytes, well_ms
        self._room = ""
        self._failure = ""
        self._failed_ms = 0

    def measured(self, free_bytes: int) -> None:
        """Note how much of the disk is free."""
        if free_bytes < self._least_bytes * (ROOM_FACTOR if self._room else 1):
            free, least = free_bytes >> 20, self._least_bytes >> 20
            self._room = f"its disk has {free} MiB free, and {least} must stay free ([limits] min_free_disk_bytes)"
        else:
            self._room = ""

    def failed(self, reason: str, now_ms: int) -> None:
        """Note that a write or a read has failed."""
        self._failure, self._failed_ms = reason, now_ms

    def problem(self, now_ms: int) -> str:
        """Return the fault of the disk, for people; empty: it is well."""
        if self._failure and now_ms - self._failed_ms >= self._well_ms:
            self._failure = ""
        return self._room or (f"its disk failed lately: {self._failure}" if self._failure else "")


FOLLOW_MS: Final = 20
"""How often a copy looks for what has arrived in the log."""

WORK_MS_MAX: Final = 2_000
"""How long a shard that is handed over may work on what it has. Longer work is dropped, as at a restart."""


class MustEnd(BaseException):  # it is not an error of the process
    """The process must end at once, without a tidy close: its memory may be ahead of a log that another host writes by now.

    Not an :class:`Exception`, so that it is never handled as the failure of one shard.
    """


class NameTakenError(UnfitStoreError):
    """Another host has the name of this one, and was there before. To start again would not help."""


class ReplicatedSlot(Slot):
    """One shard of a host.

    ``make_member`` opens the copy; ``steady_ms`` is a clock that is never set. ``make_cutting`` is called with each open
    copy; None: no checkpoints.
    """

    def __init__(
        self,
        index: int,
        shards_total: int,
        settings: ShardSettings,
        compile_hooks: HookCompiler,
        make_member: Callable[[int], Member],
        steady_ms: Callable[[], int],
        beginning: Beginning,
        make_cutting: Callable[[Replica, int], Cutting] | None = None,
        entropy: Callable[[], int] = random_64,
    ) -> None:
        super().__init__(index, shards_total, settings, compile_hooks, self._copy, entropy)
        self._make_member = make_member
        self._steady_ms = steady_ms
        self._beginning, self._make_cutting = beginning, make_cutting
        self.member: Member | None = None
        self.failure = ""
        """Why the disk last refused something, until the owner takes it."""
        self._cutting: Cutting | None = None
        self._leave_by_ms: int | None = None

    def _copy(self) -> Store:
        assert self.member is not None
        return self.member.copy

    @property
    def is_starting(self) -> bool:
        """Whether the copy is not open yet. Then a process that takes long is not hung."""
        return self.member is None and not self._beginning.reason and super().is_starting

    @property
    def due_ms(self) -> int | None:
        """How soon to take the next step: at once while the shard is recovered, and while the copy catches up."""
        member = self.member
        if member is None:
            return FOLLOW_MS
        recovers = member.leads and not member.leaves and self._recovered is None
        return 0 if recovers or member.reads_on else FOLLOW_MS

    def step(self, now_ms: int) -> Shard | None:
        """Read on, and if this host leads, take a step of opening the shard; return the shard after the last one."""
        if self.member is None:
            self._open()
            return None
        member = self._moved_on()
        self._care_for_checkpoints(serves=False)
        if not member.leads or member.leaves:
            self._forget()
            if member.leaves:
                member.stopped(self._steady_ms())
            self._say_why(FOLLOWING, "this host follows it")
            return None
        if has_proof(member, self._steady_ms()):
            self._say_why(OPENING, "this host takes it over")
        else:
            self._say_why(NO_QUORUM, f"the log confirms nothing: {CAUSES}")
        shard = super().step(now_ms)
        if shard is not None and not member.serves:
            member.recovered(self._steady_ms())
        return shard if member.serves else None

    def _open(self) -> None:
        """Open the copy, if nothing has to be brought before."""
        now_ms = self._steady_ms()
        try:
            ready = self._beginning.ready(now_ms)
        except OSError as cause:
            raise StorageError(f"the copy of shard {self.index} can't be begun again: {cause}") from cause
        if not ready:
            self.outage = ShardOutage(self.index, BEGINNING, self._beginning.reason)
            return
        self.member = self._make_member(now_ms)
        self.outage = ShardOutage(self.index, FOLLOWING, "this host follows it")
        if self._make_cutting is not None:
            assert isinstance(self.member.copy, Replica)
            self._cutting = self._make_cutting(self.member.copy, now_ms)

    def _care_for_checkpoints(self, *, serves: bool) -> None:
        if self._cutting is None:
            return
        try:
            self._cutting.step(self._steady_ms(), serves=serves)
        except (StorageError, OSError) as error:
            if self.shard is not None:
                self.shard.notes.append(CheckpointFailed(self.index, type(error).__name__, str(error)))

    def tend(self, now_ms: int) -> str:
        """Apply the confirmations of the log. Return why the shard must be put down; empty: it stays."""
        if self.member is None or self.shard is None:
            return ""
        member = self._moved_on()
        self._care_for_checkpoints(serves=member.serves)
        if member.serves:
            return ""
        if not member.leaves:
            return "the log does not show any more that this host leads it"
        self.leaving = True
        if self._leave_by_ms is None:
            self._leave_by_ms = now_ms + WORK_MS_MAX
        busy = self.shard.jobs.open > 0 or bool(self.held) or not is_confirmed(self.shard.store)
        return "" if busy and now_ms < self._leave_by_ms else "another host is to lead it"

    def end_turn(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Return the effects that may be sent now. Each turn polls the log: the copy may have to flush, or the log fail."""
        sent = super().end_turn(effects, now_ms)
        self.watches_log = True
        return sent

    def look_at_log(self, now_ms: int) -> None:
        """See how much the log has yet to confirm, and whether the copy has to flush before more is committed."""
        member, cutting = self.member, self._cutting
        self.pauses = member is not None and (member.pauses or (cutting is not None and cutting.pauses))
        super().look_at_log(now_ms)

    def put_down(self, reason: str) -> None:
        """Drop the shard's memory, and follow."""
        assert self.member is not None
        self._forget()
        self.leaving, self._leave_by_ms = False, None
        if self.member.leads and not self.member.leaves:
            self._say_why(NO_QUORUM, f"the log confirms nothing: {CAUSES}")
        else:
            self._say_why(FOLLOWING, reason)
        if self.member.leaves:
            self.member.stopped(self._steady_ms())

    def _say_why(self, state: str, reason: str) -> None:
        """Set why the shard is not served here. The text has no figures, because each change is sent to the routers."""
        if self.outage is None or self.outage.state != state:
            self.outage = ShardOutage(self.index, state, reason)

    def copy_view(self) -> HostCopy | None:
        """Return what this host has of the shard."""
        if self.member is None:
            outage = self.outage
            return HostCopy(
                self.index, BEGINS, problem=outage.reason if outage and outage.state in {WAITING, QUARANTINED} else ""
            )
        queues = 0 if self.shard is None else sum(1 for queue in self.shard.queues.values() if not queue.is_dead_letter)
        return copy_view(self.member, self.index, self._steady_ms(), is_open=self.shard is not None, queues=queues)

    def log_problem(self, now_ms: int) -> str:
        """Return why no answer comes, if the log has confirmed nothing for long; empty: it has."""
        if self.member is None or not self.held.wait_long(now_ms):
            return ""
        return problem(self.member, self._steady_ms()) or "the log takes longer than a second to confirm"

    def _moved_on(self) -> Member:
        """Return the member after its next step. Raise :class:`MustEnd`, or :class:`StorageError`."""
        member = self.member
        assert member is not None
        member.step(self._steady_ms())
        if member.ended:
            raise MustEnd(f"shard {self.index}: {member.ended}")
        return member

    def fail(self, error: Exception, reason: str, patience: Patience, now_ms: int, *, blameless: bool) -> ShardOutage:
        """Follow again, with a copy that begins again if this one can't follow."""
        diverged = isinstance(error, DivergedError)
        if diverged:  # it was never confirmed; the log has the rest
            self._beginning.drop()
            error = StorageError(str(error))
        outage = super().fail(error, reason, patience, now_ms, blameless=blameless)
        if outage.state == WAITING and not diverged and not isinstance(error, TrimmedError):
            self.failure = reason
        if isinstance(error, TrimmedError):
            self._beginning.need(error)
            outage = self.outage = ShardOutage(self.index, BEGINNING, self._beginning.reason)
        return outage

    @property
    def retires(self) -> bool:
        """Whether the shard is being handed over."""
        return self.member is not None and self.member.leaves

    def proof(self) -> Proof | None:
        """Return the proof that this process leads the shard."""
        return None if self.member is None else self.member.leadership.proof(self._steady_ms())

    def close(self) -> None:
        """Leave the log, and close the copy."""
        self._store = None
        cutting, self._cutting = self._cutting, None
        if cutting is not None:
            cutting.close()
        member, self.member = self.member, None
        if member is not None:
            member.close()


class HostPlace(NamedTuple):
    """A host among others."""

    host: str
    address: str
    """Where the others reach it."""
    standbys: int = 1
    """How many of the others should be ready to take over each of its shards."""


class ReplicatedShards(ProcessFeature):
    """All replicated shards of a process, and their placement among the hosts."""

    def __init__(
        self,
        shards: Iterable[int],
        make_slot: Callable[[int, Placing], ReplicatedSlot],
        make_placing: Callable[[Callable[[], dict[int, Member]]], Placing],
        steady_ms: Callable[[], int],
        look_at_log: Callable[[], None],
        health: DiskHealth | None = None,
        log_problem: Callable[[], str] = lambda: "",
        place: HostPlace | None = None,
    ) -> None:
        """``make_placing`` gets a function that returns the open members: they join the placing. ``place``: of this host.

        ``look_at_log``: called in each turn, for the state of the log's own copies. ``log_problem``: which setting of the log
        is unsafe.
        """
        super().__init__()
        self._place = place
        self._health, self._log_problem = health or DiskHealth(0), log_problem
        self._steady_ms, self._look_at_log = steady_ms, look_at_log
        self._placing = make_placing(self._members)
        self.slots = [make_slot(index, self._placing) for index in shards]

    def _members(self) -> dict[int, Member]:
        return {slot.index: slot.member for slot in self.slots if slot.member is not None}

    def attach(self, process: "ShardProcess", now_ms: int) -> None:
        """Add the host's copies to the figures of its process."""
        super().attach(process, now_ms)
        if self._place is not None:
            process.metrics.hosted = self._hosted

    def begin_turn(self, now_ms: int) -> None:
        """Place the shards, and apply what the log has confirmed. Raise :class:`NameTakenError` if another has this name."""
        self._step()
        for slot in self.slots:
            if slot.shard is not None:
                self._tend(slot, slot.shard, now_ms)

    def _tend(self, slot: ReplicatedSlot, shard: Shard, now_ms: int) -> None:
        process = self.process
        try:
            reason = slot.tend(now_ms)
        except Exception as error:
            process.failures.fail(slot, error, now_ms)
            return
        if reason:
            slot.put_down(reason)
            process.put_down(slot)
            process.notes.append(ShardFollowed(slot.index, shard.epoch, reason))

    def _step(self) -> None:
        drains, apart = self.process.draining, self.process.apart
        self._look_at_log()
        self._see_disk(self.process.metrics.free_disk_bytes)
        self._placing.failing = bool(self.problem)
        self._placing.drains, self._placing.apart = drains, apart
        self._placing.step(self._steady_ms())
        if (twin := self._placing.twin) is not None:
            raise NameTakenError(
                f"the host at {twin.address or 'an unknown address'} has the name {twin.host!r} of this one, and was there "
                "before: give each host a name of its own ([hosts] name)"
            )

    def _see_disk(self, free_bytes: int | None) -> None:
        if free_bytes is not None:
            self._health.measured(free_bytes)
        for slot in self.slots:
            if slot.failure:
                self._health.failed(slot.failure, self._steady_ms())
                slot.failure = ""

    @property
    def problem(self) -> str:
        """The fault of this host's disk, for people; empty: it is well."""
        return self._health.problem(self._steady_ms())

    @property
    def log_problem(self) -> str:
        """Which setting of the log may lose confirmed records, for people; empty: all are safe."""
        return self._log_problem()

    @property
    def routers(self) -> set[str]:
        """The endpoints for workers of all known hosts' routers."""
        return self._placing.routers

    def _hosted(self) -> HostWorker | None:
        """Return this process's copies of shards."""
        place, metrics = self._place, self.process.metrics
        assert place is not None
        copies = [copy for slot in self.process.slots.values() if (copy := slot.copy_view()) is not None]
        return HostWorker(
            place.host,
            metrics.name,
            place.address,
            copies,
            self.process.draining,
            place.standbys,
            self.problem,
            self.log_problem,
        )

    def retire(self) -> None:
        """Leave all shards to other hosts, because the process is about to end."""
        self._placing.retire(self._steady_ms())

    def close(self) -> None:
        """Leave the control partition. The slots are their host's to close."""
        self._placing.close()


def replicated_shards(settings: WorkerSettings, replication: Replication, wake: Callable[[], None]) -> ReplicatedShards:
    """Return the shards of a worker. Waits for the log's brokers; raises :class:`UnfitStoreError`.

    ``wake``: called in any thread after an event of the log.
    """
    from fila_worker.log.kafka.partition import KafkaLog, steady_ms  # noqa: PLC0415  # needs the extra `hosts`
    from fila_worker.log.kafka.topic import prepare_topic  # noqa: PLC0415  # the same

    kafka, data_dir, memory = replication.kafka, Path(settings.data_dir), SharedMemory()
    log = prepare_topic(kafka, replication.log)
    checkpoints, shards, one_at_a_time = replication.checkpoints, settings.shards_total, Lock()
    partitions = KafkaLog(kafka, log, wake)
    node = Node(settings.name, replication.host, replication.address, f"{random_64():x}")

    def make_placing(members: Callable[[], dict[int, Member]]) -> Placing:
        control = partitions.partition(kafka.control_partition)
        return Placing(
            node, shards, members, control, steady_ms(), replication.placement, replication.router, replication.keys
        )

    def make_slot(index: int, placing: Placing) -> ReplicatedSlot:
        partition = partitions.partition(index)
        exchange = Exchange(data_dir, index)

        def make_member(now_ms: int) -> Member:
            copy = Replica(exchange.copy, log=log, memory=memory)
            member = Member(
                partition,
                copy,
                node,
                now_ms,
                limits=replication.leadership,
                record_bytes_max=min(RECORD_BYTES_MAX, kafka.data_bytes_max),
            )
            placing.join(index, member)
            return member

        def make_cutting(copy: Replica, now_ms: int) -> Cutting:
            assert checkpoints is not None
            return Cutting(copy, partition, exchange, checkpoints, log, shards, one_at_a_time, now_ms)

        beginning = Beginning(exchange, shards, None if checkpoints is None else log)
        cutter = None if checkpoints is None else make_cutting
        return ReplicatedSlot(index, shards, settings.shard, compile_hooks, make_member, steady_ms, beginning, cutter)

    health = DiskHealth(settings.shard.min_free_disk_bytes)
    place = HostPlace(replication.host, replication.address, replication.standbys)
    return ReplicatedShards(
        settings.shards, make_slot, make_placing, steady_ms, partitions.look, health, lambda: partitions.problem, place
    )
