"""The tables of options: those of a queue, and those of a message.

Each field of :class:`QueueOptions` is a row: its type on the wire, and an :class:`Option`. From the rows derive the checks of
the client and of the worker, the client's signatures, the flags of the command line, the forms of the dashboard, and the
docs. So a new option is a row at the end, and its effect in the worker's core.

The options of a message are rows of :data:`MESSAGE_OPTIONS`. Its checks are not made from them: each is on the path of every
enqueue.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal

import msgspec

from fila_proto_zmq.commands.structs import Struct, names_queue
from fila_proto_zmq.limits import (
    IN_FLIGHT_MAX,
    LEASE_MS_MAX,
    LUA_MEMORY_LIMIT_BYTES_MAX,
    LUA_MEMORY_LIMIT_BYTES_MIN,
    LUA_TIMEOUT_MS_MAX,
    MAX_ATTEMPTS_MAX,
    PARTITIONS_MAX,
    TTL_MS_MAX,
)

AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a queue or a message."""

    kind: Literal["duration", "size", "count", "number", "text", "texts", "choice", "queue", "script", "instant"]
    """``queue``: one of the choices, or the name of a queue."""
    help: str
    """Its meaning, as a sentence."""
    default: str
    """Its default, for people."""
    bounds: tuple[int, int] | None = None
    """The least and the greatest value of a number, in ``unit``."""
    unit: str = ""
    """The unit on the wire of a duration or a size; the name of the things that a count counts."""
    choices: tuple[str, ...] = ()
    """The first one is the default. Of a count: words that may stand for a number; on the wire they are 0."""
    usual: str | int | float | None = None
    """Its default as an argument of the client; None: what ``default`` says."""
    label: str = ""
    """Its name for people."""
    field: str = ""
    """Its name on the wire, which ends with the unit of a duration and of a size."""
    name: str = ""
    """Its name for callers. Durations are seconds there."""
    flag: str = ""
    """Its name on the command line."""

    @property
    def meaning(self) -> str:
        """Its meaning and its default, as sentences."""
        return f"{self.help} Default: {self.default}."

    @property
    def of_hooks(self) -> bool:
        """Whether it is about Lua hooks, which have a form of their own."""
        return self.kind == "script" or self.name.startswith("lua_")


class QueueOptions(Struct):
    """How a queue treats its messages. None: the default."""

    visibility_timeout_ms: Annotated[
        int | None, Option("duration", "How long a delivery is leased.", "the broker's", (1, LEASE_MS_MAX), "ms")
    ] = None
    max_attempts: Annotated[
        int | None,
        Option("count", "Deliveries before a message is dead-lettered.", "no limit", (1, MAX_ATTEMPTS_MAX), "deliveries"),
    ] = None
    on_enqueue: Annotated[
        str | None,
        Option("script", "Lua that defines on_enqueue(msg), which schedules each message.", "none", label="on_enqueue"),
    ] = None
    on_failure: Annotated[
        str | None,
        Option("script", "Lua that defines on_failure(msg), which decides what follows a nack.", "none", label="on_failure"),
    ] = None
    dead_letter: Annotated[
        Annotated[str, names_queue("admin", "the dead letters of {}")] | None,
        Option(
            "queue",
            "Where dead letters go: dlq (NAME.dlq), discard, or the name of another queue.",
            "dlq",
            choices=("dlq", "discard"),
        ),
    ] = None
    delivery: Annotated[
        str | None,
        Option(
            "choice",
            "at_most_once removes a message when it is delivered, and never retries it.",
            "at_least_once",
            choices=("at_least_once", "at_most_once"),
        ),
    ] = None
    max_in_flight_per_key: Annotated[
        int | None,
        Option(
            "count",
            "Messages of a fairness key that may be leased or wait for a retry at a time; 1: strict order.",
            "no limit",
            (1, IN_FLIGHT_MAX),
            "messages",
        ),
    ] = None
    default_ttl_ms: Annotated[
        int | None,
        Option(
            "duration",
            "How long a message may wait for its delivery, unless it has a time to live of its own.",
            "for ever",
            (1, TTL_MS_MAX),
            "ms",
            label="default TTL",
        ),
    ] = None
    idle_expiry_ms: Annotated[
        int | None,
        Option(
            "duration",
            "How long the queue may be without messages, consumers and calls before it is deleted.",
            "never",
            (1, TTL_MS_MAX),
            "ms",
        ),
    ] = None
    lua_timeout_ms: Annotated[
        int | None,
        Option(
            "duration",
            "How long one run of a script may take.",
            "the broker's",
            (1, LUA_TIMEOUT_MS_MAX),
            "ms",
            label="time limit of hooks",
        ),
    ] = None
    lua_memory_limit_bytes: Annotated[
        int | None,
        Option(
            "size",
            "Bytes that one run of a script may use.",
            "the broker's",
            (LUA_MEMORY_LIMIT_BYTES_MIN, LUA_MEMORY_LIMIT_BYTES_MAX),
            "bytes",
            label="memory limit of hooks",
        ),
    ] = None
    max_in_flight: Annotated[
        int | None,
        Option("count", "Messages of the queue that may be leased at a time.", "no limit", (1, IN_FLIGHT_MAX), "messages"),
    ] = None
    partitions: Annotated[
        int | None,
        Option(
            "count",
            "Shards that the queue is spread over, as one queue; auto: all shards.",
            "1",
            (1, PARTITIONS_MAX),
            "partitions",
            choices=(AUTO,),
            usual=1,
        ),
    ] = None
    spread: Annotated[
        str | None,
        Option(
            "choice",
            "key keeps each fairness key's messages in one partition; message spreads them over all.",
            "key",
            choices=("key", "message"),
        ),
    ] = None


