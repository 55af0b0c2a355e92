"""A message that was leased when everything was lost is not stuck: its lease ends, and it can be cancelled.

Source: beanstalkd/beanstalkd issue 72, procrastinate-org/procrastinate issue 1408
Right: after a restart the lease ends by the clock at its own time, without any job that cleans up
"""

from fila_cluster import Client
from tests.support.cluster.cluster import eventually
from tests.support.programs import hold_and_die


def before(client: Client) -> None:
    """Have a client die with a message in its hands."""
    client.create_queue("held", visibility_timeout=2)
    client.enqueue("held", b"x")
    hold_and_die(client.endpoint, "held")


def test_it_is_free_again(restarted: Client) -> None:
    eventually(lambda: restarted.queue_stats("held").pending == 1, "its lease ends")
    (view,) = restarted.browse("held")
    assert (view.attempts, view.state) == (1, "pending")
    assert restarted.cancel("held", view.id)
