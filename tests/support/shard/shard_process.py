"""A worker's host without a socket: frames in, frames out, on a virtual clock."""

from fila_proto_zmq.codec import decode_body, encode_command
from fila_proto_zmq.commands import Command, Fault, Reply
from fila_proto_zmq.frames import ERROR, REPLY, unpack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.recovery import recover
from fila_worker.core.settings import ShardSettings
from fila_worker.core.shard import Shard
from fila_worker.lua import compile_hooks
from fila_worker.process.shard_process import ShardProcess
from fila_worker.process.slots import Slot
from fila_worker.storage.memory import MemoryStore

SHARDS_TOTAL = 4
HERE = (0, 2, 3)
NAMES = {shard: next(name for name in map("q{}".format, range(99)) if shard_of(name, 4) == shard) for shard in range(4)}
"""A queue name for each shard."""
CLIENT = b"\x01client"


def recovered(index: int, settings: ShardSettings | None = None) -> Shard:
    return recover(MemoryStore(), settings or ShardSettings(), compile_hooks, index=index, shards=SHARDS_TOTAL, now_ms=0)


class HostHarness:
    """A host of three shards of four, on a virtual clock."""

    def __init__(self, *here: int) -> None:
        self.now_ms = 1_000_000
        self.host = ShardProcess([Slot.of(recovered(index)) for index in here or HERE], SHARDS_TOTAL)
        self.requests = 0

    def exchange(self, *frames: list[bytes]) -> list[list[bytes]]:
        """Give frames to the host in one turn; the frames that come out, each with its client first."""
        for frame in frames:
            self.host.accept(frame, self.now_ms)
        sent = [[effect.client, *effect.frames()] for effect in self.host.turn(self.now_ms)]
        for shard in self.host.shards.values():
            shard.check()
        return sent

    def ask(self, command: Command, queue: str) -> Reply | Fault:
        self.requests += 1
        (frame,) = self.exchange([CLIENT, *encode_command(command, self.requests, queue)])
        return answer_of(command, self.requests, frame)


def answer_of(command: Command, request: int, frame: list[bytes]) -> Reply | Fault:
    client, raw_header, _, body = frame
    header = unpack_header(raw_header)
    assert (client, header.opcode, header.request) == (CLIENT, command.opcode, request)
    assert header.flags in (REPLY, REPLY | ERROR)
    return decode_body(Fault if header.flags & ERROR else command.reply, body)