def _rows() -> Iterator[Option]:
    for row in msgspec.structs.fields(QueueOptions):
        (option,) = row.type.__metadata__
        name = row.name.removesuffix(f"_{option.unit}")
        label = option.label or name.replace("_", " ")
        usual = option.usual if option.usual is not None or not option.choices else option.choices[0]
        yield replace(option, field=row.name, name=name, label=label, usual=usual, flag=name.replace("_", "-"))


QUEUE_OPTIONS: Final = {option.name: option for option in _rows()}
"""The options of a queue by name, in the order of their fields."""


def _row(name: str, kind: Any, text: str, default: str, field: str = "", flag: str = "", **more: Any) -> Option:
    return Option(kind, text, default, name=name, field=field or name, flag=flag or name.replace("_", "-"), **more)


_MESSAGE_ROWS: Final = (
    _row("fairness_key", "text", "The group that shares its queue's capacity with the other groups.", "default", flag="key"),
    _row("weight", "count", "The share of its fairness key from now on.", "as it is"),
    _row(
        "throttle_keys",
        "texts",
        "Token buckets that must have tokens before it is delivered; all of them are charged together.",
        "none",
        flag="throttle-key",
    ),
    _row("priority", "count", "Its place within its fairness key, lower first.", "0", usual=0),
    _row("cost", "number", "The charge of one delivery to its key's share and its buckets.", "1", "cost_milli", usual=1),
    _row("delay", "duration", "How long it waits before its delivery.", "0", "delay_ms", usual=0.0),
    _row(
        "deliver_at",
        "instant",
        "The earliest time of its delivery (timezone-aware); the later of it and the delay counts.",
        "none",
        "due_ms",
    ),
    _row("ttl", "duration", "How long it may wait for its delivery.", "the queue's", "ttl_ms"),
    _row("lease", "duration", "How long its delivery is leased.", "the queue's", "lease_ms"),
    _row(
        "dedup_id",
        "text",
        "A second message with the same one, within the dedup window, is not stored and gets the first one's id.",
        "none",
    ),
    _row(
        "dedup_mode",
        "choice",
        "last replaces the payload, the headers and the delay of the first message, if that is pending or delayed.",
        "first",
        "dedup_last",
        choices=("first", "last"),
        usual="first",
    ),
    _row("max_attempts", "count", "Its deliveries before it is dead-lettered.", "the queue's"),
)
MESSAGE_OPTIONS: Final = {option.name: option for option in _MESSAGE_ROWS}
"""The options of a message by name, in the order of the client's signatures."""
