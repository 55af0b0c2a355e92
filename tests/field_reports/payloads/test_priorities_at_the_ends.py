"""A negative priority does not destroy its queue, and the least and the greatest one are in their order.

Source: rabbitmq/rabbitmq-server issue 16279, gmr/pamqp issue 45
Right: the whole range of int32 is delivered in order; one beyond it is refused, and the queue goes on
"""

import pytest

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila

ENDS = [-(2**31), -(2**31) + 1, -1, 0, 1, 255, 256, 2**31 - 1]


def test_the_whole_range_is_in_order(fila: Fila) -> None:
    fila.create_queue("ranked")
    for priority in [*ENDS[::2], *ENDS[1::2]]:
        fila.enqueue("ranked", str(priority).encode(), priority=priority)
    for priority in (2**31, -(2**31) - 1, 2**63, -(10**30)):
        with pytest.raises(InvalidArgumentError, match=f"priority={priority}"):
            fila.enqueue("ranked", b"x", priority=priority)
    deliveries = fila.receive("ranked", 20)
    assert [int(each.payload) for each in deliveries] == ENDS
    fila.nack(deliveries)
    deliveries = fila.receive("ranked", 20)
    assert [each.priority for each in deliveries] == ENDS
    fila.ack(deliveries)
