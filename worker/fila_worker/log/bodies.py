"""The bodies of records: who leads, how much it has, to whom it leaves, and the state of a node.

No body decides which records count. So a body that can't be read, damaged or of another release, is the same as an empty one.
A body is a version byte and a msgpack map. A reader skips unknown fields; an incompatible change takes a new version.
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec

VERSION: Final = 1
BODY_BYTES_MAX: Final = 4096
"""Of a record in a shard's log."""
STATE_BYTES_MAX: Final = 128 * 1024
"""Of the state of a node: about 16 bytes for each shard."""

Name = Annotated[str, msgspec.Meta(max_length=255)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
Shard = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One data directory with the process that has it open."""

    name: Name = ""
    """Of the data directory. It stays when the process starts again."""
    host: Name = ""
    """The name of the host in the cluster. On one host, at most one process has a copy of a shard."""
    address: Name = ""
    """Where to reach it, for people."""
    life: Name = ""
    """Differs each time the process starts."""


class Figures(msgspec.Struct, frozen=True, omit_defaults=True):
    """The figures of a leader."""

    queues: Count = 0
    stored_bytes: Count = 0
    oldest_offset: Offset = -1
    """The first record that it needs of the log; -1: unknown."""


class Marker(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a MARKER."""

    node: Node = Node()
    claim: Count = 0
    """The number of the claim since its process began."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a BEAT."""

    node: Node = Node()
    figures: Figures = Figures()


class Leaves(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a LEAVES."""

    node: Node = Node()
    successor: Name = ""
    """The host that may claim first; empty: the first in line."""
    alone_ms: Count = 0
    """For how long this node had read no record of another term."""


class TransferRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a TRANSFER_REQUEST: a host whose copy has caught up asks to lead."""

    host: Name = ""
    epoch: Offset = -1
    """Of the leader that it asks. Another one ignores it."""


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a node. It appends it to the control partition once a second, for all others."""

    node: Node = Node()
    leads: dict[Shard, Offset] = {}
    """Shards that it leads, with the epoch."""
    follows: dict[Shard, Count] = {}
    """Shards that it has another copy of, with the number of records that the copy is behind."""
    drains: bool = False
    """Whether it gives up all its shards."""
    router: Name = ""
    """Where the router of its host listens for workers, ``tcp://HOST:PORT``."""
    apart: bool = False
    """Whether it reaches no router of another host: clients there do not reach its shards."""
    keys: Name = ""
    """A fingerprint of its cluster's keys; empty: unknown."""
    failing: bool = False
    """Whether its disk is full or refuses writes, so that hosts with room should lead its shards."""


Body = Marker | Beat | Leaves | TransferRequest | NodeState
_B = TypeVar("_B", bound=Body)
_encode = msgspec.msgpack.Encoder().encode
_decoders: Final[dict[type[msgspec.Struct], msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Marker, Beat, Leaves, TransferRequest, NodeState)
}


def encode_body(body: Body) -> bytes:
    """Return its bytes. They may be longer than a reader takes only if a name is longer than a configuration allows."""
    return bytes([VERSION]) + _encode(body)


def decode_body(data: bytes, kind: type[_B]) -> _B | None:
    """Return the body; None if it can't be read."""
    size_max = STATE_BYTES_MAX if kind is NodeState else BODY_BYTES_MAX
    if not 1 < len(data) <= size_max or data[0] != VERSION:
        return None
    try:
        body = _decoders[kind].decode(data[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    assert isinstance(body, kind)
    return body
