"""No test leaves a client of Kafka in its process."""

from collections.abc import Iterator

import pytest

from tests.support.hosts.kafka_clients import none_left


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    with none_left():
        yield
