"""Messages of a queue to try scripts on, without their payloads, of which only the size matters.

A browse goes key by key, so the newest ones are found only by reading many. The number of messages that are read, and of
their bytes, is bounded; in a longer queue they are the newest of those.
"""

from collections.abc import AsyncIterator
from typing import Final, cast

from fila_cluster import AsyncClient
from fila_cluster.client import checks
from fila_cluster.client.calls.request import Request
from fila_cluster.client.message import MessageView, message_view
from fila_cluster.ops.dashboard.hooks.trials.plan import TrialMessage
from fila_proto_zmq.commands import Browse, Browsed
from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.record import record_id

TRIED_MAX: Final = 100
LOOKED_MAX: Final = 1000
LOOKED_BYTES_MAX: Final = 32 * 1024 * 1024
PAGE: Final = 100


async def first_messages(client: AsyncClient, queue: str, count: int) -> list[TrialMessage]:
    """Return the first ones, key by key."""
    return [message async for message in _messages(client, queue, count)]


async def newest_messages(client: AsyncClient, queue: str, count: int) -> list[TrialMessage]:
    """Return the newest of the first :data:`LOOKED_MAX`, the newest first."""
    found = [message async for message in _messages(client, queue, LOOKED_MAX)]
    found.sort(key=lambda message: message.id, reverse=True)  # ids begin with the time
    return found[:count]


async def _messages(client: AsyncClient, queue: str, count: int) -> AsyncIterator[TrialMessage]:
    """Yield up to ``count`` of them, page by page: a page is bounded, their sum is not."""
    name, looked_bytes, after = checks.queue_name(queue), 0, None
    while count > 0 and looked_bytes < LOOKED_BYTES_MAX:
        page = cast(Browsed, await client.request(Request(name, Browse(min(count, PAGE), after))))
        for view in page.messages:
            looked_bytes += len(view.record)
            yield trial_message(message_view(name, view))
        if not page.more or not page.messages:
            return
        count -= len(page.messages)
        after = record_id(page.messages[-1].record)


def trial_message(view: MessageView) -> TrialMessage:
    """Return a message for a trial. Malformed headers count as empty, as for a broker's hooks."""
    try:
        headers, payload_bytes = view.headers, len(view.payload)
    except InvalidFrameError:
        headers, payload_bytes = {}, 0
    return TrialMessage(
        view.id,
        headers,
        payload_bytes,
        view.fairness_key,
        view.weight,
        view.throttle_keys,
        view.priority,
        view.cost,
        max(1, view.attempts) if view.source_queue else view.attempts + 1,  # of a dead letter: the failure that made it one
        view.error,
    )
