"""Which host leads and follows which shard, and what is at risk now. The sentences stand here once, for all that show them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fila_cluster.client.views import HostCopy, HostList, HostWorker, LogReplicas, host_worker
from fila_cluster.figures import counted, ranged
from fila_proto_zmq.commands import Metrics
from fila_proto_zmq.commands.hosts import BEGINS, CLAIMS, FOLLOWS, LEADS, LEAVES, RECOVERS, WAITS
from fila_proto_zmq.outages import NO_QUORUM, TAKEOVER_S_MAX

BEHIND_MAX: Final = 200
"""Records: a copy that is further behind has not caught up, and leads only if no other one can."""

_LEADING: Final = frozenset({LEADS, RECOVERS, WAITS, LEAVES})

NO_LEADER: Final = "no_leader"
NO_COPY: Final = "no_copy"
RECOVERING: Final = "recovering"
CATCHING_UP: Final = "catching_up"
NO_STANDBY: Final = "no_standby"
FEW_STANDBYS: Final = "few_standbys"
COPY_BEHIND: Final = "copy_behind"
HOST_SILENT: Final = "host_silent"
LOG_UNDER_REPLICATED: Final = "log_under_replicated"

WARNINGS: Final = frozenset({NO_STANDBY, FEW_STANDBYS, COPY_BEHIND, HOST_SILENT, LOG_UNDER_REPLICATED})
"""What stops no shard now."""


def hosts_in(metrics: Metrics | None) -> HostList | None:
    """Return the hosts in an answer; None: the cluster has no replicated log, or nothing is known."""
    if metrics is None or metrics.status is None:
        return None
    workers = [host_worker(worker.host) for worker in metrics.workers if worker.host is not None]
    if not workers:
        return None
    heard = {worker.name for worker in workers}
    silent = [worker.name for worker in metrics.status.workers if worker.name not in heard]
    served = [shard for worker in metrics.status.workers if worker.state == "up" for shard in worker.shards]
    return HostList(metrics.status.shards, workers, silent, sorted(served))


@dataclass(frozen=True, slots=True)
class Held:
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
        return self.follows and behind is not None and behind <= BEHIND_MAX and not self.copy.problem

    @property
    def catches_up(self) -> bool:
        """Whether it has still to read much."""
        return self.follows and self.copy.behind is not None and self.copy.behind > BEHIND_MAX


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """All copies of a shard that are known. ``leader``: None if no host says so; ``others`` by how far they are.

    ``served``: whether the router knows a worker that serves it. It may be one that did not answer now.
    """

    shard: int
    leader: Held | None
    others: list[Held]
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
        """The log's own copies, as the leader last heard, or else a standby; None: no host knows them."""
        held = self.others if self.leader is None else [self.leader, *self.others]
        return next((each.copy.log for each in held if each.copy.log is not None), None)

    @property
    def ready(self) -> list[Held]:
        """The standbys that have caught up."""
        return [held for held in self.others if held.is_ready]


def in_sync(log: LogReplicas) -> str:
    """Return on how many brokers the log is in sync, for people: ``2 of 3``."""
    return f"{log.in_sync} of {log.wanted}"


def shard_copies(hosts: HostList) -> list[ShardCopies]:
    """Return each shard with its copies."""
    copies: defaultdict[int, list[Held]] = defaultdict(list)
    for worker in hosts.workers:
        for copy in worker.copies:
            copies[copy.shard].append(Held(worker, copy))
    return [_of_shard(shard, copies[shard], shard in hosts.served) for shard in range(hosts.shards)]


def _of_shard(shard: int, copies: list[Held], served: bool) -> ShardCopies:
    epoch = max((held.copy.epoch for held in copies), default=-1)
    leader = next((held for held in copies if held.copy.role in _LEADING and held.copy.epoch == epoch), None)
    others = [held for held in copies if held is not leader]
    return ShardCopies(shard, leader, sorted(others, key=lambda held: (_distance(held.copy), held.host)), served)


def _distance(copy: HostCopy) -> float:
    return float("inf") if copy.behind is None else copy.behind


@dataclass(frozen=True, slots=True)
class HostRow:
    """A host. ``behind``: of the copy that is furthest behind; None: it follows nothing, or that is not known."""

    host: str
    address: str
    workers: list[str]
    leads: list[int]
    follows: list[int]
    behind: int | None
    unconfirmed_bytes: int
    queues: int
    draining: bool
    problems: list[str]


def host_rows(hosts: HostList) -> list[HostRow]:
    """Return the hosts that have answered, by name."""
    by_host: defaultdict[str, list[HostWorker]] = defaultdict(list)
    for worker in hosts.workers:
        by_host[worker.host].append(worker)
    led = {each.shard: each.leader for each in shard_copies(hosts)}
    return [_host_row(host, workers, led) for host, workers in sorted(by_host.items())]


def _host_row(host: str, workers: list[HostWorker], led: dict[int, Held | None]) -> HostRow:
    copies = [copy for worker in workers for copy in worker.copies]
    leads = [copy for copy in copies if (leader := led.get(copy.shard)) is not None and leader.copy is copy]
    follows = [copy for copy in copies if copy.role in {FOLLOWS, CLAIMS, BEGINS}]
    return HostRow(
        host,
        next((worker.address for worker in workers if worker.address), ""),
        sorted(worker.name for worker in workers),
        sorted(copy.shard for copy in leads),
        sorted(copy.shard for copy in follows),
        max((copy.behind for copy in follows if copy.behind is not None), default=None),
        sum(copy.unconfirmed_bytes for copy in leads),
        sum(copy.queues for copy in leads),
        any(worker.draining for worker in workers),
        sorted({copy.problem for copy in copies if copy.problem}),
    )


