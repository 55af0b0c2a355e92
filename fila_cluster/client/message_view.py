"""A message that was looked at where it lies: what ``browse`` shows."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from fila_cluster.client.stored import StoredMessage, utc
from fila_proto_zmq import commands
from fila_proto_zmq.record import Extension

State = Literal["pending", "delayed", "leased"]


@dataclass(slots=True, eq=False, repr=False)
class MessageView(StoredMessage):
    """A message in its queue, as it was at that moment. It is not leased: there is nothing to settle.

    Times that do not apply to its state are None: ``due_at`` is for delayed ones, the others are for leased ones.
    ``consumer`` identifies the client that holds it.
    """

    queue: str
    state: State
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
    """A message as the broker describes it."""
    return MessageView(
        queue,
        view.state,  # type: ignore[arg-type] # the broker's word
        view.fairness_key,
        view.weight,
        view.throttle_keys,
        _moment(view.due_ms),
        _moment(view.leased_ms),
        _moment(view.lease_expires_ms),
        view.consumer or None,
        view.record,
    )


def _moment(unix_ms: int) -> datetime | None:
    return utc(unix_ms) if unix_ms else None
