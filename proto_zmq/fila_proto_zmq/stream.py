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

import math
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import HEADER_BYTES, MAGIC, REPLY, VERSION

Parts: TypeAlias = tuple[bytes, bytes, bytes | memoryview]
"""Header, routing key, body."""

_LENGTHS: Final = Struct(">IH")
_LENGTH_BYTES: Final = 4
PREFIX_BYTES: Final = _LENGTHS.size
_HEAD: Final = Struct(">IH2sBBHIQ")
"""The lengths and the header."""
_HEAD_BYTES: Final = PREFIX_BYTES + HEADER_BYTES

BLOCK_BYTES: Final = 128 * 1024
"""Smaller parts are joined to blocks of about this size: a copy costs less than a list of pieces, in time and in memory."""
PIECES_MAX: Final = 256
"""Pieces in one system call; systems take 1,024."""
CHUNK_BYTES_MIN: Final = 4096
"""Smaller parts of an unfinished frame are copied together: an object for each byte would take forty times its size."""


def pack_lengths(key: bytes, body: bytes) -> bytes:
    """Return what goes in front of a frame's three parts."""
    return _LENGTHS.pack(_HEAD_BYTES - _LENGTH_BYTES + len(key) + len(body), len(key))


def pack_request(opcode: int, request: int, epoch: int, key: bytes, body: bytes) -> bytes:
    """Return a whole request frame."""
    length = _HEAD_BYTES - _LENGTH_BYTES + len(key) + len(body)
    return b"".join((_HEAD.pack(length, len(key), MAGIC, VERSION, opcode, 0, epoch, request), key, body))


def split_answer(data: bytes, request: int) -> tuple[bytes, bytes] | None:
    """Return the body of the answer to this request, and what follows it; None if it is not the first frame, or an error."""
    if len(data) < _HEAD_BYTES:
        return None
    length, key_bytes, magic, version, _, flags, _, answered = _HEAD.unpack_from(data)
    end = length + _LENGTH_BYTES
    if answered != request or flags != REPLY or end > len(data) or magic != MAGIC or version != VERSION:
        return None
    return data[_HEAD_BYTES + key_bytes : end], data[end:]


class Sends(Protocol):
    """A stream socket that does not block."""

    def send(self, data: bytes | bytearray, /) -> int:
        """Return how many bytes it took."""

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        """Return how many bytes of all of them it took."""


class FrameWriter:
    """Frames in, bytes out. ``size_bytes``: what the socket has not taken."""

    __slots__ = ("_offset", "_unsent", "size_bytes")

    def __init__(self) -> None:
        self._unsent: deque[bytes | bytearray] = deque()
        self._offset = 0
        """How much of the first was sent."""
        self.size_bytes = 0

    def send(self, socket: Sends, frames: Sequence[Sequence[bytes]]) -> None:
        """Send what is left of earlier frames, then these, as far as ``socket`` takes it. Raises the socket's errors."""
        unsent = self._unsent
        if len(frames) == 1 and not unsent and len(frames[0][2]) < BLOCK_BYTES:  # as a rule
            header, key, body = frames[0]
            data = b"".join((pack_lengths(key, body), header, key, body))
            try:
                count = socket.send(data)
            except BlockingIOError:
                count = 0
            if count < len(data):
                self.append(data)
                self._took(count)
            return
        if frames:
            self._add(frames)
        try:
            while unsent:
                if len(unsent) == 1 and not self._offset:
                    count = socket.send(unsent[0])
                    if count == self.size_bytes:  # as a rule
                        unsent.clear()
                        self.size_bytes = 0
                    else:
                        self._took(count)
                else:
                    pieces: list[bytes | bytearray | memoryview] = list(islice(unsent, PIECES_MAX))
                    pieces[0] = memoryview(unsent[0])[self._offset :]
                    self._took(socket.sendmsg(pieces))
        except BlockingIOError:
            return

    def _add(self, frames: Iterable[Sequence[bytes]]) -> None:
        parts: list[bytes] = []
        size = 0
        for header, key, body in frames:
            if size + len(body) >= BLOCK_BYTES:
                parts += (pack_lengths(key, body), header, key)
                self.append(b"".join(parts))
                self.append(body)
                parts, size = [], 0
            else:
                parts += (pack_lengths(key, body), header, key, body)
                size += _HEAD_BYTES + len(key) + len(body)
        if parts:
            self.append(b"".join(parts))

    def append(self, piece: bytes) -> None:
        """Add to what is unsent. A slow reader's many small pieces become a few blocks."""
        self.size_bytes += len(piece)
        unsent = self._unsent
        if len(unsent) < 2 or len(piece) >= BLOCK_BYTES:  # the first one is being sent
            if piece:
                unsent.append(piece)
            return
        last = unsent[-1]
        if len(last) + len(piece) > BLOCK_BYTES:
            unsent.append(piece)
        elif isinstance(last, bytearray):
            last += piece
        else:
            unsent[-1] = bytearray(last + piece)

    def _took(self, count: int) -> None:
        self.size_bytes -= count
        unsent = self._unsent
        count += self._offset
        while unsent and count >= len(unsent[0]):
            count -= len(unsent.popleft())
        self._offset = count


