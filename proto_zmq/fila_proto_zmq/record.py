"""A message as bytes: the *envelope* a producer seals, and the *record* the broker stores and delivers.

The producer packs headers and payload once. They stay packed until a consumer (or a hook, for the headers) asks for them. The
broker puts a few fixed fields in front and stores the result; a delivery sends the stored record as it is. So a payload is
copied through the broker, never parsed.

::

    envelope = headers length u32 · headers (msgpack map str→str, empty if there are none) · payload
    record   = flags u16 · attempts u32 · priority i32 · id high u64 · id low u64     (26 bytes)
               [ extension length u32 · extension (msgpack map) ]                      (if flag EXTENDED)
               envelope

Integers are big-endian. The top byte of ``flags`` is the version of the record's layout.
"""

import struct
from typing import Final

import msgspec

from fila_proto_zmq.errors import InvalidFrameError
from fila_proto_zmq.limits import COST_MILLI_DEFAULT

LAYOUT_VERSION: Final = 1
EXTENDED: Final = 1
"""Flag: the record carries an extension."""
PRICED: Final = 2
"""Flag: the extension has the cost of a delivery."""
HAS_TTL: Final = 4
"""Flag: the extension has the time at which the message is too old."""
BATCHED: Final = 16
"""Flag: the extension has the batch that the message is a member of."""

_PLAIN_FLAGS: Final = LAYOUT_VERSION << 8
PLAIN_BYTES: Final = _PLAIN_FLAGS.to_bytes(2, "big")
_HEADERS_LENGTH: Final = struct.Struct(">I")
_FIXED: Final = struct.Struct(">HIiQQ")
FIXED_BYTES: Final = _FIXED.size
_NO_HEADERS: Final = _HEADERS_LENGTH.pack(0)
PLAIN_START: Final = FIXED_BYTES + _HEADERS_LENGTH.size
"""Where the headers begin in a record without extension."""

pack_fixed = _FIXED.pack
"""``pack_fixed(PLAIN, attempts, priority, id_high, id_low)``: the fixed part, for the enqueue loop (160 ns a call)."""
PLAIN: Final = _PLAIN_FLAGS

_encode_map = msgspec.msgpack.Encoder().encode
_decode_headers = msgspec.msgpack.Decoder(dict[str, str]).decode


class Extension(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=False):
    """The fields that only some messages have. Absent fields cost nothing; unknown ones are ignored.

    Times are Unix milliseconds, durations milliseconds.
    """

    lease_ms: int | None = None
    """This message's own visibility timeout."""
    error: str = ""
    """The error text of the last unsuccessful attempt."""
    metadata: bytes = b""
    """The bytes that an earlier attempt left for the next one."""
    reason: str | None = None
    """Why it was dead-lettered: ``failed``, ``max_attempts``, ``hook`` or ``expired``."""
    source_queue: str | None = None
    dead_lettered_ms: int | None = None
    cost_milli: int = COST_MILLI_DEFAULT
    """The cost of one delivery, in thousandths."""
    expires_ms: int | None = None
    """When it is too old to be delivered."""
    expiries: int = 0
    """How often it has expired since it was last enqueued, redriven, or dead-lettered for another reason."""
    max_attempts: int | None = None
    """Its own number of deliveries before it is dead-lettered. It does not count while the message is a dead letter."""
    batch: bytes | None = None
    """The token of the batch that it is a member of. A dead letter is no member any more."""


_encode_extension = msgspec.msgpack.Encoder().encode
_decode_extension = msgspec.msgpack.Decoder(Extension).decode


class Record(msgspec.Struct):
    """An unpacked record. ``envelope`` stays sealed; see :func:`open_envelope`."""

    attempts: int
    priority: int
    id_high: int
    id_low: int
    extension: Extension
    envelope: bytes


def seal_envelope(payload: bytes | bytearray | memoryview, headers: dict[str, str] | None = None) -> bytes:
    """Pack headers and payload. Raises :class:`TypeError` for what is not bytes-like."""
    if not headers:
        return b"".join((_NO_HEADERS, payload))
    packed = _encode_map(headers)
    return b"".join((_HEADERS_LENGTH.pack(len(packed)), packed, payload))


def open_envelope(envelope: bytes) -> tuple[dict[str, str], bytes]:
    """Return headers and payload of an envelope; :class:`InvalidFrameError` if a foreign producer sealed it wrongly."""
    length = headers_length(envelope)
    return _unpack_headers(envelope[4 : 4 + length]), envelope[4 + length :]


def _unpack_headers(packed: bytes) -> dict[str, str]:
    try:
        return _decode_headers(packed) if packed else {}
    except (msgspec.MsgspecError, UnicodeDecodeError) as cause:
        raise InvalidFrameError(f"the message's headers are not a map of strings: {cause}") from cause


