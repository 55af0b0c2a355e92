"""A queue that is deleted with all it has and made again has nothing of the one before.

Source: OptimalBits/bull issue 2016, taskforcesh/bullmq issue 856
Right: no delayed, failed or leased message comes back, all counts are zero, and dedup ids are new
"""

import pytest

from fila_cluster.errors import LeaseExpiredError
from fila_cluster.testing import Fila


def test_nothing_comes_back(fila: Fila) -> None:
    fila.create_queue("jobs", visibility_timeout=30)
    for payload in (b"held", b"dead"):
        fila.enqueue("jobs", payload)
    held, dead = fila.receive("jobs", 2)
    dead.fail("no")
    fila.enqueue("jobs", b"delayed", delay=10, dedup_id="once")
    fila.enqueue("jobs", b"short", ttl=5)
    fila.delete_queue("jobs", force=True)
    fila.create_queue("jobs")
    assert {(info.name, info.depth) for info in fila.list_queues("jobs")} == {("jobs", 0), ("jobs.dlq", 0)}
    with pytest.raises(LeaseExpiredError):
        held.ack()
    fila.enqueue("jobs", b"new", dedup_id="once")
    fila.clock.advance(120)
    assert [view.payload for view in fila.browse("jobs")] == [b"new"]
    stats = fila.queue_stats("jobs")
    assert (stats.enqueued, stats.delivered, stats.expired, stats.dead_lettered) == (1, 0, 0, 0)
