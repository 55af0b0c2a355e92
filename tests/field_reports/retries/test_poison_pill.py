"""A message that kills each of its consumers is set aside, with what it was, and the others are worked on.

Source: contribsys/faktory issue 99, contribsys/faktory issue 409
Right: after max_attempts it is a dead letter with its reason; never before, and never tried for ever
"""

import pytest

from fila_cluster.testing import Fila


@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
def test_it_ends_as_a_dead_letter(fila: Fila) -> None:
    fila.create_queue("jobs", visibility_timeout=30, max_attempts=3)
    fila.enqueue("jobs", b"poison", fairness_key="a")
    for number in range(6):
        fila.enqueue("jobs", b"%d" % number, fairness_key="a")
    done = []
    for _ in range(20):
        for delivery in fila.receive("jobs"):
            if delivery.payload == b"poison":
                del delivery  # its consumer has died
                fila.clock.advance(31)
            else:
                done.append(delivery.payload)
                delivery.ack()
    assert done == [b"%d" % number for number in range(6)]
    (letter,) = fila.browse("jobs.dlq")
    assert (letter.payload, letter.attempts, letter.reason, letter.error) == (b"poison", 3, "max_attempts", "lease expired")
