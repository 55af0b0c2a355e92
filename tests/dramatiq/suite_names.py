"""The names that Dramatiq's tests import from a module of theirs that its source distribution leaves out."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest
from dramatiq import Broker, Worker

RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"
RABBITMQ_CREDENTIALS = pika.credentials.PlainCredentials(RABBITMQ_USERNAME, RABBITMQ_PASSWORD)

skip_in_ci = pytest.mark.filterwarnings("default")  # a mark that changes nothing: they run here, too
skip_on_windows = pytest.mark.skipif(platform.system() == "Windows", reason="not on Windows")
skip_on_pypy = pytest.mark.skipif(platform.python_implementation() == "PyPy", reason="not on PyPy")
skip_unless_rabbit_mq = pytest.mark.filterwarnings("default")  # those of them that are left out are in left_out.py


@contextmanager
def worker(broker: Broker, **options: Any) -> Iterator[Worker]:
    """A worker that is stopped afterwards."""
    running = Worker(broker, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()
