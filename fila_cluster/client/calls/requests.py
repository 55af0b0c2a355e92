"""The calls that are plain questions: arguments to ``(routing key, command)``, checked. Both shells ask them alike."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fila_cluster.client import checks
from fila_cluster.client.calls import queues
from fila_cluster.client.protocol.delivery import Delivery
from fila_cluster.client.protocol.settling import Settling
from fila_proto_zmq import commands
from fila_proto_zmq.errors import BatchError, FilaError, InvalidArgumentError
from fila_proto_zmq.ids import parse_id
from fila_proto_zmq.limits import PREFETCH_MAX
from fila_proto_zmq.names import check_new_queue_name

COUNT_MAX = 2**31 - 1


class Request(NamedTuple):
    """A command and the queue that it is for ("" for the whole cluster)."""

    key: str
    command: commands.Command


# --- queues -----------------------------------------------------------------------------------------------------------


def create_queue(name: Any, options: Mapping[str, Any]) -> Request:
    """Create a queue."""
    return Request(check_new_queue_name(name), commands.CreateQueue(queues.encode(options)[0]))


def update_queue(name: Any, options: Mapping[str, Any]) -> Request:
    """Change some of a queue's options."""
    return Request(checks.queue_name(name), commands.UpdateQueue(*queues.encode(options)))


def delete_queue(name: Any, force: Any) -> Request:
    """Delete a queue."""
    return Request(checks.queue_name(name), commands.DeleteQueue(bool(force)))


def pause(name: Any, fairness_key: Any, *, paused: bool) -> Request:
    """Pause or resume a queue, or one of its fairness keys."""
    return Request(checks.queue_name(name), commands.Pause(paused, checks.only_fairness_key(fairness_key)))


def cancel(queue: Any, message_id: Any) -> Request:
    """Remove one message."""
    return Request(checks.queue_name(queue), commands.Cancel(*parse_id(message_id)))


# --- the cluster ------------------------------------------------------------------------------------------------------


def cluster_status() -> Request:
    """Ask for the cluster's status."""
    return Request("", commands.GetClusterStatus())


def set_config(key: Any, value: Any) -> Request:
    """Set a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), checks.plain_text("value", value, "for example str(value)")))


def delete_config(key: Any) -> Request:
    """Delete a key of the runtime config."""
    return Request("", commands.SetConfig(_config_key(key), None))


def get_config(key: Any) -> Request:
    """Ask for a key of the runtime config."""
    return Request("", commands.GetConfig(_config_key(key)))


def list_config(prefix: Any) -> Request:
    """Ask for the keys of the runtime config that start so."""
    return Request("", commands.ListConfig(checks.plain_text("prefix", prefix, "the first characters of the keys to list")))


def _config_key(key: Any) -> str:
    return checks.plain_text("key", key, "for example 'throttle:provider:rate'")


# --- messages ---------------------------------------------------------------------------------------------------------


def one_queue(queue: Any, max_messages: Any) -> dict[str, int]:
    """How many messages a receive asks for of its queue."""
    return {checks.queue_name(queue): checks.whole_number("max_messages", max_messages, 1, PREFETCH_MAX)}


def several_queues(queues: Any) -> dict[str, int]:
    """How many messages a receive asks for of which queue."""
    if not isinstance(queues, Mapping) or not queues:
        raise InvalidArgumentError(f"queues={queues!r}: pass a dict of queue names and how many messages of each")
    return {
        checks.queue_name(queue): checks.whole_number(f"queues[{queue!r}]", count, 1, PREFETCH_MAX)
        for queue, count in queues.items()
    }


def prefetch_count(prefetch: Any) -> int:
    """How many unsettled messages a subscription may hold."""
    return checks.whole_number("prefetch", prefetch, 1, PREFETCH_MAX)


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
    batch = deliveries if isinstance(deliveries, (list, tuple)) else list(checks.several("deliveries", deliveries))
    for delivery in batch:
        if not isinstance(delivery, Delivery):
            raise InvalidArgumentError(f"a {type(delivery).__name__} is no delivery: pass what receive or consume gave")
    return batch
