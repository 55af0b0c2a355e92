"""Where shards should be: which host leads each one, who is next, and when a shard moves.

Every host that has a copy of a shard follows it. Each node, which is a worker process with its data directory, says once a second what it
leads, what it follows and how far behind, in a partition of the log of its own (``control``). Each node computes all of this from what it has
heard, by the same rules, and no node decides for others: a plan binds nobody. A node that should lead a shard asks its leader (a TRANSFER_REQUEST in the
shard's log), and the leader agrees only if its own plan says the same. So views that differ for a while delay a move, and no move can
harm: who leads is decided by markers alone. While the control partition does not answer, all places in the lines stay as they are, and
nothing moves.

**Plan of leaders.** Each host has a share: the number of shards by the number of hosts, and one more for some. A host keeps what it leads up
to its share. What is left over, and what has no leader, goes to hosts with room: first to copies that have caught up; among equals by highest
random weight (Thaler & Ravishankar, 1998). When a host comes or goes, only as many shards move as the shares need.

**No storm.** A request needs a plan and a leader that have not changed for ``settle_ms``, and a copy that has caught up. A node has one request at a
time, and a leader's node gives one shard away at a time, when the one before has a leader again.

**Apart.** A node that reaches no other host's router leads shards that most clients can't reach, although the log hears it. It says so, and gives
them up as if it drained, unless all nodes are apart: of two hosts that do not reach each other neither is better.

**Failing.** The same holds for a node whose disk is full or refuses writes. It claims last, and its own former shards like any other's, until its
disk has been well for a while (:mod:`fila_worker.replication.replicated`).

Cost: hosts × shards, once a second, on each node.

Rejected: a host that deals shards out. It needs a second election, and nothing works while it is away.

Rejected: copies on some hosts only. Which copy to begin, and which to drop when, is a second plan, with ways of its own to lose the last good
copy. A copy costs its host about 2 ms of CPU time for each turn of 0.5 MB, and the disk.
"""

from fila_worker.log.placement.placing import PlacedCopy, Placing
from fila_worker.log.placement.views import PlacementLimits

__all__ = ["PlacedCopy", "PlacementLimits", "Placing"]
