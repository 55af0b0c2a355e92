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
NO_QUORUM: Final = "no_quorum"
"""The worker leads it on a replicated log, and the log confirms nothing: the worker serves it again when the log does."""
BEGINNING: Final = "beginning"
"""The worker's copy of it can't follow the replicated log, and begins anew from a checkpoint. Another host may lead it."""
QUARANTINED: Final = "quarantined"
"""It is damaged, or fails again and again: it stays closed until its worker is started again."""

TAKEOVER_S_MAX: Final = 10
"""How long a shard on a replicated log has no leader, if a copy that has caught up and the log's brokers are there."""

_RETRY_S: Final = {OPENING: 0.2, FOLLOWING: 0.2, BEGINNING: 1.0, NO_QUORUM: 1.0, WAITING: 1.0, QUARANTINED: 1.0}

_OUTLOOK: Final = {
    OPENING: "it serves in a moment, try again",
    BEGINNING: "a host with a copy of it may take it over, try again",
    WAITING: "it comes back by itself when that has passed",
    QUARANTINED: "nothing of it is overwritten, the other shards serve; see docs/operating.md",
}


def unavailable(outage: ShardOutage) -> ShardUnavailableError:
    """Return the error for a client. Nothing of its request was begun."""
    if outage.state == FOLLOWING:
        text = f"no host leads shard {outage.shard} now: a standby takes over in at most {TAKEOVER_S_MAX} s, try again"
    elif outage.state == NO_QUORUM:
        text = f"shard {outage.shard} waits for its log: {outage.reason}; it serves again when the log confirms"
    else:
        outlook = _OUTLOOK.get(outage.state, "try again later")
        text = f"shard {outage.shard} is {outage.state}: {outage.reason}: {outlook}"
    return ShardUnavailableError(
        text,
        retry_after=_RETRY_S.get(outage.state, 1.0),
        details={"refused": True, "shard": outage.shard, "state": outage.state, "reason": outage.reason},
    )
