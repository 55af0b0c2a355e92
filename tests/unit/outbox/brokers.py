"""A broker in memory, as a relay sees it: it stores what it has not stored before, and refuses what it is told to refuse."""

from collections import defaultdict
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import Enqueue, Enqueued
from fila_proto_zmq.record import open_envelope


class Broker:
    """``queues`` is what each has, in order. ``refusals``: what a queue, or a payload, is refused with. It knows all dedup ids for ever."""

    def __init__(self, *queues: str) -> None:
        self.queues: dict[str, list[bytes]] = {queue: [] for queue in queues}
        self.refusals: dict[str | bytes, FilaError] = {}
        self.frames: list[tuple[str, Enqueue]] = []
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._session = SimpleNamespace(plans=Plans(Random(1)))  # it has no queue with partitions

    def _start(self, queue: str, command: Enqueue) -> "_Sent":
        """What :class:`CommandsAhead` asks of a client, with the two below."""
        self.frames.append((queue, command))
        return _Sent(self, queue, command)

    @property
    def _io(self) -> "Broker":
        return self

    def wait(self, sent: "_Sent") -> None: ...

    def answer(self, queue: str, command: Enqueue) -> Enqueued:
        if queue in self.refusals:
            raise self.refusals[queue]
        if queue not in self.queues:
            raise QueueNotFoundError(f"there is no queue {queue!r}")
        payloads = [open_envelope(envelope)[1] for envelope in command.envelopes]
        if len(payloads) > 1 and (whole := self.refusals.get(b"frames of several")):
            raise whole
        ids = [command.dedup_id] if isinstance(command.dedup_id, str) else command.dedup_id
        answer = Enqueued(1, 1, 0)
        for index, (payload, dedup_id) in enumerate(zip(payloads, ids, strict=True)):
            if refusal := self.refusals.get(payload):
                answer.faults.append((index, to_fault(refusal)))
            elif dedup_id in self._known[queue]:
                answer.known.append((index, 1, 1))
            else:
                self._known[queue].add(dedup_id)
                self.queues[queue].append(payload)
                answer.count += 1
        return answer


class _Sent(NamedTuple):
    broker: Broker
    queue: str
    command: Enqueue

    def outcome(self) -> Enqueued:
        return self.broker.answer(self.queue, self.command)
