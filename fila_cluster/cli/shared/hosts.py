"""Hosts as tables, for ``status --hosts``."""

from collections.abc import Iterator

from rich.console import RenderableType

from fila_cluster.cli.shared.tables import flagged, table
from fila_cluster.client.shard_copies import ShardCopies, in_sync, shard_copies
from fila_cluster.client.views import HostList
from fila_cluster.figures import aged, counted, lasted, sized
from fila_cluster.ops.analysis.attention import KINDS
from fila_cluster.ops.analysis.hosts import host_rows, risks
from fila_proto_zmq.commands.hosts import FOLLOWS, LEADS

ONE_HOST = "this cluster has one host: its shards have no replicated log (docs/hosts.md)"


def tables(hosts: HostList) -> Iterator[RenderableType]:
    """Yield the hosts, the shards with their copies, and the risks."""
    if not hosts.workers and not hosts.silent:
        yield ONE_HOST
        return
    if hosts.workers:
        yield _hosts(hosts)
        yield ""
        yield _shards(hosts)
        yield ""
    found = risks(hosts)
    if not found:
        yield flagged("nothing is at risk: each shard has a leader, and a standby that has caught up", good=True)
    for risk in found:
        yield flagged(f"{KINDS[risk.code].severities[0]}: {risk.text}", good=False)
        yield f"  {risk.action}"


def _hosts(hosts: HostList) -> RenderableType:
    rows = table("host", "address", "workers", "#leads", "#follows", "#behind", "#unconfirmed", "#queues")
    for row in host_rows(hosts):
        rows.add_row(
            f"{row.host}, draining" if row.draining else row.host,
            row.address or "–",
            " ".join(name.removeprefix(f"{row.host}/") for name in row.workers),
            counted(len(row.leads)),
            counted(len(row.follows)),
            "–" if row.behind is None else counted(row.behind),
            sized(row.unconfirmed_bytes),
            counted(row.queues),
        )
    return rows


def _shards(hosts: HostList) -> RenderableType:
    rows = table("shard", "leader", "followers (behind)", "#in sync", "#position", "#confirm p99", "#proof")
    for each in shard_copies(hosts):
        copy = each.leader.copy if each.leader else None
        rows.add_row(
            str(each.shard),
            _leader(each),
            ", ".join(_follower(each)) or "–",
            "–" if each.log is None else in_sync(each.log),
            "–" if copy is None else counted(copy.position),
            "–" if copy is None or copy.confirm_p99 is None else lasted(copy.confirm_p99 * 1e9),
            "–" if copy is None or copy.proof_age is None else f"{aged(copy.proof_age)} ago",
        )
    return rows


def _leader(each: ShardCopies) -> RenderableType:
    if each.leader is None:
        return flagged("does not answer" if each.served else "none", good=False)
    role = each.leader.copy.role
    return flagged(each.leader.host if role == LEADS else f"{each.leader.host} {role}", good=each.state == LEADS)


def _follower(each: ShardCopies) -> Iterator[str]:
    for held in each.others:
        if held.copy.role != FOLLOWS:
            yield f"{held.host} ({held.copy.role})"
        else:
            yield f"{held.host} ({'?' if held.copy.behind is None else counted(held.copy.behind)})"
