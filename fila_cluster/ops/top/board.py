"""The screen: the last picture in four lists, one of which is shown, and the lines above and below them."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.message import Message
from textual.screen import Screen
from textual.widgets import ContentSwitcher, Input, Static

from fila_cluster.client.views import ThrottleStats
from fila_cluster.ops.analysis.attention import Concern
from fila_cluster.ops.top.columns import (
    BAD,
    CONCERNS,
    FAINT,
    GOOD,
    KEYS,
    QUEUES,
    SEVERITY_STYLES,
    WORKERS,
    SortedRows,
    aged,
    counted,
    printable,
    rated,
)
from fila_cluster.ops.top.dialogs import ActionTarget
from fila_cluster.ops.top.grid import Grid
from fila_cluster.ops.top.poller import Close, Picture, Summary

KEYS_LINE: Final = "⏎ open  / filter  ←→ sort  p pause  r resume  d redrive  w why  ? help  q quit"
THROTTLES_SHOWN: Final = 4


def banner(picture: Picture | None, why_not: str, endpoint: str, interval_s: float) -> Text:
    """Return four lines; without a picture, the reason."""
    if picture is None:
        down = Text(f"‼ broker is down: {printable(why_not)}", BAD)
        return Text("\n").join([_first(None, endpoint, interval_s), down])
    numbers = picture.summary
    return Text("\n").join(
        [_first(numbers, endpoint, interval_s), _counts(numbers), _rates(numbers), urgent(picture.concerns)]
    )


def _first(numbers: Summary | None, endpoint: str, interval_s: float) -> Text:
    line = Text().append("fila-cluster", "bold")
    if numbers is not None:
        line.append(f" {numbers.version}", "bold")
    line.append(f"  {endpoint}")
    if numbers is not None:
        line.append(f"  up {aged(numbers.uptime_s)}")
    return line.append(f"  every {interval_s:g}s", FAINT)


def _counts(numbers: Summary) -> Text:
    if numbers.shards_up < numbers.shards:  # the sums that follow are of these shards alone
        line = Text(f"shards {numbers.shards_up}/{numbers.shards}:", BAD)
    else:
        all_up = numbers.workers_up == numbers.workers
        line = Text("workers ").append(f"{numbers.workers_up}/{numbers.workers}", GOOD if all_up else BAD)
    line.append(f"  queues {counted(numbers.queues)}  depth {counted(numbers.depth)}  leased {counted(numbers.in_flight)}")
    line.append(f"  delayed {counted(numbers.delayed)}  dead ")
    return line.append(counted(numbers.dead_letters), BAD if numbers.dead_letters else "")


def _rates(numbers: Summary) -> Text:
    if numbers.rates is None:
        return Text("rates: with the next look", FAINT)
    rates = numbers.rates
    shown = {"enqueued": rates.enqueued, "delivered": rates.delivered, "acked": rates.acked, "nacked": rates.nacked}
    return Text("  ".join(f"{name} {rated(rate)}/s" for name, rate in shown.items()))


def urgent(concerns: Sequence[Concern]) -> Text:
    """Return the first concern, and how many more there are."""
    worst = concerns[0] if concerns else None
    if worst is None or worst.severity == "info":
        quiet = Text().append("✓ nothing is wrong", GOOD)
        return quiet.append(f", {len(concerns)} worth knowing: press 4", FAINT) if worst else quiet
    more = f" (+{len(concerns) - 1}: press 4)" if len(concerns) > 1 else " (press 4)"
    return Text(f"‼{more} ", SEVERITY_STYLES[worst.severity]).append(printable(worst.text), SEVERITY_STYLES[worst.severity])


def throttled(throttles: Sequence[ThrottleStats]) -> Text:
    """Return the token buckets of a queue's messages, the emptiest first."""
    emptiest_first = sorted(throttles, key=lambda each: (_room(each), each.key))
    lines = [_bucket(each) for each in emptiest_first[:THROTTLES_SHOWN]]
    hidden = len(throttles) - len(lines)
    if hidden:
        lines[-1].append(f"  (+{hidden:,} throttle keys)", FAINT)
    return Text("\n").join(lines)


def _room(each: ThrottleStats) -> float:
    """Return what part of a throttle key's tokens, or of its places, is free: the smaller one."""
    tokens = each.tokens / each.burst if each.tokens is not None and each.burst else float(each.rate is None)
    places = 1 - each.in_use / each.concurrency if each.concurrency else float(each.concurrency is None)
    return min(tokens, places)


