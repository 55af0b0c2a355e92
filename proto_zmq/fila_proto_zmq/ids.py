"""Message ids: UUIDv7 (RFC 9562) whose random bits are not random.

=========  =====  =====================================================================
bits       width  content
=========  =====  =====================================================================
0–47       48     Unix time of the enqueue in milliseconds, never decreasing in a shard
48–51      4      version, 7
52–63      12     the shard that accepted the message
64–65      2      variant, binary 10
66–127     62     the shard's sequence number
=========  =====  =====================================================================

So ids of one shard sort in enqueue order, two shards never make the same id, and a batch's ids follow from its first.
An id is handled as its two 64-bit halves, ``(high, low)``, until a person looks at it.
"""

import re
from hashlib import blake2b
from struct import Struct
from typing import Final

from fila_proto_zmq.errors import InvalidArgumentError

_TEXT = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HALVES = Struct(">QQ")
_VERSION = 7 << 12
VARIANT = 0b10 << 62
_SEQUENCE_MASK = (1 << 62) - 1
_SHARD_MASK = (1 << 12) - 1
_HALF_MASK = (1 << 64) - 1
_ENDINGS = [f"{number:02x}" for number in range(256)]
"""The last two digits: a run of ids is made of them, at a fifth of the cost of formatting each."""


def high_half(enqueued_ms: int, shard: int) -> int:
    """Return the first 64 bits of the ids that ``shard`` gives out at ``enqueued_ms``."""
    return (enqueued_ms << 16) | _VERSION | shard


def low_half(sequence: int) -> int:
    """Return the last 64 bits of the id with ``sequence``."""
    return VARIANT | sequence


def format_id(high: int, low: int) -> str:
    """Return the canonical text of an id, 36 characters."""
    digits = _HALVES.pack(high & _HALF_MASK, low & _HALF_MASK).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def format_run(high: int, low: int, count: int) -> list[str]:
    """Return the texts of ``count`` consecutive ids, the first being ``(high, low)``."""
    texts: list[str] = []
    end = low + count
    while low < end:
        stop = min(end, (low | 0xFF) + 1)  # up to here only the last two digits change
        head = format_id(high, low)[:-2]
        texts += [head + ending for ending in _ENDINGS[low & 0xFF : (stop - 1 & 0xFF) + 1]]
        low = stop
    return texts


def parse_id(text: str) -> tuple[int, int]:
    """Return the halves of an id given as text; :class:`InvalidArgumentError` if it is not one of ours."""
    value = int(text.replace("-", ""), 16) if isinstance(text, str) and _TEXT.fullmatch(text) else 0
    high, low = value >> 64, value & _HALF_MASK
    if high >> 64 or (high >> 12) & 0xF != 7 or low >> 62 != 0b10:
        raise InvalidArgumentError(f"{text!r} is not a message id: enqueue returned a UUIDv7 of 36 characters")
    return high, low


def enqueued_ms(high: int) -> int:
    """Return when the message was enqueued, Unix milliseconds."""
    return high >> 16


def shard_of_id(high: int) -> int:
    """Return the shard that accepted the message; its queue's dead letters may have moved on."""
    return high & _SHARD_MASK


def sequence(low: int) -> int:
    """Return the shard's sequence number of the message."""
    return low & _SEQUENCE_MASK


SESSION_BYTES: Final = 32
"""A session's secret."""

TAG_BYTES: Final = 4
"""The part of the secret that names the session in the headers of its requests. The other 28 bytes keep it secret."""


def client_of(session: bytes, key: bytes = b"") -> bytes:
    """Return the identity of the client that holds this secret: 16 bytes. ``key``: the hash of its API key, if it has one.

    So leases belong to the key that made them: the same secret with another key is another client.
    """
    return blake2b(session, digest_size=16, key=key).digest()


def client_name(client: bytes) -> str:
    """Return a client's name for people and for other clients: 8 hex digits that distinguish clients."""
    return blake2b(client, digest_size=4).hexdigest()
