"""One dead letter over its page: all that it has, and the two ways out for it alone."""

from collections.abc import Awaitable, Callable

from fila_cluster import AsyncClient
from fila_cluster.client.message_view import MessageView
from fila_cluster.client.redriving import redrive_selected
from fila_cluster.dashboard.acting import attempt, complain, confirm, tell
from fila_cluster.dashboard.finding import find_message
from fila_cluster.dashboard.parts.message_dialog import Action, MessageDialog

TellAddress = Callable[[str | None, str | None], None]


class LetterDialog:
    """``changed`` is awaited when the letter is gone; ``tell_address`` called with what is open: its id, and the id of the one before it."""

    def __init__(
        self, client: AsyncClient, dlq: str, changed: Callable[[], Awaitable[None]], tell_address: TellAddress
    ) -> None:
        self._client, self._dlq, self._changed, self._tell_address = client, dlq, changed, tell_address
        actions = [
            Action("Redrive", "replay", "redrive", self._redrive),
            Action("Delete", "delete", "delete", self._delete, is_danger=True),
        ]
        self._dialog = MessageDialog(actions, lambda: tell_address(None, None))

    async def open(self, message_id: str, after: str | None) -> None:
        """Show one letter as it is now; ``after`` is the id of the one before it, as far as is known."""
        found = await attempt(find_message(self._client, self._dlq, message_id, after=after))
        if found is None:
            return
        if found.message is None:
            complain(found.why_not)
            return
        self._dialog.show(found.message)
        self._tell_address(message_id, after)

    async def _redrive(self, message: MessageView) -> None:
        count = await attempt(redrive_selected(self._client, self._dlq, [message.id]))
        if count is None:
            return
        if count:
            tell(f"{message.id} went back to {message.source_queue}")
        else:
            complain(f"{message.id} stayed: it is leased or gone, or {message.source_queue} is not there any more")
        await self._close()

    async def _delete(self, message: MessageView) -> None:
        if not await confirm(f"Delete dead letter {message.id} for good?\nThis can't be undone.", yes="Delete it"):
            return
        removed = await attempt(self._client.cancel(self._dlq, message.id))
        if removed is None:
            return
        if removed:
            tell(f"{message.id} was deleted")
        else:
            complain(f"{message.id} stayed: it is leased")
        await self._close()

    async def _close(self) -> None:
        self._dialog.close()
        await self._changed()
