"""Hosts and shards: the rows of all hosts, the risks, and whether every shard serves, with the reasons if not."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from fila_cluster.client.shard_copies import (
    NO_LEADER,
    SENTENCES,
    HeldCopy,
    Risk,
    ShardCopies,
    in_sync,
    shard_copies,
    shard_trouble,
    shards_named,
    troubled,
)
from fila_cluster.client.views import HostCopy, HostList, HostWorker, LogReplicas, host_worker
from fila_cluster.figures import counted, ranged
from fila_proto_zmq.commands import ClusterStatus, Metrics
from fila_proto_zmq.commands.hosts import BEGINS, CLAIMS, FOLLOWS, LEADS
from fila_proto_zmq.outages import FOLLOWING, NO_QUORUM

NO_STANDBY: Final = "no_standby"
FEW_STANDBYS: Final = "few_standbys"
COPY_BEHIND: Final = "copy_behind"
HOST_SILENT: Final = "host_silent"
LOG_UNDER_REPLICATED: Final = "log_under_replicated"

HOST_FAILING: Final = "host_failing"
COPY_FAILING: Final = "copy_failing"
LOG_UNSAFE: Final = "log_unsafe"

WARNINGS: Final = frozenset(
    {NO_STANDBY, FEW_STANDBYS, COPY_BEHIND, HOST_SILENT, LOG_UNDER_REPLICATED, HOST_FAILING, COPY_FAILING, LOG_UNSAFE}
)
"""Risks that stop no shard now."""


def hosts_in(metrics: Metrics | None) -> HostList | None:
    """Return the hosts in an answer; None: the cluster has no replicated log, or there is no answer."""
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
class HostRow:
    """A host. ``behind``: of the copy that is furthest behind; None: it follows nothing, or that is unknown."""

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


def _host_row(host: str, workers: list[HostWorker], led: dict[int, HeldCopy | None]) -> HostRow:
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
        sorted({*(worker.problem for worker in workers), *(copy.problem for copy in copies)} - {""}),
    )


# --- risks ------------------------------------------------------------------------------------------------------------


def risks(hosts: HostList) -> list[Risk]:
    """Return the risks, the most urgent first."""
    shards = shard_copies(hosts)
    found = [risk for state in SENTENCES if (risk := troubled(state, [each for each in shards if each.state == state]))]
    found += _unsafe(hosts)
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
    found += _failing(hosts, led)
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


def _unsafe(hosts: HostList) -> Iterator[Risk]:
    """Yield settings of the log that may lose confirmed messages."""
    problems = sorted({worker.log_problem for worker in hosts.workers if worker.log_problem})
    for problem in problems[:1]:  # all hosts look at the same topic
        yield Risk(LOG_UNSAFE, f"confirmed messages may be lost: {problem}", "correct the topic now, then see who changed it")


def _failing(hosts: HostList, led: Sequence[ShardCopies]) -> Iterator[Risk]:
    """Yield the hosts whose disks are full or fail, and copies that are stuck for another reason."""
    failing = {worker.host: worker.problem for worker in hosts.workers if worker.problem}
    for host, problem in sorted(failing.items()):
        leads = sorted(each.shard for each in led if each.leader is not None and each.leader.host == host)
        still = f", and still leads {shards_named(leads)}" if leads else ""
        text = f"{host} gives its shards to hosts with room and takes none over{still}: {problem}"
        yield Risk(HOST_FAILING, text, "make room on its disk, or give it another one", tuple(leads))
    stuck: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for each in led:
        for held in each.others:
            if held.copy.problem and held.host not in failing:
                stuck[held.host, held.copy.problem].append(each.shard)
    for (host, problem), shards in sorted(stuck.items()):
        text = f"the copies that {host} has of {shards_named(shards)} do not go on: {problem}"
        yield Risk(COPY_FAILING, text, "look at the log of that host, its disk, and its way to the brokers", tuple(shards))


def _behind(shards: Sequence[ShardCopies]) -> Iterator[Risk]:
    """Yield the hosts that catch up with shards that are led elsewhere."""
    late: defaultdict[str, list[HostCopy]] = defaultdict(list)
    for each in shards:
        for held in each.others:
            if held.catches_up and each.leader is not None:
                late[held.host].append(held.copy)
    for host, copies in sorted(late.items()):
        most = max(copy.behind or 0 for copy in copies)
        text = f"{host} catches up with {shards_named(copy.shard for copy in copies)}, up to {counted(most, 'record')} behind"
        yield Risk(COPY_BEHIND, text, "it can take over once it has caught up", tuple(copy.shard for copy in copies))


CODES: Final = frozenset({*SENTENCES, *WARNINGS})
"""All codes of risks."""


_FOLDERS: Final = re.compile(r"(?<![\w.:/])(?:/[^\s/'\",:;()]+)+/")
"""Of an absolute path, up to its last part. Text after a colon is a URL."""


class Obstacle(TypedDict):
    """One reason why the cluster is not ready. ``shard`` is None if it is not about one shard.

    ``state``: ``down``, ``silent`` (its worker does not answer), or that of a shard's outage: ``opening``, ``waiting``,
    ``quarantined``. On a replicated log: ``no_quorum`` (the log does not confirm), ``no_leader`` (a standby takes over),
    ``catching_up`` (a copy has to, before it can lead), ``no_copy``, ``recovering``; of a warning: ``no_standby``,
    ``few_standbys``, ``copy_behind``, ``host_silent``, ``log_under_replicated``, ``host_failing``, ``copy_failing``,
    ``log_unsafe``.
    """

    shard: int | None
    state: str
    text: str


def obstacles(latest: Metrics | None, why_not: str) -> list[Obstacle]:
    """Return the obstacles by the router's status; empty: every shard is served, and can confirm its writes.

    ``why_not``: why there is no answer, if so.
    """
    status = latest.status if latest else None
    if status is None:
        return [Obstacle(shard=None, state="down", text=f"the router does not answer: {why_not}")]
    copies = _copies(latest)
    down = {shard: _hosts_obstacle(copies.get(shard)) or _obstacle(status, shard) for shard in _down(status)}
    unconfirmed = {
        shard: found
        for shard, each in copies.items()
        if each.state == NO_QUORUM and (found := _hosts_obstacle(each)) is not None
    }
    return [found for _, found in sorted({**unconfirmed, **down}.items())]


def warnings(latest: Metrics | None) -> list[Obstacle]:
    """Return the risks that stop no shard now, and would make the loss of another host worse."""
    hosts = hosts_in(latest)
    found = [] if hosts is None else risks(hosts)
    return [Obstacle(shard=risk.shard, state=risk.code, text=risk.text) for risk in found if risk.code in WARNINGS]


def without_folders(found: Iterable[Obstacle]) -> list[Obstacle]:
    """Return obstacles whose texts name files without their folders, for readers without a key."""
    return [Obstacle(shard=each["shard"], state=each["state"], text=_FOLDERS.sub("", each["text"])) for each in found]


def _copies(latest: Metrics | None) -> dict[int, ShardCopies]:
    hosts = hosts_in(latest)
    return {} if hosts is None else {each.shard: each for each in shard_copies(hosts)}


def _hosts_obstacle(copies: ShardCopies | None) -> Obstacle | None:
    """Return why no host serves a shard, by its copies; None: they do not show a reason."""
    trouble = None if copies is None else shard_trouble(copies)
    return None if copies is None or trouble is None else Obstacle(shard=copies.shard, state=trouble.code, text=trouble.text)


def silences(latest: Metrics | None) -> list[Obstacle]:
    """Return the shards of workers that are up by the router's status, and did not answer."""
    if latest is None or latest.status is None:
        return []
    heard = {shard.shard for worker in latest.workers for shard in worker.shards}
    return [
        Obstacle(
            shard=shard,
            state="silent",
            text=f"shard {shard} waits for {worker.name} (pid {worker.pid}), which does not answer",
        )
        for worker in latest.status.workers
        for shard in worker.shards
        if worker.state == "up" and shard not in heard
    ]


def shards_served(status: ClusterStatus | None) -> set[int]:
    """Return the shards whose workers are up; empty without a status."""
    return {shard for worker in status.workers if worker.state == "up" for shard in worker.shards} if status else set()


def _down(status: ClusterStatus) -> list[int]:
    served = shards_served(status)
    return [shard for shard in range(status.shards) if shard not in served]


def _obstacle(status: ClusterStatus, shard: int) -> Obstacle:
    for worker in status.workers:
        if shard in worker.shards:
            text = f"shard {shard} waits for {worker.name} (pid {worker.pid}), which is {worker.state}"
            return Obstacle(shard=shard, state="down", text=text)
        for outage in worker.outages:
            if outage.shard == shard and worker.state == "up":
                if outage.state == FOLLOWING:
                    text = f"no host leads shard {shard} now, by the router's status"
                    return Obstacle(shard=shard, state=NO_LEADER, text=text)
                return Obstacle(shard=shard, state=outage.state, text=f"shard {shard} is {outage.state}: {outage.reason}")
    return Obstacle(shard=shard, state="down", text=f"shard {shard} has no worker yet")
