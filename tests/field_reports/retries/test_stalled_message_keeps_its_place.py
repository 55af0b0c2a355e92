"""A message whose consumer was lost is not behind less urgent ones that came later.

Source: OptimalBits/bull issue 1925, OptimalBits/bull issue 1505
Right: it is delivered before them, by its priority and its place
"""

import pytest

from fila_cluster.testing import Fila


@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
def test_it_is_next(fila: Fila) -> None:
    fila.create_queue("jobs", visibility_timeout=10)
    fila.enqueue("jobs", b"urgent", priority=1)
    assert len(fila.receive("jobs")) == 1
    for priority in (1, 5, 3):
        fila.enqueue("jobs", b"%d" % priority, priority=priority)
    fila.clock.advance(11)
    deliveries = fila.receive("jobs", 10)
    assert [each.payload for each in deliveries] == [b"urgent", b"1", b"3", b"5"]
    fila.nack(deliveries[1:2])
    (again,) = fila.receive("jobs")
    assert again.payload == b"1"
    fila.ack([deliveries[0], again, *deliveries[2:]])
