"""Frames on a plain socket: whatever the pieces, the same frames; whatever the peer does, bounded memory."""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.frames import HEADER_BYTES, pack_header
from fila_proto_zmq.stream import (
    BLOCK_BYTES,
    CHUNK_BYTES_MIN,
    PIECES_MAX,
    PREFIX_BYTES,
    FrameReader,
    FrameWriter,
    Parts,
    pack_lengths,
)

FRAME_BYTES_MAX = 1 << 24
ENQUEUE, EMPTY = (pack_header(20, 7), b"orders", b"body"), (pack_header(1), b"", b"")


class Socket:
    """It takes so many bytes of each call, and blocks when ``room`` is used up."""

    def __init__(self, room: int = 1 << 40, at_a_time: int = 1 << 40) -> None:
        self.room = room
        self.at_a_time = at_a_time
        self.taken = bytearray()
        self.calls = 0
        self.pieces_max = 0

    def send(self, data: Any, /) -> int:
        return self._take([data])

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        return self._take(list(buffers))

    def _take(self, pieces: Sequence[Any]) -> int:
        self.calls += 1
        self.pieces_max = max(self.pieces_max, len(pieces))
        if self.room == len(self.taken):
            raise BlockingIOError
        whole = b"".join(pieces)
        assert whole, "an empty call would look like progress"
        count = min(len(whole), self.at_a_time, self.room - len(self.taken))
        self.taken += whole[:count]
        return count


def stream_of(*frames: Parts) -> bytes:
    return b"".join(pack_lengths(key, body) + header + key + body for header, key, body in frames)


def taken(reader: FrameReader) -> list[Parts]:
    frames = []
    while (parts := reader.take()) is not None:
        frames.append(parts)
    return frames


def read(pieces: Iterable[bytes], frame_bytes_max: int = FRAME_BYTES_MAX) -> list[Parts]:
    reader = FrameReader(frame_bytes_max)
    frames = []
    for piece in pieces:
        reader.feed(piece)
        frames += taken(reader)
    assert reader.kept_bytes == 0
    return frames


# --- the reader ---------------------------------------------------------------------------------------------------------


def test_every_split_of_two_frames_in_three_pieces_reads_the_same() -> None:
    frames = [ENQUEUE, EMPTY]
    data = stream_of(*frames)
    for first in range(1, len(data) - 1):
        for second in range(first + 1, len(data)):
            assert read([data[:first], data[first:second], data[second:]]) == frames


def test_a_large_body_is_a_view_if_the_reader_is_asked_for_that() -> None:
    frames = [ENQUEUE, (pack_header(3), b"q", bytes(range(256)) * 20), EMPTY]
    reader = FrameReader(FRAME_BYTES_MAX, view_bytes_min=1000)
    reader.feed(stream_of(*frames))
    found = taken(reader)
    assert found == frames
    assert [type(body) for _, _, body in found] == [bytes, memoryview, bytes]


@pytest.mark.parametrize("size", [1, 2, PREFIX_BYTES - 1, PREFIX_BYTES, PREFIX_BYTES + HEADER_BYTES, 1000])
def test_pieces_of_any_size_read_the_same(size: int) -> None:
    frames = [ENQUEUE, EMPTY, (pack_header(3), b"q" * 200, bytes(range(256)) * 20), ENQUEUE]
    data = stream_of(*frames)
    assert read(data[at : at + size] for at in range(0, len(data), size)) == frames


parts = st.tuples(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.binary(max_size=300), st.binary(max_size=9000))


@given(st.lists(parts, max_size=20), st.integers(0, 1 << 32))
def test_any_frames_in_any_pieces(frames: list[Parts], seed: int) -> None:
    random, data, pieces = Random(seed), stream_of(*frames), []
    while data:
        size = random.choice([1, 5, 30, 4095, 4096, 20_000])
        pieces.append(data[:size])
        data = data[size:]
    assert read(pieces) == frames


def test_many_frames_of_one_piece_are_read() -> None:
    assert read([stream_of(*[ENQUEUE] * 10_000)]) == [ENQUEUE] * 10_000


def test_a_frame_of_exactly_the_bound_is_read_and_a_larger_one_is_not() -> None:
    frame = (pack_header(20), b"q", bytes(100))
    length = HEADER_BYTES + 2 + 1 + 100
    assert read([stream_of(frame)], length) == [frame]
    with pytest.raises(InvalidFrameError, match=f"{length} bytes"):
        read([stream_of(frame)], length - 1)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: fila\r\n\r\n",
        b"\xff\xff\xff\xff\0\0",
        b"\0\0\0\0\0\0",
        (HEADER_BYTES + 1).to_bytes(4, "big") + b"\0\0",
        (HEADER_BYTES + 2 + 5).to_bytes(4, "big") + (6).to_bytes(2, "big"),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["HTTP", "huge", "nothing", "no header", "key beyond the end", "TLS"],
)
def test_lengths_that_no_frame_has_are_refused_before_anything_is_kept(head: bytes) -> None:
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(head)
    with pytest.raises(InvalidFrameError):
        reader.take()


