"""Which requests are carried out by the worker of a queue, and which by the router or by all workers."""

from typing import Final

from fila_proto_zmq import commands as wire
from fila_proto_zmq.frames import pack_header

OF_WORKERS: Final = 80
"""Opcodes from here on pass between the router and its workers, and between those."""


_WITHOUT_QUEUE: Final = (
    wire.Hello, wire.GetPlacement, wire.ListQueues, wire.ListSchedules, wire.GetClusterStatus, wire.GetHosts, wire.GetMetrics,
    wire.ListActs, wire.ListConnections, wire.CloseConnection, wire.SetConfig, wire.GetConfig, wire.ListConfig,
    wire.ListConfigHistory, wire.UndoConfig, wire.ListThrottles, wire.PutTemplate, wire.GetTemplate, wire.ListTemplates, wire.DeleteTemplate,
    wire.CreatePartitioned, wire.CreateByTemplate, wire.UpdatePartitioned, wire.DeletePartitioned,
    wire.CreateKey, wire.ListKeys, wire.RevokeKey, wire.GrantKey, wire.GetOwnKey, wire.BeginBackup, wire.CutBackup,
    wire.KeepBackup, wire.MoveShard, wire.DrainWorker,
)  # fmt: skip


_OF_THE_ROUTER: Final = frozenset(command.opcode for command in _WITHOUT_QUEUE)


OF_A_QUEUE: Final = frozenset(
    pack_header(opcode)[:6] for opcode in wire.BY_OPCODE if opcode < OF_WORKERS and opcode not in _OF_THE_ROUTER
)
"""First six bytes (magic, version, opcode, flags) of the requests for the worker of a queue: one look-up checks them all."""
