"""One half of the seeds of the normal test run."""

import pytest

from tests.simulation.calling import STRETCHES, check_stretch


@pytest.mark.parametrize("first", STRETCHES[::2])
def test_a_stretch_of_seeds_breaks_no_promise(first: int) -> None:
    check_stretch(first)
