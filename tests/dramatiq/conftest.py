"""A broker on the shared cluster, in a namespace of its own for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from zlib import crc32

import dramatiq.broker
import pytest
from dramatiq import Worker

from fila_cluster.dramatiq import FilaBroker
from tests.support.cluster.cluster import PATIENCE_S, Cluster

StartWorker = Callable[..., Worker]


@contextmanager
def opened(endpoint: str, **options: Any) -> Iterator[FilaBroker]:
    """A broker that is Dramatiq's global one meanwhile."""
    broker = FilaBroker(endpoint, timeout=PATIENCE_S, **options)
    before = dramatiq.broker.global_broker
    dramatiq.set_broker(broker)
    try:
        yield broker
    finally:
        broker.close()
        dramatiq.broker.global_broker = before


@pytest.fixture
def broker(shared_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[FilaBroker]:
    with opened(shared_cluster.endpoint, namespace=f"dramatiq-{crc32(request.node.nodeid.encode()):08x}") as broker:
        yield broker


@pytest.fixture
def start_worker(broker: FilaBroker) -> Iterator[StartWorker]:
    """Start a worker; it is stopped at the end, if the test has not stopped it."""
    with ExitStack() as started:

        def start(threads: int = 2, **options: Any) -> Worker:
            worker = Worker(broker, worker_threads=threads, worker_timeout=50, **options)
            worker.start()
            started.callback(worker.stop)
            return worker

        yield start
