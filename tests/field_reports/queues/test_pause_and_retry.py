"""What fails, comes due or is redriven while its queue is paused is not delivered then, and not stuck afterwards.

Source: OptimalBits/bull issue 2540, OptimalBits/bull issue 1087, OptimalBits/bull issue 247
Right: nothing is delivered while the queue is paused; after a resume everything is, the most urgent first
"""

import pytest

from fila_cluster.testing import Fila


@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
def test_nothing_slips_out_and_nothing_sticks(fila: Fila) -> None:
    fila.create_queue("jobs")
    for number in range(5):
        fila.enqueue("jobs", b"failed", priority=number)
    failed = fila.receive("jobs", 5)
    fila.pause("jobs")
    failed[0].retry(1)
    failed[1].nack()
    failed[2].defer(1)
    failed[3].fail()
    fila.redrive("jobs.dlq")
    fila.enqueue("jobs", b"due", delay=1, priority=-1)
    fila.clock.advance(31)  # the last one's lease has ended
    assert fila.receive("jobs", 10) == []
    fila.assert_pending("jobs", 6)
    fila.resume("jobs")
    deliveries = fila.receive("jobs", 10)
    assert [each.priority for each in deliveries] == [-1, 0, 1, 2, 3, 4]
    fila.ack(deliveries)
    fila.assert_empty("jobs")
