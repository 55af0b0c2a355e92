"""No test starts anything."""

from pathlib import Path

import pytest

from tests.unit.deploy.started import instead_of_starting


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    instead_of_starting(tmp_path, monkeypatch)