class FrameReader:
    """Bytes in, frames out. It keeps at most one unfinished frame of ``frame_bytes_max`` and what was fed last.

    ``left``: how many bytes of what was fed last are still to be taken. With 0 there is no whole frame. ``have``: how many
    bytes of an unfinished frame were put aside. A body in a frame of ``view_bytes_min`` is a view of what was fed, not a copy.
    """

    __slots__ = ("_at", "_chunks", "_data", "_need", "_view_bytes_min", "frame_bytes_max", "have", "left")

    def __init__(self, frame_bytes_max: int, view_bytes_min: float = math.inf) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._view_bytes_min = view_bytes_min
        self._data = b""
        self._at = 0
        self.left = 0
        self._chunks: list[bytes | bytearray] = []
        """The beginning of an unfinished frame of ``_need`` bytes, of which ``have`` are here."""
        self.have = 0
        self._need = 0

    @property
    def kept_bytes(self) -> int:
        """The bytes that are kept for frames that were not taken."""
        return self.have + self.left

    def feed(self, data: bytes) -> None:
        """Add what a socket gave. Call it only when :meth:`take` has returned None."""
        if self._chunks:
            self._chunk(data)
            self.have += len(data)
            if self.have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self.have = 0
        self._data, self._at, self.left = data, 0, len(data)

    def take(self) -> Parts | None:
        """Return the next whole frame, or None. Raise :class:`InvalidFrameError` for lengths that no frame has."""
        left = self.left
        if left < PREFIX_BYTES:
            if left:
                self._keep(PREFIX_BYTES)
            return None
        data, at = self._data, self._at
        length, key_bytes = _LENGTHS.unpack_from(data, at)
        if length > self.frame_bytes_max or _HEAD_BYTES - _LENGTH_BYTES + key_bytes > length:
            raise InvalidFrameError(
                f"a frame of {length} bytes with a routing key of {key_bytes}: at most {self.frame_bytes_max} are read here"
            )
        length += _LENGTH_BYTES
        if length > left:
            self._keep(length)
            return None
        self._at = end = at + length
        self.left = left - length
        if not self.left:
            self._data = b""
        key_at = at + _HEAD_BYTES
        body_at = key_at + key_bytes
        body = data[body_at:end] if length < self._view_bytes_min else memoryview(data)[body_at:end]
        return data[at + PREFIX_BYTES : key_at], data[key_at:body_at], body

    def _keep(self, need: int) -> None:
        """Put an unfinished frame aside until the rest of its ``need`` bytes is here."""
        self._chunks.append(self._data[self._at :] if self._at else self._data)
        self.have, self._need = self.left, need
        self._data, self._at, self.left = b"", 0, 0

    def _chunk(self, data: bytes) -> None:
        """Add to an unfinished frame."""
        last = self._chunks[-1]
        if len(data) >= CHUNK_BYTES_MIN:
            self._chunks.append(data)
        elif isinstance(last, bytearray) and len(last) < BLOCK_BYTES:
            last += data
        else:
            self._chunks.append(bytearray(data))
