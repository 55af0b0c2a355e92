"""The shards of one process: frames in, frames out, one turn of each shard at a time.

No sockets and no clock here either, so that a test, or an application that embeds the broker, can drive it.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from fila_proto_zmq.codec import decode_command
from fila_proto_zmq.commands import Command, ListQueues, QueueList
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, InvalidFrameError, ShardUnavailableError
from fila_proto_zmq.frames import Header, check_version, unpack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.administration import list_queues
from fila_worker.core.effects import Answer, Call, Effect, answer
from fila_worker.core.shard import Shard

Frame: TypeAlias = list[Any]
"""``[client id, header, routing key, body]``: bytes, the body perhaps a memoryview."""

SHARD_CACHE_MAX: Final = 100_000
"""Queue names whose shard is remembered."""


class Host:
    """Several shards behind one link to the router."""

    def __init__(self, shards: Iterable[Shard], shards_total: int) -> None:
        self.shards = {shard.index: shard for shard in shards}
        self._shards_total = shards_total
        self._shard_of_queue: dict[str, Shard] = {}
        self._effects: list[Effect] = []

    def accept(self, frame: Frame, now_ms: int) -> None:
        """Carry out one frame. Its answer comes with :meth:`turn`."""
        if len(frame) != 4:
            return  # the router sends nothing else; there is nobody to tell
        client, raw_header, key, body = frame
        try:
            header = unpack_header(raw_header)
        except InvalidFrameError:
            return
        call = Call(client, header.request, key.decode(errors="replace"), now_ms)
        try:
            self._carry_out(call, header, body)
        except FilaError as error:
            self._effects.append(Answer(call, header.opcode, error))

    def _carry_out(self, call: Call, header: Header, body: bytes | memoryview) -> None:
        check_version(header)
        command = decode_command(header, body)
        if isinstance(command, ListQueues):
            self._list_queues(call, command)
        else:
            self._shard(call.queue, command).apply(call, command)

    def _shard(self, queue: str, command: Command) -> Shard:
        shard = self._shard_of_queue.get(queue)
        if shard is None:
            shard = self._find_shard(queue, command)
            if len(self._shard_of_queue) >= SHARD_CACHE_MAX:
                self._shard_of_queue.clear()
            self._shard_of_queue[queue] = shard
        return shard

    def _find_shard(self, queue: str, command: Command) -> Shard:
        if not queue:
            raise InvalidArgumentError(f"{type(command).__name__} needs a queue name as its routing key")
        index = shard_of(queue, self._shards_total)
        if index not in self.shards:
            raise ShardUnavailableError(f"queue {queue!r} is on shard {index}, which is not here", details={"refused": True})
        return self.shards[index]

    def _list_queues(self, call: Call, command: ListQueues) -> None:
        queues = [queue for shard in self.shards.values() for queue in list_queues(shard, call, command).queues]
        self._effects.append(answer(call, command, QueueList(sorted(queues, key=lambda queue: queue.name))))

    def turn(self, now_ms: int) -> list[Effect]:
        """Do what is due, deliver and commit on every shard; returns what may be sent now."""
        effects, self._effects = self._effects, []
        for shard in self.shards.values():
            shard.advance(now_ms)
            shard.deliver(now_ms)
            effects.extend(shard.commit())
        return effects

    def next_due(self, now_ms: int) -> int | None:
        """Milliseconds until a turn has something to do without a frame; None: never."""
        return min((due for shard in self.shards.values() if (due := shard.next_due(now_ms)) is not None), default=None)

    @property
    def queues(self) -> int:
        """How many queues live here, dead letter queues not counted."""
        return sum(1 for shard in self.shards.values() for queue in shard.queues.values() if not queue.is_dead_letter)

    def close(self) -> None:
        """Flush and close all stores."""
        for shard in self.shards.values():
            shard.store.close()
