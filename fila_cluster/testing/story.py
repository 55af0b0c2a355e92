"""The events of the messages of each queue, by the broker's frames, for the reports of failed tests."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from fila_proto_zmq import commands as wire
from fila_proto_zmq.codec import decode_body, decode_command
from fila_proto_zmq.errors import FilaError, PartitionedError
from fila_proto_zmq.frames import ERROR, REPLY, unpack_header
from fila_proto_zmq.ids import client_name, format_id
from fila_proto_zmq.names import whole_queue
from fila_proto_zmq.record import open_envelope, record_id, unpack_fixed

EVENTS_MAX: Final = 10_000
"""Events that are remembered, of all queues together; the oldest are forgotten first."""
LEASES_MAX: Final = 10_000
"""Leases whose messages are remembered, to name settled ones."""
QUESTIONS_MAX: Final = 10_000
"""Requests whose answers are waited for."""
PAYLOAD_SHOWN: Final = 60
"""Bytes of a payload that a story shows."""

_WATCHED: Final = {
    command.opcode: command
    for command in (wire.Enqueue, wire.Settle, wire.Receive, wire.Cancel, wire.PurgeQueue, wire.Redrive)
}
_DONE: Final = {
    wire.Verb.ACK: "acked",
    wire.Verb.NACK: "nacked",
    wire.Verb.RETRY: "retried",
    wire.Verb.FAIL: "failed",
    wire.Verb.RELEASE: "given back",
    wire.Verb.DEFER: "deferred",
}


class StoryEvent(NamedTuple):
    """An event. ``after_s``: seconds since the broker began. ``message``: its id; empty: an event of the queue."""

    after_s: float
    queue: str
    message: str
    text: str


class Story:
    """The latest events of a broker, as a :class:`~fila_cluster.embedded.joined.Watcher` of its frames."""

    def __init__(self, began_ms: int, now_ms: Callable[[], int]) -> None:
        self._began_ms = began_ms
        self._now_ms = now_ms
        self._events: OrderedDict[int, StoryEvent] = OrderedDict()
        self._number = 0
        self._asked: OrderedDict[tuple[bytes, int], tuple[str, wire.Command]] = OrderedDict()
        self._leased: OrderedDict[int, list[str]] = OrderedDict()

    @property
    def queues(self) -> list[str]:
        """The queues with events, in the order of their first remembered event."""
        return list(dict.fromkeys(event.queue for event in list(self._events.values())))

    def of(self, queue: str) -> list[StoryEvent]:
        """Return the events of a queue."""
        return [event for event in list(self._events.values()) if event.queue == queue]

    # --- the broker's side --------------------------------------------------------------------------------------------

    def asked(self, client: bytes, header: bytes, key: bytes, body: bytes) -> None:
        """Observe a request before the worker carries it out."""
        if header[3] not in _WATCHED:
            return
        try:
            opened = unpack_header(header)
            command = decode_command(opened, body)
        except FilaError:
            return  # the worker refuses it
        _remember(self._asked, (client, opened.request), (whole_queue(key.decode(errors="replace")), command), QUESTIONS_MAX)

    def answered(self, client: bytes, header: bytes, key: bytes, body: bytes) -> None:
        """Observe an answer or a delivery."""
        opened = unpack_header(header)
        if opened.opcode == wire.DELIVERY and not opened.flags & REPLY:
            self._delivered(whole_queue(key.decode()), decode_body(wire.Delivered, body), client)
            return
        if opened.opcode not in _WATCHED:
            return
        queue, command = self._asked.pop((client, opened.request), ("", None))
        if command is None:
            return
        if opened.flags & ERROR:
            fault = decode_body(wire.Fault, body)
            if (
                not isinstance(command, wire.Receive) and fault.code != PartitionedError.code
            ):  # the client asks the partitions
                self._note(queue, "", f"{type(command).__name__} was refused: {fault.code}: {fault.text}")
            return
        self._done(queue, command, decode_body(command.reply, body), client)

    def _done(self, queue: str, command: wire.Command, reply: Any, client: bytes) -> None:
        if isinstance(command, wire.Enqueue):
            self._enqueued(queue, command, reply)
        elif isinstance(command, wire.Receive):
            self._delivered(queue, reply, client)
        elif isinstance(command, wire.Settle):
            self._settled(queue, command, {(lease, index): fault for lease, index, fault in reply.faults})
        elif isinstance(command, wire.Cancel):
            message = format_id(command.id_high, command.id_low)
            self._note(queue, message, "cancelled" if reply.removed else "not cancelled: it is leased")
        elif isinstance(reply, wire.Purged):
            self._note(queue, "", f"{reply.count} messages purged")
        elif isinstance(reply, wire.Redriven):
            self._note(queue, "", f"{reply.count} messages redriven")

    def _enqueued(self, queue: str, command: wire.Enqueue, reply: wire.Enqueued) -> None:
        faults = {index: fault for index, fault in reply.faults}  # noqa: C416 # tuples of the wire
        known = {index: format_id(high, low) for index, high, low in reply.known}
        taken = 0
        for index, envelope in enumerate(command.envelopes):
            if index in faults:
                self._note(queue, "", f"enqueue refused: {faults[index].text}")
            elif index in known:
                self._note(queue, known[index], "enqueued again by its dedup id: nothing stored")
            else:
                low = reply.id_low + taken
                taken += 1
                self._note(queue, format_id(reply.id_high, low), f"enqueued {shown(envelope)}{_options(command, index)}")

    def _delivered(self, queue: str, delivered: wire.Delivered, client: bytes) -> None:
        for batch in delivered.batches:
            ids = [format_id(*record_id(record)) for record in batch.records]
            _remember(self._leased, batch.lease, ids, LEASES_MAX)
            until = "" if batch.at_most_once else f", leased until {(batch.expires_ms - self._began_ms) / 1000:.3f} s"
            for message, record in zip(ids, batch.records, strict=True):
                attempts = unpack_fixed(record)[1]
                self._note(queue, message, f"delivered to client {client_name(client)}, attempts {attempts}{until}")

    def _settled(self, queue: str, command: wire.Settle, faults: dict[tuple[int, int], wire.Fault]) -> None:
        what = _DONE.get(wire.Verb(command.verb), "settled") if command.verb in set(wire.Verb) else "settled"
        after = f" in {command.after_ms / 1000:g} s" if command.after_ms else ""
        error = f": {command.error}" if command.error else ""
        for lease, indexes in command.fences:
            messages = self._leased.get(lease, [])
            for index in indexes or range(len(messages)):
                message = messages[index] if index < len(messages) else ""
                fault = faults.get((lease, index))
                self._note(queue, message, f"{what}{after}{error}" if fault is None else f"{what}, refused: {fault.text}")

    def _note(self, queue: str, message: str, text: str) -> None:
        self._number += 1
        event = StoryEvent((self._now_ms() - self._began_ms) / 1000, queue, message, text)
        _remember(self._events, self._number, event, EVENTS_MAX)


def shown(envelope: bytes) -> str:
    """Return the beginning of a payload, for people."""
    try:
        payload = open_envelope(envelope)[1]
    except FilaError:
        return "an envelope that cannot be opened"
    return shown_payload(payload)


def shown_payload(payload: bytes) -> str:
    """Return the beginning of a payload, for people."""
    head = payload[:PAYLOAD_SHOWN]
    try:
        text = head.decode()
    except UnicodeDecodeError:
        text = repr(head)
    return (text if text.isprintable() else repr(head)) + (f"… ({len(payload)} bytes)" if len(payload) > len(head) else "")


def told(events: Iterable[StoryEvent]) -> dict[str, list[str]]:
    """Return the lines of each message, by id; those of the queue itself are under the empty id."""
    lines: defaultdict[str, list[str]] = defaultdict(list)
    for event in events:
        lines[event.message].append(f"{_clock(round(event.after_s * 1000))}  {event.text}")
    return dict(lines)


def _options(command: wire.Enqueue, index: int) -> str:
    told_of = []
    if (key := _of(command.fairness_key, index)) != "default":
        told_of.append(f"key {key}")
    if delay_ms := _of(command.delay_ms, index):
        told_of.append(f"delay {delay_ms / 1000:g} s")
    if ttl_ms := _of(command.ttl_ms, index):
        told_of.append(f"ttl {ttl_ms / 1000:g} s")
    return f" ({', '.join(told_of)})" if told_of else ""


def _of(column: Any, index: int) -> Any:
    return column[index] if isinstance(column, list) else column


def _clock(ms: int) -> str:
    return f"{ms / 1000:9.3f} s"


def _remember(where: "OrderedDict[Any, Any]", key: Any, value: Any, at_most: int) -> None:
    where[key] = value
    while len(where) > at_most:
        where.popitem(last=False)
