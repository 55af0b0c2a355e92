"""Messages in."""

from typing import Any, ClassVar

from fila_proto_zmq.commands.structs import Command, IntColumn, KeysColumn, Reply, Struct, TextColumn


class Fault(Struct):
    """An error on the wire. ``retry_after_ms`` is 0 when it is not known."""

    code: str
    text: str
    retry_after_ms: int = 0
    details: dict[str, Any] = {}


class Enqueued(Reply):
    """Ids of an enqueue: those accepted are consecutive from ``(id_high, id_low)``, in request order.

    ``faults`` maps an index of the request to what was wrong with that message; it took no id.
    """

    id_high: int
    id_low: int
    count: int
    faults: list[tuple[int, Fault]] = []
    known: list[tuple[int, int, int]] = []
    """Messages whose ``dedup_id`` was seen before, by index, with the id that it has: nothing was stored for them."""


class Enqueue(Command):
    """Messages for the queue of the routing key, sealed as :mod:`fila_proto_zmq.record` says."""

    opcode: ClassVar[int] = 20
    reply: ClassVar[type[Reply]] = Enqueued
    envelopes: list[bytes]
    fairness_key: TextColumn = "default"
    weight: IntColumn = 0
    """0: leave the key's weight as it is."""
    priority: IntColumn = 0
    delay_ms: IntColumn = 0
    due_ms: IntColumn = 0
    """An absolute time to deliver at; 0: none. The later of it and the delay counts."""
    lease_ms: IntColumn = 0
    """The message's own visibility timeout; 0: the queue's."""
    throttle_keys: KeysColumn = []
    cost_milli: IntColumn = 1000
    """What a delivery takes from its key's deficit and its buckets, in thousandths."""
    ttl_ms: IntColumn = 0
    """How long the message may wait; 0: as the queue says."""
    dedup_id: TextColumn = ""
    """A second message with the same one, within the dedup window, is not stored; empty: none."""
    dedup_window_ms: int = 0
    """How long these dedup ids are remembered; 0: as the broker says."""
