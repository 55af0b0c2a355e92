"""The tables of ``docs/protocol.md``: commands, structs, errors and limits."""

import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_proto_zmq import commands as wire
from fila_proto_zmq import limits as limit_constants
from fila_proto_zmq.errors import BY_CODE
from fila_proto_zmq.frames import pack_header
from parts.markdown import field_docs, prose, table

_ONE_WAY = (
    wire.Tokens,
    wire.Grants,
    wire.Park,
    wire.TransferMessages,
    wire.MessagesTransferred,
    wire.Appoint,
    wire.Appointed,
    wire.JoinBatch,
    wire.BatchJoined,
    wire.SealParts,
    wire.ReportParts,
    wire.ForgetParts,
    wire.ReportPlaces,
    wire.GrantPlaces,
)
_PUSHES = {
    wire.MARK: ("MARK", "–", "Nothing: the broker sees whether the connection takes frames. Ignore it.", "–"),
    wire.CLOSED: ("CLOSED", "–", "An operator has ended this session. Greet again before anything else.", "–"),
    wire.DELIVERY: ("DELIVERY", "queue", "Messages for a subscription.", "`Delivered`"),
}
_COLUMNS = {
    wire.BoolColumn: "bool column",
    wire.IntColumn: "int column",
    wire.TextColumn: "text column",
    wire.KeysColumn: "keys column",
    wire.Fences: "Fences",
}
_PLAIN = {int: "int", str: "text", bytes: "bin", bool: "bool", float: "float", dict: "map"}
_VALUES = {"None": "nil", "False": "false", "True": "true"}


def commands() -> str:
    """Return the table of what clients send and what they are sent."""
    asked = {
        each.opcode: (
            each.__name__,
            "queue" if pack_header(each.opcode)[:6] in OF_A_QUEUE else "–",
            _meaning(each),
            _fields(each),
            each.reply.__name__,
        )
        for each in wire.COMMANDS
        if each.opcode < OF_WORKERS
    }
    pushed = {
        opcode: (name, key, f"*Pushed by the broker.* {text}", body, "")
        for opcode, (name, key, text, body) in _PUSHES.items()
    }
    rows = ((str(opcode), *row) for opcode, row in sorted({**asked, **pushed}.items()))
    return "\n".join(table(["opcode", "command", "key", "what it does", "body", "reply"], rows))


def worker_commands() -> str:
    """Return the table of what passes between router and workers."""
    rows = (
        (str(each.opcode), each.__name__, _meaning(each), _fields(each), "" if each in _ONE_WAY else each.reply.__name__)
        for each in wire.COMMANDS
        if each.opcode >= OF_WORKERS
    )
    return "\n".join(table(["opcode", "command", "what it says", "body", "reply"], rows))


def structs() -> str:
    """Return the table of replies to clients, and of the structs in them."""
    return _structs(each for each in wire.COMMANDS if each.opcode < OF_WORKERS)


def worker_structs() -> str:
    """Return the table of structs that only router and workers use."""
    known = structs()
    lines = _structs(each for each in wire.COMMANDS if each.opcode >= OF_WORKERS).splitlines()
    return "\n".join(line for line in lines if line not in known.splitlines()[2:])


def errors() -> str:
    """Return the table of error codes."""
    rows = (
        (code, f"`{kind.__name__}`", "yes" if kind.retryable else "no", prose(kind.__doc__)) for code, kind in BY_CODE.items()
    )
    return "\n".join(table(["code", "in Python", "retryable", "meaning"], rows))


def limits() -> str:
    """Return the table of the protocol's bounds."""
    reasons = field_docs(limit_constants)
    values = {name: value for name, value in vars(limit_constants).items() if name.isupper()}
    return "\n".join(table(["limit", "value", ""], ((name, f"{value:,}", reasons[name]) for name, value in values.items())))


def _structs(asked: Any) -> str:
    found: dict[str, type[wire.Struct]] = {"Fault": wire.Fault}
    for each in asked:
        _gather(each.reply, found)
        for field in msgspec.structs.fields(each):
            _gather(field.type, found)
    rows = ((name, _meaning(kind), _fields(kind)) for name, kind in sorted(found.items()))
    return "\n".join(table(["struct", "what it is", "fields"], rows))


def _gather(kind: Any, found: dict[str, type[wire.Struct]]) -> None:
    """Put a struct, and those that its fields have, into ``found``."""
    for part in get_args(kind):
        _gather(part, found)
    if isinstance(kind, type) and issubclass(kind, wire.Struct) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for field in msgspec.structs.fields(kind):
            _gather(field.type, found)


def _meaning(kind: type) -> str:
    return prose(kind.__doc__).replace("None", "nil")


def _fields(struct: type[wire.Struct]) -> str:
    """Return a line for each field: its name, type and default, and what its docstring says."""
    notes = field_docs(struct)
    return "<br>".join(
        f"`{field.encode_name}: {_kind(field.type)}{_default(field)}`" + _note(notes.get(field.name) or _meaning_of(field))
        for field in msgspec.structs.fields(struct)
    )


def _meaning_of(field: msgspec.structs.FieldInfo) -> str:
    """Return what the table of options says of a field."""
    return "".join(each.meaning for each in getattr(field.type, "__metadata__", ()) if isinstance(each, wire.Option))


def _note(text: str) -> str:
    return f" – {text.replace('None', 'nil')}" if text else ""


def _kind(annotation: Any) -> str:
    if annotation in _COLUMNS:
        return _COLUMNS[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _kind(inner[0]) + "?"
    if origin is Annotated:
        return _kind(inner[0])
    if origin is tuple:
        return f"[{', '.join(map(_kind, inner))}]"
    if origin is list:
        return f"array of {_kind(inner[0])}"
    return _PLAIN.get(origin or annotation, getattr(annotation, "__name__", ""))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return " = []" if field.default_factory is list else " = {}"
    if field.default is msgspec.NODEFAULT:
        return ""
    value = repr(field.default).replace("'", '"')
    return f" = {_VALUES.get(value, value)}"
