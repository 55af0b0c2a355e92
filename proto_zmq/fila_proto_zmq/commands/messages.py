"""Enqueue, receive, reserve and settle messages."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

from msgspec.structs import replace

from fila_proto_zmq.commands.structs import BoolColumn, Command, IntColumn, KeysColumn, Reply, Struct, TextColumn


class Fault(Struct):
    """An error on the wire. ``retry_after_ms`` is 0 when it is not known."""

    code: str
    text: str
    retry_after_ms: int = 0
    details: dict[str, Any] = {}


class Enqueued(Reply):
    """Ids of an enqueue: those accepted are consecutive from ``(id_high, id_low)``, in request order.

    ``faults`` maps an index of the request to the error of that message, which took no id. ``details["late"]`` in the faults
    of the last messages: there was no time for them. The request then counts as not stored for the one that follows it
    (``Enqueue.after``), and the client may send these messages again in their place.
    """

    id_high: int
    id_low: int
    count: int
    faults: list[tuple[int, Fault]] = []
    known: list[tuple[int, int, int]] = []
    """Messages whose ``dedup_id`` is known, by index, with the id of the first message: they were not stored, or replace a
    part of it."""


class Enqueue(Command):
    """Put messages, sealed as envelopes (``record.py``), into the queue of the routing key."""

    opcode, reply = 20, Enqueued
    envelopes: list[bytes]
    fairness_key: TextColumn = "default"
    weight: IntColumn = 0
    """0: leave the key's weight as it is."""
    priority: IntColumn = 0
    delay_ms: IntColumn = 0
    due_ms: IntColumn = 0
    """An absolute time to deliver at; 0: no time. The later of it and the delay counts."""
    lease_ms: IntColumn = 0
    """The message's own visibility timeout; 0: the queue's."""
    throttle_keys: KeysColumn = []
    cost_milli: IntColumn = 1000
    """The charge of a delivery to its key's deficit and its buckets, in thousandths."""
    ttl_ms: IntColumn = 0
    """How long the message may wait; 0: as the queue says."""
    dedup_id: TextColumn = ""
    """A second message with the same one, within the dedup window, is not stored; empty: no id."""
    dedup_window_ms: int = 0
    """How long these dedup ids are remembered; 0: as the broker says."""
    after: int | None = None
    """The request id of the enqueue that must be stored just before; 0: this begins a sequence. None: in no sequence."""
    max_attempts: IntColumn = 0
    """Deliveries before the message is dead-lettered; 0: as the queue says."""
    dedup_last: BoolColumn = False
    """Whether it replaces payload, headers and delay of a pending or delayed one with its ``dedup_id``, which it needs."""
    batch: str = ""
    """The batch that these messages are members of; empty: no batch."""

    def picked(self, places: Sequence[int]) -> "Enqueue":
        """Return some messages as a command of their own."""
        return replace(self, **{name: [column[at] for at in places] for name, column in self._columns().items()})

    def only(self, start: int, end: int) -> "Enqueue":
        """Return some consecutive messages as a command of their own."""
        if start == 0 and end >= len(self.envelopes):
            return self
        return replace(self, **{name: column[start:end] for name, column in self._columns().items()})

    def _columns(self) -> dict[str, list[Any]]:
        """Return the fields that have a value for each message."""
        total = len(self.envelopes)
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        columns = {name: field for name, field in fields.items() if isinstance(field, list) and len(field) == total}
        if total == 1:
            columns.pop("throttle_keys", None)  # one list of keys is for all
        return columns


Fences: TypeAlias = list[tuple[int, list[int]]]
"""Deliveries by lease: ``(lease, indexes)``; no indexes mean all of the lease."""


class LeaseBatch(Struct):
    """Messages leased together. A delivery is named by its *fence*: the lease and its index in ``records``."""

    lease: int
    leased_ms: int
    expires_ms: int
    fairness_key: TextColumn
    weight: IntColumn
    records: list[bytes]
    throttle_keys: KeysColumn = []
    at_most_once: bool = False
    """These are not delivered again: ack each as soon as the application has it."""


class Delivered(Reply):
    """The leases of a receive, or a push to a subscription (opcode ``DELIVERY``, request id 0)."""

    subscription: int
    """0: the answer to a Receive."""
    batches: list[LeaseBatch]
    incarnation: int = 0
    """The subscription's incarnation at the time of this push."""
    weight: int = 0
    """In the answer to a Receive: the sum of the weights of the fairness keys that have more to deliver."""
    strays: int = 0
    """In the answer of a partition without messages: odd while messages are on their way from it to other partitions of its
    queue. It is the same as in an earlier answer, and even, only if there were none in between."""


DELIVERY = 33


class Receive(Command):
    """Lease up to ``count`` messages: those ready now; if there are none, the next ones that become ready within ``wait_ms``.

    Repeated under the same request id it is answered with the same leases, as long as they last. With a count of 0 nothing is
    leased: it is answered as soon as a message could be.
    """

    opcode, reply = 30, Delivered
    count: int = 1
    wait_ms: int = 0
    leased: bool = False
    """Whether messages that are delivered at most once are leased, too: their client acks each as the application has it."""
    partitions: int = 0
    """How many partitions the client asks; refused if the queue has another number. 0: it asks for no other."""


