"""A shard on a replicated log: the slot of a host that follows it until it leads it itself.

The slot's steps read the log into this host's copy. When its member of the log reigns, they recover the shard from the copy, and the host
serves it as any other. From then on the host calls :meth:`ReplicatedSlot.tend` in each turn: it takes in what the log has confirmed, and
says when the shard is to be put down, because another host leads it, or nothing shows any more that this one does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from fila_proto_zmq.commands import ShardOutage
from fila_proto_zmq.outages import FOLLOWING
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import Store
from fila_worker.held import is_confirmed
from fila_worker.log.bodies import Node
from fila_worker.log.member import RECORD_BYTES_MAX, Member
from fila_worker.lua import compile_hooks
from fila_worker.settings import Replication, WorkerSettings
from fila_worker.slots import Slot, random_64
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.replica import Replica

FOLLOW_MS: Final = 20
"""How often a copy looks for what has arrived in the log."""

WORK_MS_MAX: Final = 2_000
"""How long a shard that is handed over may work on what it has. Longer work is dropped, as at a restart."""


class MustEnd(BaseException):  # it is no error of the process
    """The process must end at once, without a tidy close: its memory may be ahead of a log that another host writes by now.

    No :class:`Exception`, because nothing may take it for the failure of one shard.
    """


class ReplicatedSlot(Slot):
    """One shard of a host. ``make_member`` opens the copy; ``steady_ms`` is a clock that nobody sets."""

    def __init__(
        self,
        index: int,
        shards_total: int,
        settings: ShardSettings,
        compile_hooks: HookCompiler,
        make_member: Callable[[int], Member],
        steady_ms: Callable[[], int],
        entropy: Callable[[], int] = random_64,
    ) -> None:
        super().__init__(index, shards_total, settings, compile_hooks, self._copy, entropy)
        self.outage = ShardOutage(index, FOLLOWING, "this host follows it")
        self._make_member = make_member
        self._steady_ms = steady_ms
        self.member: Member | None = None
        self._leave_by_ms: int | None = None

    def _copy(self) -> Store:
        assert self.member is not None
        return self.member.copy

    @property
    def is_starting(self) -> bool:
        """Whether the copy is not open yet. Then a process that takes long is not hung."""
        return self.member is None and super().is_starting

    @property
    def due_ms(self) -> int | None:
        """How soon to take the next step: at once while the shard is recovered."""
        recovers = self.member is not None and self.member.reigns and not self.member.leaves and self._recovered is None
        return 0 if recovers else FOLLOW_MS

    def step(self, now_ms: int) -> Shard | None:
        """Read on, and if this host leads, take a step of opening the shard; return the shard after the last one."""
        if self.member is None:
            self.member = self._make_member(self._steady_ms())
            return None
        member = self._moved_on()
        if not member.reigns or member.leaves:
            self._forget()
            if member.leaves:
                member.stopped(self._steady_ms())
            return None
        shard = super().step(now_ms)
        if shard is not None and not member.serves:
            member.recovered(self._steady_ms())
        return shard if member.serves else None

    def tend(self, now_ms: int) -> str:
        """Take in what the log has confirmed. Return why the shard must be put down; empty: it goes on."""
        if self.member is None or self.shard is None:
            return ""
        member = self._moved_on()
        if member.serves:
            return ""
        if not member.leaves:
            return "the log does not show any more that this host leads it"
        self.leaving = True
        if self._leave_by_ms is None:
            self._leave_by_ms = now_ms + WORK_MS_MAX
        busy = self.shard.jobs.open > 0 or bool(self.held) or not is_confirmed(self.shard.store)
        return "" if busy and now_ms < self._leave_by_ms else "another host is to lead it"

    @property
    def pauses(self) -> bool:
        """Whether the copy has to flush before more is committed."""
        return self.member is not None and self.member.pauses

    def put_down(self, reason: str) -> None:
        """Drop the shard's memory, and follow."""
        assert self.member is not None
        self._forget()
        self.leaving, self._leave_by_ms = False, None
        self.outage = ShardOutage(self.index, FOLLOWING, reason)
        if self.member.leaves:
            self.member.stopped(self._steady_ms())

    def _moved_on(self) -> Member:
        """Let the member take a step. Raise :class:`MustEnd`, or :class:`StorageError`."""
        member = self.member
        assert member is not None
        member.step(self._steady_ms())
        if member.ended:
            raise MustEnd(f"shard {self.index}: {member.ended}")
        return member

    def retire(self) -> None:
        """Give the shard up for good: the process is about to end."""
        if self.member is not None:
            self.member.leave("", self._steady_ms(), for_good=True)

    @property
    def retires(self) -> bool:
        """Whether the shard is being handed over."""
        return self.member is not None and self.member.leaves

    def close(self) -> None:
        """Leave the log, and close the copy."""
        self._store = None
        member, self.member = self.member, None
        if member is not None:
            member.close()


def replicated_slots(settings: WorkerSettings, replication: Replication, wake: Callable[[], None]) -> list[ReplicatedSlot]:
    """Return a slot for each shard of a worker. Waits for the log's brokers; raises :class:`UnfitStoreError`.

    ``wake``: called in any thread when the log has news.
    """
    from fila_worker.log.kafka.partition import KafkaPartition, steady_ms  # noqa: PLC0415  # needs the extra `hosts`
    from fila_worker.log.kafka.topic import prepare_topic  # noqa: PLC0415  # the same

    kafka, data_dir, memory = replication.kafka, Path(settings.data_dir), SharedMemory()
    prepare_topic(kafka)
    node = Node(f"{replication.host}/{settings.name}", replication.host)

    def make_slot(index: int) -> ReplicatedSlot:
        partition = KafkaPartition(kafka, index, wake)

        def make_member(now_ms: int) -> Member:
            copy = Replica(data_dir / f"shard-{index:04d}", memory=memory)
            return Member(
                partition,
                copy,
                node,
                now_ms,
                limits=replication.leadership,
                record_bytes_max=min(RECORD_BYTES_MAX, kafka.data_bytes_max),
            )

        return ReplicatedSlot(index, settings.shards_total, settings.shard, compile_hooks, make_member, steady_ms)

    return [make_slot(index) for index in settings.shards]
