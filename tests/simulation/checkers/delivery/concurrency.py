"""Places of throttle keys, and of whole queues, that are free while messages wait for them.

They are looked at twice, because they may be under way. Where the shard got places in between, they still may be.
"""

from collections import Counter
from typing import TYPE_CHECKING

from fila_proto_zmq.names import whole_queue
from fila_proto_zmq.partitions import places_of
from fila_worker.core.model.queues import QueuePartition
from fila_worker.core.places.taking import can_use

if TYPE_CHECKING:
    from tests.simulation.run import Run


Idle = tuple[int, tuple[str, ...], tuple[int, ...]]
"""A shard, the throttle keys of messages that wait there, and how many places of each all shards have got so far."""


def idle_places(run: "Run") -> set[Idle]:
    """The messages that could go, if their shard had the places that are free.

    Messages that need tokens, too, do not count: places are under way to and fro while there are none. Neither do those of a
    whole queue with places that need some of throttle keys, too: those of one go back while they wait for those of the other.
    """
    shards = {
        shard.index: (shard, worker.now_ms())
        for worker in run.cluster.workers
        if worker.host is not None
        for shard in worker.host.shards.values()
    }
    if len(shards) < run.cluster.shards:
        return set()
    leased = Counter[str]()
    for shard, _ in shards.values():
        leased.update({key: traffic.leased for key, traffic in shard.token_client.traffic.items()})
        leased.update({name: siblings.leased for name, siblings in shard.queues._siblings.items()})
    limit = shards[0][0].runtime.concurrency
    taken = Counter[str]()
    for shard, _ in shards.values():
        taken.update({name: key.taken for name, key in shard.places.keys.items()})
    both = {
        whole_queue(lane.key.queue.name)
        for shard, _ in shards.values()
        for lane in shard.lanes.values()
        if lane.throttle is not None and limit(places_of(whole_queue(lane.key.queue.name))) is not None
    }
    return {
        (index, line.names, tuple(taken[name] for name in line.names))
        for index, (shard, now_ms) in shards.items()
        for lane, line in shard.places.where.items()
        for queue in [lane.owner if isinstance(lane, QueuePartition) else lane.key.queue]
        if can_use(lane, now_ms)
        and whole_queue(queue.name) not in both
        and (isinstance(lane, QueuePartition) or not lane.throttle.limited)
        and queue.demands  # its consumers have credit
        and all(leased[name] < (limit(name) or 0) for name in line.names)
    }


def report_idle(run: "Run", idle: set[Idle]) -> None:
    """Say which messages waited in vain."""
    for shard, names, _ in sorted(idle):
        run.history.fail("places", f"messages of shard {shard} wait for places of {names}, and some are free")
