"""The client library: one session without I/O, and two thin shells around it.

Reading order: :mod:`message`, :mod:`views`, :mod:`explanation` and :class:`Delivery` (what users hold) · :mod:`calls`
(arguments to commands, answers to results) · :mod:`protocol` (sans-I/O: start with :mod:`protocol.session`) · :mod:`io` (the
socket, threads, the event loop) · :mod:`asynchronous` (the API; :mod:`blocking` is made of it) · :mod:`protocol.tracer`
(where tracing hooks in).
"""

from fila_cluster.client.asynchronous import AsyncBatch as AsyncBatch
from fila_cluster.client.asynchronous import AsyncBatchConsumer as AsyncBatchConsumer
from fila_cluster.client.asynchronous import AsyncClient as AsyncClient
from fila_cluster.client.asynchronous import AsyncConsumer as AsyncConsumer
from fila_cluster.client.asynchronous import AsyncMessageBatch as AsyncMessageBatch
from fila_cluster.client.asynchronous import AsyncProducer as AsyncProducer
from fila_cluster.client.blocking import Batch as Batch
from fila_cluster.client.blocking import BatchConsumer as BatchConsumer
from fila_cluster.client.blocking import Client as Client
from fila_cluster.client.blocking import Consumer as Consumer
from fila_cluster.client.blocking import MessageBatch as MessageBatch
from fila_cluster.client.blocking import Producer as Producer
from fila_cluster.client.calls.request import Request as Request
from fila_cluster.client.explanation import Explanation as Explanation
from fila_cluster.client.explanation import Reason as Reason
from fila_cluster.client.message import Message as Message
from fila_cluster.client.message import MessageView as MessageView
from fila_cluster.client.protocol.delivery import AsyncDelivery as AsyncDelivery
from fila_cluster.client.protocol.delivery import Delivery as Delivery
from fila_cluster.client.schedule import Schedule as Schedule
from fila_cluster.client.views import AuditEntry as AuditEntry
from fila_cluster.client.views import ClusterStatus as ClusterStatus
from fila_cluster.client.views import ConfigVersion as ConfigVersion
from fila_cluster.client.views import ConnectionInfo as ConnectionInfo
from fila_cluster.client.views import HostCopy as HostCopy
from fila_cluster.client.views import HostList as HostList
from fila_cluster.client.views import HostWorker as HostWorker
from fila_cluster.client.views import KeyStats as KeyStats
from fila_cluster.client.views import LogReplicas as LogReplicas
from fila_cluster.client.views import PartitionLeft as PartitionLeft
from fila_cluster.client.views import QueueInfo as QueueInfo
from fila_cluster.client.views import QueueMove as QueueMove
from fila_cluster.client.views import QueueStats as QueueStats
from fila_cluster.client.views import ShardOutage as ShardOutage
from fila_cluster.client.views import ThrottleStats as ThrottleStats
from fila_cluster.client.views import WorkerStatus as WorkerStatus
