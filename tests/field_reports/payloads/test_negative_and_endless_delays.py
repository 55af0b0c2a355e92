"""A negative or an endless delay is neither taken nor worked on for ever.

Source: OptimalBits/bull issue 1705, OptimalBits/bull issue 1327
Right: a delay below zero, infinite, or no number is refused with its value; a time of delivery long ago means now
"""

import math
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest

from fila_cluster.errors import InvalidArgumentError
from fila_cluster.testing import Fila


@pytest.mark.parametrize("delay", [-1, -1e-3, -1e300, math.inf, -math.inf, math.nan, 1e12])
def test_it_is_refused_with_its_value(fila: Fila, delay: float) -> None:
    fila.create_queue("later")
    with pytest.raises(InvalidArgumentError, match=re.escape(f"delay={delay}:")):
        fila.enqueue("later", b"x", delay=delay)
    fila.assert_empty("later")


def test_long_ago_means_now(fila: Fila) -> None:
    fila.create_queue("later")
    for zone in (UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))):
        fila.enqueue("later", b"x", deliver_at=datetime.min.replace(tzinfo=zone))
    fila.assert_pending("later", 3)


def test_the_end_of_time_is_refused_by_its_name(fila: Fila) -> None:
    fila.create_queue("later")
    with pytest.raises(InvalidArgumentError, match="ten years"):
        fila.enqueue("later", b"x", deliver_at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))))
    fila.assert_empty("later")
