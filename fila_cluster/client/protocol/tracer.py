"""Where whoever traces hooks into the client: a place that is empty, and what would have to be there.

The client asks ``tracer.installed`` once a call or a batch, and knows nothing of spans or of OpenTelemetry:
:mod:`fila_cluster.tracing` does. All of it is called in the caller's thread and outside of every lock, except for
:meth:`DeliveryTrace.abandoned`.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fila_cluster.client.protocol.delivery import Delivery
    from fila_cluster.client.protocol.lease import Owner
    from fila_cluster.client.protocol.settling import Settlement, Settling


class EnqueueTrace(Protocol):
    """One ``enqueue`` or ``enqueue_many`` that is traced, from its beginning until one of the last three is called."""

    def carried(self, headers: Any) -> Any:
        """Return the headers of a message with what carries the trace; the given ones, untouched, if that may not be."""

    def carrying(self, messages: Iterable[Any]) -> Iterable[Any]:
        """Messages with what carries the trace."""

    def accepted(self, message_id: str, options: tuple[Any, ...]) -> None:
        """The message is in; ``options`` are those of ``enqueue`` in their order."""

    def all_accepted(self, count: int) -> None:
        """So many messages are in."""

    def failed(self, error: BaseException) -> None:
        """It raised this; of a batch, some messages may be in."""


class SettleTrace(Protocol):
    """One call that settles deliveries, of which some are traced."""

    def ended(self, settling: "Settling") -> None:
        """The broker has answered, or (not ``settling.done``) nobody waits any more."""


class DeliveryTrace(Protocol):
    """What a traced delivery holds on to."""

    def abandoned(self) -> None:
        """It was garbage-collected unsettled. Called at any time, in any thread."""


class Tracer(Protocol):
    """Who traces."""

    def enqueuing(self, queue: str) -> EnqueueTrace | None:
        """Somebody enqueues; None if that is not traced."""

    def handed_over(self, deliveries: "Sequence[Delivery]") -> None:
        """A caller gets these. A traced one is given its ``_trace``."""

    def settling(self, deliveries: "Sequence[Delivery]", how: "Settlement") -> SettleTrace | None:
        """Somebody is about to settle these; None if none of them is traced."""

    def closed(self, owner: "Owner") -> None:
        """A client was closed: it has given back what was not settled."""


installed: Tracer | None = None
"""Who traces in this process; None: nobody. May change at any time: read it once, then use what was read."""
