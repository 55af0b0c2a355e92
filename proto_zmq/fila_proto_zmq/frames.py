"""The fixed header that opens every frame, and the shape of a frame.

A frame is one ZeroMQ multipart message::

    header (18 bytes) · routing key (queue name, UTF-8, may be empty) · body (msgpack array)

The router reads the first two parts and forwards the third unopened. The header's layout never changes between versions,
so that a peer of another version can always be refused with a reason.

======  ====  =========================================================================
offset  size  field
======  ====  =========================================================================
0       2     magic, ``FC``
2       1     protocol version
3       1     opcode
4       2     flags
6       4     epoch: the tag of the client's session in requests to the router, 0 if there is none; on a direct
              connection the lower half of the shard's epoch; 0 elsewhere
10      8     request id: chosen by the caller, repeated in the reply; 0 for pushes
======  ====  =========================================================================

All integers are big-endian.
"""

from struct import Struct
from typing import Final, NamedTuple

from fila_proto_zmq.errors import InvalidFrameError, UnsupportedVersionError

VERSION: Final = 1
VERSIONS: Final = (1,)
"""Versions that this library speaks, the preferred one first."""

REPLY: Final = 1
ERROR: Final = 2
"""Flags: this frame answers a request; the answer is an error."""

MAGIC: Final = b"FC"
_LAYOUT: Final = Struct(">2sBBHIQ")
HEADER_BYTES: Final = _LAYOUT.size
EPOCH_AT: Final = 6
REQUEST_AT: Final = 10
"""Where the epoch and the request id begin. All before the latter is the same in each request of a kind to a shard."""


class Header(NamedTuple):
    """A decoded header; the fields are described in the module's table."""

    opcode: int
    flags: int
    epoch: int
    request: int
    version: int = VERSION


_new_tuple: Final = tuple.__new__
"""``Header(…)`` goes through a Python function, at more than twice the cost."""


def pack_header(opcode: int, request: int = 0, flags: int = 0, epoch: int = 0, version: int = VERSION) -> bytes:
    """Return the 18 bytes of a header."""
    return _LAYOUT.pack(MAGIC, version, opcode, flags, epoch, request)


def epoch_tag(epoch: int) -> int:
    """Return the part of a shard's epoch that a header has room for."""
    return epoch & 0xFFFF_FFFF


def unpack_header(data: bytes) -> Header:
    """Decode a header of any version; :class:`InvalidFrameError` if it is not one."""
    if len(data) == HEADER_BYTES:
        magic, version, opcode, flags, epoch, request = _LAYOUT.unpack(data)
        if magic == MAGIC:
            return _new_tuple(Header, (opcode, flags, epoch, request, version))
    raise InvalidFrameError(
        f"not a fila-cluster frame: expected an {HEADER_BYTES}-byte header that starts with FC, got {len(data)} bytes"
    )


def check_version(header: Header) -> None:
    """Raise :class:`UnsupportedVersionError` unless this library speaks the header's version."""
    if header.version not in VERSIONS:
        raise UnsupportedVersionError(
            f"protocol version {header.version} is not supported: use one of {', '.join(map(str, VERSIONS))}",
            details={"versions": list(VERSIONS)},
        )
