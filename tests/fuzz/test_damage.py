"""Some damaged shards in each run; ``python -m tests.fuzz.damage`` plays more."""

import pytest

from tests.fuzz.damage import run

pytestmark = pytest.mark.whole


def test_damage_is_found_and_salvage_reads_around_it() -> None:
    outcomes = run(10, 0)
    assert outcomes["found"] > outcomes["clean"]
