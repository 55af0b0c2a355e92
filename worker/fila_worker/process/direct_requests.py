"""Requests that came without the router: from clients that know the epoch of a shard.

Usual ones (:data:`fila_worker.core.effects.USUAL`) have a short way. It does nothing that the general way would not do: it
leaves out what cannot concern them.
"""

from typing import TYPE_CHECKING, Any

from fila_admission.refusals import moved
from fila_proto_zmq import outages
from fila_proto_zmq.codec import decode_body, decode_command
from fila_proto_zmq.errors import FilaError, InvalidFrameError, StorageError
from fila_proto_zmq.frames import REQUEST_AT, epoch_tag, unpack_header
from fila_worker.core.effects import ANY_LINK, USUAL, Answer, ClientCall, DirectReply

if TYPE_CHECKING:
    from fila_worker.process.shard_process import ShardProcess
    from fila_worker.process.slots import Frame, Slot


class DirectRequests:
    """The direct requests to a process."""

    def __init__(self, process: "ShardProcess") -> None:
        self._process = process

    def accept(self, frame: "Frame", queue: str, slot: "Slot", now_ms: int) -> None:
        """Carry out one frame, which names the epoch of its shard."""
        client, raw_header, _, body = frame
        header = unpack_header(raw_header)
        call = ClientCall(client, header.request, queue, now_ms, ANY_LINK)
        try:
            if slot.outage is not None:
                raise outages.unavailable(slot.outage)
            if not self.is_open(slot, header.epoch):
                raise moved(slot.index)
            self._process.take(slot, call, decode_command(header, body), frame)
        except FilaError as error:
            self._process.held.at_once.append(Answer(call, header.opcode, error))

    def is_open(self, slot: "Slot", epoch: int) -> bool:
        """Return whether requests that name an epoch of a shard may be carried out."""
        if slot.leaving or slot.shard is None or not self._process.has_taken(slot.fence):
            return False
        return epoch == epoch_tag(slot.shard.epoch)

    def accept_usual(self, slot: "Slot", epoch: int, way: Any, queue: str, frame: "Frame", now_ms: int) -> bool:
        """Carry out a usual request that came on a client's connection, ``way``, and that :meth:`accept` would accept for this
        opening of the shard. Return False, and do nothing, unless it is one.

        Its reply is a :class:`DirectReply`: nothing else has to know that the request is open. So it must leave with this
        turn, and while the log has something to confirm, requests take the general way, which counts the open ones.
        """
        shard = slot.shard
        if shard is None or shard.epoch != epoch or slot.leaving or slot.watches_log or self._process.failures.suspects.files:
            return False
        client, header, key, body = frame
        try:
            command = decode_body(USUAL[header[3]], body)
        except InvalidFrameError:
            return False
        call = ClientCall(client, int.from_bytes(header[REQUEST_AT:], "big"), queue, now_ms, ANY_LINK)
        answer = DirectReply(way, header, key)
        slot.frames.append(frame)
        slot.answers.append(answer)
        try:
            answer.reply = shard.take_in_usual(call, command)
        except Exception as error:
            if not isinstance(error, FilaError) or isinstance(error, StorageError):
                slot.frames[:] = [frame]  # this command is to blame
                self._process.failures.fail(slot, error, now_ms)
                return True
        if answer.reply is None:  # with an error, too: the general way finds the same
            slot.frames.pop()
            slot.answers.pop()
            return False
        return True
