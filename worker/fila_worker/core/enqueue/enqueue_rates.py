"""How much may come in: the enqueue rates of namespaces.

A namespace's rate holds over the whole cluster, so its enqueues draw on a bucket of the bank like throttled deliveries do: an
enqueue waits, for a moment, until the bank has said how many of its messages it may store. Those it may not are refused with
the time after which it may.
"""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from fila_proto_zmq.commands import Enqueue, Grant, TokenWant
from fila_proto_zmq.errors import FilaError, RateLimitedError, ShardUnavailableError
from fila_proto_zmq.runtime_config import quota_bucket
from fila_worker.core.effects import Call
from fila_worker.core.settings import Limits
from fila_worker.core.timer import AT_ONCE, Timer

MICRO: Final = 1_000_000
"""A message takes one token."""


class Verdict(NamedTuple):
    """An enqueue that has waited: its first ``messages`` may go on, the others are refused with ``error``."""

    call: Call
    command: Enqueue
    messages: int
    error: FilaError | None


class _Quota:
    """The bucket of one namespace, as this shard has it, and the enqueues that wait for the bank's word."""

    def __init__(self) -> None:
        self.granted = self.consumed = self.returned = 0
        self.waiting: deque[tuple[Call, Enqueue]] = deque()

    @property
    def messages(self) -> int:
        """How many messages may be stored."""
        return (self.granted - self.consumed - self.returned) // MICRO

    @property
    def first_fits(self) -> bool:
        """Whether all of the enqueue that waits first may go on."""
        return bool(self.waiting) and self.messages >= len(self.waiting[0][1].envelopes)

    def want(self, bucket: str) -> TokenWant:
        """What the bank is asked for."""
        most = sum(len(command.envelopes) for _, command in self.waiting) * MICRO
        return TokenWant([bucket], min(most, (self.messages + 1) * MICRO), most, self.consumed, self.returned)

    def go_on(self, count: int, wait_ms: int = 0) -> Verdict:
        """The enqueue that waits first goes on with so many messages, and the others have to wait for longer."""
        call, command = self.waiting.popleft()
        self.consumed += count * MICRO
        return Verdict(call, command, count, _rate_limited(call.queue, wait_ms) if wait_ms else None)


class EnqueueRates:
    """All namespaces with a rate that this shard takes messages for."""

    def __init__(self, limits: Limits, bank: Timer) -> None:
        """``bank``: when the shard has something to say to the token bank."""
        self._bank = bank
        self.waits = Timer()
        """When an enqueue has waited for too long."""
        self._wait_ms_max = limits.rate_wait_ms_max
        self._quotas: dict[str, _Quota] = {}
        self._changed: set[str] = set()

    def admit(self, call: Call, command: Enqueue, limited: Container[str]) -> bool:
        """Whether the enqueue may go on now; if not, it is answered later. ``limited``: the buckets that have a limit."""
        namespace, slash, _ = call.queue.partition("/")
        bucket = quota_bucket(namespace)
        if not slash or bucket not in limited:
            return True
        quota = self._quotas.setdefault(bucket, _Quota())
        self._tell(bucket)
        count = len(command.envelopes)
        if not quota.waiting and quota.messages >= count:
            quota.consumed += count * MICRO
            return True
        quota.waiting.append((call, command))
        self.waits.by(call.now_ms + self._wait_ms_max)
        return False

    def _tell(self, bucket: str) -> None:
        """Tell the bank of a bucket at the end of the turn."""
        self._changed.add(bucket)
        self._bank.by(AT_ONCE)

    def granted(self, grant: Grant) -> Iterator[Verdict]:
        """The bank's word: who may go on with what it allows, and who is refused."""
        bucket = grant.keys[0]
        quota = self._quotas.get(bucket)
        if quota is None:
            return
        quota.granted = max(quota.granted, grant.granted)
        self._tell(bucket)
        while quota.first_fits:
            yield quota.go_on(len(quota.waiting[0][1].envelopes))
        while quota.waiting and grant.wait_ms:
            yield quota.go_on(quota.messages, grant.wait_ms)

    def follow(self, limited: Container[str]) -> Iterator[Verdict]:
        """The config changed: what has no limit any more goes on."""
        for bucket, quota in self._quotas.items():
            while bucket not in limited and quota.waiting:
                call, command = quota.waiting.popleft()
                yield Verdict(call, command, len(command.envelopes), None)

    def wants(self) -> list[TokenWant]:
        """What to tell the bank at the end of a turn; what nobody needs goes back."""
        wants = []
        for bucket in sorted(self._changed):
            quota = self._quotas[bucket]
            if not quota.waiting:
                quota.returned = quota.granted - quota.consumed
            wants.append(quota.want(bucket))
        self._changed.clear()
        return wants

    def new_session(self) -> None:
        """The bank starts anew with this shard."""
        for bucket, quota in self._quotas.items():
            quota.granted = quota.consumed = quota.returned = 0
            if quota.waiting:
                self._tell(bucket)

    def overdue(self, now_ms: int) -> Iterator[tuple[Call, Enqueue, FilaError]]:
        """What has waited for too long: the bank does not answer."""
        for quota in self._quotas.values():
            while quota.waiting and quota.waiting[0][0].now_ms + self._wait_ms_max <= now_ms:
                call, command = quota.waiting.popleft()
                yield call, command, _no_word(call.queue)

    def next_due(self) -> int | None:
        """When the first enqueue has waited for too long, Unix ms."""
        times = [quota.waiting[0][0].now_ms + self._wait_ms_max for quota in self._quotas.values() if quota.waiting]
        return min(times, default=None)


def _no_word(queue: str) -> FilaError:
    return ShardUnavailableError(
        f"no word on the quota of {queue!r}: the router does not answer; try again", details={"refused": True}
    )


def _rate_limited(queue: str, wait_ms: int) -> FilaError:
    namespace = queue.partition("/")[0]
    return RateLimitedError(
        f"namespace {namespace!r} is over its quota (namespace:{namespace}:max_enqueues_per_minute): "
        f"try again in {wait_ms / 1000:g} s",
        retry_after=wait_ms / 1000,
        details={"namespace": namespace},
    )
