"""An app of Celery, and a broker in memory that it finds."""

import logging
from collections.abc import Iterator

import pytest
from celery import Celery
from kombu import pools

import fila_cluster.celery  # noqa: F401  # registers fila://
from fila_cluster.testing import Fila, broker


@pytest.fixture
def fila(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fila]:
    """What the kit's fixture is."""
    with broker("celery") as fila:
        monkeypatch.setenv("FILA_ENDPOINT", fila.endpoint)
        yield fila


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("shop", broker="fila://", backend="cache+memory://", set_as_current=False)
    app.task(name="add", shared=False)(add)
    level, handlers = logging.root.level, list(logging.root.handlers)
    yield app
    app.close()
    pools.reset()
    logging.root.setLevel(level)  # Celery's start_worker makes the process's log its own
    logging.root.handlers[:] = handlers


def add(first: int, second: int) -> int:
    return first + second
