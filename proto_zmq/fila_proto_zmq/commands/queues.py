"""Queues: their counters, lists of them; and templates for those that the first enqueue creates."""

from collections.abc import Iterable
from typing import TypeAlias

from fila_proto_zmq.commands.config import ConfigChange, SetConfig, ThrottleStats, UndoConfig
from fila_proto_zmq.commands.options import QueueOptions
from fila_proto_zmq.commands.structs import Command, Reply, Struct, join_pages
from fila_proto_zmq.limits import LIST_QUEUES_MAX


class CreateQueue(Command):
    """Create the queue of the routing key and its dead letter queue."""

    opcode = 10
    options: QueueOptions


class DeleteQueue(Command):
    """Delete a queue, its dead letter queue and all their messages."""

    opcode = 11
    force: bool = False


class UpdateQueue(Command):
    """Change the options named in ``given`` (field names of :class:`QueueOptions`) to those of ``options``."""

    opcode = 14
    options: QueueOptions
    given: list[str]


class Pause(Command):
    """Stop new deliveries of a queue, or of one fairness key; ``paused`` false: resume them."""

    opcode = 16
    paused: bool = True
    fairness_key: str | None = None


class QueueInfo(Struct):
    """One row of a queue list."""

    name: str
    pending: int
    in_flight: int
    delayed: int
    consumers: int
    paused: bool
    is_dead_letter: bool
    shard: int

    @property
    def depth(self) -> int:
        """The number of all its messages."""
        return self.pending + self.in_flight + self.delayed


class KeyStats(Struct):
    """One fairness key of a queue. ``deficit`` is in units of cost."""

    fairness_key: str
    weight: int
    pending: int
    in_flight: int
    delayed: int
    deficit: float
    delivered: int
    paused: bool


class PartitionLeft(Struct):
    """What a partition still has that its queue's change of the number of partitions waits for."""

    partition: int
    shard: int
    messages: int
    """Those that it has to send on."""
    leased: int
    """Those that are leased, and have to be settled, or come back, first."""
    more: bool = False
    """Whether there may be more of both: not all fairness keys were looked at."""
    sent_to: list[int] = []
    """The shards that have not confirmed what was sent to them."""

    @property
    def text(self) -> str:
        """For people."""
        least = "at least " if self.more else ""
        found = [f"to send on: {least}{self.messages:,}"] if self.messages or self.more else []
        found += [f"leased: {least}{self.leased:,}"] if self.leased else []
        found += [f"sent to shard {shard}, which has not confirmed it" for shard in self.sent_to]
        return "; ".join(found) or "nothing left, it is about to say so"


class QueueMove(Struct):
    """How far the messages of a queue are on their way to another number of partitions."""

    earlier: int
    """The number of partitions before."""
    partitions: int
    """Their number from now on."""
    since_ms: int
    """When that was changed, Unix ms."""
    drained: list[int]
    """The earlier partitions that have sent on what they had."""
    waits_for: list[int]
    """The partitions that have not, or that are to go and are not empty."""
    left: list[PartitionLeft]
    """What those of them have that answered."""
    still_ms: int = 0
    """Of the counters: for how long each report has found all of this the same."""


class QueueStats(Reply):
    """A queue's counters (since its shard started) and a page of its keys, with these keys' share of the counters."""

    info: QueueInfo
    oldest_pending_ms: int
    """The age of the oldest message of these keys that is next in its line; 0 if none is pending."""
    quantum: int
    enqueued: int
    delivered: int
    acked: int
    nacked: int
    """Retries and fails included."""
    expired: int
    dead_lettered: int
    keys: list[KeyStats]
    throttles: list[ThrottleStats] = []
    """The limits of the throttle keys that messages of these keys have."""
    next: int = 0
    """Where the next page begins; 0: this is the last page."""
    max_in_flight: int | None = None
    """The most messages that may be leased; None: no limit."""
    move: QueueMove | None = None
    """Its change of the number of partitions; None: none is under way."""


class GetQueueStats(Command):
    """Ask for one queue's statistics, page by page. Keys may come and go between pages: one may come twice."""

    opcode, reply = 12, QueueStats
    start: int = 0
    """``next`` of the page before; 0: the first page."""


