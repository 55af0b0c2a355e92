# ruff: noqa: F403, F405  # the modules below have public names only
"""All commands and replies of the wire: one struct per opcode.

A struct travels as a msgpack array of its fields in order (nested structs too). A reader ignores unknown trailing elements,
and takes the default for those that are missing, so fields are only ever added at the end.

Times are Unix milliseconds (``_ms`` of an instant), durations milliseconds. A *column* carries one value for each message
of a batch, or a single value that holds for all of them: uniform batches cost nothing per message. A column of lists
(:data:`KeysColumn`) has zero, one or as many elements. Zero: all lists are empty. One holds for all.

Opcodes up to 79 are for clients, 80 to 99 for the router and its workers, and between workers.
"""

from fila_proto_zmq.commands.batches import *
from fila_proto_zmq.commands.cluster import *
from fila_proto_zmq.commands.config import *
from fila_proto_zmq.commands.hosts import *
from fila_proto_zmq.commands.inspecting import *
from fila_proto_zmq.commands.keys import *
from fila_proto_zmq.commands.messages import *
from fila_proto_zmq.commands.metrics import *
from fila_proto_zmq.commands.operating import *
from fila_proto_zmq.commands.options import *
from fila_proto_zmq.commands.places import *
from fila_proto_zmq.commands.queues import *
from fila_proto_zmq.commands.schedules import *
from fila_proto_zmq.commands.structs import *
from fila_proto_zmq.commands.workers import *

COMMANDS: tuple[type[Command], ...] = tuple(sorted(Command.__subclasses__(), key=lambda each: each.opcode))
"""All of them: each is a direct subclass, in a module that is imported above."""

BY_OPCODE: dict[int, type[Command]] = {command.opcode: command for command in COMMANDS}
