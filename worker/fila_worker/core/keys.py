"""How keys are laid out.

``message key = lane u64 · priority u32 · sequence u64``, big-endian. Within a lane, byte order is delivery order: lower
priority first (biased by 2**31, so that negative ones sort first), then enqueue order. The last 12 bytes are a message's
*place in line*; it keeps them when it moves to the dead letter queue and back.
"""

from struct import Struct
from typing import Final

PRIORITY_BIAS: Final = 2**31
MESSAGE_KEY_BYTES: Final = 20
LANE_BYTES: Final = 8

pack_place = Struct(">IQ").pack
"""``pack_place(priority + PRIORITY_BIAS, sequence)``."""

_U64: Final = Struct(">Q")
_U32: Final = Struct(">I")
pack_u64 = _U64.pack
pack_u32 = _U32.pack

FIRST_PLACE: Final = b"\x00" * 12
"""No place in line is before this one."""

_FIRST_PRIORITY: Final = b"\x00" * 4
_SEQUENCE_AT: Final = LANE_BYTES + 4

FIRST: Final = b""
LAST: Final = b"\xff" * 32
"""Bounds that no key of ours reaches."""


def u64(data: bytes, offset: int = 0) -> int:
    """The big-endian integer at ``offset``."""
    value: int = _U64.unpack_from(data, offset)[0]
    return value


def u32(data: bytes) -> int:
    """The big-endian integer in the first four bytes."""
    value: int = _U32.unpack_from(data)[0]
    return value


def lane_of(message_key: bytes) -> int:
    """The lane id in a message key."""
    return int.from_bytes(message_key[:LANE_BYTES], "big")


def place_of(message_key: bytes) -> bytes:
    """The place in line in a message key."""
    return message_key[LANE_BYTES:]


def first_of_all(message_key: bytes) -> bytes:
    """The key that puts a message of a lane before all that have not been delivered yet."""
    return message_key[:LANE_BYTES] + _FIRST_PRIORITY + message_key[_SEQUENCE_AT:]


def own_place(message_key: bytes, priority: int) -> bytes:
    """The place in line that a message has by its own priority, wherever it is now."""
    return pack_u32(priority + PRIORITY_BIAS) + message_key[_SEQUENCE_AT:]


def after(key: bytes) -> bytes:
    """The smallest key that sorts after ``key``."""
    return key + b"\0"
