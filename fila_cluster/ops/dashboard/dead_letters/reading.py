"""Reading a dead letter queue in bounded steps. A reader keeps some fields of each letter, never its payload."""

from collections.abc import AsyncIterator
from typing import Final

from fila_cluster import AsyncClient
from fila_cluster.client.calls.backlog import browse_page
from fila_cluster.client.message import MessageView
from fila_cluster.errors import InvalidFrameError
from fila_cluster.ops.dashboard.dead_letters.groups import DeadLetter, letter_of

LETTERS_MAX: Final = 10_000
"""More are not read: the errors of ten thousand stand for the others, too."""

STEP: Final = 250
"""Letters in one step: some ms of the shard's time and of the event loop's."""


class Reading:
    """``letters`` in the order of the queue.

    ``is_complete``: there are no others; ``unreadable`` ones are counted, not kept.
    """

    def __init__(self, client: AsyncClient, dlq: str, letters_max: int = LETTERS_MAX) -> None:
        self.letters: list[DeadLetter] = []
        self.unreadable = 0
        self.is_complete = False
        self.most = letters_max
        self._client, self._dlq = client, dlq

    async def steps(self) -> AsyncIterator[int]:
        """Read step by step; yield after each step how many letters were read. Raises the errors of ``browse``."""
        after: str | None = None
        read = 0
        while read < self.most:
            page = await browse_page(self._client, self._dlq, min(STEP, self.most - read), after=after)
            for message in page.messages:
                self._keep(message, after)
                after = message.id
            read += len(page.messages)
            self.is_complete = not page.more or not page.messages
            yield read
            if self.is_complete:
                return

    def _keep(self, message: MessageView, before: str | None) -> None:
        try:
            self.letters.append(letter_of(message, before))
        except InvalidFrameError:
            self.unreadable += 1