class CancelReceive(Command):
    """Answer the pending receive with this request id now, with nothing, unless it is answered already."""

    opcode = 36
    request: int
    release: bool = False
    """Also give back the messages of the answer: it was lost, or comes too late."""


class Subscribed(Reply):
    """The state of the subscription."""

    incarnation: int = 0
    """0: the subscription has no incarnation."""
    pushes: int = 0
    """Frames that were pushed under this incarnation so far. A client that has seen fewer has lost some."""
    gone: list[int] = []
    """The leases that ended, among those that the client named."""


class Subscribe(Command):
    """Keep at most ``prefetch`` unsettled messages with this subscription; repeat as a heartbeat. 0: none are pushed.

    The same frame opens a subscription, keeps its client alive, renews the leases named in ``renew``, restores the
    subscription in a restarted broker and takes back messages that were lost on their way. So there is only one path to get
    right.
    """

    opcode, reply = 31, Subscribed
    subscription: int
    prefetch: int
    renew: list[int] = []
    incarnation: int | None = None
    """The client's incarnation; 0: it has none yet, and drops pushes until this is answered. None: the client does not name
    what it holds, and nothing is taken back."""
    holds: list[int] = []
    """The leases of this subscription that the client holds and does not renew."""
    partitions: int = 0
    """How many partitions the client consumes from; refused if the queue has another number. 0: from no other."""


class Unsubscribe(Command):
    """End a subscription. Its leases stay until they are settled, released or expire."""

    opcode = 32
    subscription: int
    holds: list[int] | None = None
    """The leases of this subscription that the client holds: the others are given back. None: nothing is given back."""


class Heartbeat(Command):
    """Show that the client lives. Sent to a queue where it holds leases but has no subscription."""

    opcode = 34


class Goodbye(Command):
    """Take leave: all messages that the client has not settled on this shard go back, without counting as failed attempts."""

    opcode = 35
    taken: Fences = []
    """At-most-once deliveries that the application has, and whose acks were not confirmed: they are not delivered again."""


class Verb(IntEnum):
    """How a delivery ends."""

    ACK = 1
    NACK = 2
    RETRY = 3
    FAIL = 4
    RELEASE = 5
    """Give back without a failed attempt: prefetched, and never handed to the application."""
    DEFER = 6
    """Give back without a failed attempt, to come after ``after_ms``; until then its throttle keys deliver nothing."""


class Settled(Reply):
    """Settlements that were refused: ``(lease, index, fault)``. The others are done."""

    faults: list[tuple[int, int, Fault]] = []


class Settle(Command):
    """Settle deliveries of the queue of the routing key. Repeating one gives the first answer again."""

    opcode, reply = 40, Settled
    verb: int
    fences: Fences
    error: str = ""
    metadata: bytes | None = None
    after_ms: int = 0
    costs: list[tuple[int, int, int]] = []
    """What deliveries really cost, if not their messages' cost: ``(lease, index, thousandths)``."""


class Extended(Reply):
    """The new ends of the leases, and the leases that could not be extended."""

    expires_ms: int
    faults: list[tuple[int, int, Fault]] = []


class Extend(Command):
    """Set the end of the named deliveries' leases to ``duration_ms`` from now."""

    opcode, reply = 41, Extended
    fences: Fences
    duration_ms: int


# --- reservations: leases that belong to a name instead of a client ----------------------------------------------------


class Reserved(Reply):
    """The messages that a reservation holds of a queue: ``(part, messages)``, and when it ends unless it is renewed."""

    parts: list[tuple[int, int]]
    expires_ms: int


class Reserve(Command):
    """Lease up to ``count`` messages to a name instead of to this client: those ready now, or within ``wait_ms``.

    A reservation is durable and outlives its client. It is taken in parts, each in one delivery; asking again for a part that
    is taken gives the same answer. When it expires its messages are given back, without a failed attempt.
    """

    opcode, reply = 42, Reserved
    reservation: str
    part: int
    count: int
    timeout_ms: int
    wait_ms: int = 0


class FetchReserved(Command):
    """Ask for the messages of a part of a reservation, as often as needed."""

    opcode, reply = 43, Delivered
    reservation: str
    part: int


class RenewReservation(Command):
    """Set the end of a reservation to ``timeout_ms`` from now. One that is over has no parts."""

    opcode, reply = 44, Reserved
    reservation: str
    timeout_ms: int


class ReservationEnded(Reply):
    """How many messages were settled; 0 if the reservation had ended."""

    count: int


class EndReservation(Command):
    """Settle all messages that a reservation holds of a queue: ``verb`` 1 acks them, 5 gives them back."""

    opcode, reply = 45, ReservationEnded
    reservation: str
    verb: int = 1