class QueueList(Reply):
    """Queues of one worker, or of the whole cluster once the router has joined them, by name."""

    queues: list[QueueInfo]
    more: bool = False
    """Whether more queues follow the last one."""
    shards: list[int] = []
    """The shards whose queues are among them: of a partial list some may lack."""


class ListQueues(Command):
    """Ask for all queues whose names start with ``prefix``. Routing key empty: the router asks every worker."""

    opcode, reply = 13, QueueList
    prefix: str = ""
    active: bool = False
    """Only those with messages."""
    after: str = ""
    """Only those after this name, the last one of the page before."""
    within: list[str] | None = None
    """Only those that match one of these patterns; None: all. The router sets it to the queues that the API key may see."""
    partial: bool = False
    """Whether to list the queues of the shards that answer, if some do not."""


def joined(lists: Iterable[QueueList]) -> QueueList:
    """Join several pages into one."""
    lists = list(lists)
    page, more = join_pages(((each.queues, each.more) for each in lists), LIST_QUEUES_MAX)
    return QueueList(page, more, sorted({shard for each in lists for shard in each.shards}))


# --- queues with several partitions ------------------------------------------------------------------------------------


class CreatePartitioned(Command):
    """Create a queue with several partitions.

    Its options are kept in the runtime config. Answered as :class:`SetConfig`. Each partition is made on its shard, at the
    latest by its first message.
    """

    opcode, reply = 55, ConfigChange
    queue: str
    options: QueueOptions
    by: str = ""
    """The name of the API key that asks; the router sets it."""
    ordinary: bool = False
    """Whether there is a queue of this name without partitions. It becomes the first partition, and its messages move."""


class CreateByTemplate(Command):
    """Create a queue with several partitions as its template says, for its first message. Answered as :class:`SetConfig`."""

    opcode, reply = 58, ConfigChange
    queue: str
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class UpdatePartitioned(Command):
    """Change the options named in ``given`` of a queue with several partitions. Answered as :class:`SetConfig`."""

    opcode, reply = 56, ConfigChange
    queue: str
    options: QueueOptions
    given: list[str]
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class DeletePartitioned(Command):
    """Delete a queue with several partitions and all messages in them. Answered as :class:`SetConfig`."""

    opcode, reply = 57, ConfigChange
    queue: str
    by: str = ""
    """The name of the API key that asks; the router sets it."""


# --- templates --------------------------------------------------------------------------------------------------------


class Template(Struct):
    """A template: the options of the queues whose names match the pattern."""

    pattern: str
    options: QueueOptions


class PutTemplate(Command):
    """Set the template of a pattern: a queue's name, or the beginning of names and ``*``. Answered as :class:`SetConfig`."""

    opcode, reply = 46, ConfigChange
    pattern: str
    options: QueueOptions
    by: str = ""
    """The name of the API key that asks; the router sets it."""


class TemplateList(Reply):
    """Templates in the order of their patterns."""

    templates: list[Template]
    more: bool = False
    """Whether more templates follow the last one."""


class GetTemplate(Command):
    """Ask for the template of a pattern (``templates`` is empty if there is none)."""

    opcode, reply = 47, TemplateList
    pattern: str


class ListTemplates(Command):
    """Ask for a page of the templates whose patterns start with ``prefix``."""

    opcode, reply = 48, TemplateList
    prefix: str = ""
    after: str = ""
    """Only those after this pattern, the last one of the page before."""


class DeleteTemplate(Command):
    """Delete the template of a pattern. Queues that it made stay. Answered like :class:`SetConfig`."""

    opcode, reply = 49, ConfigChange
    pattern: str
    by: str = ""
    """The name of the API key that asks; the router sets it."""


ChangesPartitioned: TypeAlias = CreatePartitioned | CreateByTemplate | UpdatePartitioned | DeletePartitioned
ChangesConfig: TypeAlias = SetConfig | UndoConfig | PutTemplate | DeleteTemplate | ChangesPartitioned
"""Commands that make a version of the runtime config, in which templates and the options of partitioned queues are kept."""
