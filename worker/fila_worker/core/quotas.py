"""How much may come in: the limits of queues and keys, of the disk, and the rates of namespaces.

What is in a queue can be counted here. A namespace's rate holds over the whole cluster, so its enqueues draw on a bucket of
the bank like throttled deliveries do: an enqueue waits, for a moment, until the bank has said how many of its messages it may
store. Those it may not are refused with the time after which it may.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Enqueue, Grant, TokenWant
from fila_proto_zmq.errors import FilaError, OverloadedError, RateLimitedError, ShardUnavailableError
from fila_proto_zmq.record import FIXED_BYTES
from fila_proto_zmq.runtime_config import quota_bucket
from fila_worker.core import enqueueing, graveyard
from fila_worker.core.effects import Call, answer

if TYPE_CHECKING:
    from fila_worker.core.fairness import FairnessKey
    from fila_worker.core.queues import Queue
    from fila_worker.core.state import State

MICRO: Final = 1_000_000
"""A message takes one token."""

WAIT_MS_MAX: Final = 4000
"""How long an enqueue waits for the bank's word: just below the usual timeout of a client."""

RETRY_MS: Final = 1000
"""When to try again if nothing says when there will be room."""

RETRY_MS_MAX: Final = 30_000
DRAIN_SPAN_MS: Final = 1000
"""The rate at which a queue drains is looked at over spans of this length."""


# --- what is there ----------------------------------------------------------------------------------------------------


def refuse_if_disk_is_full(shard: "State") -> None:
    """Raise :class:`OverloadedError` while the disk has less room than must stay free."""
    free, least = shard.free_disk_bytes, shard.settings.min_free_disk_bytes
    if free is not None and free < least:
        raise OverloadedError(
            f"the disk has {free >> 20} MiB left and {least >> 20} must stay free ([limits] min_free_disk_bytes): "
            "consume, purge, or give it a larger disk",
            retry_after=RETRY_MS / 1000,
            details={"free_disk_bytes": free, "min_free_disk_bytes": least},
        )


def has_room_for_all(shard: "State", queue: "Queue", command: Enqueue) -> bool:
    """Whether no limit of the queue can be met by this batch, whatever its messages are."""
    settings, count = shard.settings, len(command.envelopes)
    if settings.max_queue_messages is not None and queue.depth + count > settings.max_queue_messages:
        return False
    if settings.max_queue_bytes is not None:
        size_bytes = sum(map(len, command.envelopes)) + count * FIXED_BYTES
        if queue.size_bytes + size_bytes > settings.max_queue_bytes:
            return False
    return settings.max_key_messages is None


def check_room(shard: "State", queue: "Queue", key_name: str, size_bytes: int, now_ms: int) -> None:
    """Raise :class:`OverloadedError` if one more message would be beyond a limit of its queue or its key."""
    settings = shard.settings
    limits = (
        ("max_queue_messages", "messages", settings.max_queue_messages, queue.depth + 1),
        ("max_queue_bytes", "bytes", settings.max_queue_bytes, queue.size_bytes + size_bytes),
    )
    for name, unit, most, wanted in limits:
        if most is not None and wanted > most:
            raise _overloaded(queue, f"queue {queue.name!r} is full: {most} {unit} ([limits] {name})", now_ms)
    key = queue.keys.get(key_name)
    most = settings.max_key_messages
    if most is not None and key is not None and _messages_of(shard, key, most) >= most:
        raise _overloaded(
            queue, f"fairness key {key_name!r} of {queue.name!r} is full: {most} messages ([limits] max_key_messages)", now_ms
        )


def _messages_of(shard: "State", key: "FairnessKey", most: int) -> int:
    """A key's messages; acked ones that still lie on disk are put out of the way before they make it look full."""
    count = sum(lane.stored + lane.delayed for lane in key.lanes.values())
    if count >= most and shard.graveyard.messages:
        graveyard.purge(shard)
        count = sum(lane.stored + lane.delayed for lane in key.lanes.values())
    return count


def _overloaded(queue: "Queue", what: str, now_ms: int) -> OverloadedError:
    retry_ms = _room_in_ms(queue, now_ms)
    return OverloadedError(
        f"{what}; try again in {retry_ms / 1000:g} s, or let more consumers work on it",
        retry_after=retry_ms / 1000,
        details={"queue": queue.name, "depth": queue.depth},
    )


