"""A number that a script computed wrongly (an overflow, a division by zero) does not take the broker down.

Source: rabbitmq/rabbitmq-server issue 1590
Right: a field of a hook that is out of its range counts as left out, and the message is enqueued with the option of the call
"""

import pytest

from fila_cluster.testing import Fila

NUMBERS = ("2^60", "-2^31-1", "2^63", "1e300", "1/0", "-1/0", "0/0", "'7'", "{}")


@pytest.mark.parametrize("field", ["priority", "weight", "cost", "delay_ms"])
def test_it_counts_as_left_out(fila: Fila, field: str) -> None:
    for place, number in enumerate(NUMBERS):
        queue = f"hooked-{place}"
        fila.create_queue(queue, on_enqueue=f"function on_enqueue(msg) return {{ {field} = {number} }} end")
        fila.enqueue(queue, b"x", priority=5)
        (view,) = fila.browse(queue)
        assert (view.weight, view.cost, view.state, view.priority) == (1, 1, "pending", 5), number
