"""Enqueues in order, for a queue that may have several partitions.

A chunk for a queue without partitions, as far as is known, goes to the queue's sender as it is. If the broker refuses it and
names the number of partitions, and from then on, a chunk is split: each partition has a sender of its own, so the order of each
fairness key is kept. The chunk is done when all of its parts are.

A chunk whose queue has other partitions than was thought is sent again, without what is stored. That must not change the order,
either: from the first such refusal on nothing else is sent, until all chunks under way have their answers. Then all that were
refused, and those that came meanwhile, are sent in their order: *go back N*, as in :mod:`ordering`. The senders of the partitions
recall theirs until then: they would send them again by themselves, past those that wait.
"""

from collections import defaultdict
from collections.abc import Sequence
from copy import copy
from functools import partial
from operator import attrgetter
from typing import Any

from fila_cluster.client.protocol.ordering import Chunk, OrderedSender, Surroundings, answered_in, error_for
from fila_cluster.client.protocol.partitions.plans import Plans, pauses
from fila_cluster.client.protocol.producing import MESSAGES_PER_FRAME
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq import commands
from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.errors import FilaError, InvalidFrameError, PartitionedError, QueueExistsError, QueueNotFoundError
from fila_proto_zmq.limits import FRAME_BYTES_MAX
from fila_proto_zmq.names import partition_name, whole_queue
from fila_proto_zmq.partitions import BY_KEY, Plan


class _RecalledError(FilaError):
    """An earlier chunk is to be sent to other partitions."""


