"""Calls that receive and settle messages: their arguments, checked, and the error of a batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from fila_cluster.client import checks
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.settling import Settling
from fila_proto_zmq.errors import BatchError, FilaError, InvalidArgumentError
from fila_proto_zmq.limits import PREFETCH_MAX


def one_queue(queue: Any, max_messages: Any) -> dict[str, int]:
    """Return the queue of a receive, with how many messages to take."""
    return {checks.queue_name(queue): checks.whole_number("max_messages", max_messages, 1, PREFETCH_MAX)}


def several_queues(queues: Any) -> dict[str, int]:
    """Return the queues of a receive, with how many messages to take of each."""
    if not isinstance(queues, Mapping) or not queues:
        raise InvalidArgumentError(f"queues={queues!r}: pass a dict of queue names and how many messages of each")
    return {
        checks.queue_name(queue): checks.whole_number(f"queues[{queue!r}]", count, 1, PREFETCH_MAX)
        for queue, count in queues.items()
    }


def prefetch_count(prefetch: Any) -> int:
    """Return how many unsettled messages a subscription may hold."""
    return checks.whole_number("prefetch", prefetch, 1, PREFETCH_MAX)


def failure_of_one(settling: Settling) -> FilaError:
    """Return the error of a settlement of one delivery, which failed."""
    return settling.errors.pop(0)  # an error's traceback holds the settling: no cycle through it


def failure_of(settling: Settling) -> FilaError:
    """Return the error of a batch of settlements, of which some failed."""
    total = len(settling.deliveries)
    first = min(settling.errors)
    return BatchError(
        f"{len(settling.errors)} of {total} deliveries were not settled; the first is number {first}: "
        f"{settling.errors[first]}",
        [settling.errors.get(position) for position in range(total)],
    )


def as_deliveries(deliveries: Any) -> Sequence[Delivery]:
    """Return a batch to settle, checked."""
    batch = deliveries if isinstance(deliveries, (list, tuple)) else list(checks.several("deliveries", deliveries))
    for delivery in batch:
        if not isinstance(delivery, Delivery):
            raise InvalidArgumentError(f"a {type(delivery).__name__} is no delivery: pass what receive or consume gave")
    return batch
