"""The seeds behind the first ones, which are in ``test_simulation.py``."""

import pytest

from tests.simulation.calling import STRETCHES, check_stretch

pytestmark = pytest.mark.whole


@pytest.mark.parametrize("first", STRETCHES)
def test_a_stretch_of_seeds_breaks_no_promise(first: int) -> None:
    check_stretch(first)
