"""The client library: one session without I/O (:mod:`session`), two thin shells (:mod:`blocking`, :mod:`asynchronous`).

Reading order: :mod:`message`, :mod:`delivery`, :mod:`message_view`, :mod:`explanation` (what users hold) · :mod:`requests`,
:mod:`steps`, :mod:`explaining` (questions) · :mod:`call`, :mod:`connection`, :mod:`producing`, :mod:`settling`, :mod:`receiving`,
:mod:`consuming`, :mod:`session` (the protocol, sans-I/O) · :mod:`link` (the socket) · :mod:`pump`, :mod:`reactor` (threads, event
loop) · :mod:`blocking`, :mod:`asynchronous` (the API) · :mod:`tracer` (where tracing hooks in).
"""

from fila_cluster.client.asynchronous import AsyncClient
from fila_cluster.client.blocking import Client
from fila_cluster.client.consumers import AsyncConsumer, Consumer
from fila_cluster.client.delivery import AsyncDelivery, Delivery
from fila_cluster.client.explanation import Explanation, Reason
from fila_cluster.client.message import Message
from fila_cluster.client.message_view import MessageView
from fila_cluster.client.views import ClusterStatus, KeyStats, QueueInfo, QueueStats, ShardOutage, ThrottleStats, WorkerStatus

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDelivery",
    "Client",
    "ClusterStatus",
    "Consumer",
    "Delivery",
    "Explanation",
    "KeyStats",
    "Message",
    "MessageView",
    "QueueInfo",
    "QueueStats",
    "Reason",
    "ShardOutage",
    "ThrottleStats",
    "WorkerStatus",
]