_ELSEWHERE = (PartitionedError, QueueNotFoundError)
_AGAIN = (*_ELSEWHERE, _RecalledError)
"""The errors of messages that are sent again. What has failed for another reason has failed: it may even be stored."""


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
        self._numbers = 0
        self._open = 0
        self._under_way = 0
        self._again: list[_Sending] = []
        """Chunks to be sent once nothing is under way, and the queue is created if its template says so."""
        self._creating = False
        self._resting = False
        self._halted = False
        """Whether nothing else is sent until nothing is under way."""
        self._recalling = False
        self._plan: Plan | None = None
        """The plan of the chunks under way."""

    @property
    def timeout_s(self) -> float:
        """For how long a chunk follows its queue, if its partitions are others each time."""
        return self._around.timeout_s

    @property
    def idle(self) -> bool:
        """Whether it has no chunks."""
        return not self._open

    def send(self, chunk: Chunk) -> Chunk:
        """Send a chunk behind all earlier ones."""
        self._numbers += 1
        chunk.number = self._numbers
        self._open += 1
        self._go(_Sending(self, chunk))
        return chunk

    def part(self, partition: int | None) -> OrderedSender:
        """Return the sender for a partition; None: for the queue as it was named."""
        if partition is None:
            return self._whole
        sender = self._parts.get(partition)
        if sender is None:
            sender = self._parts[partition] = OrderedSender(partition_name(self._queue, partition), self._around)
        return sender

    def partition(self, plan: Plan, key: str, dedup_id: str) -> int:
        """Return the partition of a message."""
        return self._plans.partition(plan, key, dedup_id)

    def answered(self, sending: "_Sending") -> None:
        """Take in the answers to a chunk: finish it, or send it again if its queue has other partitions."""
        self._under_way -= 1
        if self._is_to_follow(sending):
            self._again.append(sending)
        else:
            self._open -= 1
            sending.finish()
        self._resume()

    def halt(self) -> None:
        """Send nothing else, and have all answered that is not under way, as a part of a chunk is to go another way."""
        self._halted = True
        if not self._recalling:
            self._recalling = True
            for sender in (self._whole, *list(self._parts.values())):
                sender.recall(_RecalledError("an earlier message is to be sent first"))
            self._recalling = False

    def _go(self, sending: "_Sending") -> None:
        plan = None if self._is_part else self._plans.get(self._queue)
        if self._halted or self._again or self._resting or (self._under_way and plan != self._plan):
            self._again.append(sending)
            return
        self._under_way += 1
        self._plan = plan
        sending.send(plan)

    def _is_to_follow(self, sending: "_Sending") -> bool:
        """Return whether a chunk was refused because its queue has other partitions, or is to be created."""
        error = next((each for each in sending.errors if isinstance(each, _ELSEWHERE)), None)
        pause_s = None if error is None else next(sending.pauses, None)
        if error is None or pause_s is None:
            return any(isinstance(each, _RecalledError) for each in sending.errors)
        if pause_s:
            self._rest(pause_s)
        if isinstance(error, PartitionedError) and "template" in error.details:
            self._create()
            return True
        was_split = sending.plan is not None
        if self._plans.learn(self._queue, error) is None:
            return was_split  # it may be there without partitions
        self._is_part = False
        return True

    def _rest(self, pause_s: float) -> None:
        """Send nothing for a moment: a shard may learn of the partitions after another."""
        if not self._resting:
            self._resting = True
            self._around.timers.at(self._around.now() + pause_s, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._resume()

    def _create(self) -> None:
        """Have the queue created as its template says."""
        if not self._creating:
            self._creating = True
            self._around.start("", commands.CreateByTemplate(self._queue), self._created)

    def _created(self, call: PendingCall) -> None:
        self._creating = False
        if call.error is not None and not isinstance(call.error, QueueExistsError):
            refused, self._again = sorted(self._again, key=_number), []
            for sending in refused:
                self._open -= 1
                sending.fail(call.error)
        self._resume()

    def _resume(self) -> None:
        """Send what is to be sent again, once nothing is under way."""
        if self._under_way or self._creating or self._recalling or self._resting:
            return
        self._halted = False
        refused, self._again = sorted(self._again, key=_number), []
        for sending in refused:
            self._go(sending)


class _Sending:
    """A chunk on its way: in parts, if its queue has several partitions. The first error of a part that is about all of it is
    the chunk's error if every part has failed.
    """

    def __init__(self, sender: QueueSender, chunk: Chunk) -> None:
        self.chunk = chunk
        self.plan: Plan | None = None
        self.errors: list[FilaError] = []
        """Those of the parts that are about all of a part."""
        self.pauses = pauses(sender.timeout_s)
        self._sender = sender
        self._results: dict[int, Any] = {}
        """The results of messages by their places: the halves of an id, or a fault."""
        self._faults: dict[int, FilaError] = {}
        """The messages in parts that have failed."""
        self._left = 0
        self._only: Chunk | None = None
        """The only part, which is the whole chunk; None: there are others."""

    def send(self, plan: Plan | None) -> None:
        """Send the messages without a result."""
        self.plan = plan
        self.errors = [each for each in self.errors if not isinstance(each, _AGAIN)]
        self._faults = self._lasting_faults()
        command = self.chunk.command
        total = len(command.envelopes)
        over = self._results | self._faults
        parts = self._pieces([place for place in range(total) if place not in over])
        self._left = len(parts)
        for partition, places in parts:
            whole = len(places) == total
            part = Chunk(command if whole else command.picked(places), partial(self._answered, places))
            self._only = part if whole else None
            self._sender.part(partition).send(part)

    def finish(self) -> None:
        """Complete the chunk with the results of its parts."""
        chunk, only = self.chunk, self._only
        if only is not None:
            chunk.command, chunk.doubtful = only.command, chunk.doubtful or only.doubtful
            chunk.finish(only.value, only.error)
            return
        count = len(chunk.command.envelopes)
        if len(self._faults) == count:
            chunk.finish(error=self.errors[0])
            return
        results = self._results | {place: to_fault(error) for place, error in self._faults.items()}
        for place in range(count):
            if place not in results:
                results[place] = to_fault(InvalidFrameError("the broker's answer does not say what became of this message"))
        stored = [(place, *each) for place, each in sorted(results.items()) if isinstance(each, tuple)]
        faults = [(place, each) for place, each in sorted(results.items()) if not isinstance(each, tuple)]
        chunk.finish(commands.Enqueued(0, 0, 0, faults, stored))

    def fail(self, error: FilaError) -> None:
        """Complete the chunk, whose queue could not be created: what has no result is not stored."""
        self._only = None
        self.errors = [error_for(self.chunk, copy(error))]
        self._faults = {
            place: self.errors[0] for place in range(len(self.chunk.command.envelopes)) if place not in self._results
        } | self._lasting_faults()
        self.finish()

    def _lasting_faults(self) -> dict[int, FilaError]:
        return {place: error for place, error in self._faults.items() if not isinstance(error, _AGAIN)}

    def _pieces(self, places: list[int]) -> list[tuple[int | None, list[int]]]:
        """Return the places of messages by partition, in pieces of a frame."""
        command, plan = self.chunk.command, self.plan
        if plan is None:
            return [(None, places)]
        part = self.chunk.part
        if part is not None and part[1] == plan.partitions:
            return [(part[0], piece) for piece in _cut(command, places)]
        keys, dedup_ids = command.fairness_key, command.dedup_id
        partitions: defaultdict[int, list[int]] = defaultdict(list)
        by_key = plan.spread == BY_KEY
        if isinstance(keys, str) if by_key else dedup_ids == "":  # then all are in one partition
            partitions[self._sender.partition(plan, keys if isinstance(keys, str) else "", "")] = places
        else:
            for place in places:
                key = keys if isinstance(keys, str) else keys[place]
                dedup_id = dedup_ids if isinstance(dedup_ids, str) else dedup_ids[place]
                partitions[self._sender.partition(plan, key, dedup_id)].append(place)
        return [(each, piece) for each, some in partitions.items() for piece in _cut(command, some)]

    def _answered(self, places: Sequence[int], sent: Chunk) -> None:
        if isinstance(sent.error, _ELSEWHERE):
            self._sender.halt()
        self._left -= 1  # not before: that may end other parts
        self.chunk.doubtful |= sent.doubtful
        answer: commands.Enqueued | None = sent.value
        known = 0
        if answer is not None:
            known = answered_in(answer)
            if sent is not self._only or sent.error is not None:
                self._results |= zip(places, _results(answer), strict=False)
        if sent.error is not None:
            self.errors.append(sent.error)
            self._faults |= dict.fromkeys(places[known:], sent.error)
        if not self._left:
            self._sender.answered(self)


_number = attrgetter("chunk.number")


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


def _cut(command: commands.Enqueue, places: list[int]) -> list[list[int]]:
    """Cut the messages of a part into frames."""
    envelopes = command.envelopes
    if 0 < len(places) <= MESSAGES_PER_FRAME and sum(map(len, map(envelopes.__getitem__, places))) <= FRAME_BYTES_MAX:
        return [places]
    pieces: list[list[int]] = []
    size = 0
    for place in places:
        length = len(envelopes[place])
        if not pieces or size + length > FRAME_BYTES_MAX or len(pieces[-1]) >= MESSAGES_PER_FRAME:
            pieces.append([])
            size = 0
        pieces[-1].append(place)
        size += length
    return pieces
