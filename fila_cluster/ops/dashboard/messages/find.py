"""Finds one message by its id.

The broker browses behind a message, not at it, so it is searched: first at the place in a link, then page by page.

The answer of ``why`` narrows the search; a message that lies behind ten thousand others of its state is not found so, and
the user gets a text with the remedy.
"""

from typing import Final, NamedTuple

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import browse_page
from fila_cluster.client.message import MessageView
from fila_cluster.errors import MessageNotFoundError

READ_MAX: Final = 10_000
PAGES_MAX: Final = 100
PAGE: Final = 1000

_BROWSABLE: Final = ("pending", "delayed", "leased")


class Found(NamedTuple):
    """The message, or why there is none to show; ``is_letter``: it is in its dead letter queue."""

    message: MessageView | None
    why_not: str = ""
    is_letter: bool = False


async def find_message(
    client: AsyncClient, queue: str, message_id: str, *, after: str | None = None, fairness_key: str | None = None
) -> Found:
    """Search for a message, at first behind the one with the id ``after``. Raises the broker's errors."""
    if (there := await _behind(client, queue, message_id, after)) is not None:
        return Found(there)
    try:
        state = (await client.why(queue, message_id=message_id)).state
    except MessageNotFoundError as error:
        return Found(None, str(error))
    if state == "dead_lettered" and not queue.endswith(".dlq"):
        return Found(None, f"message {message_id} is a dead letter of queue {queue!r} now", is_letter=True)
    return await _walk(client, queue, message_id, fairness_key, state if state in _BROWSABLE else None)


async def _behind(client: AsyncClient, queue: str, message_id: str, after: str | None) -> MessageView | None:
    try:
        messages = (await browse_page(client, queue, 1, after=after)).messages
    except MessageNotFoundError:
        return None
    return messages[0] if messages and messages[0].id == message_id else None


async def _walk(client: AsyncClient, queue: str, message_id: str, fairness_key: str | None, state: str | None) -> Found:
    after, read = None, 0
    for _ in range(PAGES_MAX):
        page = await browse_page(client, queue, PAGE, after=after, fairness_key=fairness_key, state=state)
        for message in page.messages:
            if message.id == message_id:
                return Found(message)
        read += len(page.messages)
        if not page.more or not page.messages:
            return Found(None, f"message {message_id} moved during the search: search again")
        if read >= READ_MAX:
            break
        after = page.messages[-1].id
    return Found(
        None, f"message {message_id} is there, but behind the first {read:,}: name its fairness key, or ask why it waits"
    )
