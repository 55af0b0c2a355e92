"""The enqueue rates of namespaces.

A namespace's rate is for the whole cluster, so its enqueues use a bucket of the bank, as throttled deliveries do. An enqueue
waits a moment until the bank has granted a number of messages. The other messages are refused, with the time after which they
may be stored.
"""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

from fila_proto_zmq.commands import Enqueue, Grant, TokenWant
from fila_proto_zmq.errors import FilaError, RateLimitedError, ShardUnavailableError
from fila_proto_zmq.runtime_config import quota_bucket
from fila_worker.core.due_time import AT_ONCE, DueTime
from fila_worker.core.effects import ClientCall
from fila_worker.core.settings import Limits

MICRO: Final = 1_000_000
"""A message takes one token."""

ONE_RETRY_MS: Final = 1000
"""When the broker's own enqueue is tried again: the bank has answered by then."""


class RateVerdict(NamedTuple):
    """An enqueue that has waited: its first ``messages`` may be stored, the others are refused with ``error``."""

    call: ClientCall
    command: Enqueue
    messages: int
    error: FilaError | None


class _Quota:
    """A shard's view of the bucket of one namespace, and the enqueues that wait for the bank's answer."""

    def __init__(self) -> None:
        self.granted = self.consumed = self.returned = 0
        self.waiting: deque[tuple[ClientCall, Enqueue]] = deque()
        self.spare = 0
        """Tokens wanted for an enqueue by the broker that comes again: 1 or 0."""

    @property
    def messages(self) -> int:
        """The number of messages that may be stored."""
        return (self.granted - self.consumed - self.returned) // MICRO

    @property
    def first_fits(self) -> bool:
        """Whether all messages of the first waiting enqueue may be stored."""
        return bool(self.waiting) and self.messages >= len(self.waiting[0][1].envelopes)

    def want(self, bucket: str) -> TokenWant:
        """Return the want for the bank."""
        most = (self.spare + sum(len(command.envelopes) for _, command in self.waiting)) * MICRO
        return TokenWant([bucket], min(most, (self.messages + 1) * MICRO), most, self.consumed, self.returned)

    def go_on(self, count: int, wait_ms: int = 0) -> RateVerdict:
        """Return the verdict on the first waiting enqueue: ``count`` messages are stored, the others have to wait longer."""
        call, command = self.waiting.popleft()
        self.consumed += count * MICRO
        return RateVerdict(call, command, count, _rate_limited(call.queue, wait_ms) if wait_ms else None)


class EnqueueRates:
    """All namespaces with a rate for which this shard takes messages."""

    def __init__(self, limits: Limits, bank: DueTime) -> None:
        """``bank``: the due time of requests to the token bank."""
        self._bank = bank
        self.waits = DueTime()
        """When an enqueue has waited for too long."""
        self._wait_ms_max = limits.rate_wait_ms_max
        self._quotas: dict[str, _Quota] = {}
        self._changed: set[str] = set()

    def admit(self, call: ClientCall, command: Enqueue, limited: Container[str]) -> bool:
        """Return whether the enqueue may be stored at once; else it is answered later. ``limited``: buckets with a limit."""
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

    def admit_one(self, queue: str, limited: Container[str]) -> None:
        """Take the token for one message that the broker enqueues itself. Raise :class:`RateLimitedError` without one.

        Then a token is asked for, and kept for the next try.
        """
        namespace = queue.partition("/")[0]
        bucket = quota_bucket(namespace)
        if bucket not in limited:
            return
        quota = self._quotas.setdefault(bucket, _Quota())
        self._tell(bucket)
        if quota.waiting or quota.messages < 1:
            quota.spare = 1
            raise _rate_limited(queue, ONE_RETRY_MS)
        quota.consumed += MICRO
        quota.spare = 0

    def _tell(self, bucket: str) -> None:
        """Send the want of a bucket at the end of the turn."""
        self._changed.add(bucket)
        self._bank.by(AT_ONCE)

    def granted(self, grant: Grant) -> Iterator[RateVerdict]:
        """Take in a grant of the bank, and yield the verdicts on waiting enqueues."""
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

    def follow(self, limited: Container[str]) -> Iterator[RateVerdict]:
        """Apply a changed config, and yield the verdicts on enqueues without a limit: they are stored."""
        for bucket, quota in self._quotas.items():
            while bucket not in limited and quota.waiting:
                call, command = quota.waiting.popleft()
                yield RateVerdict(call, command, len(command.envelopes), None)

    def wants(self) -> list[TokenWant]:
        """Return the wants for the bank at the end of a turn. Tokens that no enqueue needs go back."""
        wants = []
        for bucket in sorted(self._changed):
            quota = self._quotas[bucket]
            if not quota.waiting:
                quota.returned = max(quota.returned, quota.granted - quota.consumed - quota.spare * MICRO)
            wants.append(quota.want(bucket))
        self._changed.clear()
        return wants

    def new_session(self) -> None:
        """Begin a session with the bank."""
        for bucket, quota in self._quotas.items():
            quota.granted = quota.consumed = quota.returned = 0
            if quota.waiting:
                self._tell(bucket)

    def overdue(self, now_ms: int) -> Iterator[tuple[ClientCall, Enqueue, FilaError]]:
        """Yield the enqueues that have waited for too long for the bank."""
        for quota in self._quotas.values():
            while quota.waiting and quota.waiting[0][0].now_ms + self._wait_ms_max <= now_ms:
                call, command = quota.waiting.popleft()
                yield call, command, _no_word(call.queue)

    def next_due(self) -> int | None:
        """Return when the first enqueue has waited for too long, Unix ms."""
        times = [quota.waiting[0][0].now_ms + self._wait_ms_max for quota in self._quotas.values() if quota.waiting]
        return min(times, default=None)


def _no_word(queue: str) -> FilaError:
    return ShardUnavailableError(
        f"the quota of {queue!r} is not known: the router does not answer; try again", details={"refused": True}
    )


def _rate_limited(queue: str, wait_ms: int) -> FilaError:
    namespace = queue.partition("/")[0]
    return RateLimitedError(
        f"namespace {namespace!r} is over its quota (namespace:{namespace}:max_enqueues_per_minute): "
        f"try again in {wait_ms / 1000:g} s",
        retry_after=wait_ms / 1000,
        details={"namespace": namespace},
    )
