"""Enqueues in order, for a queue that may have several partitions.

A chunk for a queue without partitions, as far as is known, goes to the queue's sender as it is. If the broker refuses it and
names the number of partitions, and from then on, a chunk is split: each partition has a sender of its own, so the order of each
fairness key is kept. The chunk is done when all of its parts are.
"""

from collections import defaultdict
from functools import partial
from typing import Any

from fila_cluster.client.protocol.ordering import Chunk, OrderedSender, Surroundings, answered_in
from fila_cluster.client.protocol.partitions.plans import Plans
from fila_cluster.client.protocol.producing import MESSAGES_PER_FRAME
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq import commands
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.errors import FilaError, PartitionedError, QueueExistsError
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from fila_proto_zmq.names import partition_name, whole_queue
from fila_proto_zmq.partitions import BY_KEY, Plan


class QueueSender:
    """The chunks of one producer for one queue, or for one partition."""

    def __init__(self, queue: str, around: Surroundings, plans: Plans) -> None:
        self._queue = whole_queue(queue)
        self._is_part = self._queue != queue
        """Whether it is for one partition, as long as the broker takes its chunks there."""
        self._around = around
        self._plans = plans
        self._whole = OrderedSender(queue, around)
        self._parts: dict[int, OrderedSender] = {}
        self._held: list[Chunk] = []
        """Chunks that wait until the queue is created by its template."""
        self._behind: list[Chunk] = []
        """Chunks that wait until those for the whole queue are answered: they may be refused, and go to its partitions first."""
        self._line: dict[Chunk, Chunk | None] = {}
        """Chunks for the whole queue without an answer; or with one, if it names the partitions and earlier ones have none: a
        chunk that is sent again must not find later ones before it."""
        self._open = 0

    @property
    def idle(self) -> bool:
        """Whether it has no chunks."""
        return not self._open

    def send(self, chunk: Chunk) -> Chunk:
        """Send a chunk behind all earlier ones."""
        self._open += 1
        chunk.number = 1  # a sender has it
        if self._behind or (self._line and not self._is_whole):
            self._behind.append(chunk)
        else:
            self._go(chunk)
        return chunk

    @property
    def _is_whole(self) -> bool:
        """Whether chunks go to the name that was given, as far as is known."""
        return self._is_part or self._plans.get(self._queue) is None

    def _go(self, chunk: Chunk) -> None:
        plan = self._plans.get(self._queue)
        if self._held:
            self._held.append(chunk)
        elif plan is None or self._is_part:
            self._line[chunk] = None
            self._whole.send(Chunk(chunk.command, partial(self._whole_answered, chunk)))
        elif chunk.part is not None and chunk.part[1] == plan.partitions:
            self.part(chunk.part[0]).send(Chunk(chunk.command, partial(self._answered, chunk)))
        else:
            _Split(self, chunk, plan).send()

    def _whole_answered(self, chunk: Chunk, sent: Chunk) -> None:
        if isinstance(sent.error, PartitionedError):
            self._line[chunk] = sent
        else:
            del self._line[chunk]
            self._answered(chunk, sent)
        while self._line and (refused := self._line[first := next(iter(self._line))]) is not None:
            del self._line[first]
            self._answered(first, refused)
        if not self._line:
            behind, self._behind = self._behind, []
            for each in behind:
                self._go(each)

    def _answered(self, chunk: Chunk, sent: Chunk) -> None:
        """Finish a chunk, or split it if the broker has refused it for that."""
        if isinstance(sent.error, PartitionedError):
            if "template" in sent.error.details:
                self._create(chunk)
                return
            if self._plans.learn(self._queue, sent.error) is not None:
                self._is_part = False
                self._go(chunk)
                return
        chunk.command, chunk.doubtful = sent.command, sent.doubtful
        self.done(chunk, sent.value, sent.error)

    def done(self, chunk: Chunk, value: commands.Enqueued | None, error: FilaError | None) -> None:
        """Finish a chunk."""
        self._open -= 1
        chunk.finish(value, error)

    def again(self, chunk: Chunk, error: FilaError) -> bool:
        """Send a chunk again whose queue has another number of partitions now; return False if that is not known."""
        if self._plans.learn(self._queue, error) is None:
            return False
        self._go(chunk)
        return True

    def part(self, partition: int) -> OrderedSender:
        """Return the sender for a partition."""
        sender = self._parts.get(partition)
        if sender is None:
            sender = self._parts[partition] = OrderedSender(partition_name(self._queue, partition), self._around)
        return sender

    def partition(self, plan: Plan, key: str, dedup_id: str) -> int:
        """Return the partition of a message."""
        return self._plans.partition(plan, key, dedup_id)

    def _create(self, chunk: Chunk) -> None:
        """Have the queue created as its template says, and send the chunk then."""
        self._held.append(chunk)
        if len(self._held) == 1:
            self._around.start("", commands.CreateByTemplate(self._queue), self._created)

    def _created(self, call: PendingCall) -> None:
        held, self._held = self._held, []
        for chunk in held:
            if call.error is None or isinstance(call.error, QueueExistsError):
                self._go(chunk)
            else:
                self.done(chunk, None, call.error)


