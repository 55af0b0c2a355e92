"""What the tests of the command line share."""

import pytest

from fila_cluster.cli.shared import invocation


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrap texts as a terminal of 80 columns does."""
    monkeypatch.setattr(invocation, "UNWRAPPED_COLUMNS", 80)
