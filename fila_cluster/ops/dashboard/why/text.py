"""The reasons of ``why`` on a page: their numbers in words, and the actions on each."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from fila_cluster.client.explanation import Reason
from fila_cluster.client.message import utc
from fila_cluster.figures import aged, counted, sized
from fila_cluster.ops.dashboard.shell.links import link, queue_page
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


def _leased(queue: str, details: Details) -> list[Action]:
    return _messages("Leased messages", "leased")(queue, details) + _consumers(queue, details)


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
    "throttled": lambda queue, details: [Action("Change the throttle", link("/config", throttle=details["throttle_key"]))],
    "ordered_behind": _ordered_behind,
    "in_flight_cap": _leased,
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
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _quantity(name, value, now) if isinstance(value, int | float) else str(value)


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
