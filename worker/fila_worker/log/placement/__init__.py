"""Where shards should be: which host leads each one, who is next, and when a shard moves.

Every host with a copy of a shard follows it. A node is a worker process with its data directory. Once a second it appends its
state to a partition of the log (``control``): the shards that it leads and follows, and how far it is behind. Each node
computes the plan from these states by the same rules, and no node decides for others. A node that should lead a shard asks
its leader by a TRANSFER_REQUEST in the shard's log. The leader agrees only if its own plan is the same. So different views
delay a move, and no move can do harm: only markers decide who leads. While the control partition does not answer, all places
in the lines stay, and nothing moves.

**Plan of leaders.** The share of each host is the number of shards by the number of hosts, and one more for some. A host
keeps its shards up to its share. The other shards, and those without a leader, go to hosts with room: first to copies that
have caught up; among equals by highest random weight (Thaler & Ravishankar, 1998). When a host comes or goes, only as many
shards move as the shares need.

**No storm.** A request needs a plan and a leader that have not changed for ``settle_ms``, and a copy that has caught up. A
node has one request at a time. A leader's node gives one shard away at a time, when the one before has a leader again.

**Apart.** A node that reaches no router of another host leads shards that most clients can't reach, although it reaches the
log. It reports that, and gives them up as if it drained, unless all nodes are apart: then no host is better.

**Failing.** The same holds for a node whose disk is full or refuses writes. It claims last, its own earlier shards, too,
until its disk has been well for a while (:mod:`fila_worker.replication.replicated`).

Cost: hosts × shards, once a second, on each node.

Rejected: one host that plans for all. It needs a second election, and no shard moves while it is away.

Rejected: copies on some hosts only. When to begin and to drop which copy is a second plan, which may lose the last good copy.
A copy costs its host about 2 ms of CPU time for each turn of 0.5 MB, and the disk.
"""

from fila_worker.log.placement.placing import PlacedCopy, Placing
from fila_worker.log.placement.views import PlacementLimits

__all__ = ["PlacedCopy", "PlacementLimits", "Placing"]