class _Split:
    """A chunk for a queue with several partitions. The first error of a part that is about all of it is the chunk's error."""

    def __init__(self, sender: QueueSender, chunk: Chunk, plan: Plan) -> None:
        self._sender = sender
        self._chunk = chunk
        self._plan = plan
        self._results: dict[int, Any] = {}
        """The results of messages by their places: the halves of an id, or a fault."""
        self._left = 0
        self._errors: list[FilaError] = []

    def send(self) -> None:
        """Send the parts."""
        command = self._chunk.command
        keys, dedup_ids = command.fairness_key, command.dedup_id
        places: defaultdict[int, list[int]] = defaultdict(list)
        by_key = self._plan.spread == BY_KEY
        if isinstance(keys, str) if by_key else dedup_ids == "":  # then all are in one partition
            partition = self._sender.partition(self._plan, keys if isinstance(keys, str) else "", "")
            places[partition] = list(range(len(command.envelopes)))
        else:
            for place in range(len(command.envelopes)):
                key = keys if isinstance(keys, str) else keys[place]
                dedup_id = dedup_ids if isinstance(dedup_ids, str) else dedup_ids[place]
                places[self._sender.partition(self._plan, key, dedup_id)].append(place)
        parts = [(each, piece) for each, some in places.items() for piece in _pieces(command, some)]
        self._left = len(parts)
        for partition, piece in parts:
            part = command if len(piece) == len(command.envelopes) else command.picked(piece)
            self._sender.part(partition).send(Chunk(part, partial(self._answered, piece)))

    def _answered(self, places: list[int], sent: Chunk) -> None:
        self._left -= 1
        answer: commands.Enqueued | None = sent.value
        known = 0
        if answer is not None:
            known = answered_in(answer)
            self._results |= zip(places, _results(answer), strict=False)
        if sent.error is not None:
            self._chunk.doubtful |= sent.doubtful
            self._errors.append(sent.error)
            fault = to_fault(sent.error)
            self._results |= ((place, fault) for place in places[known:])
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        chunk, count = self._chunk, len(self._chunk.command.envelopes)
        results = [self._results[place] for place in range(count)]
        stored = [(place, *each) for place, each in enumerate(results) if isinstance(each, tuple)]
        replanned = next((each for each in self._errors if isinstance(each, PartitionedError)), None)
        if replanned is not None and not stored and self._sender.again(chunk, replanned):
            return
        if self._errors and not stored:
            self._sender.done(chunk, None, self._errors[0])
            return
        faults = [(place, each) for place, each in enumerate(results) if not isinstance(each, tuple)]
        self._sender.done(chunk, commands.Enqueued(0, 0, 0, faults, stored), None)


def _results(answer: commands.Enqueued) -> list[Any]:
    """Return the result of each message: the halves of its id, or a fault."""
    others: dict[int, Any] = dict(answer.faults)
    others |= {index: (high, low) for index, high, low in answer.known}
    results, low = [], answer.id_low
    for index in range(answered_in(answer)):
        if index in others:
            results.append(others[index])
        else:
            results.append((answer.id_high, low))
            low += 1
    return results


def _pieces(command: commands.Enqueue, places: list[int]) -> list[list[int]]:
    """Cut the messages of a part into frames."""
    pieces: list[list[int]] = []
    size = 0
    for place in places:
        length = len(command.envelopes[place])
        if not pieces or size + length > FRAME_BYTES_MAX or len(pieces[-1]) >= MESSAGES_PER_FRAME:
            pieces.append([])
            size = 0
        pieces[-1].append(place)
        size += length
    return pieces
