"""A shard with a queue ``q``, on a virtual clock."""

import pytest

from tests.support.shard.shard import ShardHarness


@pytest.fixture
def shard() -> ShardHarness:
    harness = ShardHarness()
    harness.create("q")
    return harness
