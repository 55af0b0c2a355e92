"""All dead letter queues with messages, the fullest first, and the errors of their letters."""

from typing import Final

from nicegui import ui

from fila_cluster import QueueInfo
from fila_cluster.client.calls.queues import ListingQueues
from fila_cluster.client.views import queue_infos
from fila_cluster.errors import FilaError
from fila_cluster.figures import aged, counted
from fila_cluster.ops.analysis.rates import all_queues
from fila_cluster.ops.dashboard.dead_letters.groups import kind_shares
from fila_cluster.ops.dashboard.dead_letters.reading import Reading
from fila_cluster.ops.dashboard.shell.context import CONSUME, Context
from fila_cluster.ops.dashboard.shell.links import link
from fila_cluster.ops.dashboard.widgets.cells import linked
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn

SAMPLED: Final = 100
"""Letters of a queue whose errors are shown in the list."""

QUEUES_SAMPLED: Final = 20
"""Only the fullest queues show errors."""

_COLUMNS: Final = (
    TableColumn("name", "Dead letter queue", slot=linked("href")),
    TableColumn("depth", "Letters", counted, is_number=True),
    TableColumn("in_flight", "Leased", counted, is_number=True),
    TableColumn("oldest_s", "Oldest", aged, is_number=True),
    TableColumn(
        "errors", f"Errors of the first {SAMPLED}", slot='<div class="whitespace-normal fila-mono">{{ props.value }}</div>'
    ),
)


class LetterQueues:
    """The list.

    Queues that were chosen as dead letter targets of others are not in it: ``/dead-letters?queue=…`` shows those, too.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._missing = ""
        self._part = ui.label().classes("text-negative").props("data-testid=part")
        self._part.set_visibility(False)
        self._sampled: dict[str, tuple[QueueInfo, str]] = {}
        self._table = PagedTable(
            _COLUMNS,
            key="name",
            sort_by="depth",
            descending=True,
            mark="letter-queues",
            search_in=["name", "errors"],
            empty="No dead letters anywhere.",
        )

    async def look(self) -> None:
        """Ask for the queues, and for the letters of those that changed."""
        infos = [
            info for info in await self._active_queues() if info.is_dead_letter and self._context.may(CONSUME, info.name)
        ]
        infos.sort(key=lambda info: -info.depth)
        self._show(infos)
        self._sampled = {info.name: (info, await self._errors(info)) for info in infos[:QUEUES_SAMPLED]}
        self._show(infos)

    async def _active_queues(self) -> list[QueueInfo]:
        """Return those of the shards that answer, and note the others."""
        listing = ListingQueues("", active=True, partial=True)
        while (request := listing.next_request()) is not None:
            listing.answered(await self._context.client.request(request))
        latest, answered = self._context.latest, listing.shards or set()
        total = latest.status.shards if latest and latest.status else len(answered)
        self._missing = "" if len(answered) >= total else f"{len(answered)} of {total} shards"
        return queue_infos(listing.result)

    async def _errors(self, info: QueueInfo) -> str:
        before = self._sampled.get(info.name)
        if before is not None and before[0] == info:
            return before[1]
        reading = Reading(self._context.client, info.name, SAMPLED)
        try:
            async for _ in reading.steps():
                pass
        except FilaError as error:
            return str(error)
        return kind_shares(reading.letters)

    def _show(self, infos: list[QueueInfo]) -> None:
        latest = self._context.latest
        oldest = {queue.info.name: queue.oldest_pending_ms for queue in all_queues(latest)} if latest else {}
        self._table.show(
            [
                {
                    "name": info.name,
                    "href": link("/dead-letters", queue=info.name),
                    "depth": info.depth,
                    "in_flight": info.in_flight,
                    "oldest_s": oldest[info.name] / 1000 if oldest.get(info.name) else None,
                    "errors": self._sampled[info.name][1] if info.name in self._sampled else "",
                }
                for info in infos
            ],
            self._missing,
        )
        self._part.text = f"{self._missing}: the dead letters of the others are unknown" if self._missing else ""
        self._part.set_visibility(bool(self._missing))
