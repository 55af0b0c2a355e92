"""The limits of queues, keys and the disk.

The shard counts all of them itself, so an enqueue is checked at once. The rates of namespaces are in
:mod:`core.enqueue.enqueue_rates`, the dates when there will be room in :mod:`core.enqueue.retry_after`.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.record import FIXED_BYTES
from fila_worker.core.model import acked_messages

if TYPE_CHECKING:
    from fila_worker.core.model.fairness_keys import FairnessKey
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.queues import Queue
    from fila_worker.core.model.state import State

DISK_RETRY_MS: Final = 1000
"""When to try again on a full disk: when there will be room is not known."""


def disk_full(state: "State") -> OverloadedError:
    """Return the refusal of all enqueues while the disk has less room than must stay free."""
    free, least = state.free_disk_bytes or 0, state.settings.min_free_disk_bytes
    return OverloadedError(
        f"the disk has {free >> 20} MiB left and {least >> 20} must stay free ([limits] min_free_disk_bytes): "
        "consume, purge, or give it a larger disk",
        retry_after=DISK_RETRY_MS / 1000,
        details={"free_disk_bytes": free, "min_free_disk_bytes": least},
    )


def has_room_for_all(state: "State", queue: "Queue", command: Enqueue) -> bool:
    """Return whether this batch can't meet a limit of the queue, whatever its messages are."""
    settings, count = state.settings, len(command.envelopes)
    if settings.max_queue_messages is not None and queue.depth + count > settings.max_queue_messages:
        return False
    if settings.max_queue_bytes is not None:
        size_bytes = sum(map(len, command.envelopes)) + count * FIXED_BYTES
        if queue.size_bytes + size_bytes > settings.max_queue_bytes:
            return False
    return settings.max_key_messages is None


def open_lane(state: "State", queue: "Queue", key_name: str, throttle_keys: tuple[str, ...], now_ms: int) -> "Lane":
    """Return the lane for new messages, as :meth:`State.lane`. Raise :class:`OverloadedError` for one key too many."""
    check_keys(state, queue, key_name, now_ms)
    return state.lane(queue, key_name, throttle_keys)


def check_keys(state: "State", queue: "Queue", key_name: str, now_ms: int) -> None:
    """Raise :class:`OverloadedError` if this is one fairness key too many for a queue. Keys without messages make room."""
    most = state.settings.max_keys_per_queue
    if len(queue.keys) < most or key_name in queue.keys or make_room(state, queue, now_ms):
        return
    raise _overloaded(
        queue,
        f"queue {queue.name!r} has messages of {len(queue.keys)} fairness keys and may have {most} ([limits] "
        f"max_keys_per_queue), so {key_name!r} can't be one more",
    )


def check_room(state: "State", queue: "Queue", key_name: str, size_bytes: int, now_ms: int) -> None:
    """Raise :class:`OverloadedError` if one more message would exceed a limit of its queue or its key."""
    settings = state.settings
    limits = (
        ("max_queue_messages", "messages", settings.max_queue_messages, queue.depth + 1),
        ("max_queue_bytes", "bytes", settings.max_queue_bytes, queue.size_bytes + size_bytes),
    )
    for name, unit, most, wanted in limits:
        if most is not None and wanted > most:
            raise _overloaded(queue, f"queue {queue.name!r} is full: {most} {unit} ([limits] {name})")
    check_keys(state, queue, key_name, now_ms)
    key = queue.keys.get(key_name)
    most = settings.max_key_messages
    if most is not None and key is not None and _messages_of(state, key, most) >= most:
        raise _overloaded(
            queue, f"fairness key {key_name!r} of {queue.name!r} is full: {most} messages ([limits] max_key_messages)"
        )


def check_growth(state: "State", queue: "Queue", size_bytes: int) -> None:
    """Raise :class:`OverloadedError` if a message of a queue is to grow, and the queue has no room for that."""
    most = state.settings.max_queue_bytes
    if most is not None and size_bytes > 0 and queue.size_bytes + size_bytes > most:
        raise _overloaded(queue, f"queue {queue.name!r} is full: {most} bytes ([limits] max_queue_bytes)")


def _messages_of(state: "State", key: "FairnessKey", most: int) -> int:
    """Return the number of a key's messages. Acked ones on disk are purged before they make the key look full."""
    count = sum(lane.stored + lane.delayed for lane in key.lanes.values())
    if count >= most and state.acked.messages:
        acked_messages.purge(state)
        count = sum(lane.stored + lane.delayed for lane in key.lanes.values())
    return count


def _overloaded(queue: "Queue", what: str) -> OverloadedError:
    return OverloadedError(what, details={"queue": queue.name, "depth": queue.depth})


def make_room(state: "State", queue: "Queue", now_ms: int) -> bool:
    """Forget a queue's idle lanes, if it has as many keys as it may. Return whether there is room for another key.

    The lanes that changed since the ledger was folded are searched, at most once in a millisecond. So a batch of messages
    that are all refused causes one search.
    """
    most = state.settings.max_keys_per_queue
    while queue.resting and len(queue.keys) >= most:
        _, lane = queue.resting.popitem()
        if lane.idle and state.lanes.get(lane.id) is lane:
            state.ledger.forget([lane], state.batch)
            state.forget_lane(lane)
    if len(queue.keys) >= most and queue.searched_ms != now_ms:
        queue.searched_ms = now_ms
        acked_messages.purge(state)  # a lane is idle once its acked messages are gone
        idle = [lane for lane in state.ledger.unfolded() if lane.key.queue is queue and lane.idle]
        state.ledger.forget(idle, state.batch)
        for lane in idle:
            state.forget_lane(lane)
    return len(queue.keys) < most
