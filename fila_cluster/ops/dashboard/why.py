"""``/why?queue=…&id=…&key=…``: why a message, a fairness key or a queue waits, kept up to date until the message is gone."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query
from nicegui import ui

from fila_cluster.client.calls.explain import UNKNOWN
from fila_cluster.client.explanation import Explanation, Reason
from fila_cluster.client.message import utc
from fila_cluster.errors import FilaError, MessageNotFoundError
from fila_cluster.figures import aged, counted, sized
from fila_cluster.ops.dashboard.shell.context import ADMIN, EVERYTHING, Context, Visits
from fila_cluster.ops.dashboard.shell.frame import frame, link, queue_page
from fila_cluster.ops.dashboard.shell.live import Look, keep_live, succeeds
from fila_cluster.ops.dashboard.widgets.charts import Tile
from fila_cluster.ops.dashboard.widgets.forms import QueueChoice
from fila_proto_zmq.names import dead_letter_name, is_dead_letter

RESUME_QUEUE: Final = "resume_queue"
RESUME_KEY: Final = "resume_key"

_YEAR_2001_MS: Final = 1_000_000_000_000
"""Larger numbers of milliseconds are a point in time, smaller ones a duration."""


class Action(NamedTuple):
    """Something to do: a page to open, or a ``verb`` with its target."""

    label: str
    href: str = ""
    verb: str = ""
    fairness_key: str = ""


def actions(queue: str, reason: Reason) -> list[Action]:
    """Return the actions on a reason, the most useful first."""
    details = reason.details
    key = details.get("fairness_key")
    found = _OF_CODES.get(reason.code, _nothing)(queue, details)
    if key is not None and "keys" in details and reason.code != "keys_ahead":
        found = [*found, Action(f"Why does {key} wait?", link("/why", queue=queue, key=key))]
    return found


Details = dict[str, Any]


def _nothing(queue: str, details: Details) -> list[Action]:
    return []


def _messages(label: str, state: str | None = None) -> Callable[[str, Details], list[Action]]:
    return lambda queue, details: [
        Action(label, link("/messages", queue=queue, key=details.get("fairness_key"), state=state))
    ]


def _consumers(queue: str, details: Details) -> list[Action]:
    return [Action("Consumers", queue_page(queue))]


def _partitions(queue: str, details: Details) -> list[Action]:
    return [Action("Partitions", queue_page(queue)), *(_leased(queue, details) if details.get("leased") else [])]


def _leased(queue: str, details: Details) -> list[Action]:
    return _messages("Leased messages", "leased")(queue, details) + _consumers(queue, details)


def _concurrency(queue: str, details: Details) -> list[Action]:
    key = details.get("throttle_key")
    change = [Action("Who holds the places", link("/limits", key=key))] if key else []
    return [*change, *_leased(queue, details)]


def _ordered_behind(queue: str, details: Details) -> list[Action]:
    first = Action("Why does that one wait?", link("/why", queue=queue, id=details.get("message_id")))
    return [first, *_messages("Messages of its key")(queue, details)]


def _dead_letters(queue: str, details: Details) -> list[Action]:
    letters = queue if is_dead_letter(queue) else dead_letter_name(queue)
    return [Action("Dead letters", link("/dead-letters", queue=details.get("dead_letter_queue") or letters))]


_OF_CODES: Final[dict[str, Callable[[str, Details], list[Action]]]] = {
    "queue_paused": lambda queue, details: [Action("Resume the queue", verb=RESUME_QUEUE)],
    "key_paused": lambda queue, details: [
        Action(f"Resume {details['fairness_key']}", verb=RESUME_KEY, fairness_key=details["fairness_key"])
    ],
    "moving": _partitions,
    "leaving": _partitions,
    "throttled": lambda queue, details: [Action("Change the limits", link("/limits", key=details["throttle_key"]))],
    "ordered_behind": _ordered_behind,
    "in_flight_cap": _leased,
    "concurrency": _concurrency,
    "leased": _leased,
    "delayed": _messages("Delayed messages", "delayed"),
    "retry_wait": _messages("Delayed messages", "delayed"),
    "deferred": _messages("Delayed messages", "delayed"),
    "no_consumers": _consumers,
    "no_credit": _consumers,
    "enqueues_refused": lambda queue, details: [Action("The queue", queue_page(queue))],
    "breaker_open": lambda queue, details: [Action("Hooks", link("/hooks", queue=queue))],
    "dead_lettered": _dead_letters,
    "expired": _dead_letters,
    "behind": _messages("Messages of its key"),
    "keys_ahead": lambda queue, details: [Action("All keys", queue_page(queue))],
}


def numbers(reason: Reason, now: datetime | None = None) -> list[tuple[str, str]]:
    """Return the details of a reason, each with its name, in words; unknown ones are left out."""
    moment = now or datetime.now(UTC)
    return [(_name(name), _text(name, value, moment)) for name, value in reason.details.items() if value not in (None, "")]


def countdown(until: datetime | None, now: datetime | None = None) -> str:
    """Return how long until then."""
    if until is None:
        return ""
    left_s = (until - (now or datetime.now(UTC))).total_seconds()
    if left_s <= 0:
        return "any moment"
    minutes, seconds = divmod(int(left_s), 60)
    if minutes == 0:
        return f"in {left_s:.1f} s"
    return f"in {minutes} min {seconds:02} s" if minutes < 60 else f"in {minutes // 60} h {minutes % 60:02} min"


def time_of_day(moment: datetime) -> str:
    """Return a time of the day in UTC."""
    return f"{moment:%H:%M:%S} UTC"


def _name(name: str) -> str:
    return name.removesuffix("_ms").removesuffix("_ago").removesuffix("_bytes").replace("_", " ")


def _text(name: str, value: Any, now: datetime) -> str:
    if isinstance(value, list):
        return ", ".join(_holder(each, now) if isinstance(each, dict) else str(each) for each in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _quantity(name, value, now) if isinstance(value, int | float) else str(value)


def _holder(held: dict[str, Any], now: datetime) -> str:
    return f"{held['message_id']} by {held['consumer']} since {_moment(utc(held['since_ms']), now)}"


def _quantity(name: str, value: float, now: datetime) -> str:
    """Return a number in the unit that its name ends with."""
    if name.endswith("_ms"):
        ago = " ago" if name.endswith("_ago_ms") else ""
        return f"{aged(value / 1000)}{ago}" if value < _YEAR_2001_MS else _moment(utc(int(value)), now)
    if name.endswith("_bytes"):
        return sized(int(value))
    if name == "share":
        return f"{100 * value:.1f} %"
    return counted(value) if isinstance(value, int) else f"{value:,.3f}".rstrip("0").rstrip(".")


def _moment(moment: datetime, now: datetime) -> str:
    away_s = (moment - now).total_seconds()
    return f"{time_of_day(moment)}, {countdown(moment, now) if away_s > 0 else f'{aged(-away_s)} ago'}"


Act = Callable[[Action], Awaitable[None]]


class ReasonList:
    """Drawn again only if other reasons hold, so buttons stay in place. ``act`` does the actions that have a verb."""

    def __init__(self, queue: str, act: Act, may: Callable[[Action], bool]) -> None:
        """``may``: whether to offer an action."""
        self._queue = queue
        self._may = may
        self._act = act
        self._rows: list[_Row] = []
        self._list = ui.column().classes("w-full gap-2").props("data-testid=reasons")

    def show(self, reasons: Sequence[Reason]) -> None:
        """Show new reasons."""
        kinds = [(reason.code, tuple(filter(self._may, actions(self._queue, reason)))) for reason in reasons]
        if kinds != [row.kind for row in self._rows]:
            self._list.clear()
            with self._list:
                self._rows = [_Row(code, todo, is_first=not at, act=self._act) for at, (code, todo) in enumerate(kinds)]
        for row, reason in zip(self._rows, reasons, strict=True):
            row.show(reason)


class _Row:
    def __init__(self, code: str, todo: tuple[Action, ...], *, is_first: bool, act: Act) -> None:
        self.kind = (code, todo)
        with ui.card().classes("w-full p-3 gap-1").props(f"data-testid=reason-{code}"):
            with ui.row().classes("w-full items-baseline gap-3 no-wrap"):
                ui.badge(code, color="primary" if is_first else "grey").classes("px-2 py-1")
                self._text = ui.label().classes("grow break-words min-w-0" + (" font-semibold" if is_first else ""))
                self._until = ui.label().classes("fila-mono whitespace-nowrap").props("data-testid=until")
            with ui.row().classes("w-full items-center gap-x-4 gap-y-1"):
                self._numbers = ui.label().classes("fila-quiet break-all").props("data-testid=numbers")
                ui.space()
                for each in todo:
                    _offer(each, act)

    def show(self, reason: Reason) -> None:
        self._text.text = reason.text
        self._until.text = f"{countdown(reason.until)}, {time_of_day(reason.until)}" if reason.until else ""
        self._numbers.text = " · ".join(f"{name} {text}" for name, text in numbers(reason))


def _offer(action: Action, act: Act) -> None:
    if action.href:
        ui.link(action.label, action.href)
    else:
        ui.button(action.label, icon="play_arrow", on_click=lambda: act(action)).props("outline dense no-caps size=sm")


SETTLED: Final = "It was delivered, and is gone: its consumer settled it."
GONE: Final = "It is gone: delivered and settled since the last look, or cancelled, purged or expired."
DELIVERED: Final = "It was delivered: a consumer holds it. This page shows when it is settled, or comes back."


def register(visits: Visits) -> None:
    """Add the page."""

    @ui.page("/why")
    def why(queue: str = "", message_id: Annotated[str, Query(alias="id")] = "", key: str | None = None) -> None:
        context = visits.context()
        message_id = message_id.strip()
        with frame(context, "Why", "/why"):
            _Form(context, queue, message_id, key or "")
            if queue:
                page = _Why(context, queue, message_id or None, key if key or not message_id else None)
                page.look_now = keep_live(context, page.look, page.trouble)
            else:
                ui.label("Choose a queue, or one of its messages or fairness keys, to see what it waits for.").classes(
                    "fila-quiet"
                )


class _Form:
    """The form of the question. An answer has an address of its own."""

    def __init__(self, context: Context, queue: str, message_id: str, key: str) -> None:
        with ui.row().classes("w-full items-center gap-3"):
            ui.label("Why does it wait?").classes("text-xl font-semibold")
            self._queue = QueueChoice(context, queue, lambda _: self._ask(), mark="why-queue")
            self._id = (
                ui.input("Message id", value=message_id).props("dense outlined clearable data-testid=why-id").classes("w-80")
            )
            self._key = (
                ui.input("Fairness key", value=key).props("dense outlined clearable data-testid=why-key").classes("w-48")
            )
            for field in (self._id, self._key):
                field.on("keydown.enter", self._ask)
            ui.button("Ask", icon="help", on_click=self._ask).props("dense no-caps data-testid=ask")

    def _ask(self) -> None:
        if self._queue.name:
            ui.navigate.to(link("/why", queue=self._queue.name, id=self._id.value or None, key=self._key.value or None))


class _Why:
    def __init__(self, context: Context, queue: str, message_id: str | None, key: str | None) -> None:
        self._context = context
        self._queue, self._id, self._key = queue, message_id, key
        self._last: Explanation | None = None
        self._is_over = False
        self.look_now: Look = self.look
        with ui.row().classes("items-center gap-2"):
            ui.link(queue, queue_page(queue)).classes("font-semibold break-all")
            ui.label(message_id or key or "").classes("fila-mono break-all")
        self.trouble = ui.label().classes("text-negative").props("data-testid=trouble")
        self._news = ui.label().classes("text-lg text-positive").props("data-testid=news")
        self._tell("")
        self._body = ui.column().classes("w-full gap-3")
        with self._body:
            self._build()
        self._body.set_visibility(False)

    def _build(self) -> None:
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._state = Tile("State", "why-state")
            self._forecast = ui.row().classes("gap-3 grow-[2] items-stretch")
        with self._forecast:
            self._place = Tile("Before it in its key", "why-position")
            self._expected = Tile("Delivery expected", "why-expected")
        self._headline = ui.label().classes("fila-quiet").props("data-testid=headline")
        self._reasons = ReasonList(self._queue, self._act, self._may)

    def _may(self, action: Action) -> bool:
        """Return whether the visitor may do something, or open its page."""
        if action.verb:
            return self._context.may(ADMIN, self._queue)
        return not action.href.startswith("/limits") or self._context.may(ADMIN, EVERYTHING)

    async def look(self) -> bool:
        """Ask; return False if the shard did not answer."""
        if self._is_over:
            return True
        try:
            explanation = await self._context.client.why(self._queue, message_id=self._id, fairness_key=self._key)
        except MessageNotFoundError:
            self._body.set_visibility(False)
            if self._last is None:
                raise
            self._is_over = True
            self._tell(SETTLED if self._last.state == "leased" else GONE)
            return True
        except FilaError:
            self._body.set_visibility(False)
            raise
        self._show(explanation)
        return explanation.state != UNKNOWN

    def _show(self, explanation: Explanation) -> None:
        self._last = explanation
        self._body.set_visibility(True)
        self._tell(DELIVERED if self._id and explanation.state == "leased" else "")
        self._state.show(explanation.state.replace("_", "-"))
        place, at = explanation.position, explanation.estimated_delivery_at
        self._place.show("–" if place is None else counted(place), "it is next" if place == 0 else "")
        self._expected.show("–" if at is None else countdown(at), "" if at is None else time_of_day(at))
        self._forecast.set_visibility(place is not None or at is not None)
        self._headline.text = explanation.headline
        self._headline.set_visibility(explanation.headline != explanation.state)
        self._reasons.show(explanation.reasons)

    def _tell(self, news: str) -> None:
        self._news.text = news
        self._news.set_visibility(bool(news))

    async def _act(self, action: Action) -> None:
        client = self._context.client
        if action.verb == RESUME_KEY:
            done = await succeeds(
                client.resume(self._queue, fairness_key=action.fairness_key), f"{action.fairness_key} goes on"
            )
        else:
            done = await succeeds(client.resume(self._queue), f"{self._queue} goes on")
        if done:
            await self.look_now()
