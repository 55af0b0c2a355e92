"""The count of leased messages becomes zero when their consumer is gone, though nobody asks for messages.

Source: nats-io/nats-server issue 6093
Right: after the leases have ended nothing is leased and all is pending, without another receive
"""

import pytest

from fila_cluster.testing import Fila


@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
def test_counts_change_by_themselves(fila: Fila) -> None:
    fila.create_queue("jobs", visibility_timeout=30)
    for number in range(3):
        fila.enqueue("jobs", b"%d" % number)
    assert len(fila.receive("jobs", 3)) == 3
    assert fila.queue_stats("jobs").in_flight == 3
    fila.clock.advance(31)
    stats = fila.queue_stats("jobs")
    assert (stats.in_flight, stats.pending, stats.depth, stats.expired) == (0, 3, 3, 3)
