"""All events of the logs. ``docs/logs.md`` has what to do about each.

An event is a value: cores note it among the effects of a turn, shells write it down. Names and fields are for people's
searches and alerts, so they are as fixed as the wire. Events are about queues, workers and processes, never about single
messages; no field holds a payload, a header, a script or the value of a config key.
"""

from fila_proto_zmq.events.cluster import BackupFailed as BackupFailed
from fila_proto_zmq.events.cluster import BackupTaken as BackupTaken
from fila_proto_zmq.events.cluster import CheckpointBrought as CheckpointBrought
from fila_proto_zmq.events.cluster import CheckpointKept as CheckpointKept
from fila_proto_zmq.events.cluster import CheckpointTransferFailed as CheckpointTransferFailed
from fila_proto_zmq.events.cluster import ChildDied as ChildDied
from fila_proto_zmq.events.cluster import ChildHung as ChildHung
from fila_proto_zmq.events.cluster import ChildKilled as ChildKilled
from fila_proto_zmq.events.cluster import ChildRenewed as ChildRenewed
from fila_proto_zmq.events.cluster import ChildStarted as ChildStarted
from fila_proto_zmq.events.cluster import ChildUnstartable as ChildUnstartable
from fila_proto_zmq.events.cluster import ClusterReady as ClusterReady
from fila_proto_zmq.events.cluster import ClusterStarting as ClusterStarting
from fila_proto_zmq.events.cluster import ClusterStopped as ClusterStopped
from fila_proto_zmq.events.cluster import ClusterStopping as ClusterStopping
from fila_proto_zmq.events.cluster import DataDirCreated as DataDirCreated
from fila_proto_zmq.events.event import FRAMES_MAX as FRAMES_MAX
from fila_proto_zmq.events.event import TEXT_MAX as TEXT_MAX
from fila_proto_zmq.events.event import Event as Event
from fila_proto_zmq.events.event import Level as Level
from fila_proto_zmq.events.event import LogSettings as LogSettings
from fila_proto_zmq.events.event import printable as printable
from fila_proto_zmq.events.event import where as where
from fila_proto_zmq.events.keys import ApiKeyCreated as ApiKeyCreated
from fila_proto_zmq.events.keys import ApiKeyGranted as ApiKeyGranted
from fila_proto_zmq.events.keys import ApiKeyRevoked as ApiKeyRevoked
from fila_proto_zmq.events.keys import CertificateLoaded as CertificateLoaded
from fila_proto_zmq.events.keys import CertificateRefused as CertificateRefused
from fila_proto_zmq.events.process import DashboardLeftOut as DashboardLeftOut
from fila_proto_zmq.events.process import ExportFailing as ExportFailing
from fila_proto_zmq.events.process import ExportRecovered as ExportRecovered
from fila_proto_zmq.events.process import LibraryFailed as LibraryFailed
from fila_proto_zmq.events.process import LibraryWarned as LibraryWarned
from fila_proto_zmq.events.process import LinesLost as LinesLost
from fila_proto_zmq.events.process import ObserverServing as ObserverServing
from fila_proto_zmq.events.process import ProcessFailed as ProcessFailed
from fila_proto_zmq.events.process import ProcessStopped as ProcessStopped
from fila_proto_zmq.events.process import ProcessStopping as ProcessStopping
from fila_proto_zmq.events.router import AdminActed as AdminActed
from fila_proto_zmq.events.router import ClientConnected as ClientConnected
from fila_proto_zmq.events.router import ClientRefused as ClientRefused
from fila_proto_zmq.events.router import ConfigNotTaken as ConfigNotTaken
from fila_proto_zmq.events.router import RouterListening as RouterListening
from fila_proto_zmq.events.router import ShardMoved as ShardMoved
from fila_proto_zmq.events.router import ShardNotMoved as ShardNotMoved
from fila_proto_zmq.events.router import WorkerDraining as WorkerDraining
from fila_proto_zmq.events.router import WorkerJoined as WorkerJoined
from fila_proto_zmq.events.router import WorkerLeft as WorkerLeft
from fila_proto_zmq.events.router import WorkerLost as WorkerLost
from fila_proto_zmq.events.router import WorkerRefused as WorkerRefused
from fila_proto_zmq.events.router import WorkerReturned as WorkerReturned
from fila_proto_zmq.events.router import WorkerUndrained as WorkerUndrained
from fila_proto_zmq.events.worker import BreakerClosed as BreakerClosed
from fila_proto_zmq.events.worker import BreakerOpened as BreakerOpened
from fila_proto_zmq.events.worker import CheckpointFailed as CheckpointFailed
from fila_proto_zmq.events.worker import ClientLeft as ClientLeft
from fila_proto_zmq.events.worker import CommandRefused as CommandRefused
from fila_proto_zmq.events.worker import ConfigDeleted as ConfigDeleted
from fila_proto_zmq.events.worker import ConfigSet as ConfigSet
from fila_proto_zmq.events.worker import ConsumerLost as ConsumerLost
from fila_proto_zmq.events.worker import CopyBeginning as CopyBeginning
from fila_proto_zmq.events.worker import DoorNotOpened as DoorNotOpened
from fila_proto_zmq.events.worker import HookMissing as HookMissing
from fila_proto_zmq.events.worker import HookRefused as HookRefused
from fila_proto_zmq.events.worker import HostApart as HostApart
from fila_proto_zmq.events.worker import HostReached as HostReached
from fila_proto_zmq.events.worker import ProcessDeposed as ProcessDeposed
from fila_proto_zmq.events.worker import QueueCreated as QueueCreated
from fila_proto_zmq.events.worker import QueueDeleted as QueueDeleted
from fila_proto_zmq.events.worker import QueuePaused as QueuePaused
from fila_proto_zmq.events.worker import QueuePurged as QueuePurged
from fila_proto_zmq.events.worker import QueueRedriven as QueueRedriven
from fila_proto_zmq.events.worker import QueueResumed as QueueResumed
from fila_proto_zmq.events.worker import QueueUpdated as QueueUpdated
from fila_proto_zmq.events.worker import ScheduleCaughtUp as ScheduleCaughtUp
from fila_proto_zmq.events.worker import ScheduleFailed as ScheduleFailed
from fila_proto_zmq.events.worker import ShardElsewhere as ShardElsewhere
from fila_proto_zmq.events.worker import ShardFailed as ShardFailed
from fila_proto_zmq.events.worker import ShardFollowed as ShardFollowed
from fila_proto_zmq.events.worker import ShardOpened as ShardOpened
from fila_proto_zmq.events.worker import ShardQuarantined as ShardQuarantined
from fila_proto_zmq.events.worker import ShardReleased as ShardReleased
from fila_proto_zmq.events.worker import StorageFailed as StorageFailed
from fila_proto_zmq.events.worker import StorageRecovered as StorageRecovered
from fila_proto_zmq.events.worker import StorageStalled as StorageStalled
from fila_proto_zmq.events.worker import TemplateDeleted as TemplateDeleted
from fila_proto_zmq.events.worker import TemplatePut as TemplatePut
from fila_proto_zmq.events.worker import WorkerAdmitted as WorkerAdmitted

CATALOGUE: dict[str, type[Event]] = {each.event: each for each in Event.__subclasses__()}
"""All events by name."""
