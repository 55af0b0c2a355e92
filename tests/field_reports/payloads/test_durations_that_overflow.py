"""Durations of a settlement that overflow an integer do not end it, nor become negative.

Source: beanstalkd/beanstalkd issue 368, beanstalkd/beanstalkd issue 118
Right: each is refused with its value; the delivery is still held and can be settled
"""

import math

import pytest

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila


@pytest.mark.parametrize("seconds", [2.0**31, 2.0**63, 1e300, math.inf, math.nan, -1.0])
def test_a_refused_duration_leaves_the_lease(fila: Fila, seconds: float) -> None:
    fila.create_queue("jobs")
    fila.enqueue("jobs", b"x")
    (delivery,) = fila.receive("jobs")
    for settle in (delivery.retry, delivery.defer, delivery.extend):
        with pytest.raises(InvalidArgumentError):
            settle(seconds)
    assert fila.queue_stats("jobs").in_flight == 1
    delivery.ack()
    fila.assert_empty("jobs")
