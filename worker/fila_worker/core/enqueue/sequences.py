"""Sequences of enqueues: chunks of which a client has several under way, and which must not overtake each other.

A router or a shard may refuse one chunk and take in the next one, because there is room again. When the client sends the refused
chunk again, it would be behind the next one. So each chunk of a sequence names the request before it, and is refused unless that
one was stored last. Then the client sends the refused chunks again, in their order.

A sequence is remembered in memory, by its last request. After a restart, or when there are too many sequences, the next chunk
is refused, and the client begins another sequence: that is always taken in.

Rejected: numbers on disk (a write for each chunk, for something that costs the client one round trip after a restart).
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.errors import ShardUnavailableError

if TYPE_CHECKING:
    from fila_worker.core.effects import Call

BEGIN: Final = 0
"""What the first chunk of a sequence names as the request before it."""


class Sequences:
    """The last stored request of each sequence. At most ``sequences_max``; beyond it the least recently used is forgotten."""

    def __init__(self, sequences_max: int) -> None:
        self._sequences_max = sequences_max
        self._last: OrderedDict[tuple[bytes, str, int], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def go_on(self, call: "Call", after: int) -> None:
        """Note that a chunk is stored now. :class:`ShardUnavailableError` if the one before it is not the last that was stored."""
        if after != BEGIN:
            try:
                del self._last[call.client, call.queue, after]
            except KeyError:
                raise _out_of_order(call, after) from None
        self._last[call.client, call.queue, call.request] = None
        if len(self._last) > self._sequences_max:
            self._last.popitem(last=False)


def _out_of_order(call: "Call", after: int) -> ShardUnavailableError:
    return ShardUnavailableError(
        f"an enqueue of {call.queue!r} follows request {after}, which is not stored here: it was refused, or the shard was "
        "restarted; send what was refused again, in order, as a new sequence",
        details={"refused": True, "after": after},
    )
