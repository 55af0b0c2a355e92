"""kombu's tests that every transport must pass, on ours. Run by ``tests.upstream.celery``; kombu's source is in the path."""

import os
import uuid
from typing import Any

import kombu
import pytest
from t.integration.common import (  # type: ignore[import-not-found]
    BaseEventLoop,
    BaseExchangeTypes,
    BaseFailover,
    BaseMessage,
    BasePriority,
    BaseTimeToLive,
    BasicFunctionality,
)

BROKER = os.environ["TEST_BROKER"]
DEAD = "fila://127.0.0.1:1"


@pytest.fixture
def connection() -> kombu.Connection:
    # A namespace for each test: they use the same names.
    return kombu.Connection(f"{BROKER}/{uuid.uuid4().hex}")


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection(DEAD)


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"{DEAD};{BROKER}/{uuid.uuid4().hex}")


ONE_EVENT = "one drain_events() hands over one message here, this test expects three of one call"

BY_ITSELF = "it expects kombu to switch to the next URL; here the client goes from one to the next by itself"


class test_basic_functionality(BasicFunctionality):  # noqa: N801
    pass


class test_exchange_types(BaseExchangeTypes):  # noqa: N801
    pass


class test_time_to_live(BaseTimeToLive):  # noqa: N801
    pass


class test_priority(BasePriority):  # noqa: N801
    @pytest.mark.skip(reason=ONE_EVENT)
    def test_publish_consume(self, connection: Any) -> None: ...

    @pytest.mark.skip(reason=ONE_EVENT)
    def test_publish_requeue_consume(self, connection: Any) -> None: ...


class test_message(BaseMessage):  # noqa: N801
    pass


class test_event_loop(BaseEventLoop):  # noqa: N801
    pass


class test_failover(BaseFailover):  # noqa: N801
    @pytest.mark.skip(reason=BY_ITSELF)
    def test_failover_switches_to_alternate_url(self, failover_connection: Any) -> None: ...
