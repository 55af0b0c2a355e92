"""The copies of a shard on a replicated log: which host leads it, which could, and if it is not served, why.

The sentences stand here once, for ``why``, ``status --hosts``, the dashboard and ``/readyz``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fila_cluster.client.views import HostCopy, HostList, HostWorker, LogReplicas
from fila_cluster.figures import counted, ranged
from fila_proto_zmq.commands.hosts import BEGINS, CLAIMS, FOLLOWS, LEADS, LEAVES, RECOVERS, WAITS
from fila_proto_zmq.outages import NO_QUORUM, TAKEOVER_S_MAX

BEHIND_MAX: Final = 200
"""Records: a copy that is further behind has not caught up, and leads only if no other one can."""

_LEADING: Final = frozenset({LEADS, RECOVERS, WAITS, LEAVES})

NO_LEADER: Final = "no_leader"
NO_COPY: Final = "no_copy"
RECOVERING: Final = "recovering"
CATCHING_UP: Final = "catching_up"


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A copy with its worker."""

    worker: HostWorker
    copy: HostCopy

    @property
    def host(self) -> str:
        """The name of the host."""
        return self.worker.host

    @property
    def follows(self) -> bool:
        """Whether it is a standby."""
        return self.copy.role in {FOLLOWS, CLAIMS}

    @property
    def is_ready(self) -> bool:
        """Whether it is a standby that has caught up, so that it can take over within seconds."""
        behind = self.copy.behind
        return self.follows and behind is not None and behind <= BEHIND_MAX and not (self.copy.problem or self.worker.problem)

    @property
    def catches_up(self) -> bool:
        """Whether it has still to read much."""
        return self.follows and self.copy.behind is not None and self.copy.behind > BEHIND_MAX


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """All known copies of a shard. ``others`` by how far they are; ``served``: by a worker, as the router last noted."""

    shard: int
    leader: HeldCopy | None
    others: list[HeldCopy]
    served: bool

    @property
    def state(self) -> str:
        """``leads`` if it is served, else what stops that."""
        leader, others = self.leader, self.others
        if leader is not None:
            if leader.copy.problem or leader.copy.role == WAITS:
                return NO_QUORUM
            return LEADS if leader.copy.role == LEADS else RECOVERING
        if self.served or not others:
            return LEADS if self.served else NO_COPY
        if all(held.copy.problem for held in others):
            return NO_QUORUM
        waits = not any(held.is_ready or held.copy.role == CLAIMS for held in others)
        return CATCHING_UP if waits and any(held.catches_up or held.copy.role == BEGINS for held in others) else NO_LEADER

    @property
    def log(self) -> LogReplicas | None:
        """The log's own copies, by the leader's last report, or else a standby's; None: no host has reported them."""
        held = self.others if self.leader is None else [self.leader, *self.others]
        return next((each.copy.log for each in held if each.copy.log is not None), None)

    @property
    def ready(self) -> list[HeldCopy]:
        """The standbys that have caught up."""
        return [held for held in self.others if held.is_ready]


def in_sync(log: LogReplicas) -> str:
    """Return on how many brokers the log is in sync, for people: ``2 of 3``."""
    return f"{log.in_sync} of {log.wanted}"


def shard_copies(hosts: HostList) -> list[ShardCopies]:
    """Return each shard with its copies."""
    copies: defaultdict[int, list[HeldCopy]] = defaultdict(list)
    for worker in hosts.workers:
        for copy in worker.copies:
            copies[copy.shard].append(HeldCopy(worker, copy))
    return [_of_shard(shard, copies[shard], shard in hosts.served) for shard in range(hosts.shards)]


def _of_shard(shard: int, copies: list[HeldCopy], served: bool) -> ShardCopies:
    epoch = max((held.copy.epoch for held in copies), default=-1)
    leader = next((held for held in copies if held.copy.role in _LEADING and held.copy.epoch == epoch), None)
    others = [held for held in copies if held is not leader]
    return ShardCopies(shard, leader, sorted(others, key=lambda held: (_distance(held.copy), held.host)), served)


def _distance(copy: HostCopy) -> float:
    return float("inf") if copy.behind is None else copy.behind


# --- what stops a shard -----------------------------------------------------------------------------------------------


class Risk(NamedTuple):
    """A problem in a sentence, and the remedy. ``shards``: those that it concerns; empty: it is about a host."""

    code: str
    text: str
    action: str
    shards: tuple[int, ...] = ()

    @property
    def shard(self) -> int | None:
        """The shard, if it is about a single one."""
        return self.shards[0] if len(self.shards) == 1 else None


def shard_trouble(each: ShardCopies) -> Risk | None:
    """Return why a shard is not served, or can confirm nothing; None: it is well."""
    return None if each.state == LEADS else troubled(each.state, [each])


def troubled(state: str, shards: Sequence[ShardCopies]) -> Risk | None:
    """Return what stops shards that are all in one state; None: there are none."""
    if not shards:
        return None
    sentence, action = SENTENCES[state]
    return Risk(state, sentence(shards), action, tuple(each.shard for each in shards))


def shards_named(shards: Iterable[int]) -> str:
    """Return shards for people: ``shards 0–2``."""
    found = sorted(shards)
    return f"shard{'' if len(found) == 1 else 's'} {ranged(found)}"


def _named(shards: Sequence[ShardCopies]) -> str:
    return shards_named(each.shard for each in shards)


def _log_waits(shards: Sequence[ShardCopies]) -> str:
    copies = [held.copy for each in shards for held in ([each.leader] if each.leader else each.others)]
    worst = max(copies, key=lambda copy: (bool(copy.problem), copy.proof_age or 0.0))
    why = worst.problem or "the log has confirmed nothing for too long"
    stopped = [each.log for each in shards if each.log is not None and each.log.in_sync < each.log.in_sync_min]
    few = f"; {in_sync(stopped[0])} brokers are in sync, and {stopped[0].in_sync_min} must be" if stopped else ""
    return f"{_named(shards)} wait{'s' if len(shards) == 1 else ''} for the log: {why}{few}"


def _standby_takes_over(shards: Sequence[ShardCopies]) -> str:
    return f"no host leads {_named(shards)} now: a standby takes over in at most {TAKEOVER_S_MAX} s"


def _copy_catches_up(shards: Sequence[ShardCopies]) -> str:
    left = max((held.copy.behind or 0 for each in shards for held in each.others[:1]), default=0)
    far = f", {counted(left, 'record')} behind" if left else ""  # of a copy that is just begun it is not known
    return f"no host leads {_named(shards)} now: a copy has to catch up first{far}"


def _recovers(shards: Sequence[ShardCopies]) -> str:
    takers = ", ".join(sorted({each.leader.host for each in shards if each.leader}))
    return f"{takers} takes over {_named(shards)}, and serves in a moment"


def _no_copy(shards: Sequence[ShardCopies]) -> str:
    return f"no host leads {_named(shards)} now, and no host that answers has a copy"


SENTENCES: Final[dict[str, tuple[Callable[[Sequence[ShardCopies]], str], str]]] = {
    NO_QUORUM: (_log_waits, "look at the log's brokers and the way to them; it goes on by itself"),
    NO_COPY: (_no_copy, "start a host that had a copy, or any host: it begins one from the log"),
    CATCHING_UP: (_copy_catches_up, "start a host that led before, if it has not caught up soon"),
    NO_LEADER: (_standby_takes_over, "if none does, look at the log's brokers, and at the logs of the hosts"),
    RECOVERING: (_recovers, "nothing: it serves in a moment"),
}
"""The problems that stop a shard, the most urgent first: the sentence, and the remedy."""
