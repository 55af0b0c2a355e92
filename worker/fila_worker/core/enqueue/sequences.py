"""Sequences of enqueues: chunks of which a client has several under way, and which must not overtake each other.

A router or a shard may refuse one chunk and store the next one, because there is room again. When the client sends the
refused chunk again, it would be behind the next one. So each chunk of a sequence names the request before it, and is refused
unless that one was stored last. Then the client sends the refused chunks again, in their order.

A chunk that is stored only in part, because there was no more time, counts as not stored: its rest is sent again first.

A sequence is remembered in memory, by its last request. After a restart, or with too many sequences, the next chunk is
refused, and the client begins another sequence, which is always accepted.

Rejected: numbers on disk (a write for each chunk, for something that costs the client one round trip after a restart).
"""

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from fila_proto_zmq.errors import ShardUnavailableError

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall

BEGIN: Final = 0
"""The request before the first chunk of a sequence."""


class Sequences:
    """The last stored request of each sequence, and its Unix ms: ``sequences_max`` at most, the latest used ones."""

    def __init__(self, sequences_max: int) -> None:
        self._sequences_max = sequences_max
        self._last: OrderedDict[tuple[bytes, str, int], int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def go_on(self, call: "ClientCall", after: int) -> None:
        """Note that a chunk is stored now. :class:`ShardUnavailableError` if the last stored one is not that before it."""
        if after != BEGIN:
            try:
                del self._last[call.client, call.queue, after]
            except KeyError:
                raise _out_of_order(call, after) from None
        self._last[call.client, call.queue, call.request] = call.now_ms
        if len(self._last) > self._sequences_max:
            self._last.popitem(last=False)

    def stored(self, call: "ClientCall", now_ms: int) -> None:
        """Note when a chunk in steps is stored whole."""
        if (chunk := (call.client, call.queue, call.request)) in self._last:
            self._last[chunk] = now_ms

    def cut(self, call: "ClientCall") -> None:
        """Note that a chunk is stored only in part."""
        self._last.pop((call.client, call.queue, call.request), None)

    def waits_since_ms(self, call: "ClientCall", after: int | None, now_ms: int) -> int:
        """Return when the chunk before a chunk was stored, or else when this one came; now, if it is out of order."""
        if after is None or after == BEGIN:
            return call.now_ms
        return max(call.now_ms, self._last.get((call.client, call.queue, after), now_ms))


def _out_of_order(call: "ClientCall", after: int) -> ShardUnavailableError:
    return ShardUnavailableError(
        f"an enqueue of {call.queue!r} follows request {after}, which is not stored here: it was refused, or the shard was "
        "restarted; send what was refused again, in order, as a new sequence",
        details={"refused": True, "after": after},
    )
