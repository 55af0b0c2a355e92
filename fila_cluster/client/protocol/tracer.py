"""The place where tracing hooks into the client: an empty slot, and the interface of what goes there.

The client reads ``tracer.installed`` once a call or a batch. Spans and OpenTelemetry are in
:mod:`fila_cluster.tracing`. All methods are called in the caller's thread and outside of every lock, except for
:meth:`DeliveryTrace.abandoned`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_cluster.client.protocol.lease import LeaseOwner
    from fila_cluster.client.protocol.settling import Settlement, Settling


class EnqueueTrace(Protocol):
    """One ``enqueue`` or ``enqueue_many`` that is traced, from its beginning until one of the last three is called."""

    def carried(self, headers: Any) -> Any:
        """Return the headers of a message with the trace context; the given ones, untouched, if there is no room for it."""

    def carrying(self, messages: Iterable[Any]) -> Iterable[Any]:
        """Return messages with the trace context."""

    def accepted(self, message_id: str, options: tuple[Any, ...]) -> None:
        """Note that the message is in; ``options`` are those of ``enqueue`` in their order."""

    def all_accepted(self, count: int) -> None:
        """Note that this many messages are in."""

    def failed(self, error: BaseException) -> None:
        """Note the error of the call; of a batch, some messages may be in."""


class SettleTrace(Protocol):
    """One call that settles deliveries, some of which are traced."""

    def ended(self, settling: "Settling") -> None:
        """Note that the broker has answered, or (not ``settling.done``) that the caller waits no longer."""


class DeliveryTrace(Protocol):
    """The trace that a delivery keeps."""

    def abandoned(self) -> None:
        """Note that the delivery was garbage-collected unsettled. Called at any time, in any thread."""


class Tracer(Protocol):
    """The interface of a tracer."""

    def enqueuing(self, queue: str) -> EnqueueTrace | None:
        """Begin a trace of an enqueue; None if it is not traced."""

    def handed_over(self, deliveries: "Sequence[Delivery]") -> None:
        """Note deliveries that a caller gets. A traced one is given its ``_trace``."""

    def settling(self, deliveries: "Sequence[Delivery]", how: "Settlement") -> SettleTrace | None:
        """Begin a trace of a settlement; None if none of the deliveries is traced."""

    def closed(self, owner: "LeaseOwner") -> None:
        """Note that a client was closed: it has given back its unsettled deliveries."""


installed: Tracer | None = None
"""The tracer of this process; None: calls are not traced. May change at any time: read it once, then use that value."""
