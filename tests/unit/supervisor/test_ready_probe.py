"""What has to serve before a start is complete."""

import pytest

from fila_cluster.run.supervisor.layout import Layout
from fila_cluster.run.supervisor.ready_probe import OwnWorkers, WholeCluster
from fila_proto_zmq.commands import ClusterStatus, ShardOutage, WorkerStatus
from fila_proto_zmq.outages import FOLLOWING, OPENING, QUARANTINED, WAITING

OWN = OwnWorkers({"a/worker-0": [0, 2], "a/worker-1": [1]})


def worker(name: str, shards: list[int], state: str = "up", **outages: str) -> WorkerStatus:
    """``outages``: the state of a shard, as ``s2="following"``."""
    listed = [ShardOutage(int(shard[1:]), outage, "") for shard, outage in outages.items()]
    return WorkerStatus(name, 1, state, shards, 0, 0, listed)


def status(*workers: WorkerStatus) -> ClusterStatus:
    return ClusterStatus(version="", shards=3, workers=list(workers))


def test_a_host_is_ready_when_its_workers_serve_or_follow():
    one, other = worker("a/worker-0", [0], s2=FOLLOWING), worker("a/worker-1", [], s1=FOLLOWING)
    assert OWN.is_met(status(one, other))
    assert not OWN.is_met(status(one))
    assert not OWN.is_met(status(one, worker("b/worker-1", [1])))
    assert not OWN.is_met(status(one, worker("a/worker-1", [1], state="down")))


@pytest.mark.parametrize(("state", "ready"), [(FOLLOWING, True), (QUARANTINED, True), (OPENING, False), (WAITING, False)])
def test_a_copy_that_is_not_open_yet_is_waited_for(state: str, ready: bool):
    assert OWN.is_met(status(worker("a/worker-0", [0, 2], s2=state), worker("a/worker-1", [1]))) is ready
    assert not OWN.is_met(status(worker("a/worker-0", [0]), worker("a/worker-1", [1]))), "nothing is known of shard 2"


def test_a_cluster_on_one_host_is_ready_when_all_serve_but_those_for_a_person():
    whole = WholeCluster(Layout(2, 3))
    assert whole.is_met(status(worker("worker-0", [0, 2]), worker("worker-1", [1])))
    assert whole.is_met(status(worker("worker-0", [0], s2=QUARANTINED), worker("worker-1", [1])))
    assert not whole.is_met(status(worker("worker-0", [0], s2=FOLLOWING), worker("worker-1", [1])))
    assert not whole.is_met(status(worker("worker-0", [0, 1, 2])))


def test_only_a_host_of_several_is_ready_without_all_shards():
    whole = WholeCluster(Layout(2, 3))
    assert [state for state in (OPENING, WAITING, QUARANTINED, "down") if whole.excuses(state)] == [QUARANTINED]
    assert all(OWN.excuses(state) for state in (OPENING, WAITING, QUARANTINED, "down"))
