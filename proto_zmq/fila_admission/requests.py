"""Which requests are carried out by the worker of a queue, and which by the router or by all workers."""

from typing import Final

from fila_proto_zmq.commands import (
    BY_OPCODE,
    BeginBackup,
    CloseConnection,
    CreateKey,
    CutBackup,
    DeleteTemplate,
    DrainWorker,
    GetClusterStatus,
    GetConfig,
    GetHosts,
    GetMetrics,
    GetOwnKey,
    GetPlacement,
    GetTemplate,
    GrantKey,
    Hello,
    KeepBackup,
    ListActs,
    ListConfig,
    ListConfigHistory,
    ListConnections,
    ListKeys,
    ListQueues,
    ListSchedules,
    ListTemplates,
    MoveShard,
    PutTemplate,
    RevokeKey,
    SetConfig,
    UndoConfig,
)
from fila_proto_zmq.frames import pack_header

OF_WORKERS: Final = 80
"""Opcodes from here on pass between the router and its workers, and between those."""

_BACKUPS: Final = (BeginBackup, CutBackup, KeepBackup)
_MOVES: Final = (MoveShard, DrainWorker)
_WITHOUT_QUEUE: Final = (
    Hello,
    GetPlacement,
    ListQueues,
    ListSchedules,
    GetClusterStatus,
    GetHosts,
    GetMetrics,
    ListActs,
    ListConnections,
    CloseConnection,
    SetConfig,
    GetConfig,
    ListConfig,
    ListConfigHistory,
    UndoConfig,
    PutTemplate,
    GetTemplate,
    ListTemplates,
    DeleteTemplate,
    CreateKey,
    ListKeys,
    RevokeKey,
    GrantKey,
    GetOwnKey,
    *_BACKUPS,
    *_MOVES,
)
_OF_THE_ROUTER: Final = frozenset(command.opcode for command in _WITHOUT_QUEUE)
OF_A_QUEUE: Final = frozenset(
    pack_header(opcode)[:6] for opcode in BY_OPCODE if opcode < OF_WORKERS and opcode not in _OF_THE_ROUTER
)
"""First six bytes (magic, version, opcode, flags) of the requests for the worker of a queue: one look-up checks them all."""