def _room_in_ms(queue: "Queue", now_ms: int) -> int:
    """When one message will have left, at the rate at which they lately did."""
    since_ms, left_by_then, rate = queue.drain
    left = queue.acked + queue.dead_lettered
    if now_ms - since_ms >= DRAIN_SPAN_MS:
        if since_ms:
            rate = (left - left_by_then) / (now_ms - since_ms)
        queue.drain = (now_ms, left, rate)
    return min(RETRY_MS_MAX, max(1, round(1 / rate))) if rate else RETRY_MS


# --- the rates of namespaces ------------------------------------------------------------------------------------------


class _Quota:
    """The bucket of one namespace, as this shard has it, and the enqueues that wait for the bank's word."""

    def __init__(self) -> None:
        self.granted = self.consumed = self.returned = 0
        self.waiting: deque[tuple[Call, Enqueue]] = deque()

    @property
    def messages(self) -> int:
        """How many messages may be stored."""
        return (self.granted - self.consumed - self.returned) // MICRO

    def want(self, bucket: str) -> TokenWant:
        """What the bank is asked for."""
        most = sum(len(command.envelopes) for _, command in self.waiting) * MICRO
        return TokenWant([bucket], min(most, (self.messages + 1) * MICRO), most, self.consumed, self.returned)


class Quotas:
    """All namespaces with a rate that this shard takes messages for."""

    def __init__(self) -> None:
        self._quotas: dict[str, _Quota] = {}
        self._changed: set[str] = set()

    def admit(self, shard: "State", call: Call, command: Enqueue) -> bool:
        """Whether the enqueue may go on now; if not, it is answered later."""
        namespace, slash, _ = call.queue.partition("/")
        bucket = quota_bucket(namespace)
        if not slash or bucket not in shard.runtime.limits:
            return True
        quota = self._quotas.setdefault(bucket, _Quota())
        self._changed.add(bucket)
        count = len(command.envelopes)
        if not quota.waiting and quota.messages >= count:
            quota.consumed += count * MICRO
            return True
        quota.waiting.append((call, command))
        return False

    def granted(self, shard: "State", grant: Grant) -> None:
        """The bank's word: go on with what it allows, refuse what it does not."""
        bucket = grant.keys[0]
        quota = self._quotas.get(bucket)
        if quota is None:
            return
        quota.granted = max(quota.granted, grant.granted)
        self._changed.add(bucket)
        while quota.waiting and quota.messages >= len(quota.waiting[0][1].envelopes):
            _go_on(shard, quota, len(quota.waiting[0][1].envelopes), 0)
        while quota.waiting and grant.wait_ms:
            _go_on(shard, quota, quota.messages, grant.wait_ms)

    def follow(self, shard: "State", now_ms: int) -> None:
        """The config changed: what has no limit any more goes on."""
        for bucket, quota in self._quotas.items():
            while bucket not in shard.runtime.limits and quota.waiting:
                call, command = quota.waiting.popleft()
                enqueueing.enqueue_held(shard, call, command, len(command.envelopes), None)

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
                self._changed.add(bucket)

    def give_up(self, shard: "State", now_ms: int) -> None:
        """Refuse what has waited for too long: the bank does not answer."""
        for quota in self._quotas.values():
            while quota.waiting and quota.waiting[0][0].now_ms + WAIT_MS_MAX <= now_ms:
                call, command = quota.waiting.popleft()
                silent = ShardUnavailableError(
                    f"no word on the quota of {call.queue!r}: the router does not answer; try again",
                    details={"refused": True},
                )
                shard.effects.append(answer(call, command, silent))

    def next_due(self) -> int | None:
        """When the first enqueue has waited for too long, Unix ms."""
        times = [quota.waiting[0][0].now_ms + WAIT_MS_MAX for quota in self._quotas.values() if quota.waiting]
        return min(times, default=None)


def _go_on(shard: "State", quota: _Quota, count: int, wait_ms: int) -> None:
    call, command = quota.waiting.popleft()
    quota.consumed += count * MICRO
    enqueueing.enqueue_held(shard, call, command, count, _rate_limited(call.queue, wait_ms) if wait_ms else None)


def _rate_limited(queue: str, wait_ms: int) -> FilaError:
    namespace = queue.partition("/")[0]
    return RateLimitedError(
        f"namespace {namespace!r} is over its quota (namespace:{namespace}:max_enqueues_per_minute): "
        f"try again in {wait_ms / 1000:g} s",
        retry_after=wait_ms / 1000,
        details={"namespace": namespace},
    )
