"""The state of a process in a shard, and the actions that it has to take."""

from enum import Enum, auto
from typing import NamedTuple

from fila_worker.log.records import RecordKind


class LeadershipState(Enum):
    """The role of this process in the shard."""

    FOLLOWS = auto()
    CLAIMS = auto()
    """Its marker is on the way, or in the log and perhaps not the last one."""
    LEADS = auto()
    """It has read no marker behind its own. It may serve, or recover, or lack proof."""
    LEAVES = auto()
    """It takes no more work; it appends a LEAVES when all that it has appended counts."""
    ENDED = auto()
    """This process must end: its copy of the shard may be ahead of the log."""


class AskEnd(NamedTuple):
    """Ask the partition for its end."""


class Append(NamedTuple):
    """Append a record of this kind: a MARKER or a TRANSFER_REQUEST with the standby's own appender, a BEAT or a LEAVES with
    the writer.

    Report a MARKER by :meth:`Leadership.marked` or :meth:`Leadership.mark_failed`. If a TRANSFER_REQUEST fails, take a new
    appender.
    """

    kind: RecordKind
    body: bytes


class Recover(NamedTuple):
    """Begin a writer at the position of this node's marker, recover the shard, then call :meth:`Leadership.recovered`.

    Append and read records meanwhile: call :meth:`Leadership.step` as ever.
    """

    epoch: int


class Serve(NamedTuple):
    """Take work, and report to the routers."""


class StopServing(NamedTuple):
    """Take no work, and report to the routers. In state LEAVES: end all turns and call :meth:`Leadership.stopped`."""

    reason: str


class Follow(NamedTuple):
    """Drop the writer and the recovered shard, if any. Read on from where the copy stands, with a new appender."""

    reason: str


class End(NamedTuple):
    """End the process at once, without a tidy close."""

    reason: str


Action = AskEnd | Append | Recover | Serve | StopServing | Follow | End
