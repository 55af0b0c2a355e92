"""``/hosts``: a card for each host, a table of the shards with their copies, and the risks."""

from typing import Any

from nicegui import ui

from fila_cluster.client.shard_copies import HeldCopy, ShardCopies, in_sync, shard_copies
from fila_cluster.client.views import HostList
from fila_cluster.figures import counted, lasted, ranged, sized
from fila_cluster.ops.analysis.hosts import CODES, HostRow, host_rows
from fila_cluster.ops.dashboard.shell.context import Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame
from fila_cluster.ops.dashboard.shell.live import keep_live
from fila_cluster.ops.dashboard.widgets.concern_feed import ConcernFeed
from fila_cluster.ops.dashboard.widgets.paged_table import PagedTable, TableColumn, ago, wrapped
from fila_proto_zmq.commands.hosts import FOLLOWS, LEADS

ONE_HOST = (
    "This cluster has one host: each shard is on the disk of this machine alone. With several hosts and a replicated log, "
    "another host takes over in some seconds when one is lost. docs/hosts.md says how to get there."
)
ALL_WELL = "Nothing. Each shard has a leader, and a standby that has caught up."

_STATE = """<q-badge :color="props.value == 'leads' ? 'positive' : 'negative'">{{ props.value }}</q-badge>"""
_READY = """<span :class="props.value.startsWith('0 ') ? 'text-warning' : ''">{{ props.value }}</span>"""

_COLUMNS = (
    TableColumn("shard", "Shard"),
    TableColumn("leader", "Leader"),
    TableColumn("state", "State", slot=_STATE),
    TableColumn("followers", "Followers (records behind)", slot=wrapped("10rem")),
    TableColumn("ready", "Caught up", slot=_READY),
    TableColumn("log", "In sync in the log"),
    TableColumn("position", "Position", counted, is_number=True),
    TableColumn("unconfirmed", "Unconfirmed", sized, is_number=True),
    TableColumn("p50_ns", "Confirm p50", lasted, is_number=True),
    TableColumn("p99_ns", "Confirm p99", lasted, is_number=True),
    TableColumn("proof", "Proof", ago, is_number=True),
    TableColumn("queues", "Queues", counted, is_number=True),
)


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/hosts")
    def hosts() -> None:
        context = visits.context()
        with frame(context, "Hosts", "/hosts"):
            page = _Hosts(context)
        keep_live(context, page.look)


class _Hosts:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._one = ui.label(ONE_HOST).classes("max-w-3xl").props("data-testid=one-host")
        with ui.column().classes("w-full gap-4") as self._several:
            self._feed = ConcernFeed("At risk now", ALL_WELL)
            self._cards: dict[str, _Card] = {}
            self._hosts = ui.row().classes("w-full gap-3 items-stretch")
            ui.label("Shards").classes("text-lg font-semibold")
            self._shards = PagedTable(
                _COLUMNS, key="shard", sort_by="shard", mark="copies", search_in=("leader", "state", "followers")
            )
        for each in (self._one, self._several):
            each.set_visibility(False)

    async def look(self) -> None:
        hosts = self._context.hosts()
        self._one.set_visibility(hosts is None)
        self._several.set_visibility(hosts is not None)
        if hosts is not None:
            self._feed.show([concern for concern in self._context.concerns() if concern.code in CODES])
            self._show_cards(hosts)
            self._shards.show([_row(each) for each in shard_copies(hosts)])

    def _show_cards(self, hosts: HostList) -> None:
        rows = host_rows(hosts)
        if [*self._cards] != [row.host for row in rows]:
            self._hosts.clear()
            with self._hosts:
                self._cards = {row.host: _Card(row.host) for row in rows}
        for row in rows:
            self._cards[row.host].show(row)


class _Card:
    """One host."""

    def __init__(self, host: str) -> None:
        with ui.card().classes("px-4 py-3 gap-1 min-w-[17rem] max-w-[24rem]").props(f"data-testid=host-{host}"):
            with ui.row().classes("items-center gap-3 w-full no-wrap"):
                ui.icon("dns").classes("text-xl")
                ui.label(host).classes("text-lg font-semibold")
                ui.space()
                self._draining = ui.badge("draining", color="warning")
            self._address = ui.label().classes("fila-quiet fila-mono")
            with ui.row().classes("gap-6"):
                self._leads, self._follows, self._behind = map(_number, ("leads", "follows", "behind"))
            self._shards = ui.label().classes("fila-quiet")
            self._work = ui.label().classes("fila-quiet")
            self._workers = ui.label().classes("fila-quiet")
            self._problem = ui.label().classes("text-negative")

    def show(self, row: HostRow) -> None:
        """Change its figures."""
        self._draining.set_visibility(row.draining)
        self._address.text = row.address or "no address is set"
        self._leads.text, self._follows.text = counted(len(row.leads)), counted(len(row.follows))
        self._behind.text = "–" if row.behind is None else counted(row.behind)
        self._shards.text = f"leads shards {ranged(row.leads)}" if row.leads else "leads no shard"
        self._work.text = f"{counted(row.queues, 'queue')}, {sized(row.unconfirmed_bytes)} unconfirmed"
        self._workers.text = ", ".join(row.workers)
        self._problem.text = "; ".join(row.problems)
        self._problem.set_visibility(bool(row.problems))


def _number(name: str) -> ui.label:
    with ui.column().classes("gap-0"):
        ui.label(name).classes("fila-quiet")
        return ui.label("–").classes("fila-number")


def _row(each: ShardCopies) -> dict[str, Any]:
    copy = each.leader.copy if each.leader else None
    state = each.state if each.state != LEADS or copy is not None else "does not answer"
    return {
        "shard": each.shard,
        "leader": each.leader.host if each.leader else None,
        "state": state.replace("_", " "),
        "followers": ", ".join(map(_copy, each.others)) or None,
        "ready": f"{len(each.ready)} of {len(each.others)}",
        "log": in_sync(each.log) if each.log else None,
        "position": copy.position if copy else None,
        "unconfirmed": copy.unconfirmed_bytes if copy else None,
        "p50_ns": copy.confirm_p50 * 1e9 if copy and copy.confirm_p50 is not None else None,
        "p99_ns": copy.confirm_p99 * 1e9 if copy and copy.confirm_p99 is not None else None,
        "proof": copy.proof_age if copy else None,
        "queues": copy.queues if copy else None,
    }


def _copy(held: HeldCopy) -> str:
    if held.copy.role != FOLLOWS:
        return f"{held.host} ({held.copy.role})"
    return f"{held.host} ({'?' if held.copy.behind is None else counted(held.copy.behind)})"
