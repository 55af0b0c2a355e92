"""An outbox in a SQLite file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine

from fila_cluster.outbox import metadata


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()
