"""The HTTP door of a cluster with authentication: each key has its own rights, and its own leases."""

from collections.abc import Iterator

import pytest

from fila_cluster.ops.observer.login import COOKIE
from tests.support.cluster.cluster import eventually
from tests.support.cluster.guarded import Guarded, guarded_cluster
from tests.support.cluster.http import JSON, address, ask

MESSAGES, RECEIVE, SETTLE = (f"/queues/orders/{name}" for name in ("messages", "receive", "settle"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded") / "data") as guarded:
        yield guarded


def test_each_key_may_do_what_it_is_allowed(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    producer, consumer = guarded.key("door-in", "produce:orders"), guarded.key("door-out", "consume:orders")
    assert ask(url, MESSAGES, {"payload": "x"}, key=producer).status == 200
    got = ask(url, RECEIVE, {"wait": 10}, key=consumer)
    assert [each["payload"] for each in got.body["deliveries"]] == ["x"]
    refused = [
        ask(url, MESSAGES, {"payload": "x"}, key=consumer),
        ask(url, RECEIVE, {}, key=producer),
        ask(url, "/queues/secret/messages", {"payload": "x"}, key=producer),
        ask(url, "/queues/no-such-queue/receive", {}, key=consumer),
    ]
    assert {(answer.status, answer.body["code"]) for answer in refused} == {(403, "PERMISSION_DENIED")}
    token = {"token": got.body["deliveries"][0]["token"], "action": "ack"}
    assert ask(url, SETTLE, {"deliveries": [token]}, key=consumer).status == 200


def test_any_permission_on_a_queue_is_enough_to_ask_how_many_consumers_it_needs(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    with guarded.client() as admin:
        admin.create_queue("scaled")
    key = guarded.key("scaler", "consume:scaled")
    assert ask(url, "/queues/scaled/scale", b"", key=key, method="GET").body["consumers"] == 0
    assert ask(url, "/queues/orders/scale", b"", key=key, method="GET").status == 403
    assert ask(url, "/queues/scaled/scale", b"", method="GET").status == 401


def test_permissions_on_a_queue_hold_for_its_partitions(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    with guarded.client() as admin:
        admin.create_queue("whole", partitions=4)
    producer, consumer = guarded.key("whole-in", "produce:whole"), guarded.key("whole-out", "consume:whole")
    several = {"messages": [{"payload": "x", "fairness_key": f"k{number}"} for number in range(8)]}
    assert ask(url, "/queues/whole/messages", several, key=producer).status == 200
    assert ask(url, "/queues/whole/messages", several, key=consumer).status == 403
    taken = ask(url, "/queues/whole/receive", {"wait": 10, "max_messages": 8}, key=consumer).body["deliveries"]
    assert len(taken) == 8
    acks = [{"token": each["token"], "action": "ack"} for each in taken]
    assert ask(url, "/queues/whole/settle", {"deliveries": acks}, key=consumer).status == 200
    assert ask(url, "/queues/whole/receive", {}, key=producer).status == 403
    assert ask(url, "/queues/whole@1/receive", {}, key=consumer).status == 400


def test_without_a_key_nothing_goes_in_or_out(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    for path, body in (
        (MESSAGES, {"payload": "x"}),
        (RECEIVE, {}),
        (SETTLE, {"deliveries": [{"token": "x", "action": "ack"}]}),
    ):
        for key in ("", "fila_mistyped"):
            answer = ask(url, path, body, key=key)
            assert (answer.status, answer.body["code"], answer.headers["www-authenticate"]) == (
                401,
                "UNAUTHENTICATED",
                "Bearer",
            )
    assert ask(url, "/openapi.json", b"", {}, method="GET").status == 200


def test_a_cookie_is_no_key(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    login = ask(url, "/login", f"key={guarded.api_key}".encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    cookie = login.headers["set-cookie"].split(";")[0]
    assert cookie.startswith(COOKIE)
    assert ask(url, "/queues", b"", {"Cookie": cookie}, method="GET").status == 200
    answer = ask(url, MESSAGES, {"payload": "x"}, JSON | {"Cookie": cookie})
    assert (answer.status, answer.body["code"]) == (401, "UNAUTHENTICATED")


def test_a_token_is_worth_nothing_with_another_key(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    mine, other = guarded.key("door-mine", "consume:orders"), guarded.key("door-other", "consume:orders")
    with guarded.client() as admin:
        admin.enqueue("orders", b"x")
        got = ask(url, RECEIVE, {"wait": 10}, key=mine).body["deliveries"][0]
        stolen = {"token": got["token"], "action": "fail"}
        answer = ask(url, SETTLE, {"deliveries": [stolen]}, key=other)
        assert (answer.status, answer.body["code"]) == (409, "LEASE_EXPIRED")
        assert admin.queue_stats("orders").in_flight == 1
        assert ask(url, SETTLE, {"deliveries": [stolen | {"action": "ack"}]}, key=mine).status == 200
        assert admin.queue_stats("orders").depth == 0


def test_a_revoked_key_settles_nothing_and_its_messages_come_back(guarded: Guarded) -> None:
    url = address(guarded.cluster)
    key = guarded.key("door-revoked", "consume:orders")
    with guarded.client() as admin:
        admin.enqueue("orders", b"x", lease=2.0)
        got = ask(url, RECEIVE, {"wait": 10}, key=key).body["deliveries"][0]
        guarded.revoke("door-revoked")
        token, unknown = ({"token": name, "action": "ack"} for name in (got["token"], "unknown"))
        eventually(lambda: ask(url, SETTLE, {"deliveries": [unknown]}, key=key).status == 401, "the end of the key")
        assert ask(url, SETTLE, {"deliveries": [token]}, key=key).status == 401
        (delivery,) = admin.receive("orders", wait=30)
        assert delivery.id == got["id"]
        delivery.ack()
