"""All dead letter queues with messages, the fullest first, and the errors of their letters."""

from typing import Final

from fila_cluster import QueueInfo
from fila_cluster.analysis.rates import all_queues
from fila_cluster.dashboard.dead_letters.groups import kind_shares
from fila_cluster.dashboard.dead_letters.reading import Reading
from fila_cluster.dashboard.shell.context import CONSUME, Context
from fila_cluster.dashboard.shell.links import link
from fila_cluster.dashboard.widgets.cells import linked
from fila_cluster.dashboard.widgets.paged_table import PagedTable, TableColumn
from fila_cluster.errors import FilaError
from fila_cluster.figures import aged, counted

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
            info
            for info in await self._context.client.active_queues()
            if info.is_dead_letter and self._context.may(CONSUME, info.name)
        ]
        infos.sort(key=lambda info: -info.depth)
        self._show(infos)
        self._sampled = {info.name: (info, await self._errors(info)) for info in infos[:QUEUES_SAMPLED]}
        self._show(infos)

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
            ]
        )
