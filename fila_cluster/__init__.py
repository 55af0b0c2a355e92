"""A durable message broker in which fairness and limits are part of delivery: the client library.

:class:`Client` blocks, :class:`AsyncClient` is for asyncio; both connect to the broker that ``fila-cluster up`` runs.
"""

from fila_cluster import errors
from fila_cluster.client import (
    AsyncClient,
    AsyncConsumer,
    AsyncDelivery,
    AsyncProducer,
    Client,
    ClusterStatus,
    Consumer,
    Delivery,
    Explanation,
    KeyStats,
    Message,
    MessageView,
    Producer,
    QueueInfo,
    QueueStats,
    Reason,
    Request,
    ShardOutage,
    ThrottleStats,
    WorkerStatus,
)

__all__ = [
    "AsyncClient",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "Client",
    "ClusterStatus",
    "Consumer",
    "Delivery",
    "Explanation",
    "KeyStats",
    "Message",
    "MessageView",
    "Producer",
    "QueueInfo",
    "QueueStats",
    "Reason",
    "Request",
    "ShardOutage",
    "ThrottleStats",
    "WorkerStatus",
    "errors",
]
