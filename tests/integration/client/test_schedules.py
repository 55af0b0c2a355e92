"""Schedules as programs see them: put, looked at, carried out and deleted, by both clients."""

from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import InvalidArgumentError, QueueNotFoundError
from tests.support.cluster.cluster import eventually


def test_a_schedule_from_put_to_delete(client: Client, queue: str) -> None:
    before = datetime.now(UTC)
    put = client.put_schedule(
        queue, queue, b"report", {"kind": "daily"}, every=1.0, catch_up="all", jitter=0.1, fairness_key="acme", priority=-3, weight=2,
        throttle_keys=["reports"], cost=2.5, delay=0.01, ttl=3600.0, lease=20.0,
    )  # fmt: skip
    assert (put.name, put.queue, put.cron, put.every, put.catch_up, put.jitter) == (queue, queue, None, 1.0, "all", 0.1)
    assert put.next_due_at is not None
    assert before < put.next_due_at <= datetime.now(UTC) + timedelta(seconds=1.1)
    (first, *_) = client.receive(queue, wait=20.0)
    assert (first.payload, first.fairness_key, first.priority, first.cost) == (b"report", "acme", -3, 2.5)
    assert first.headers == {
        "kind": "daily", "fila-schedule": queue, "fila-due-at": put.next_due_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    } or not put.next_due_at.microsecond  # fmt: skip
    assert datetime.fromisoformat(first.headers["fila-due-at"]) == put.next_due_at
    first.ack()
    found = client.get_schedule(queue)
    assert found is not None
    assert found.fired >= 1
    assert found.error is None
    assert found.message == Message(
        b"report", {"kind": "daily"}, fairness_key="acme", weight=2, throttle_keys=["reports"], priority=-3, cost=2.5, delay=0.01,
        ttl=3600.0, lease=20.0,
    )  # fmt: skip
    assert [each.name for each in client.list_schedules(queue)] == [queue]
    assert client.delete_schedule(queue) is True
    assert client.delete_schedule(queue) is False
    assert client.get_schedule(queue) is None
    assert client.list_schedules(queue) == []


def test_schedules_of_all_shards_are_listed_by_name(client: Client, queue: str) -> None:
    names = [f"{queue}-{number}" for number in range(8)]
    shards = {client.put_schedule(name, queue, cron="0 3 * * *", timezone="Europe/Lisbon").shard for name in reversed(names)}
    assert len(shards) == 2
    listed = client.list_schedules(queue)
    assert [each.name for each in listed] == names
    assert {each.when for each in listed} == {"0 3 * * * Europe/Lisbon"}
    assert all(each.message is None for each in listed)
    for name in names:
        client.delete_schedule(name)


def test_a_missing_queue_is_seen_in_the_schedule(client: Client, queue: str) -> None:
    client.put_schedule(queue, f"{queue}-missing", every=1.0)

    def failed() -> bool:
        found = client.get_schedule(queue)
        return found is not None and found.failed > 0 and isinstance(found.error, QueueNotFoundError)

    eventually(failed, "its error")
    client.delete_schedule(queue)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one of them"),
        ({"cron": "* * * * *", "every": 5.0}, "one of them"),
        ({"every": 0.5}, "interval of 500 ms"),
        ({"every": -1.0}, "every"),
        ({"cron": ""}, "cron"),
        ({"cron": "* * * *"}, "bad cron expression"),
        ({"cron": "* * * * *", "timezone": "Europe/Lisboa"}, "unknown time zone"),
        ({"every": 5.0, "catch_up": "some"}, "catch_up"),
        ({"every": 5.0, "jitter": 6.0}, "jitter"),
        ({"every": 5.0, "cost": 0}, "cost"),
        ({"every": 5.0, "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)}, "use delay instead of deliver_at"),
    ],
)
def test_bad_schedules(client: Client, queue: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        client.put_schedule(queue, queue, **options)  # type: ignore[arg-type]
    assert client.get_schedule(queue) is None


def test_space_in_a_cron_expression_is_of_no_consequence(client: Client, queue: str) -> None:
    assert client.put_schedule(queue, queue, cron="0  3 * * *\n").cron == "0 3 * * *"
    client.delete_schedule(queue)
