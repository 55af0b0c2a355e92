"""The components of a shard, in one list.

The list has the order of a turn: the components that may put messages in line, then the delivery, then those that need its
results. It is also the order of recovery: the config, then the stored messages, then the components that need them.
"""

from typing import Final

from fila_proto_zmq.commands import Command
from fila_worker.core.component import Component, PeerVerb, Verb
from fila_worker.core.deliver.delivery import Delivery
from fila_worker.core.deliver.reservations import Reservations
from fila_worker.core.deliver.subscriptions import Subscriptions, UnseenLeases, WaitingReceives
from fila_worker.core.deliver.tokens import BankRequests, IdleTokens
from fila_worker.core.enqueue.enqueue import Enqueues
from fila_worker.core.explain.explain import Explanations
from fila_worker.core.inspect.backlog import Backlog
from fila_worker.core.inspect.browse import Browsing
from fila_worker.core.inspect.views import OpenViews
from fila_worker.core.manage.config import ConfigCopy
from fila_worker.core.manage.dead_letter_targets import DeadLetterTargets
from fila_worker.core.manage.purge import Purges
from fila_worker.core.manage.queue_commands import QueueCommands
from fila_worker.core.manage.redrive import Redrives
from fila_worker.core.metrics.describe import Descriptions
from fila_worker.core.metrics.meter import Watching
from fila_worker.core.settle.settle import Settlements
from fila_worker.core.settle.transfers import Transfers
from fila_worker.core.stored.folds import LedgerFolds
from fila_worker.core.stored.messages import StoredMessages
from fila_worker.core.timers import DueEntries, OpenJobs

COMPONENTS: Final[tuple[type[Component], ...]] = (
    ConfigCopy,
    StoredMessages,
    Settlements,
    DueEntries,
    Subscriptions,
    UnseenLeases,
    OpenJobs,
    IdleTokens,
    Enqueues,
    DeadLetterTargets,
    OpenViews,
    Delivery,
    BankRequests,
    WaitingReceives,
    Transfers,
    LedgerFolds,
    QueueCommands,
    Reservations,
    Backlog,
    Browsing,
    Purges,
    Redrives,
    Descriptions,
    Watching,
    Explanations,
)

VERBS: Final[dict[type[Command], Verb]] = {
    command: verb for component in COMPONENTS for command, verb in component.verbs.items()
}
PEER_VERBS: Final[dict[type[Command], PeerVerb]] = {
    command: verb for component in COMPONENTS for command, verb in component.peer_verbs.items()
}
"""The functions that carry out each kind of command: of clients, and of other shards."""
