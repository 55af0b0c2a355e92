"""Commands, replies and errors to bytes and back: the one place where bodies are encoded and decoded.

Decoding checks every field's type against its struct (msgspec does so in C, 0.1 µs a message), so the code behind it
meets only values of the types that it expects.
"""

from typing import Any, TypeVar

import msgspec

from fila_proto_zmq.commands import BY_OPCODE, COMMANDS, DELIVERY, Command, Delivered, Fault, Reply, Struct, WorkerBanner
from fila_proto_zmq.errors import BY_CODE, FilaError, InvalidFrameError
from fila_proto_zmq.frames import ERROR, REPLY, Header, pack_header

S = TypeVar("S", bound=Struct)

encode_body = msgspec.msgpack.Encoder().encode
"""A struct as its body."""

_structs: set[type[Struct]] = {*COMMANDS, *(command.reply for command in COMMANDS), Fault, WorkerBanner}
_decoders: dict[type[Struct], Any] = {struct: msgspec.msgpack.Decoder(struct).decode for struct in _structs}


def decode_body(struct: type[S], body: bytes | memoryview) -> S:
    """Decode a body as ``struct``; :class:`InvalidFrameError` says which field does not fit."""
    try:
        decoded: S = _decoders[struct](body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:  # the last: nested too deeply
        raise InvalidFrameError(f"body of {len(body)} bytes is no {struct.__name__}: {cause}") from None
    return decoded


def decode_command(header: Header, body: bytes | memoryview) -> Command:
    """Return the command of a request frame; :class:`InvalidFrameError` for an unknown opcode or a body that does not fit."""
    struct = BY_OPCODE.get(header.opcode)
    if struct is None:
        raise InvalidFrameError(f"unknown opcode {header.opcode}: this broker speaks {sorted(BY_OPCODE)}")
    return decode_body(struct, body)


def encode_command(command: Command, request: int, key: str = "", epoch: int = 0) -> list[bytes]:
    """Return the three parts of a request frame. ``epoch``: the tag of the session, if there is one."""
    return [pack_header(command.opcode, request, epoch=epoch), key.encode(), encode_body(command)]


def encode_reply(opcode: int, request: int, reply: Reply, key: str = "") -> list[bytes]:
    """Return the three parts of a frame that answers ``request`` of ``opcode``."""
    return [pack_header(opcode, request, REPLY), key.encode(), encode_body(reply)]


def encode_delivery(key: str, delivered: Delivered) -> list[bytes]:
    """Return the three parts of a push to a subscription."""
    return [pack_header(DELIVERY), key.encode(), encode_body(delivered)]


def encode_error(opcode: int, request: int, error: FilaError, key: str = "") -> list[bytes]:
    """Return the three parts of a frame that refuses ``request`` of ``opcode``."""
    return [pack_header(opcode, request, REPLY | ERROR), key.encode(), encode_body(to_fault(error))]


def to_fault(error: FilaError) -> Fault:
    """Return an error as it travels."""
    retry_after_ms = 0 if error.retry_after is None else max(1, round(error.retry_after * 1000))
    return Fault(error.code, error.message, retry_after_ms, error.details)


def from_fault(fault: Fault) -> FilaError:
    """Return the exception that a fault stands for; an unknown code becomes a plain :class:`FilaError` that names it."""
    retry_after = fault.retry_after_ms / 1000 if fault.retry_after_ms else None
    kind = BY_CODE.get(fault.code)
    if kind is None:
        return FilaError(f"{fault.code}: {fault.text}", retry_after=retry_after, details=fault.details)
    return kind(fault.text, retry_after=retry_after, details=fault.details)
