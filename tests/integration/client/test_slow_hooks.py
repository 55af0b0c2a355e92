"""A hook that takes milliseconds a message, and batches of more messages than the broker has time for at once."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.embedded import Broker, broker
from fila_worker.core.settings import Limits, ShardSettings

HOOK = "function on_enqueue(msg) local n = 0 for i = 1, 20000 do n = n + i end return {} end"
MESSAGES = 800
"""Some seconds of work, in frames of 16, 128, 500 and 156 messages; the scaled limit is a part of one frame's."""


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(broker, "ShardSettings", partial(ShardSettings, limits=Limits(enqueue_ms_max=50)))
    with Broker(tmp_path) as started, started.client() as client:
        client.create_queue("q", on_enqueue=HOOK, lua_timeout=1.0)
        yield client


def stored(client: Client) -> list[int]:
    numbers: list[int] = []
    while len(numbers) < MESSAGES and (deliveries := client.receive("q", 500)):
        numbers += [int(each.payload) for each in deliveries]
        client.ack(deliveries)
    return numbers


def test_enqueue_many_stores_all_in_order(client: Client) -> None:
    ids = client.enqueue_many("q", (Message(b"%d" % number) for number in range(MESSAGES)))
    assert ids == sorted(set(ids))
    assert stored(client) == [*range(MESSAGES)]


def test_a_producer_stores_all_in_order(client: Client) -> None:
    with client.producer("q") as producer:
        futures = [producer.send(b"%d" % number) for number in range(MESSAGES)]
    ids = [future.result(0) for future in futures]
    assert ids == sorted(set(ids))
    assert stored(client) == [*range(MESSAGES)]
