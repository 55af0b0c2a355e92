"""Why a shard of a living worker does not serve: states and texts, from the worker through the router to clients."""

from typing import Final

from fila_proto_zmq.commands import ShardOutage
from fila_proto_zmq.errors import ShardUnavailableError

OPENING: Final = "opening"
"""It is being recovered from its disk."""
WAITING: Final = "waiting"
"""Its disk refuses work, which may pass: the worker keeps trying."""
FOLLOWING: Final = "following"
"""The worker has a copy of it, on a replicated log, and does not lead it: another host does, or is about to."""
BEGINNING: Final = "beginning"
"""The worker's copy of it can't follow the replicated log, and begins anew from a checkpoint. Another host may lead the shard."""
QUARANTINED: Final = "quarantined"
"""It is damaged, or fails again and again: it stays closed until its worker is started again."""

_RETRY_S: Final = {OPENING: 0.2, FOLLOWING: 0.2, BEGINNING: 1.0, WAITING: 1.0, QUARANTINED: 1.0}

_OUTLOOK: Final = {
    OPENING: "it serves in a moment, try again",
    FOLLOWING: "a host takes it over in some seconds, try again",
    BEGINNING: "a host with a copy of it may take it over, try again",
    WAITING: "it comes back by itself when that has passed",
    QUARANTINED: "nothing of it is overwritten, the other shards serve; see docs/operating.md",
}


def unavailable(outage: ShardOutage) -> ShardUnavailableError:
    """Return the error for a client. Nothing of its request was begun."""
    return ShardUnavailableError(
        f"shard {outage.shard} is {outage.state}: {outage.reason}: {_OUTLOOK.get(outage.state, 'try again later')}",
        retry_after=_RETRY_S.get(outage.state, 1.0),
        details={"refused": True, "shard": outage.shard, "state": outage.state, "reason": outage.reason},
    )
