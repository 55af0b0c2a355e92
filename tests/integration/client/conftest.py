"""Fixtures of the tests of both clients."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.shells import SHELLS, shell


@pytest.fixture(params=SHELLS)
def open_client(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Open a client of either kind; the asyncio one blocks, too."""
    with shell(request.param) as opened:
        yield opened
