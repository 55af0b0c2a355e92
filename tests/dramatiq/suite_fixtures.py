"""The fixtures that Dramatiq's tests ask for, with our broker in place of each of its brokers.

Its source distribution has the tests and not their ``conftest.py``: these fixtures are ours. A namespace for each test keeps the
tests apart on one cluster.
"""

import os
from collections.abc import Iterator
from itertools import count

import dramatiq
import pytest
from dramatiq import Worker
from dramatiq.brokers.stub import StubBroker
from dramatiq.rate_limits.backends import StubBackend as RateLimiterStub
from dramatiq.results.backends import StubBackend as ResultStub

from tests.dramatiq.left_out import LEFT_OUT
from tests.dramatiq.suite_broker import SuiteBroker

_numbers = count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is not about a broker that could be ours; each with its reason."""
    for item in items:
        name = item.name.partition("[")[0]
        reason = LEFT_OUT.get(item.path.name, {})
        reason = reason if isinstance(reason, str) else reason.get(name, "")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _broker(*, fail_fast: bool) -> Iterator[SuiteBroker]:
    namespace = f"{os.environ.get('PYTEST_XDIST_WORKER', 'one')}-{next(_numbers)}"
    broker = SuiteBroker(os.environ["FILA_SUITE_ENDPOINT"], namespace=namespace, fail_fast=fail_fast, timeout=30.0)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


def _worker(broker: SuiteBroker) -> Iterator[Worker]:
    broker.emit_after("process_boot")
    worker = Worker(broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture(autouse=True)
def a_global_broker() -> None:
    """Tests that ask for no broker use the global one: that of the test before would have its actors."""
    dramatiq.set_broker(StubBroker())


@pytest.fixture
def stub_broker() -> Iterator[SuiteBroker]:
    yield from _broker(fail_fast=True)


@pytest.fixture
def redis_broker() -> Iterator[SuiteBroker]:
    yield from _broker(fail_fast=False)


@pytest.fixture
def rabbitmq_broker() -> Iterator[SuiteBroker]:
    yield from _broker(fail_fast=False)


@pytest.fixture
def stub_worker(stub_broker: SuiteBroker) -> Iterator[Worker]:
    yield from _worker(stub_broker)


@pytest.fixture
def redis_worker(redis_broker: SuiteBroker) -> Iterator[Worker]:
    yield from _worker(redis_broker)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: SuiteBroker) -> Iterator[Worker]:
    yield from _worker(rabbitmq_broker)


@pytest.fixture
def result_backend() -> ResultStub:
    return ResultStub()


@pytest.fixture
def rate_limiter_backend() -> RateLimiterStub:
    return RateLimiterStub()
