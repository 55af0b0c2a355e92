"""The second half of the seeds of the normal test run."""

import pytest

from tests.simulation.calling import PIECES, check_piece


@pytest.mark.parametrize("piece", range(PIECES // 2, PIECES))
def test_a_stretch_of_seeds_breaks_no_promise(piece: int) -> None:
    check_piece(piece)
