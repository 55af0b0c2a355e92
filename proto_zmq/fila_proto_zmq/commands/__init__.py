"""Everything that can be said on the wire: one struct per opcode, commands with their replies.

A struct travels as a msgpack array of its fields in order (nested structs too). A reader ignores trailing elements that it
does not know and takes the default for those that are missing, so fields are only ever added at the end.

Times are Unix milliseconds (``_ms`` of an instant), durations milliseconds. A *column* carries one value for each message
of a batch, or a single value that holds for all of them: uniform batches cost nothing per message. A column of lists
(:data:`KeysColumn`) has no, one or as many elements: none means empty lists, one holds for all.

Opcodes up to 79 are asked by clients, 80 to 99 pass between the router and its workers, and between workers.
"""

from fila_proto_zmq.commands.backlog import (
    Browse,
    Browsed,
    Cancel,
    Cancelled,
    MessageView,
    Purged,
    PurgeQueue,
    Redrive,
    Redriven,
)
from fila_proto_zmq.commands.cluster import ClusterStatus, GetClusterStatus, ShardOutage, WorkerStatus
from fila_proto_zmq.commands.connecting import Hello, Welcome
from fila_proto_zmq.commands.consuming import (
    DELIVERY,
    CancelReceive,
    Delivered,
    Goodbye,
    Heartbeat,
    LeaseBatch,
    Receive,
    Subscribe,
    Unsubscribe,
)
from fila_proto_zmq.commands.describing import ConsumerView, DescribeQueue, HookState, QueueDescription
from fila_proto_zmq.commands.explaining import Explain, Explained, Reason
from fila_proto_zmq.commands.metrics import (
    OTHER_KEYS,
    GetMetrics,
    Histogram,
    HookMetrics,
    KeyMetrics,
    Metrics,
    QueueMetrics,
    RouterMetrics,
    ShardMetrics,
    StoreMetrics,
    ThrottleMetrics,
    WorkerMetrics,
)
from fila_proto_zmq.commands.producing import Enqueue, Enqueued, Fault
from fila_proto_zmq.commands.queues import (
    CreateQueue,
    DeleteQueue,
    GetQueueStats,
    KeyStats,
    ListQueues,
    Pause,
    QueueInfo,
    QueueList,
    QueueOptions,
    QueueStats,
    ThrottleStats,
    UpdateQueue,
)
from fila_proto_zmq.commands.reservations import (
    EndReservation,
    FetchReserved,
    RenewReservation,
    ReservationEnded,
    Reserve,
    Reserved,
)
from fila_proto_zmq.commands.runtime import ConfigChange, ConfigValues, GetConfig, ListConfig, SetConfig
from fila_proto_zmq.commands.settling import Extend, Extended, Fences, Settle, Settled, Verb
from fila_proto_zmq.commands.structs import Command, Done, IntColumn, KeysColumn, Reply, Struct, TextColumn
from fila_proto_zmq.commands.views import BrowseView, OpenView, ViewBrowsed, ViewedQueue, ViewOpened
from fila_proto_zmq.commands.workers import (
    Appoint,
    Appointed,
    Grant,
    Grants,
    Leave,
    MessagesTransferred,
    Park,
    Pulse,
    PutConfig,
    Register,
    Registered,
    Tokens,
    TokenWant,
    Transfer,
    TransferMessages,
)

COMMANDS: tuple[type[Command], ...] = (
    Hello, CreateQueue, DeleteQueue, GetQueueStats, ListQueues, UpdateQueue, PurgeQueue, Pause, Browse, Cancel, Explain, Enqueue,
    DescribeQueue, Receive, Subscribe, Unsubscribe, Heartbeat, Goodbye, CancelReceive, Settle, Extend, Redrive, OpenView, BrowseView,
    Reserve, FetchReserved, RenewReservation, EndReservation, GetClusterStatus, GetMetrics, SetConfig, GetConfig, ListConfig,
    Register, Pulse, Leave, PutConfig, Tokens, Grants, Park, TransferMessages, MessagesTransferred, Appoint, Appointed,
)  # fmt: skip

BY_OPCODE: dict[int, type[Command]] = {command.opcode: command for command in COMMANDS}


__all__ = [
    "BY_OPCODE",
    "COMMANDS",
    "DELIVERY",
    "OTHER_KEYS",
    "Appoint",
    "Appointed",
    "Browse",
    "BrowseView",
    "Browsed",
    "Cancel",
    "CancelReceive",
    "Cancelled",
    "ClusterStatus",
    "Command",
    "ConfigChange",
    "ConfigValues",
    "ConsumerView",
    "CreateQueue",
    "DeleteQueue",
    "Delivered",
    "DescribeQueue",
    "Done",
    "EndReservation",
    "Enqueue",
    "Enqueued",
    "Explain",
    "Explained",
    "Extend",
    "Extended",
    "Fault",
    "Fences",
    "FetchReserved",
    "GetClusterStatus",
    "GetConfig",
    "GetMetrics",
    "GetQueueStats",
    "Goodbye",
    "Grant",
    "Grants",
    "Heartbeat",
    "Hello",
    "Histogram",
    "HookMetrics",
    "HookState",
    "IntColumn",
    "KeyMetrics",
    "KeyStats",
    "KeysColumn",
    "LeaseBatch",
    "Leave",
    "ListConfig",
    "ListQueues",
    "MessageView",
    "MessagesTransferred",
    "Metrics",
    "OpenView",
    "Park",
    "Pause",
    "Pulse",
    "PurgeQueue",
    "Purged",
    "PutConfig",
    "QueueDescription",
    "QueueInfo",
    "QueueList",
    "QueueMetrics",
    "QueueOptions",
    "QueueStats",
    "Reason",
    "Receive",
    "Redrive",
    "Redriven",
    "Register",
    "Registered",
    "RenewReservation",
    "Reply",
    "ReservationEnded",
    "Reserve",
    "Reserved",
    "RouterMetrics",
    "SetConfig",
    "Settle",
    "Settled",
    "ShardMetrics",
    "ShardOutage",
    "StoreMetrics",
    "Struct",
    "Subscribe",
    "TextColumn",
    "ThrottleMetrics",
    "ThrottleStats",
    "TokenWant",
    "Tokens",
    "Transfer",
    "TransferMessages",
    "Unsubscribe",
    "UpdateQueue",
    "Verb",
    "ViewBrowsed",
    "ViewOpened",
    "ViewedQueue",
    "Welcome",
    "WorkerMetrics",
    "WorkerStatus",
]
