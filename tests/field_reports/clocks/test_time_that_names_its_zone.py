"""A time of delivery with a zone, in an hour that comes twice, means one instant and is delivered once.

Source: rq/rq issue 1554, rq/rq pull request 2475
Right: delivered once, at the instant that the zone and ``fold`` name; a time without a zone is refused
"""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from fila_cluster.errors import InvalidArgumentError
from tests.field_reports.clocks.conftest import At


def test_a_local_time_is_one_instant(fila_at: At) -> None:
    fila = fila_at("2026-10-25T00:00:00+00:00")
    fila.create_queue("later")
    for fold in (0, 1):
        at = datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
        fila.enqueue("later", b"%d" % fold, deliver_at=at)
    fila.clock.advance(30 * 60)  # 02:30 of summer time
    assert [view.payload for view in fila.browse("later", state="pending")] == [b"0"]
    fila.clock.advance(60 * 60 - 1)
    fila.assert_pending("later", 1)
    fila.clock.advance(1)
    assert sorted(view.payload for view in fila.browse("later", state="pending")) == [b"0", b"1"]
    with pytest.raises(InvalidArgumentError, match="no timezone"):
        fila.enqueue("later", b"", deliver_at=datetime(2026, 10, 25, 2, 30))
