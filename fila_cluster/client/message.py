"""A message: as a producer enqueues it, as the broker stores it, and as ``browse`` shows it."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict

from fila_proto_zmq import commands
from fila_proto_zmq.ids import enqueued_ms, format_id
from fila_proto_zmq.names import whole_queue
from fila_proto_zmq.record import Extension, extension_of, headers_of, payload_of, unpack_fixed

BytesLike = bytes | bytearray | memoryview


@dataclass(slots=True)
class Message:
    """One message of ``enqueue_many``, with the options of ``enqueue``. Durations are seconds.

    Nothing is checked here: ``enqueue_many`` reports a bad message in its place of the :class:`BatchError`, and sends the
    others.
    """

    payload: BytesLike
    """The content."""
    headers: Mapping[str, str] | None = None
    """Names and values, both text; at most 64 KiB."""
    _: KW_ONLY
    fairness_key: str | None = None
    """The group that shares its queue's capacity with the other groups. Default: default."""
    weight: int | None = None
    """The share of its fairness key from now on. Default: as it is."""
    throttle_keys: Iterable[str] | None = None
    """Token buckets that must have tokens before it is delivered; all of them are charged together. Default: none."""
    priority: int = 0
    """Its place within its fairness key, lower first. Default: 0."""
    cost: float = 1
    """The charge of one delivery to its key's share and its buckets. Default: 1."""
    delay: float = 0.0
    """How long it waits before its delivery. Default: 0."""
    deliver_at: datetime | None = None
    """The earliest time of its delivery (timezone-aware); the later of it and the delay counts. Default: none."""
    ttl: float | None = None
    """How long it may wait for its delivery. Default: the queue's."""
    lease: float | None = None
    """How long its delivery is leased. Default: the queue's."""
    dedup_id: str | None = None
    """A second message with the same one, within the dedup window, is not stored and gets the first one's id. Default:
    none."""
    dedup_mode: Literal["first", "last"] = "first"
    """last replaces the payload, the headers and the delay of the first message, if that is pending or delayed. Default:
    first."""
    max_attempts: int | None = None
    """Its deliveries before it is dead-lettered. Default: the queue's."""


class ScheduledOptions(TypedDict, total=False):
    """The options of a message that has no time of its own; see :class:`Message`."""

    fairness_key: str | None
    weight: int | None
    throttle_keys: Iterable[str] | None
    priority: int
    cost: float
    delay: float
    ttl: float | None
    lease: float | None
    dedup_id: str | None
    dedup_mode: Literal["first", "last"]
    max_attempts: int | None


class EnqueueOptions(ScheduledOptions, total=False):
    """The options of ``enqueue`` by name; see :class:`Message`."""

    deliver_at: datetime | None
    """The earliest time of its delivery (timezone-aware); the later of it and the delay counts. Default: none."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: tuple[str, ...] = ()


def utc(unix_ms: int) -> datetime:
    """Return a Unix time of the wire as a datetime."""
    return _EPOCH + timedelta(milliseconds=unix_ms)


def moment_or_none(unix_ms: int) -> datetime | None:
    """Return a Unix time of the wire as a datetime; None for 0."""
    return utc(unix_ms) if unix_ms else None


class StoredMessage:
    """The fields of a record. A subclass has the record in ``_packed``, and room for decoded parts.

    A malformed record of a foreign producer raises :class:`InvalidFrameError` when the malformed part is read.
    """

    __slots__ = _NONE

    _packed: bytes
    _payload: bytes | None
    _headers: dict[str, str] | None
    _extension: Extension | None

    @property
    def id(self) -> str:
        """The message id, a UUIDv7."""
        _, _, _, high, low = unpack_fixed(self._packed)
        return format_id(high, low)

    @property
    def headers(self) -> dict[str, str]:
        """The producer's headers."""
        if self._headers is None:
            self._headers = headers_of(self._packed)
        return self._headers

    @property
    def payload(self) -> bytes:
        """The producer's bytes."""
        if self._payload is None:
            self._payload = payload_of(self._packed)
        return self._payload

    def text(self) -> str:
        """Return the payload as UTF-8 text."""
        return self.payload.decode()

    def json(self) -> Any:
        """Return the payload as JSON."""
        return json.loads(self.payload)

    @property
    def priority(self) -> int:
        """Its place within the fairness key, lower first."""
        return int(unpack_fixed(self._packed)[2])

    @property
    def cost(self) -> float:
        """The charge of one delivery to its key's share and its token buckets."""
        return self._extended().cost_milli / 1000

    @property
    def attempts(self) -> int:
        """How many deliveries have failed so far: 0 on the first."""
        return int(unpack_fixed(self._packed)[1])

    @property
    def max_attempts(self) -> int | None:
        """How many deliveries it may have, if it has a number of its own; None: as many as its queue says."""
        return self._extended().max_attempts

    @property
    def error(self) -> str:
        """The error text of the last failed attempt."""
        return self._extended().error

    @property
    def metadata(self) -> bytes:
        """The bytes that an earlier attempt left for the next one."""
        return self._extended().metadata

    @property
    def enqueued_at(self) -> datetime:
        """When the broker accepted it."""
        return utc(enqueued_ms(unpack_fixed(self._packed)[3]))

    @property
    def reason(self) -> str | None:
        """Why it was dead-lettered: ``failed``, ``max_attempts``, ``hook`` or ``expired``. None if it was not."""
        return self._extended().reason

    @property
    def source_queue(self) -> str | None:
        """The queue that a dead letter came from."""
        source = self._extended().source_queue
        return None if source is None else whole_queue(source)

    @property
    def dead_lettered_at(self) -> datetime | None:
        """When it was dead-lettered."""
        moment_ms = self._extended().dead_lettered_ms
        return None if moment_ms is None else utc(moment_ms)

    def _extended(self) -> Extension:
        if self._extension is None:
            self._extension = extension_of(self._packed)
        return self._extension


MessageState = Literal["pending", "delayed", "leased"]


@dataclass(slots=True, eq=False, repr=False)
class MessageView(StoredMessage):
    """A message in its queue, as it was at that moment. It is not leased: there is nothing to settle.

    Times that do not apply to its state are None: ``due_at`` is for delayed ones, the others are for leased ones.
    ``consumer`` identifies the client that holds it.
    """

    queue: str
    state: MessageState
    fairness_key: str
    weight: int
    throttle_keys: list[str]
    due_at: datetime | None
    leased_at: datetime | None
    lease_expires_at: datetime | None
    consumer: str | None
    _packed: bytes
    _payload: bytes | None = None
    _headers: dict[str, str] | None = None
    _extension: Extension | None = None

    def __repr__(self) -> str:
        return f"<MessageView {self.id} of queue {self.queue!r}, {self.state}>"


def message_view(queue: str, view: commands.MessageView) -> MessageView:
    """Return a message as the broker describes it."""
    return MessageView(
        queue,
        view.state,  # type: ignore[arg-type] # the broker's word
        view.fairness_key,
        view.weight,
        view.throttle_keys,
        moment_or_none(view.due_ms),
        moment_or_none(view.leased_ms),
        moment_or_none(view.lease_expires_ms),
        view.consumer or None,
        view.record,
    )