def headers_length(envelope: bytes) -> int:
    """Return the length of the headers in a well-formed envelope; :class:`InvalidFrameError` otherwise."""
    length = int.from_bytes(envelope[:4], "big")
    if length > len(envelope) - 4:
        raise InvalidFrameError(
            f"malformed message of {len(envelope)} bytes: its header length says {length}; seal it as docs/protocol.md says"
        )
    return length


def pack_record(record: Record) -> bytes:
    """Return the bytes of a record."""
    if record.extension.cost_milli == COST_MILLI_DEFAULT:
        record.extension.cost_milli = COST_MILLI_DEFAULT  # msgspec leaves out the default only if it is the same object
    extension = _encode_extension(record.extension)
    plain = len(extension) == 1  # an empty map: nothing but defaults
    flags = _PLAIN_FLAGS if plain else _PLAIN_FLAGS | _flags(record.extension)
    fixed = _FIXED.pack(flags, record.attempts, record.priority, record.id_high, record.id_low)
    if plain:
        return fixed + record.envelope
    return b"".join((fixed, _HEADERS_LENGTH.pack(len(extension)), extension, record.envelope))


def _flags(extension: Extension) -> int:
    flags = EXTENDED
    if extension.cost_milli != COST_MILLI_DEFAULT:
        flags |= PRICED
    if extension.expires_ms is not None:
        flags |= HAS_TTL
    if extension.batch is not None:
        flags |= BATCHED
    return flags


def unpack_record(data: bytes) -> Record:
    """Decode a record; :class:`InvalidFrameError` if it is damaged or of a later layout."""
    try:
        flags, attempts, priority, high, low = _FIXED.unpack_from(data)
        _check_layout(flags)
        if not flags & EXTENDED:
            return Record(attempts, priority, high, low, Extension(), data[FIXED_BYTES:])
        (length,) = _HEADERS_LENGTH.unpack_from(data, FIXED_BYTES)
        start = FIXED_BYTES + 4
        if start + length > len(data):
            raise InvalidFrameError(f"damaged message record of {len(data)} bytes: its extension length says {length}")
        extension = _decode_extension(data[start : start + length])
    except (struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise InvalidFrameError(f"damaged message record of {len(data)} bytes: {cause}") from cause
    return Record(attempts, priority, high, low, extension, data[start + length :])


def _check_layout(flags: int) -> None:
    if flags >> 8 != LAYOUT_VERSION:
        raise InvalidFrameError(
            f"message record of layout {flags >> 8}, this version reads {LAYOUT_VERSION}: upgrade the reading side first"
        )


ID_AT: Final = slice(10, 26)
"""The place of the id's bytes in a packed record."""


def record_id(data: bytes) -> tuple[int, int]:
    """Return the id halves of a packed record, without unpacking the rest."""
    _, _, _, high, low = _FIXED.unpack_from(data)
    return high, low


# --- single parts of a record, without the others: what a consumer asks for, when it asks -----------------------------

unpack_fixed = _FIXED.unpack_from
"""``unpack_fixed(data)``: flags, attempts, priority, id high, id low."""
_unpack_plain = struct.Struct(">H24xI").unpack_from
"""The flags, and the length of the headers if there is no extension."""


def extension_of(data: bytes) -> Extension:
    """Return the extension; :class:`InvalidFrameError` if it is damaged."""
    if data[:2] == PLAIN_BYTES:
        return Extension()
    return unpack_record(data).extension


def payload_of(data: bytes) -> bytes:
    """Return the payload, copied once; :class:`InvalidFrameError` if the record is damaged."""
    if len(data) >= PLAIN_START:
        flags, length = _unpack_plain(data)
        if flags == PLAIN and (payload := data[PLAIN_START + length :]):  # as a rule; an empty one may be a damaged one
            return payload
    start, length = _headers_span(data)
    return data[start + length :]


def headers_of(data: bytes) -> dict[str, str]:
    """Return the headers; :class:`InvalidFrameError` if a foreign producer sealed them wrongly."""
    start, length = _headers_span(data)
    return _unpack_headers(data[start : start + length])


def _headers_span(data: bytes) -> tuple[int, int]:
    """Return where the packed headers start, and their length."""
    if len(data) < FIXED_BYTES:
        raise InvalidFrameError(f"damaged message record of {len(data)} bytes")
    if data[0] != LAYOUT_VERSION:
        _check_layout(data[0] << 8)
    start = FIXED_BYTES + 4
    if data[1] & EXTENDED:
        start += 4 + int.from_bytes(data[FIXED_BYTES:start], "big")
    length = int.from_bytes(data[start - 4 : start], "big")
    if start + length > len(data):
        raise InvalidFrameError(f"damaged message record of {len(data)} bytes: its header length says {length}")
    return start, length