def test_a_reader_keeps_its_unfinished_frame_and_nothing_of_those_that_were_taken() -> None:
    frame = (pack_header(20), b"q", bytes(100_000))
    data = stream_of(*[ENQUEUE] * 1000, frame)
    reader = FrameReader(FRAME_BYTES_MAX)
    reader.feed(data[:-1])
    assert taken(reader) == [ENQUEUE] * 1000
    assert reader.kept_bytes == len(stream_of(frame)) - 1
    reader.feed(data[-1:])
    assert taken(reader) == [frame]
    assert reader.kept_bytes == 0
    assert reader._data == b"", "an idle connection keeps no buffer"
    assert reader._chunks == []


def test_a_frame_that_comes_byte_by_byte_is_no_object_for_each_byte() -> None:
    data = stream_of((pack_header(20), b"q", bytes(range(256)) * 2000))
    reader = FrameReader(FRAME_BYTES_MAX)
    for at in range(len(data) - 1):
        reader.feed(data[at : at + 1])
        assert reader.take() is None
    assert len(reader._chunks) <= 2 + len(data) // BLOCK_BYTES
    assert reader.kept_bytes == len(data) - 1


def test_small_and_large_pieces_in_turn_are_few_objects_too() -> None:
    data = stream_of((pack_header(20), b"q", bytes(1 << 20)))
    reader = FrameReader(FRAME_BYTES_MAX)
    at, size = 0, 1
    while at + size < len(data):
        reader.feed(data[at : at + size])
        assert reader.take() is None
        at += size
        size = CHUNK_BYTES_MIN + 1 - size
    assert len(reader._chunks) <= 2 + 2 * len(data) // CHUNK_BYTES_MIN


def test_the_bound_of_a_frame_may_grow_between_two_frames() -> None:
    """A door reads more once its client has greeted."""
    large = (pack_header(20), b"q", bytes(1000))
    reader = FrameReader(100)
    reader.feed(stream_of(EMPTY, large))
    assert reader.take() == EMPTY
    reader.frame_bytes_max = 2000
    assert reader.take() == large


# --- the writer ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_read() -> None:
    socket, writer = Socket(), FrameWriter()
    frames = [
        ENQUEUE,
        EMPTY,
        (pack_header(2), b"", bytes(BLOCK_BYTES)),
        ENQUEUE,
        (pack_header(2), b"", bytes(BLOCK_BYTES - 1)),
    ]
    writer.send(socket, frames)
    assert writer.size_bytes == 0
    assert read([bytes(socket.taken)]) == frames


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 100, 5000, BLOCK_BYTES - 30, BLOCK_BYTES]), max_size=4), max_size=4),
    st.sampled_from([7001, 65_536, BLOCK_BYTES]),
)
def test_any_frames_leave_in_order_however_little_is_taken_at_a_time(batches: list[list[int]], at_a_time: int) -> None:
    frames = [
        [(pack_header(2, number), b"q", bytes([number]) * size) for number, size in enumerate(sizes)] for sizes in batches
    ]
    socket, writer = Socket(0, at_a_time), FrameWriter()
    whole = [frame for batch in frames for frame in batch]
    total = len(stream_of(*whole))
    for batch in frames:
        socket.room += total // 10
        writer.send(socket, batch)
    while writer.size_bytes:
        socket.room += 100_000
        writer.send(socket, [])
        assert writer.size_bytes == sum(map(len, writer._unsent)) - writer._offset
    assert bytes(socket.taken) == stream_of(*whole)
    assert not writer._unsent


def test_the_size_is_what_the_socket_has_not_taken() -> None:
    socket, writer = Socket(10), FrameWriter()
    writer.send(socket, [ENQUEUE])
    assert writer.size_bytes == len(stream_of(ENQUEUE)) - 10
    writer.send(socket, [EMPTY])
    assert writer.size_bytes == len(stream_of(ENQUEUE, EMPTY)) - 10
    socket.room = 1000
    writer.send(socket, [])
    assert writer.size_bytes == 0


def test_small_frames_leave_in_one_call() -> None:
    socket, writer = Socket(), FrameWriter()
    writer.send(socket, [ENQUEUE] * 1000)
    assert socket.calls == 1


def test_a_reader_that_is_slow_costs_blocks_and_not_an_object_for_each_frame() -> None:
    socket, writer = Socket(1), FrameWriter()
    for _ in range(50_000):
        writer.send(socket, [ENQUEUE])
    assert len(writer._unsent) <= 3 + 50_000 * len(stream_of(ENQUEUE)) // (BLOCK_BYTES // 2)
    assert socket.pieces_max <= PIECES_MAX
    socket.room = 1 << 40
    writer.send(socket, [])
    assert read([bytes(socket.taken)]) == [ENQUEUE] * 50_000


def test_a_call_has_no_more_pieces_than_systems_take() -> None:
    socket, writer = Socket(1), FrameWriter()
    frames = [(pack_header(2), b"q", bytes(BLOCK_BYTES))] * (2 * PIECES_MAX)
    writer.send(socket, frames[:1])
    writer.send(socket, frames[1:])
    socket.room = 1 << 40
    writer.send(socket, [])
    assert socket.pieces_max == PIECES_MAX
    assert len(socket.taken) == len(stream_of(*frames))


def test_nothing_to_send_asks_the_socket_nothing() -> None:
    socket = Socket()
    FrameWriter().send(socket, [])
    assert socket.calls == 0


def test_the_socket_s_errors_are_raised() -> None:
    class Broken(Socket):
        def _take(self, pieces: Sequence[Any]) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        FrameWriter().send(Broken(), [ENQUEUE])
