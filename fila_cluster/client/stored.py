"""A message as the broker stores it, taken apart when somebody asks: what deliveries and browsed messages have in common."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from fila_proto_zmq.ids import enqueued_ms, format_id
from fila_proto_zmq.record import Extension, extension_of, headers_of, payload_of, unpack_fixed

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NONE: tuple[str, ...] = ()


def utc(unix_ms: int) -> datetime:
    """An instant of the wire as a datetime."""
    return _EPOCH + timedelta(milliseconds=unix_ms)


class StoredMessage:
    """What a record says. A subclass has the record in ``_packed``, and room for the parts that were asked for.

    A record that a foreign producer filled with garbage raises :class:`InvalidFrameError` where the garbage is asked for.
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
        """The payload as UTF-8 text."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload as JSON."""
        return json.loads(self.payload)

    @property
    def priority(self) -> int:
        """Its place within the fairness key, lower first."""
        return int(unpack_fixed(self._packed)[2])

    @property
    def cost(self) -> float:
        """What one delivery takes from its key's share and its token buckets."""
        return self._extended().cost_milli / 1000

    @property
    def attempts(self) -> int:
        """How many deliveries have failed so far: 0 on the first."""
        return int(unpack_fixed(self._packed)[1])

    @property
    def error(self) -> str:
        """What the last failed attempt reported."""
        return self._extended().error

    @property
    def metadata(self) -> bytes:
        """What an earlier attempt left for the next one."""
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
        return self._extended().source_queue

    @property
    def dead_lettered_at(self) -> datetime | None:
        """When it was dead-lettered."""
        moment_ms = self._extended().dead_lettered_ms
        return None if moment_ms is None else utc(moment_ms)

    def _extended(self) -> Extension:
        if self._extension is None:
            self._extension = extension_of(self._packed)
        return self._extension