# --- what is at risk --------------------------------------------------------------------------------------------------


class Risk(NamedTuple):
    """What is wrong, in a sentence, and the remedy. ``shards``: which ones; none: it is about a host."""

    code: str
    text: str
    action: str
    shards: tuple[int, ...] = ()

    @property
    def shard(self) -> int | None:
        """The shard, if it is about a single one."""
        return self.shards[0] if len(self.shards) == 1 else None


def risks(hosts: HostList) -> list[Risk]:
    """Return what is at risk now, the most urgent first."""
    shards = shard_copies(hosts)
    found = [risk for state in _SENTENCES if (risk := _troubled(state, [each for each in shards if each.state == state]))]
    wanted = max((worker.standbys for worker in hosts.workers), default=1)
    led = [each for each in shards if each.state == LEADS]
    bare = tuple(each.shard for each in led if not each.ready and wanted)
    if bare:
        text = f"one more loss makes {_which(bare)} wait for a recovery from the log"
        found.append(Risk(NO_STANDBY, text, _STANDBYS, bare))
    few = tuple(each.shard for each in led if 0 < len(each.ready) < wanted)
    if few:
        text = f"fewer than {wanted} hosts are ready to take over {_which(few)}"
        found.append(Risk(FEW_STANDBYS, text, _STANDBYS, few))
    found += _under_replicated(led)
    found += _behind(shards)
    for worker in hosts.silent:
        text = f"{worker} does not answer: its copies are not kept up, as far as is known"
        found.append(Risk(HOST_SILENT, text, "start its host again; what it led is taken over by hosts that have caught up"))
    return found


def _which(shards: Sequence[int]) -> str:
    return f"{counted(len(shards), 'shard')} ({ranged(shards)})" if len(shards) > 1 else f"shard {shards[0]}"


_STANDBYS: Final = "start another host, or wait until a copy has caught up"


def _under_replicated(led: Sequence[ShardCopies]) -> Iterator[Risk]:
    """Yield for which shards the log has fewer copies than it should, by how many more may be lost."""
    short: defaultdict[LogReplicas, list[int]] = defaultdict(list)
    for each in led:
        if each.log is not None and each.log.in_sync < each.log.wanted:
            short[each.log].append(each.shard)
    for log, shards in sorted(short.items(), key=lambda item: item[0].in_sync - item[0].in_sync_min):
        more = log.in_sync - log.in_sync_min
        then = f"{more} more may be lost" if more > 0 else "one more lost, and nothing is confirmed"
        text = f"{in_sync(log)} brokers of the log are in sync for {_which(shards)}: {then}"
        yield Risk(
            LOG_UNDER_REPLICATED, text, "start the broker that is missing, or wait until it has caught up", tuple(shards)
        )


def _behind(shards: Sequence[ShardCopies]) -> Iterator[Risk]:
    """Yield the hosts that catch up with shards that are led elsewhere."""
    late: defaultdict[str, list[HostCopy]] = defaultdict(list)
    for each in shards:
        for held in each.others:
            if held.catches_up and each.leader is not None:
                late[held.host].append(held.copy)
    for host, copies in sorted(late.items()):
        most = max(copy.behind or 0 for copy in copies)
        text = f"{host} catches up with {_shards(copy.shard for copy in copies)}, up to {counted(most, 'record')} behind"
        yield Risk(COPY_BEHIND, text, "it can take over once it has caught up", tuple(copy.shard for copy in copies))


def shard_trouble(each: ShardCopies) -> Risk | None:
    """Return why a shard is not served, or can confirm nothing; None: it is well."""
    return None if each.state == LEADS else _troubled(each.state, [each])


def _troubled(state: str, shards: Sequence[ShardCopies]) -> Risk | None:
    if not shards:
        return None
    sentence, action = _SENTENCES[state]
    return Risk(state, sentence(shards), action, tuple(each.shard for each in shards))


def _shards(shards: Iterable[int]) -> str:
    found = sorted(shards)
    return f"shard{'' if len(found) == 1 else 's'} {ranged(found)}"


def _named(shards: Sequence[ShardCopies]) -> str:
    return _shards(each.shard for each in shards)


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
    return f"no host leads {_named(shards)} now: a copy has to catch up first, {counted(left, 'record')} behind"


def _recovers(shards: Sequence[ShardCopies]) -> str:
    takers = ", ".join(sorted({each.leader.host for each in shards if each.leader}))
    return f"{takers} takes over {_named(shards)}, and serves in a moment"


def _no_copy(shards: Sequence[ShardCopies]) -> str:
    return f"no host leads {_named(shards)} now, and no host that answers has a copy"


_SENTENCES: Final[dict[str, tuple[Callable[[Sequence[ShardCopies]], str], str]]] = {
    NO_QUORUM: (_log_waits, "look at the log's brokers and the way to them; it goes on by itself"),
    NO_COPY: (_no_copy, "start a host that had a copy, or any host: it begins one from the log"),
    CATCHING_UP: (_copy_catches_up, "start a host that led before, if it has not caught up soon"),
    NO_LEADER: (_standby_takes_over, "if none does, look at the log's brokers, and at the logs of the hosts"),
    RECOVERING: (_recovers, "nothing: it serves in a moment"),
}
"""What stops a shard, the most urgent first: its sentence, and the remedy."""

CODES: Final = frozenset({*_SENTENCES, *WARNINGS})
"""All codes of risks."""