def _bucket(each: ThrottleStats) -> Text:
    line = Text().append("throttle ", FAINT).append(printable(each.key))
    if each.tokens is not None:
        line.append(f"  {each.rate:g}/s  ").append(
            f"{each.tokens:.1f} of {each.burst:g} tokens", BAD if each.tokens < 1 else ""
        )
    if each.concurrency is not None:
        line.append("  ").append(f"{each.in_use:,} of {each.concurrency:,} places", BAD if each.waiting else "")
    return line


VIEWS: Final = ("queues", "keys", "workers", "attention")
NAME_CELLS_MAX: Final = 20
"""The room for a queue's name above the lists."""


def _name(concern: Concern) -> str:
    """Return the constant name of a concern: its text changes with its numbers."""
    return f"{concern.code} {concern.queue} {concern.shard} {concern.throttle_key}"


class Board(Screen[None]):
    """The lists. ``queue`` is the one whose fairness keys are shown, if any; ``view`` is the shown list."""

    DEFAULT_CSS = """
    Board {
        & #banner { height: 4; text-wrap: nowrap; text-overflow: ellipsis; }
        & #tabs { height: 1; margin-top: 1; text-wrap: nowrap; }
        & #lists { height: 1fr; }
        & #throttles { height: auto; max-height: 4; text-wrap: nowrap; text-overflow: ellipsis; }
        & #said { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        & #filter { height: 1; border: none; padding: 0; display: none; }
        & #keysline { height: 1; text-style: dim; text-wrap: nowrap; text-overflow: ellipsis; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view('{view}')", show=False) for number, view in enumerate(VIEWS, 1)),
        Binding("slash", "filter", show=False),
        Binding("full_stop", "dead_letters", show=False),
        Binding("escape", "back", show=False),
    ]

    class Opened(Message):
        """The user opens the chosen row of a last list: why a key waits, the remedy for a concern."""

    class Turned(Message):
        """Another list is shown, or another queue's keys."""

    def __init__(self, queue: str | None) -> None:
        super().__init__()
        self.queue = queue
        self.view = "queues" if queue is None else "keys"
        self.with_dead_letters = False
        self._picture: Picture | None = None
        self._close: Close | None = None
        # Kept, not looked up: an answer may still come when the screen is being taken down.
        self._banner, self._tabs = Static(id="banner", markup=False), Static(id="tabs", markup=False)
        self._throttles, self._line = Static(id="throttles", markup=False), Static(id="said", markup=False)
        self._filter_box = Input(
            id="filter", placeholder="show only names with … (enter: keep, escape: all)", compact=True, select_on_focus=False
        )
        self._grids: dict[str, Grid[Any]] = {
            "queues": Grid(SortedRows(QUEUES, lambda row: row.name, sort=2), id="queues"),
            "keys": Grid(SortedRows(KEYS, lambda row: row.fairness_key, sort=3), id="keys"),
            "workers": Grid(SortedRows(WORKERS, lambda row: row.name), id="workers"),
            "attention": Grid(SortedRows(CONCERNS, _name, text_of=lambda row: row.text), id="attention"),
        }

    def compose(self) -> ComposeResult:
        """Lay out the screen from top to bottom."""
        yield self._banner
        yield self._tabs
        with ContentSwitcher(id="lists", initial="queues"):
            yield self._grids["queues"]
            with Vertical(id="keysview"):
                yield self._grids["keys"]
                yield self._throttles
            yield self._grids["workers"]
            yield self._grids["attention"]
        yield self._line
        yield self._filter_box
        yield Static(KEYS_LINE, id="keysline", markup=False)

    def on_mount(self) -> None:
        """Show the first list."""
        self.action_view(self.view)

    # --- showing ------------------------------------------------------------------------------------------------------

    @property
    def grid(self) -> Grid[Any]:
        """The shown list."""
        return self._grids[self.view]

    def show(self, banner: Text, picture: Picture | None, close: Close | None) -> None:
        """Show a picture."""
        self._picture, self._close = picture, close
        self._banner.styles.text_wrap = "nowrap" if picture else "wrap"  # the reason for an empty screen is not cut
        self._banner.update(banner)
        self._fill()

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a line until the next one."""
        self._line.update(Text(printable(" ".join(text.split("\n"))), BAD if bad else ""))

    def _fill(self) -> None:
        picture = self._picture
        queues = picture.queues if picture else []
        shown = [row for row in queues if self.with_dead_letters or not row.is_dead_letter]
        self._grids["queues"].fill(shown, "no queues" if picture else "")
        self._grids["workers"].fill(picture.workers if picture else [], "")
        self._grids["attention"].fill(picture.concerns if picture else [], "nothing is wrong" if picture else "")
        self._fill_keys()
        self._show_tabs()

    def _fill_keys(self) -> None:
        """Fill the list of keys, if the picture is of the chosen queue."""
        close = self._close if self._close and self._close.queue == self.queue else None
        empty = (close.why_not or "no fairness keys") if close else "…" if self.queue else "choose a queue first: press 1"
        self._grids["keys"].fill(close.keys if close else [], empty if self._picture else "")
        self._throttles.update(throttled(close.throttles if close else []))
        self._throttles.display = bool(close and close.throttles)

    def _show_tabs(self) -> None:
        names = {"queues": "queues", "keys": self._keys_title(), "workers": "workers", "attention": "attention"}
        line = Text()
        for number, view in enumerate(VIEWS, 1):
            line.append(f" {number} {names[view]} ", "bold reverse" if view == self.view else "").append(" ")
        self._tabs.update(line.append(self._place(), "dim"))

    def _keys_title(self) -> str:
        name = printable(self.queue or "")
        short = name if len(name) <= NAME_CELLS_MAX else name[: NAME_CELLS_MAX - 1] + "…"
        return f"keys of {short}" if name else "keys"

    def _place(self) -> str:
        """Return which rows are visible, of how many, and the filter."""
        listing = self.grid.listing
        last = min(listing.top + listing.height, len(listing.rows))
        place = f"{listing.top + 1:,}-{last:,} of {len(listing.rows):,}" if listing.rows else ""
        return f"{place} with {printable(listing.wanted)!r}" if listing.wanted else place

    # --- going about --------------------------------------------------------------------------------------------------

    def target(self) -> ActionTarget | None:
        """Return the chosen queue, or one of its keys."""
        row = self.grid.listing.chosen
        if row is None or self.view == "workers":
            return None
        if self.view == "keys":
            return ActionTarget(self.queue, row.fairness_key) if self.queue is not None else None
        name = row.name if self.view == "queues" else row.queue
        return ActionTarget(name) if name is not None else None

    def action_view(self, view: str) -> None:
        """Show another list; the keys are those of the queue that was chosen in the list before."""
        target = self.target() if view == "keys" and self.view != "keys" else None
        if target is not None and target.queue != self.queue:
            self.queue = target.queue
            self._grids["keys"].listing.filter_by("")
            self._grids["keys"].listing.go(0)
        self.view = view
        self.query_one("#lists", ContentSwitcher).current = "keysview" if view == "keys" else view
        self.grid.focus()
        self._fill()
        self.post_message(self.Turned())

    def action_back(self) -> None:
        """Show all rows again; if all are shown, the queues."""
        if self.grid.listing.wanted:
            self._filter("")
        else:
            self.action_view("queues")

    def action_dead_letters(self) -> None:
        """Show dead letter queues, or hide them."""
        self.with_dead_letters = not self.with_dead_letters
        self._fill()

    def on_grid_entered(self, _: Grid.Entered) -> None:
        """Open the chosen row."""
        if self.view == "queues":
            self.action_view("keys")
        else:
            self.post_message(self.Opened())

    def on_grid_moved(self, _: Grid.Moved) -> None:
        """Update the place in the list, which is shown above it."""
        self._show_tabs()

    # --- filtering ----------------------------------------------------------------------------------------------------

    def action_filter(self) -> None:
        """Ask for the text of a filter."""
        self._filter_box.value = self.grid.listing.wanted
        self._ask_for_filter(True)
        self._filter_box.focus()

    def _ask_for_filter(self, asked: bool) -> None:
        self._filter_box.display = asked
        self._line.display = not asked
        if not asked:
            self.grid.focus()

    def _filter(self, text: str) -> None:
        self.grid.listing.filter_by(text)
        self.grid.changed()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        if self._filter_box.display:
            self._filter(event.value)

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter."""
        self._ask_for_filter(False)

    def on_key(self, event: events.Key) -> None:
        """Show all rows again on escape, while a filter is typed."""
        if event.key == "escape" and self._filter_box.has_focus:
            event.stop()
            event.prevent_default()
            self._ask_for_filter(False)
            self._filter("")
