"""The slots of a process: each is a shard's place in it, with the shard's opening and its failures."""

import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from fila_admission.refusals import moved
from fila_proto_zmq.commands import HostCopy, ShardOutage
from fila_proto_zmq.errors import InvalidArgumentError, ShardUnavailableError, StorageError
from fila_proto_zmq.names import check_routing_key, shard_of
from fila_proto_zmq.outages import OPENING, QUARANTINED, WAITING
from fila_worker.core.effects import DirectReply, Effect
from fila_worker.core.hooks import HookCompiler
from fila_worker.core.recovery import recover_in_steps
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.core.store import DamageError, Store, UnfitStoreError
from fila_worker.log.leadership import Proof
from fila_worker.process.cron import CALENDAR
from fila_worker.process.held import HeldEffects, is_confirmed

SHARD_CACHE_MAX: Final = 100_000
"""Queue names whose shard is cached."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often a shard may fail. Times are in milliseconds."""

    failures_max: int = 3
    """Failures within ``window_ms`` without a command to blame. After these the shard is quarantined."""
    window_ms: int = 60_000
    retry_ms_min: int = 100
    retry_ms_max: int = 5_000
    """How long to wait after the disk refused: doubled with each failure within ``window_ms``."""


Frame: TypeAlias = list[Any]
"""``[client id, header, routing key, body]``: bytes; the body may be a memoryview."""

Opener: TypeAlias = Callable[[], Store]
"""Opens a shard's store; raises :class:`StorageError`."""


def random_64() -> int:
    """Return 64 random bits."""
    return secrets.randbits(64)


class Slot:
    """One shard of a host. Invariants: ``shard`` is set exactly while it is open; ``outage`` exactly while it is not."""

    def __init__(
        self,
        index: int,
        shards_total: int,
        settings: ShardSettings,
        compile_hooks: HookCompiler,
        open_store: Opener,
        entropy: Callable[[], int] = random_64,
    ) -> None:
        """``entropy`` gives 64 random bits for each opening."""
        self.index = index
        self.shard: Shard | None = None
        self.outage: ShardOutage | None = ShardOutage(index, OPENING, "it is being opened")
        self.since_ms = 0
        """When its opening began; 0: not yet."""
        self.retry_at_ms = 0
        self.opened_once = False
        self.fence = 0
        """The number of the offer after its last failure; 0: it has not failed.

        Frames before its router has taken the offer were for an earlier opening of the shard, and that router has answered
        them.
        """
        self.leaving = False
        """Whether it takes in nothing more, because another worker is to host the shard."""
        self.frames: list[Frame] = []
        """The frames carried out since the last commit."""
        self.answers: list[Effect] = []
        """Answers of the process for this shard. They are sent with the effects of the shard's next commit."""
        self.unanswered: list[DirectReply] = []
        """Those of them, and of the held effects, that were dropped with the shard's memory. The process answers them."""
        self.held = HeldEffects()
        self.watches_log = True
        """Whether to look at the log in each turn. False: at the end of the last turn all was confirmed, nothing held."""
        self.pauses = False
        """Whether the shard has to end no turn for the moment, as of the last look at the log."""
        self.log_full_ms: int | None = None
        """Since when the log has had too much to confirm; None: it has not."""
        self._shards_total = shards_total
        self._settings = settings
        self._compile_hooks = compile_hooks
        self._open_store = open_store
        self._entropy = entropy
        self._store: Store | None = None
        self._recovery: Generator[None, int | None, Shard] | None = None
        self._recovered: Shard | None = None
        """The shard while its new epoch is not confirmed."""
        self._failures: deque[int] = deque()
        self._log_full_since_ms = 0

    @classmethod
    def of(cls, shard: Shard) -> "Slot":
        """Return the slot of a shard that is open, and whose store can be read again if it fails."""
        slot = cls(shard.index, shard.shards, shard.settings, shard.compile_hooks, lambda: shard.store)
        slot._store = shard.store
        slot.enter(shard)
        return slot

    @property
    def opening(self) -> bool:
        """Whether there is a step to take, at once or later."""
        return self.outage is not None and self.outage.state != QUARANTINED

    @property
    def is_starting(self) -> bool:
        """Whether its disk is being read, for as long as that takes."""
        return self.opening

    @property
    def due_ms(self) -> int | None:
        """How soon to take the next step of opening; None: at the next event."""
        return None if self.awaits_log else 0

    @property
    def awaits_log(self) -> bool:
        """Whether the next step has to wait until the shard's epoch is confirmed."""
        return self._recovered is not None and not is_confirmed(self._recovered.store)

    def step(self, now_ms: int) -> Shard | None:
        """Take one step of opening the shard; return the shard after the last one. Raise what prevents it."""
        self.since_ms = self.since_ms or now_ms
        if self._store is None:
            self._store = self._open_store()
            return None
        if self._recovered is None:
            self._recovered = self._recover(now_ms)
        self._store.push()
        if self._store.failure is not None:
            raise self._store.failure
        return None if self._recovered is None or self.awaits_log else self._recovered

    def _recover(self, now_ms: int) -> Shard | None:
        assert self._store is not None
        try:
            if self._recovery is None:
                self._recovery = recover_in_steps(
                    self._store,
                    self._settings,
                    self._compile_hooks,
                    index=self.index,
                    shards=self._shards_total,
                    now_ms=now_ms,
                    entropy=self._entropy(),
                    calendar=CALENDAR,
                )
                next(self._recovery)
            else:
                self._recovery.send(now_ms)
        except StopIteration as done:
            shard: Shard = done.value
            return shard
        return None

    def enter(self, shard: Shard) -> None:
        """Note that the shard is open."""
        self.shard, self.outage, self.opened_once = shard, None, True
        self._recovery = self._recovered = None
        self.watches_log = True

    def end_turn(self, effects: list[Effect], now_ms: int) -> list[Effect]:
        """Push the turn's commits to the log. Return the effects that may be sent now; hold the others."""
        assert self.shard is not None
        store = self.shard.store
        if store.push() and not (self.watches_log and self.held):
            self.watches_log, self.log_full_ms = False, None
            return effects
        self.watches_log = True
        return self.held.hold(store, effects, now_ms)

    def look_at_log(self, now_ms: int) -> None:
        """See how much the log has yet to confirm. Call it at the beginning of a turn, if :attr:`watches_log`."""
        if self.shard is None or not (self.shard.has_much_unconfirmed or self.pauses):
            self.log_full_ms = None
        elif self.log_full_ms is None:
            self.log_full_ms, self._log_full_since_ms = 0, now_ms
        else:
            self.log_full_ms = now_ms - self._log_full_since_ms

    @property
    def log_trouble(self) -> str:
        """The reason why the shard's commits wait, for people."""
        assert self.shard is not None
        if self.pauses:
            return f"shard {self.index} writes its memory to files"
        return f"the log of shard {self.index} has {self.shard.store.unconfirmed_bytes} bytes to confirm"

    @property
    def retires(self) -> bool:
        """Whether the shard is being handed over."""
        return False

    def copy_view(self) -> HostCopy | None:
        """Return this host's copy of a shard on a replicated log; None: the shard has no such log."""
        return None

    def log_problem(self, now_ms: int) -> str:
        """Return why no answer comes, if a replicated log has confirmed nothing for long; empty: it has."""
        return ""

    def proof(self) -> Proof | None:
        """Return the proof that this process leads the shard on a replicated log; None: it does not."""
        return None

    def fail(self, error: Exception, reason: str, patience: Patience, now_ms: int, *, blameless: bool) -> ShardOutage:
        """Drop the shard's memory, and decide whether and when it is opened again. ``blameless``: no command to blame."""
        refused = isinstance(error, StorageError)
        self._forget()
        if blameless or refused:
            self._failures.append(now_ms)
        while self._failures and self._failures[0] <= now_ms - patience.window_ms:
            self._failures.popleft()
        if isinstance(error, (DamageError, UnfitStoreError)) or (
            not refused and len(self._failures) >= patience.failures_max
        ):
            state = QUARANTINED
        else:
            state = WAITING if refused else OPENING
        if state != OPENING:
            self.close()
        self.retry_at_ms = self.since_ms = now_ms + (self._delay_ms(patience) if state == WAITING else 0)
        self.outage = ShardOutage(self.index, state, reason)
        return self.outage

    def _delay_ms(self, patience: Patience) -> int:
        return min(patience.retry_ms_max, patience.retry_ms_min << min(len(self._failures) - 1, 16))

    def _forget(self) -> None:
        """Drop the shard's memory, and the effects that may not be sent any more."""
        self.shard = self._recovery = self._recovered = None
        self.since_ms = 0
        self.frames.clear()
        dropped = [*self.held.clear(), *self.answers]
        self.unanswered += [effect for effect in dropped if isinstance(effect, DirectReply)]
        self.answers.clear()

    def forgive(self) -> None:
        """Clear the failures, because a command was to blame."""
        self._failures.clear()

    def leave(self) -> None:
        """Close the shard for good: another worker hosts it from now on."""
        self._forget()
        self.outage = ShardOutage(self.index, WAITING, "another worker is about to open it")
        self.close()

    def close(self) -> None:
        """Release the shard's store."""
        store, self._store = self._store, None
        if store is not None:
            with suppress(Exception):  # a disk that refused a write may refuse this too
                store.close()


