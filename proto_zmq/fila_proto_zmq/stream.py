"""Frames on a plain socket: the three parts of a frame with their lengths in front.

======  ============  =========================================================================
offset  size          field
======  ============  =========================================================================
0       4             length of all that follows
4       2             length of the routing key
6       18            header, see :mod:`fila_proto_zmq.frames`
24      key length    routing key
…       the rest      body
======  ============  =========================================================================

All integers are big-endian and unsigned.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import HEADER_BYTES

Parts: TypeAlias = tuple[bytes, bytes, bytes]
"""Header, routing key, body."""

_LENGTHS: Final = Struct(">IH")
_LENGTH_BYTES: Final = 4
PREFIX_BYTES: Final = _LENGTHS.size
_HEAD_BYTES: Final = PREFIX_BYTES + HEADER_BYTES

JOINED_BYTES_MAX: Final = 128 * 1024
"""Frames of less are sent as one piece: a copy costs less than a list of pieces."""
PIECES_MAX: Final = 256
"""Pieces in one system call; systems take 1,024."""


def pack_lengths(key: bytes, body: bytes) -> bytes:
    """Return what goes in front of a frame's three parts."""
    return _LENGTHS.pack(_HEAD_BYTES - _LENGTH_BYTES + len(key) + len(body), len(key))


class Sends(Protocol):
    """A stream socket that does not block."""

    def send(self, data: memoryview, /) -> int:
        """Return how many bytes it took."""

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        """Return how many bytes of all of them it took."""


class FrameWriter:
    """Frames in, bytes out. ``size_bytes``: what the socket has not taken."""

    __slots__ = ("_unsent", "size_bytes")

    def __init__(self) -> None:
        self._unsent: deque[memoryview] = deque()
        self.size_bytes = 0

    def send(self, socket: Sends, frames: Iterable[Sequence[bytes]]) -> None:
        """Send what is left of earlier frames, then these, as far as ``socket`` takes it. Raises the socket's errors."""
        pieces: list[bytes] = []
        size = 0
        for header, key, body in frames:
            pieces += (pack_lengths(key, body), header, key, body)
            size += _HEAD_BYTES + len(key) + len(body)
        if size < JOINED_BYTES_MAX:
            pieces = [b"".join(pieces)] if pieces else []
        unsent = self._unsent
        unsent.extend(memoryview(piece) for piece in pieces if piece)
        self.size_bytes += size
        try:
            while unsent:
                self._took(socket.send(unsent[0]) if len(unsent) == 1 else socket.sendmsg(list(unsent)[:PIECES_MAX]))
        except BlockingIOError:
            return

    def _took(self, count: int) -> None:
        self.size_bytes -= count
        unsent = self._unsent
        while count:
            first = unsent.popleft()
            if count < len(first):
                unsent.appendleft(first[count:])
                return
            count -= len(first)


class FrameReader:
    """Bytes in, frames out. It keeps at most one unfinished frame of ``frame_bytes_max`` and what was fed last."""

    __slots__ = ("_at", "_chunks", "_data", "_have", "_need", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = b""
        self._at = 0
        self._chunks: list[bytes] = []
        """The beginning of an unfinished frame of ``_need`` bytes, of which ``_have`` are here."""
        self._have = 0
        self._need = 0

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept for frames that were not taken."""
        return self._have + len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Add what a socket gave. Call it only when :meth:`take` has returned None."""
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._have = 0
        self._data, self._at = data, 0

    def take(self) -> Parts | None:
        """Return the next whole frame, or None. Raise :class:`InvalidFrameError` for lengths that no frame has."""
        data, at = self._data, self._at
        left = len(data) - at
        if left < PREFIX_BYTES:
            if left:
                self._keep(left, PREFIX_BYTES)
            return None
        length, key_bytes = _LENGTHS.unpack_from(data, at)
        if length > self.frame_bytes_max or _HEAD_BYTES - _LENGTH_BYTES + key_bytes > length:
            raise InvalidFrameError(
                f"a frame of {length} bytes with a routing key of {key_bytes}: at most {self.frame_bytes_max} are read here"
            )
        end = at + _LENGTH_BYTES + length
        if end > len(data):
            self._keep(left, _LENGTH_BYTES + length)
            return None
        self._at = end
        key_at = at + _HEAD_BYTES
        body_at = key_at + key_bytes
        return data[at + PREFIX_BYTES : key_at], data[key_at:body_at], data[body_at:end]

    def _keep(self, left: int, need: int) -> None:
        """Put an unfinished frame aside until the rest of its ``need`` bytes is here."""
        self._chunks.append(self._data[len(self._data) - left :])
        self._have, self._need = left, need
        self._data, self._at = b"", 0
