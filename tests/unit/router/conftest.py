"""A router with two workers."""

import pytest

from tests.unit.router.desk import Desk


@pytest.fixture
def desk() -> Desk:
    desk = Desk(shards=3)
    desk.register("worker-0", shards=(0, 2))
    desk.register("worker-1", shards=(1,))
    return desk
