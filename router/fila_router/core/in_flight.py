"""The requests that one worker owes an answer, so that each is answered exactly once, whatever becomes of the worker.

A request is named by its *ticket*: client id + request id, as bytes. The table is bounded in requests and in bytes:
behind it is a socket's queue that would otherwise grow without limit while a worker is busy. What relieves a worker
(settling, heartbeats) has room long after what loads it is refused. Receives may wait for hours by design and are
counted apart.

An entry that is never answered is dropped when no client can be waiting for it any more; nobody is told, since its
client gave up long before.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from fila_proto_zmq.commands import (
    CancelReceive,
    EndReservation,
    Extend,
    Goodbye,
    Heartbeat,
    Receive,
    RenewReservation,
    Settle,
    Subscribe,
    Unsubscribe,
)  # fmt: skip
from fila_proto_zmq.limits import WAIT_MS_MAX

CALLS_MAX: Final = 10_000
"""About a second of a worker's time; a client that comes now would wait that long."""

RELIEF_MAX: Final = 4 * CALLS_MAX
"""Where even requests that free a worker's memory are refused."""

WAITS_MAX: Final = 100_000
"""Receives at one worker. They cost memory, not time."""

BYTES_MAX: Final = 128 * 1024 * 1024
"""Frames on their way to one worker. A single larger one still passes when nothing else is in flight."""

OVERHEAD_BYTES: Final = 128
"""What a frame weighs beside its body: no flood of empty frames is free."""

CALL_MS_MAX: Final = 60_000
"""No call may take this long; a client's timeout is seconds."""

_RELIEVING: Final = frozenset(
    command.opcode
    for command in (
        Settle,
        Extend,
        Subscribe,
        Unsubscribe,
        Heartbeat,
        Goodbye,
        CancelReceive,
        RenewReservation,
        EndReservation,
    )
)
_RECEIVE: Final = Receive.opcode

Call: TypeAlias = tuple[bytes, bytes, bytes, int, int, int]
"""Client id, header, routing key, shard, bytes, when to forget it (ms). A plain tuple: one is made per frame."""


class InFlight:
    """Open requests of one worker. Invariant: ``bytes`` is the sum of the sizes of all entries."""

    __slots__ = ("bytes", "calls", "waits")

    def __init__(self) -> None:
        self.calls: dict[bytes, Call] = {}
        self.waits: dict[bytes, Call] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.calls) + len(self.waits)

    def has_room(self, opcode: int) -> bool:
        """Whether one more request of ``opcode`` may go to this worker."""
        if opcode == _RECEIVE:
            return len(self.waits) < WAITS_MAX
        if opcode in _RELIEVING:
            return len(self.calls) < RELIEF_MAX and self.bytes < 2 * BYTES_MAX
        return len(self.calls) < CALLS_MAX and self.bytes < BYTES_MAX

    def open(self, client: bytes, header: bytes, key: bytes, shard: int, size_bytes: int, now_ms: int) -> None:
        """Note a request that is about to be forwarded.

        A client that lost its connection repeats what is open, under the same id: one answer will do for both.
        """
        waits = header[3] == _RECEIVE
        table = self.waits if waits else self.calls
        ticket = client + header[10:]
        held_bytes = size_bytes + OVERHEAD_BYTES
        self.bytes += held_bytes
        if ticket in table:
            held_bytes += table[ticket][4]
        forget_ms = now_ms + CALL_MS_MAX + (WAIT_MS_MAX if waits else 0)
        table[ticket] = (client, header, key, shard, held_bytes, forget_ms)

    def close(self, client: bytes, header: bytes) -> bool:
        """Note an answer; False if nobody waits for it (any more)."""
        table = self.waits if header[3] == _RECEIVE else self.calls
        call = table.pop(client + header[10:], None)
        if call is None:
            return False
        self.bytes -= call[4]
        return True

    def withdraw(self, client: bytes, header: bytes) -> int:
        """Remove a request that was opened and could not be sent; returns its shard."""
        table = self.waits if header[3] == _RECEIVE else self.calls
        shard = table[client + header[10:]][3]
        self.close(client, header)
        return shard

    def take(self, shards: frozenset[int]) -> list[Call]:
        """Remove and return the open requests of ``shards``."""
        return self._remove(lambda call: call[3] in shards)

    def forget_overdue(self, now_ms: int) -> None:
        """Drop what can't be awaited any more."""
        self._remove(lambda call: call[5] <= now_ms)

    def _remove(self, condition: Callable[[Call], bool]) -> list[Call]:
        removed: list[Call] = []
        for table in (self.calls, self.waits):
            tickets = [ticket for ticket, call in table.items() if condition(call)]
            removed += [table.pop(ticket) for ticket in tickets]
        self.bytes -= sum(call[4] for call in removed)
        return removed