class Slots(dict[int, Slot]):
    """The slots of a process, by index."""

    def __init__(self, slots: Iterable[Slot], shards_total: int) -> None:
        super().__init__((slot.index, slot) for slot in slots)
        self._shards_total = shards_total
        self._by_queue: dict[str, Slot] = {}

    def find(self, queue: str) -> Slot:
        """Return the slot of a queue's shard. Raise :class:`ShardUnavailableError` if the shard is not here."""
        slot = self._by_queue.get(queue)
        if slot is None:
            if not queue:
                raise InvalidArgumentError("a command on a queue needs the queue's name as its routing key")
            index = shard_of(queue, self._shards_total)
            if index not in self:
                raise ShardUnavailableError(
                    f"queue {queue!r} is on shard {index}, which is not here", details={"refused": True}
                )
            slot = self[index]
            if len(self._by_queue) >= SHARD_CACHE_MAX:
                self._by_queue.clear()
            self._by_queue[queue] = slot
        return slot

    def find_direct(self, queue: str) -> Slot:
        """Return the slot of a queue's shard, for a client that came without the router.

        Raise :class:`InvalidArgumentError` for an invalid queue name, or :class:`ShardUnavailableError` with the hint to ask
        the router.
        """
        slot = self._by_queue.get(queue)
        if slot is None:
            index = shard_of(check_routing_key(queue), self._shards_total)
            if index not in self:
                raise moved(index)
            slot = self.find(queue)
        return slot

    def remove(self, slot: Slot) -> None:
        """Remove the slot of a shard that was closed for good."""
        del self[slot.index]
        self._by_queue.clear()

    @property
    def outages(self) -> list[ShardOutage]:
        """The outages of the shards that do not serve."""
        return [slot.outage for slot in self.values() if slot.outage is not None]

    @property
    def opening(self) -> bool:
        """Whether a shard's disk is being read."""
        return any(slot.is_starting for slot in self.values())

    @property
    def retires(self) -> bool:
        """Whether shards are being handed over to other hosts."""
        return any(slot.retires for slot in self.values())
