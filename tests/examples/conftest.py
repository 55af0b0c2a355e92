"""Pages and programs have a cluster for themselves: what one of them makes is gone before the next one begins."""

import pytest

from tests.support.cluster.cluster import Cluster


@pytest.fixture(autouse=True)
def cleared(request: pytest.FixtureRequest) -> None:
    """Delete all queues, schedules and templates of the shared cluster before a test that uses it."""
    if "shared_cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("shared_cluster")
        with cluster.client() as client:
            for schedule in client.list_schedules():
                client.delete_schedule(schedule.name)
            for pattern in client.list_templates():
                client.delete_template(pattern)
            for queue in client.list_queues():
                if not queue.is_dead_letter:
                    client.delete_queue(queue.name, force=True)
