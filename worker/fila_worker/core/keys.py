"""The layout of keys.

``message key = lane u64 · priority u32 · sequence u64``, big-endian. Within a lane, byte order is delivery order: lower
priority first (biased by 2**31, so that negative ones sort first), then enqueue order. The last 12 bytes are a message's
*place in line*. The message keeps them when it moves to the dead letter queue of its shard and back.

A sequence number is given out by the shard that stores the key, once in its history, so no two messages have the same place.
A message from another shard gets a new number, though its id may have one of this shard: the shard may have been restored to
an earlier state, and give that number out again.
"""

from struct import Struct
from typing import Final

PRIORITY_BIAS: Final = 2**31
MESSAGE_KEY_BYTES: Final = 20
LANE_BYTES: Final = 8

pack_place = Struct(">IQ").pack
"""``pack_place(priority + PRIORITY_BIAS, sequence)`` returns a place in line."""

_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
pack_u64 = _U64.pack
pack_u32 = _U32.pack

FIRST_PLACE: Final = b"\x00" * 12
"""The first possible place in line."""

_FIRST_PRIORITY: Final = b"\x00" * 4
_SEQUENCE_AT: Final = LANE_BYTES + 4

FIRST: Final = b""
LAST: Final = b"\xff" * 32
"""The bounds of a scan of all keys. No key reaches ``LAST``; behind a lane's prefix it is the end of the lane's keys."""


def u64(data: bytes, offset: int = 0) -> int:
    """Return the big-endian integer at ``offset``."""
    value: int = _U64.unpack_from(data, offset)[0]
    return value


def u32(data: bytes) -> int:
    """Return the big-endian integer in the first four bytes."""
    value: int = _U32.unpack_from(data)[0]
    return value


def lane_of(message_key: bytes) -> int:
    """Return the lane id in a message key."""
    return int.from_bytes(message_key[:LANE_BYTES], "big")


def place_of(message_key: bytes) -> bytes:
    """Return the place in line in a message key."""
    return message_key[LANE_BYTES:]


def number_of(message_key: bytes) -> int:
    """Return the sequence number in a message key."""
    return u64(message_key, _SEQUENCE_AT)


def number_in(place: bytes) -> int:
    """Return the sequence number in a place in line."""
    return u64(place, 4)


def first_of_all(message_key: bytes) -> bytes:
    """Return the key that puts a message of a lane before all messages that have not been delivered."""
    return message_key[:LANE_BYTES] + _FIRST_PRIORITY + message_key[_SEQUENCE_AT:]


def own_place(message_key: bytes, priority: int) -> bytes:
    """Return the place in line that a message has by its own priority, whatever its present key is."""
    return pack_u32(priority + PRIORITY_BIAS) + message_key[_SEQUENCE_AT:]


def range_of(prefix: bytes) -> tuple[bytes, bytes]:
    """Return the bounds of a scan of all keys that begin with a prefix. Its last byte is not the highest one."""
    return prefix, prefix[:-1] + bytes((prefix[-1] + 1,))


def after(key: bytes) -> bytes:
    """Return the smallest key that sorts after ``key``."""
    return key + b"\0"
