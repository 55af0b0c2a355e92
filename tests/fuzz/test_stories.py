"""Long stories of hostile and ordinary clients. ``python -m tests.fuzz --minutes 60`` plays them for longer."""

from random import Random

import pytest

from tests.fuzz.bytes_random import BytesRandom
from tests.fuzz.story import fuzz

STORIES = 40
"""Of each test, with seeds that follow each other: a few seconds."""


@pytest.mark.parametrize("first", range(0, 4 * STORIES, STORIES))
def test_no_story_ends_badly(first: int) -> None:
    """A failure names what happened in as few steps as could be found; ``python -m tests.fuzz --seed N`` plays the whole."""
    for seed in range(first, first + STORIES):
        fuzz(Random(seed))


def test_a_coverage_guided_fuzzer_can_choose_the_story() -> None:
    for seed in range(5):
        fuzz(BytesRandom(Random(seed).randbytes(4000)))
