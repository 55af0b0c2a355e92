"""The calls that are plain questions: arguments to ``(routing key, command)``, checked. Both shells ask them alike."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fila_cluster.client import checks
from fila_cluster.client.delivery import Delivery
from fila_cluster.client.settling import Settling
from fila_proto_zmq import commands
from fila_proto_zmq.errors import BatchError, FilaError, InvalidArgumentError
from fila_proto_zmq.limits import DELIVERY_BYTES_MAX, DELIVERY_MESSAGES_MAX, LEASE_MS_MAX, PREFETCH_MAX
from fila_proto_zmq.names import check_new_queue_name

_COUNT_MAX = 2**31 - 1
_REDRIVE_STEP = 1000


class Request(NamedTuple):
    """A command and the queue that it is for ("" for the whole cluster)."""

    key: str
    command: commands.Command


def create_queue(name: Any, visibility_timeout: Any, max_attempts: Any) -> Request:
    """Create a queue."""
    options = commands.QueueOptions()
    if visibility_timeout is not None:
        duration_ms = checks.positive_milliseconds("visibility_timeout", visibility_timeout, LEASE_MS_MAX)
        options.visibility_timeout_ms = duration_ms
    if max_attempts is not None:
        options.max_attempts = checks.whole_number("max_attempts", max_attempts, 1, _COUNT_MAX)
    return Request(check_new_queue_name(name), commands.CreateQueue(options))


def delete_queue(name: Any, force: Any) -> Request:
    """Delete a queue."""
    return Request(checks.queue_name(name), commands.DeleteQueue(bool(force)))


def list_queues(prefix: Any) -> Request:
    """List queues."""
    if not isinstance(prefix, str):
        raise InvalidArgumentError(f"prefix={prefix!r}: pass a str, the first characters of the names to list")
    checks.encodable("prefix", prefix)
    return Request("", commands.ListQueues(prefix))


def queue_stats(name: Any) -> Request:
    """Ask for a queue's statistics."""
    return Request(checks.queue_name(name), commands.GetQueueStats())


def cluster_status() -> Request:
    """Ask for the cluster's status."""
    return Request("", commands.GetClusterStatus())


def message_count(max_messages: Any) -> int:
    """How many messages a receive asks for."""
    return checks.whole_number("max_messages", max_messages, 1, PREFETCH_MAX)


def prefetch_count(prefetch: Any) -> int:
    """How many unsettled messages a subscription may hold."""
    return checks.whole_number("prefetch", prefetch, 1, PREFETCH_MAX)


class Redriving:
    """One ``redrive``: a series of bounded steps, so that no step blocks the shard for long."""

    def __init__(self, dlq: Any, count: Any, fairness_key: Any) -> None:
        self.moved = 0
        self._queue = checks.queue_name(dlq)
        self._count = checks.whole_number("count", count, 0, _COUNT_MAX)
        self._fairness_key = None if fairness_key is None else checks.fairness_key(fairness_key)
        self._over = False

    def next_step(self) -> Request | None:
        """What to ask next; None when it is done."""
        if self._over:
            return None
        step = min(self._count - self.moved, _REDRIVE_STEP) if self._count else _REDRIVE_STEP
        return Request(self._queue, commands.Redrive(step, self._fairness_key))

    def answered(self, redriven: commands.Redriven) -> None:
        """Count a step."""
        self.moved += redriven.count
        self._over = redriven.count == 0 or redriven.remaining == 0 or self.moved == self._count


def failure_of(settling: Settling) -> FilaError | None:
    """The error of a batch of settlements, if any failed."""
    if not settling.errors:
        return None
    total = len(settling.deliveries)
    first = min(settling.errors)
    return BatchError(
        f"{len(settling.errors)} of {total} deliveries were not settled; the first is number {first}: "
        f"{settling.errors[first]}",
        [settling.errors.get(position) for position in range(total)],
    )


def as_deliveries(deliveries: Any) -> Sequence[Delivery]:
    """A batch to settle, as given."""
    batch = deliveries if isinstance(deliveries, (list, tuple)) else list(deliveries)
    for delivery in batch:
        if not isinstance(delivery, Delivery):
            raise InvalidArgumentError(f"a {type(delivery).__name__} is no delivery: pass what receive or consume gave")
    return batch


def may_be_cut(deliveries: Sequence[Delivery]) -> bool:
    """Whether a receive may have got less than it asked for only because one frame carries no more."""
    if len(deliveries) < DELIVERY_MESSAGES_MAX:
        return sum(len(delivery._packed) for delivery in deliveries) >= DELIVERY_BYTES_MAX
    return True
