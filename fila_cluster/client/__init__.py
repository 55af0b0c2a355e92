"""The client library: one session without I/O, and two thin shells around it.

Reading order: :mod:`message`, :mod:`views`, :mod:`explanation` and :class:`Delivery` (what users hold) · :mod:`calls`
(arguments to commands, answers to results) · :mod:`protocol` (sans-I/O: start with :mod:`protocol.session`) · :mod:`io` (the
socket, threads, the event loop) · :mod:`asynchronous` (the API; :mod:`blocking` is made of it) · :mod:`protocol.tracer`
(where tracing hooks in).
"""

from fila_cluster.client.asynchronous import (
    AsyncBatch,
    AsyncBatchConsumer,
    AsyncClient,
    AsyncConsumer,
    AsyncMessageBatch,
    AsyncProducer,
)
from fila_cluster.client.blocking import Batch, BatchConsumer, Client, Consumer, MessageBatch, Producer
from fila_cluster.client.calls.request import Request
from fila_cluster.client.explanation import Explanation, Reason
from fila_cluster.client.message import Message, MessageView
from fila_cluster.client.protocol.delivery import AsyncDelivery, Delivery
from fila_cluster.client.schedule import Schedule
from fila_cluster.client.views import (
    AuditEntry,
    ClusterStatus,
    ConfigVersion,
    ConnectionInfo,
    HostCopy,
    HostList,
    HostWorker,
    KeyStats,
    LogReplicas,
    QueueInfo,
    QueueStats,
    ShardOutage,
    ThrottleStats,
    WorkerStatus,
)

__all__ = [
    "AsyncBatch",
    "AsyncBatchConsumer",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncMessageBatch",
    "AsyncProducer",
    "AuditEntry",
    "Batch",
    "BatchConsumer",
    "Client",
    "ClusterStatus",
    "ConfigVersion",
    "ConnectionInfo",
    "Consumer",
    "Delivery",
    "Explanation",
    "HostCopy",
    "HostList",
    "HostWorker",
    "KeyStats",
    "LogReplicas",
    "Message",
    "MessageBatch",
    "MessageView",
    "Producer",
    "QueueInfo",
    "QueueStats",
    "Reason",
    "Request",
    "Schedule",
    "ShardOutage",
    "ThrottleStats",
    "WorkerStatus",
]
