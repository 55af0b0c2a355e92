"""Reasons that come of messages on their way between the partitions of a queue."""

from typing import TYPE_CHECKING, Any, Final

from fila_proto_zmq.names import PARTITION_MARK, partition_name, shard_of, whole_queue
from fila_proto_zmq.reasons import ReasonCode
from fila_worker.core.explain.text import reason
from fila_worker.core.inspect.moving import left_in

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Reason
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

NAMED_MAX: Final = 3
"""Partitions that a text names."""


def moves(state: "State", queue: "Queue", key_name: str | None) -> "list[Reason]":
    """Return what moves messages of a fairness key, or of any key, from or to a partition."""
    coming = _moving(state, queue, key_name) if key_name is not None else None
    going = _leaving(state, queue, key_name)
    return [each for each in (coming, going) if each is not None]


def _moving(state: "State", queue: "Queue", key_name: str) -> "Reason | None":
    """Return as a reason that a key waits for messages of other partitions; None if it does not."""
    definition = state.runtime.definitions.find(queue.name)
    awaited = [] if queue.partition is None else queue.partition.awaited(key_name)
    if not awaited or definition is None or definition.move is None:
        return None
    name, move, partitions = whole_queue(queue.name), definition.move, definition.plan.partitions
    shards = [shard_of(partition_name(name, each), state.shards) for each in awaited]
    places = [f"{each} on shard {shard}" for each, shard in zip(awaited, shards, strict=True)]
    more = f" and {len(places) - NAMED_MAX:,} more" if len(places) > NAMED_MAX else ""
    text = (
        f"{name!r} goes from {move.earlier} to {partitions} partitions: earlier messages of {key_name!r} go first, and may still "
        f"come from partition {', '.join(places[:NAMED_MAX])}{more}"
    )
    details: dict[str, Any] = {
        "queue": name,
        "fairness_key": key_name,
        "earlier": move.earlier,
        "partitions": partitions,
        "since_ms": move.since_ms,
        "waits_for": awaited,
        "shards": shards,
    }
    return reason(ReasonCode.MOVING, text, **details)


def _leaving(state: "State", queue: "Queue", key_name: str | None) -> "Reason | None":
    """Return as a reason that a partition sends messages on, those of a key or any; None if it has none to send on."""
    partition, definition = queue.partition, state.runtime.definitions.find(queue.name)
    if partition is None or definition is None or (key_name is not None and not partition.is_stray(key_name)):
        return None
    move = definition.move
    if not partition.strays and (move is None or partition.number not in move.waits_for(definition.plan.partitions)):
        return None
    name, left, about = whole_queue(queue.name), left_in(state, queue), {}
    where = f"partition {left.partition} on shard {left.shard}"
    text = f"{where} sends on what belongs to other partitions of {name!r}: {left.text}"
    if key_name is not None:
        target = state.runtime.definitions.partition_for(name, key_name)
        about = {"fairness_key": key_name, "to": int(target.partition(PARTITION_MARK)[2])}
        text = f"{key_name!r} belongs to partition {about['to']}; {text}"
    details: dict[str, Any] = {
        "queue": name,
        "partition": left.partition,
        "shard": left.shard,
        "messages": left.messages,
        "exact": not left.more,
        "leased": left.leased,
        "sent_to": left.sent_to,
        **about,
    }
    return reason(ReasonCode.LEAVING, text, **details)
