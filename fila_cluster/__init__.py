"""A durable message broker in which fairness and limits are part of delivery: the client library.

:class:`Client` blocks, :class:`AsyncClient` is for asyncio; both connect to the broker that ``fila-cluster up`` runs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fila_cluster import errors
    from fila_cluster.client import (
        AsyncBatch,
        AsyncBatchConsumer,
        AsyncClient,
        AsyncConsumer,
        AsyncDelivery,
        AsyncMessageBatch,
        AsyncProducer,
        AuditEntry,
        Batch,
        BatchConsumer,
        Client,
        ClusterStatus,
        ConfigVersion,
        ConnectionInfo,
        Consumer,
        Delivery,
        Explanation,
        HostCopy,
        HostList,
        HostWorker,
        KeyStats,
        LogReplicas,
        Message,
        MessageBatch,
        MessageView,
        PartitionLeft,
        Producer,
        QueueInfo,
        QueueMove,
        QueueStats,
        Reason,
        Request,
        Schedule,
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
    "PartitionLeft",
    "Producer",
    "QueueInfo",
    "QueueMove",
    "QueueStats",
    "Reason",
    "Request",
    "Schedule",
    "ShardOutage",
    "ThrottleStats",
    "WorkerStatus",
    "errors",
]


def __getattr__(name: str) -> Any:
    """Import the client library when it is first used: pytest loads the plugin of this package in every run."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = import_module("fila_cluster.errors") if name == "errors" else getattr(import_module("fila_cluster.client"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
