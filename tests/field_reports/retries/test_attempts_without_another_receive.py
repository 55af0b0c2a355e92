"""A message whose last lease has ended is moved to the dead letters at once, not when somebody receives next.

Source: softwaremill/elasticmq issue 582, localstack/localstack issue 8234
Right: it is there after its lease, once, though nobody asks; and a dead letter queue keeps what is failed in it
"""

import pytest

from fila_cluster.testing import Fila


def dropped(fila: Fila, queue: str) -> None:
    assert len(fila.receive(queue)) == 1


@pytest.mark.filterwarnings("ignore:.*was never settled:ResourceWarning")
def test_it_is_moved_by_the_clock(fila: Fila) -> None:
    fila.create_queue("main", max_attempts=1, visibility_timeout=10)
    fila.enqueue("main", b"hello")
    dropped(fila, "main")
    fila.clock.advance(11)
    fila.assert_empty("main")
    fila.assert_dead("main", 1)
    for _ in range(5):
        dropped(fila, "main.dlq")
        fila.clock.advance(31)
    (letter,) = fila.browse("main.dlq")
    assert letter.reason == "max_attempts"
