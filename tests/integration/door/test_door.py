"""The HTTP door of a cluster without authentication: messages in, out and settled, what is refused, and what lives how long."""

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError
from fila_cluster.ops.observer.http_api.bodies import STATUSES
from tests.support.cluster.cluster import PATIENCE_S, Cluster, eventually, running
from tests.support.cluster.http import Answer, address, answers, ask
from tests.support.programs import hold_and_die

_numbers = count()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with an observer. Tests use queues of their own."""
    env = {"FILA_LIMITS__MAX_PAYLOAD_BYTES": "100000"}
    with running(tmp_path_factory.mktemp("shown") / "data", "--dashboard", "127.0.0.1:0", env=env) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def url(shown: Cluster) -> str:
    return address(shown)


@pytest.fixture
def client(shown: Cluster) -> Iterator[Client]:
    with shown.client() as client:
        yield client


@pytest.fixture
def queue(client: Client) -> str:
    name = f"door/{next(_numbers)}"
    client.create_queue(name)
    return name


def put(url: str, queue: str, *payloads: str) -> list[str]:
    answer = ask(url, f"/queues/{queue}/messages", {"messages": [{"payload": payload} for payload in payloads]})
    assert answer.status == 200, answer
    return list(answer.body["ids"])


def take(url: str, queue: str, **wanted: Any) -> list[dict[str, Any]]:
    answer = ask(url, f"/queues/{queue}/receive", wanted)
    assert answer.status == 200, answer
    return list(answer.body["deliveries"])


def settle(url: str, queue: str, *how: dict[str, Any]) -> Answer:
    return ask(url, f"/queues/{queue}/settle", {"deliveries": list(how)})


def test_a_message_makes_its_way(url: str, client: Client, queue: str) -> None:
    due = datetime.now(UTC).isoformat()
    options = {
        "fairness_key": "acme",
        "weight": 3,
        "throttle_keys": ["a", "b"],
        "priority": -1,
        "cost": 2.5,
        "deliver_at": due,
        "ttl": 60,
    }
    sent = ask(
        url, f"/queues/{quote(queue, safe='')}/messages", {"payload": "grüße", "headers": {"kind": "greeting"}, **options}
    )
    assert sent.status == 200, sent
    (got,) = take(url, queue, wait=10)
    assert (got["id"], got["payload"], got["headers"], got["queue"]) == (
        sent.body["id"],
        "grüße",
        {"kind": "greeting"},
        queue,
    )
    assert {name: got[name] for name in options if name not in {"deliver_at", "ttl"}} == {
        name: value for name, value in options.items() if name not in {"deliver_at", "ttl"}
    }
    assert datetime.fromisoformat(got["lease_expires_at"]) > datetime.now(UTC)
    assert client.queue_stats(queue).in_flight == 1
    assert settle(url, queue, {"token": got["token"], "action": "ack"}).body == {"settled": 1}
    assert client.queue_stats(queue).depth == 0


def test_payloads_of_every_kind(url: str, client: Client, queue: str) -> None:
    raw = bytes(range(256))
    messages = [{"payload": "text"}, {"payload_base64": base64.b64encode(raw).decode()}, {"payload_json": {"a": [1, None]}}]
    assert len(ask(url, f"/queues/{queue}/messages", {"messages": messages}).body["ids"]) == 3
    as_it_is = ask(
        url,
        f"/queues/{queue}/messages?header.kind=raw&fairness_key=x&priority=2&throttle_keys=a&throttle_keys=b&delay=0",
        raw,
        {"Content-Type": "application/octet-stream"},
    )
    assert as_it_is.status == 200, as_it_is
    found = {delivery.id: delivery for delivery in client.receive(queue, 10)}
    assert sorted(delivery.payload for delivery in found.values()) == sorted([b"text", raw, b'{"a": [1, null]}', raw])
    mine = found[as_it_is.body["id"]]
    assert (mine.headers, mine.fairness_key, mine.priority, mine.throttle_keys) == ({"kind": "raw"}, "x", 2, ["a", "b"])
    for delivery in found.values():
        delivery.ack()
    client.enqueue(queue, raw)
    (got,) = take(url, queue)
    assert base64.b64decode(got["payload_base64"]) == raw
    assert "payload" not in got


def test_every_way_to_settle(url: str, client: Client, queue: str) -> None:
    put(url, queue, *"abcdefg")
    tokens = {each["payload"]: each["token"] for each in take(url, queue, max_messages=10)}
    metadata = base64.b64encode(b"half").decode()
    done = settle(
        url,
        queue,
        {"token": tokens["a"], "action": "ack"},
        {"token": tokens["b"], "action": "nack", "error": "no", "metadata_base64": metadata},
        {"token": tokens["c"], "action": "retry", "after": 3600, "error": "later"},
        {"token": tokens["d"], "action": "fail", "error": "never"},
        {"token": tokens["e"], "action": "defer", "retry_after": 3600},
        {"token": tokens["f"], "action": "extend", "seconds": 3600},
        {"token": tokens["g"], "action": "give_back"},
    )
    assert (done.status, done.body) == (200, {"settled": 7})
    views = {view.payload: view for view in client.browse(queue)}
    assert {payload: (view.state, view.attempts) for payload, view in views.items()} == {
        b"b": ("pending", 1),
        b"c": ("delayed", 1),
        b"e": ("delayed", 0),
        b"f": ("leased", 0),
        b"g": ("pending", 0),
    }
    expires_at = views[b"f"].lease_expires_at
    assert expires_at is not None
    assert (expires_at - datetime.now(UTC)).total_seconds() > 3000
    (again,) = take(url, queue)
    assert (again["payload"], again["attempts"], again["error"], again["metadata_base64"]) == ("b", 1, "no", metadata)
    (dead,) = take(url, f"{queue}.dlq")
    assert (dead["reason"], dead["source_queue"], dead["error"]) == ("failed", queue, "never")
    assert datetime.fromisoformat(dead["dead_lettered_at"]) <= datetime.now(UTC)


def test_a_settlement_may_be_repeated_and_not_changed(url: str, queue: str) -> None:
    put(url, queue, "x")
    (got,) = take(url, queue)
    ack, fail = ({"token": got["token"], "action": action} for action in ("ack", "fail"))
    assert [settle(url, queue, ack).status for _ in range(2)] == [200, 200]
    assert (settle(url, queue, fail).status, settle(url, queue, fail).body["code"]) == (409, "ALREADY_SETTLED")
    assert "by ack:" in settle(url, queue, fail).body["message"]
    several = settle(url, queue, ack, fail, {"token": "nonsense", "action": "ack"})
    assert (several.status, several.body["code"]) == (409, "BATCH")
    assert [each and each["error"]["code"] for each in several.body["results"]] == [None, "ALREADY_SETTLED", "LEASE_EXPIRED"]


def test_a_settlement_may_be_repeated_before_it_is_answered(url: str, client: Client, queue: str) -> None:
    """Which of the two is the second one does not show, and what becomes of the first is the answer to both."""
    put(url, queue, "x", "y")
    ack, other = ({"token": got["token"], "action": "ack"} for got in take(url, queue, max_messages=2))
    twice = settle(url, queue, ack, ack)
    assert (twice.status, twice.body) == (200, {"settled": 2})
    mixed = settle(url, queue, other, {**other, "action": "fail"}, other, {**other, "action": "extend", "seconds": 5})
    assert [each and each["error"]["code"] for each in mixed.body["results"]] == [
        None,
        "ALREADY_SETTLED",
        None,
        "ALREADY_SETTLED",
    ]
    client.purge_queue(queue)
    put(url, queue, "z")
    (got,) = take(url, queue)
    client.delete_queue(queue, force=True)
    gone = settle(url, queue, *[{"token": got["token"], "action": "ack"}] * 2)
    assert [each["error"]["code"] for each in gone.body["results"]] == ["QUEUE_NOT_FOUND"] * 2


def test_a_token_is_of_its_queue(url: str, client: Client, queue: str) -> None:
    put(url, queue, "x")
    (got,) = take(url, queue)
    client.create_queue(f"{queue}-other")
    refused = settle(url, f"{queue}-other", {"token": got["token"], "action": "ack"})
    assert (refused.status, refused.body["code"]) == (409, "LEASE_EXPIRED")
    assert settle(url, queue, {"token": got["token"], "action": "ack"}).status == 200


def test_a_lease_ends_at_its_time(url: str, client: Client, queue: str) -> None:
    ask(url, f"/queues/{queue}/messages", {"payload": "x", "lease": 0.05})
    (got,) = take(url, queue)
    (again,) = take(url, queue, wait=30)
    assert (again["attempts"], again["error"]) == (1, "lease expired")
    late = settle(url, queue, {"token": got["token"], "action": "ack"})
    assert (late.status, late.body["code"]) == (409, "LEASE_EXPIRED")


@pytest.mark.whole
def test_a_lease_outlives_the_broker_s_patience_and_not_the_observer(tmp_path: Path) -> None:
    """No request comes meanwhile: the observer keeps its client alive for longer than it takes to miss one that was killed."""
    env = {"FILA_SCHEDULER__CONSUMER_TIMEOUT_MS": "2000"}
    with running(tmp_path / "data", "--dashboard", "127.0.0.1:0", env=env) as cluster, cluster.client() as client:
        for queue in ("held", "lost"):
            client.create_queue(queue)
            put(address(cluster), queue, "x")
        (got,) = take(address(cluster), "held")
        hold_and_die(cluster.endpoint, "lost")
        (lost,) = client.receive("lost", wait=PATIENCE_S)
        assert lost.error == "consumer lost"
        lost.ack()
        assert settle(address(cluster), "held", {"token": got["token"], "action": "ack"}).status == 200
        put(address(cluster), "held", "y")
        (got,) = take(address(cluster), "held")
        next(child for child in cluster.children() if "fila_cluster.ops.observer" in child.cmdline()).kill()
        (again,) = client.receive("held", wait=PATIENCE_S)
        assert (again.id, again.error) == (got["id"], "consumer lost")
        again.ack()
        eventually(lambda: answers(cluster), "an observer")
        late = settle(address(cluster), "held", {"token": got["token"], "action": "ack"})
        assert (late.status, late.body["code"]) == (409, "LEASE_EXPIRED")


def test_what_is_delivered_at_most_once_has_no_token(url: str, client: Client, queue: str) -> None:
    name = f"{queue}-once"
    client.create_queue(name, delivery="at_most_once")
    put(url, name, "x")
    (got,) = take(url, name)
    assert (got["payload"], got["token"]) == ("x", None)
    assert client.queue_stats(name).depth == 0


def test_a_queue_gets_partitions_while_it_is_used(url: str, client: Client, queue: str) -> None:
    several = [{"payload": str(number), "fairness_key": f"k{number}"} for number in range(12)]
    assert ask(url, f"/queues/{queue}/messages", {"messages": several}).status == 200
    taken = take(url, queue, wait=10)
    client.update_queue(queue, partitions=4)
    assert ask(url, f"/queues/{queue}/messages", {"payload": "12", "fairness_key": "alone"}).status == 200
    assert settle(url, queue, *({"token": each["token"], "action": "ack"} for each in taken)).status == 200
    while len(taken) < 13:
        some_more = take(url, queue, max_messages=5, wait=10)
        assert some_more
        assert settle(url, queue, *({"token": each["token"], "action": "ack"} for each in some_more)).status == 200
        taken += some_more
    assert sorted(int(each["payload"]) for each in taken) == list(range(13))
    assert client.queue_stats(queue).depth == 0


def test_a_receive_waits_for_the_next_message(url: str, queue: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(take, url, queue, wait=30)
        put(url, queue, "x")
        assert [each["payload"] for each in waiting.result(PATIENCE_S)] == ["x"]


def test_who_hangs_up_while_waiting_takes_nothing(url: str, client: Client, queue: str) -> None:
    with socket.create_connection(urlsplit(url).netloc.split(":"), timeout=PATIENCE_S) as connection:  # type: ignore[arg-type]
        body = b'{"wait": 60}'
        request = f"POST /queues/{queue}/receive HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(request.encode() + body)
        eventually(lambda: metric(url, "fila_http_waiting") == 1, "a waiting request")
    eventually(lambda: metric(url, "fila_http_waiting") == 0, "its end")
    client.enqueue(queue, b"x")
    (delivery,) = client.receive(queue, wait=PATIENCE_S)
    assert delivery.attempts == 0
    delivery.ack()


def metric(url: str, name: str) -> float:
    """A sample of ``/metrics``, by its name with its labels; 0 if there is none."""
    with urlopen(f"{url}/metrics", timeout=PATIENCE_S) as page:
        return next((float(line.split()[-1]) for line in page.read().decode().splitlines() if line.startswith(f"{name} ")), 0)


def test_an_answer_is_bounded_however_large_messages_are(url: str, client: Client, queue: str) -> None:
    for _ in range(30):
        client.enqueue(queue, b"x" * 90_000)
    got = take(url, queue, max_messages=500)
    assert 5 < len(got) < 15, "a frame of a mebibyte"


# --- what is refused --------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[str, Any, int, str]] = [
    ("/queues/no-such-queue/messages", {"payload": ""}, 404, "QUEUE_NOT_FOUND"),
    ("/queues/no-such-queue/receive", {}, 404, "QUEUE_NOT_FOUND"),
    ("/queues/no-such-queue/settle", {"deliveries": [{"token": "x", "action": "ack"}]}, 409, "LEASE_EXPIRED"),
    ("/queues/bad%20name/messages", {"payload": ""}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"payload": "x" * 100_001}, 413, "PAYLOAD_TOO_LARGE"),
    ("/queues/{q}/messages", {"payload": "", "payload_base64": ""}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"headers": {}}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"payload": "", "colour": "red"}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"payload": "", "cost": -1}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"payload": "", "deliver_at": "2030-01-01T00:00:00"}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"messages": []}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", {"messages": [{"payload": ""}] * 1001}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages?priority=1", {"payload": ""}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", b"{", 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", b"[" * 100_000, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", b'{"payload": "\xff"}', 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/messages", b" " * (8 * 2**20 + 1), 413, "PAYLOAD_TOO_LARGE"),
    ("/queues/{q}/receive", {"max_messages": 0}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/receive", {"max_messages": 501}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/receive", {"wait": 61}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/settle", {"deliveries": [{"token": "x", "action": "burn"}]}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/settle", {"deliveries": [{"token": "x", "action": "ack", "after": 1}]}, 400, "INVALID_ARGUMENT"),
    ("/queues/{q}/other", {}, 404, "INVALID_ARGUMENT"),
]


@pytest.mark.parametrize(("path", "body", "status", "code"), REFUSALS, ids=range(len(REFUSALS)))
def test_errors_are_json_with_a_code_and_a_fitting_status(
    url: str, queue: str, path: str, body: Any, status: int, code: str
) -> None:
    answer = ask(url, path.replace("{q}", queue), body)
    assert (answer.status, answer.body["code"]) == (status, code), answer
    assert answer.body.keys() == {"code", "message", "retryable", "retry_after", "details"}
    assert answer.body["message"]


def test_some_of_several_are_refused(url: str, client: Client, queue: str) -> None:
    answer = ask(
        url, f"/queues/{queue}/messages", {"messages": [{"payload": "1"}, {"payload": "2", "cost": -1}, {"payload": "3"}]}
    )
    assert (answer.status, answer.body["code"]) == (400, "BATCH")
    first, second, third = answer.body["results"]
    assert second["error"]["code"] == "INVALID_ARGUMENT"
    assert sorted([first, third]) == sorted(view.id for view in client.browse(queue))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 415),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
        ({"Content-Type": "application/json", "Origin": "https://evil.example"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Host": "rebound.example"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_get_nothing_in(
    url: str, client: Client, queue: str, headers: dict[str, str], status: int
) -> None:
    answer = ask(url, f"/queues/{queue}/messages", {"payload": "x"}, headers)
    assert answer.status == status, answer
    assert client.queue_stats(queue).depth == (status == 200)
    if status != 200:
        assert answer.body["code"] in {"PERMISSION_DENIED", "INVALID_ARGUMENT"}


def test_other_methods_are_told_which_one_to_use(url: str, queue: str) -> None:
    answer = ask(url, f"/queues/{queue}/messages", b"", {}, method="GET")
    assert (answer.status, answer.headers["allow"], answer.body["code"]) == (405, "POST", "INVALID_ARGUMENT")


def test_a_limited_namespace_says_when_it_has_room(url: str, client: Client) -> None:
    client.create_queue("limited/q")
    client.set_config("namespace:limited:max_enqueues_per_minute", "1")
    answers = [ask(url, "/queues/limited/q/messages", {"payload": "x"}) for _ in range(3)]
    refused = answers[-1]
    assert (refused.status, refused.body["code"], refused.body["retryable"]) == (429, "RATE_LIMITED", True)
    assert int(refused.headers["retry-after"]) >= refused.body["retry_after"] > 0


def test_every_code_has_a_status_that_says_whose_fault_it_is() -> None:
    retryable = {kind.code for kind in FilaError.__subclasses__() if kind.retryable}
    assert {STATUSES[code] for code in retryable} <= {429, 503, 504}
    assert all(400 <= STATUSES[code] < 500 for code in STATUSES.keys() - retryable)


# --- anything at all --------------------------------------------------------------------------------------------------

ANYTHING = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(max_size=5),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(
            some.sampled_from(
                [
                    "payload",
                    "payload_json",
                    "headers",
                    "messages",
                    "deliveries",
                    "token",
                    "action",
                    "wait",
                    "delay",
                    "weight",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150)
@given(
    some.sampled_from(["messages", "receive", "settle"]),
    some.one_of(some.binary(max_size=40), ANYTHING.map(lambda value: json.dumps(value).encode())),
    some.sampled_from(["application/json", "application/octet-stream"]),
)
def test_whatever_is_sent_gets_an_answer_that_is_json(
    url: str, shown: Cluster, operation: str, body: bytes, kind: str
) -> None:
    answer = ask(url, f"/queues/fuzzed/{operation}", body, {"Content-Type": kind})
    assert answer.status in {400, 404, 409, 415}, answer
    assert answer.body["code"] in STATUSES or answer.body["code"] == "BATCH"
    assert shown.events("library.failed", "process.failed") == []


# --- described --------------------------------------------------------------------------------------------------------


def test_it_is_described(url: str) -> None:
    document = ask(url, "/openapi.json", b"", {}, method="GET").body
    assert document["openapi"].startswith("3.1")
    of_queues = {f"/queues/{{queue}}/{name}" for name in ("messages", "receive", "consume", "settle")}
    assert set(document["paths"]) == {*of_queues, "/queues/{queue}/scale", "/throttles"}
    parameters = document["paths"]["/queues/{queue}/scale"]["get"]["parameters"]
    assert [each["name"] for each in parameters] == ["queue", "drain"]
    assert set(document["paths"]["/throttles"]) == {"get"}
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert references <= document["components"]["schemas"].keys()
    page = ask(url, "/api", b"", {}, method="GET")
    assert page.status == 200
    assert "/queues/orders/settle" in page.body


def test_requests_are_counted(url: str, queue: str) -> None:
    enqueued = 'fila_http_requests_total{operation="enqueue",status="200"}'
    before = metric(url, enqueued)
    put(url, queue, "x")
    take(url, queue)
    assert metric(url, enqueued) == before + 1
    assert metric(url, "fila_http_leased") >= 1


def test_throttle_keys_are_listed(url: str, client: Client) -> None:
    client.set_throttle("door:a", rate=5, burst=8)
    client.set_throttle("door:b", concurrency=2)
    answer = ask(url, "/throttles?prefix=door:", b"", method="GET")
    none = {"rate": None, "burst": None, "tokens": None, "concurrency": None, "in_use": 0, "waiting": 0, "rate_min": None}
    none["rate_in_force"] = None
    assert answer.status == 200, answer
    assert answer.body["throttles"] == [
        {**none, "key": "door:a", "rate": 5.0, "burst": 8.0, "tokens": 8.0, "rate_in_force": 5.0},
        {**none, "key": "door:b", "concurrency": 2},
    ]
    assert ask(url, "/throttles?page=2", b"", method="GET").status == 400
    assert ask(url, "/throttles", {}).status == 405


def scaled(url: str, queue: str, drain_s: float = 60) -> dict[str, Any]:
    answer = ask(url, f"/queues/{queue}/scale?drain={drain_s}", b"", method="GET")
    assert answer.status == 200, answer
    return dict(answer.body)


def test_it_says_how_many_consumers_a_queue_needs(url: str, client: Client, queue: str) -> None:
    assert scaled(url, queue)["consumers"] == 0
    client.enqueue_many(queue, [Message(b"x") for _ in range(50)])
    told = scaled(url, queue)
    assert {name: told[name] for name in ("queue", "consumers", "present", "pending", "deliverable", "per_consumer")} == {
        "queue": queue, "consumers": 1, "present": 0, "pending": 50, "deliverable": 50, "per_consumer": None
    }  # fmt: skip
    client.pause(queue)
    assert (scaled(url, queue)["consumers"], scaled(url, queue)["reason"]) == (0, "the queue is paused")


def test_throttled_messages_of_all_partitions_need_no_consumers(url: str, client: Client) -> None:
    name = f"door/{next(_numbers)}"
    client.create_queue(name, partitions=4)
    client.set_throttle(f"api:{name}", rate=1, burst=5)
    keys = [f"api:{name}"]
    client.enqueue_many(name, [Message(b"x", fairness_key=f"k{number}", throttle_keys=keys) for number in range(400)])
    client.enqueue_many(name, [Message(b"x", fairness_key="free") for _ in range(30)])
    assert scaled(url, name)["pending"] == 430
    assert 30 + 60 <= scaled(url, name)["deliverable"] <= 30 + 65, "a full bucket, and what comes in a minute"


def test_a_question_for_consumers_that_is_wrong_is_refused(url: str, queue: str) -> None:
    for drain in ("0", "-1", "soon", "nan", "86401"):
        answer = ask(url, f"/queues/{queue}/scale?drain={drain}", b"", method="GET")
        assert (answer.status, answer.body["code"]) == (400, "INVALID_ARGUMENT"), drain
        assert f"drain='{drain}'" in answer.body["message"]
    assert ask(url, f"/queues/{queue}/scale?dra=1", b"", method="GET").status == 400
    assert ask(url, f"/queues/{queue}/scale", {}).status == 405
    assert ask(url, "/queues/no-such-queue/scale", b"", method="GET").status == 404


@pytest.mark.whole
def test_the_pace_of_consumers_is_measured(url: str, client: Client, queue: str) -> None:
    """A consumer works on one message at a time, for about a fiftieth of a second."""
    client.enqueue_many(queue, [Message(b"x") for _ in range(20_000)])
    done = Event()

    def work() -> None:
        for delivery in client.consume(queue, prefetch=1):
            done.wait(0.02)
            delivery.ack()
            if done.is_set():
                return

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(work)
            eventually(lambda: scaled(url, queue)["per_consumer"], "a pace is known")
            told = scaled(url, queue)
            assert 5 < told["per_consumer"] < 50
            assert told["consumers"] == pytest.approx(told["per_second"] / told["per_consumer"], abs=1)
            assert told["consumers"] > 5
        finally:
            done.set()


def test_a_settlement_may_say_what_the_work_cost(url: str, client: Client, queue: str) -> None:
    key = f"cost:{queue}"
    client.set_throttle(key, rate=0.001, burst=10)
    client.enqueue_many(queue, [Message(b"x", throttle_keys=[key]) for _ in range(2)])
    first, second = take(url, queue, max_messages=2)
    done = settle(
        url, queue, {"token": first["token"], "action": "ack", "cost": 5.5}, {"token": second["token"], "action": "fail", "cost": 0}
    )  # fmt: skip
    assert done.status == 200, done
    client.enqueue(queue, b"x", throttle_keys=[key])
    (third,) = take(url, queue, wait=5)
    eventually(lambda: 3.4 < (client.list_throttles(key)[0].tokens or 0) < 3.7, "10 - 5.5 - 0 - 1 tokens")
    assert settle(url, queue, {"token": third["token"], "action": "ack", "cost": -1}).status == 400
    assert settle(url, queue, {"token": third["token"], "action": "extend", "seconds": 9, "cost": 1}).status == 400
    assert settle(url, queue, {"token": third["token"], "action": "ack"}).status == 200


def test_a_queue_with_partitions_is_one(url: str, client: Client) -> None:
    name = f"door/{next(_numbers)}"
    client.create_queue(name, partitions=4)
    several = [{"payload": str(number), "fairness_key": f"k{number}"} for number in range(12)]
    assert len(ask(url, f"/queues/{name}/messages", {"messages": several}).body["ids"]) == 12
    assert ask(url, f"/queues/{name}/messages", {"payload": "12", "fairness_key": "alone"}).status == 200
    taken: list[dict[str, Any]] = []
    while len(taken) < 13:
        some_more = take(url, name, max_messages=5, wait=10)
        assert some_more
        taken += some_more
    assert sorted(int(each["payload"]) for each in taken) == list(range(13))
    assert {each.get("queue", name) for each in taken} == {name}
    assert settle(url, name, {"token": taken[0]["token"], "action": "extend", "seconds": 60}).status == 200
    assert settle(url, name, {"token": taken[0]["token"], "action": "nack", "error": "again"}).status == 200
    assert settle(url, name, *({"token": each["token"], "action": "ack"} for each in taken[1:])).status == 200
    (again,) = take(url, name, wait=10)
    assert (again["payload"], again["attempts"]) == (taken[0]["payload"], 1)
    assert settle(url, name, {"token": again["token"], "action": "fail", "error": "no"}).status == 200
    (dead,) = take(url, f"{name}.dlq", wait=10)
    assert settle(url, f"{name}.dlq", {"token": dead["token"], "action": "ack"}).status == 200
    assert client.queue_stats(name).depth == 0
