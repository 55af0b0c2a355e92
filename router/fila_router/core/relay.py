"""What one shard says to another: forwarded like clients' frames, without a look at what they carry.

Nobody answers these frames and nobody here repeats them: if the shard has no live worker they are dropped, and the sender, which
holds what they carry, repeats them.
"""

from typing import Any, Final

import msgspec

from fila_proto_zmq.commands import Appoint, Appointed, MessagesTransferred, TransferMessages
from fila_proto_zmq.errors import InvalidFrameError

RELAYED: Final = frozenset(command.opcode for command in (TransferMessages, MessagesTransferred, Appoint, Appointed))


class _Addressed(msgspec.Struct, array_like=True, gc=False):
    """The one field that all of them begin with."""

    to_shard: int


_decode = msgspec.msgpack.Decoder(_Addressed).decode


def addressee(body: Any) -> int:
    """The shard that a body is for; :class:`InvalidFrameError` if it says none."""
    try:
        return _decode(body).to_shard
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise InvalidFrameError(f"a body of {len(body)} bytes does not say which shard it is for: {cause}") from None
