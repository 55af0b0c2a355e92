"""Who may talk to the dashboard: its own pages, and programs."""

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from fila_cluster.ops.observer.app import PIECE_BYTES, Guard, is_loopback


async def _pages(scope: Any, _: Any, send: Any) -> None:
    """What is guarded: says that it was reached."""
    await send({"type": "reached", "method": scope.get("method")})


def ask(
    headers: dict[str, str], *, kind: str = "http", method: str = "GET", listens_on: str = "127.0.0.1", path: str = "/"
) -> list[dict[str, Any]]:
    """What a request with these headers is answered."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": f"{kind}.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind,
        "method": method,
        "path": path,
        "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
    }
    asyncio.run(Guard(_pages, listens_on, ["Fila.example.com"])(scope, receive, send))
    return sent


def is_let_through(sent: list[dict[str, Any]]) -> bool:
    return [message["type"] for message in sent] == ["reached"]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("host", ["127.0.0.1:8555", "localhost:8555", "[::1]:8555", "fila.localhost"])
def test_programs_and_own_pages_are_let_through(host: str, kind: str) -> None:
    assert is_let_through(ask({"host": host}, kind=kind))
    assert is_let_through(ask({"host": host, "origin": f"http://{host}"}, kind=kind, method="POST"))


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9000", "null", "http://["])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_others_are_refused_with_the_reason(method: str, origin: str) -> None:
    start, body = ask({"host": "127.0.0.1:8555", "origin": origin}, method=method)
    assert start["status"] == 403
    assert f"requests from {origin} are refused" in body["body"].decode()
    assert "http://127.0.0.1:8555/" in body["body"].decode()


def test_websockets_of_others_are_closed_before_they_are_open() -> None:
    [answer] = ask({"host": "127.0.0.1:8555", "origin": "https://evil.example"}, kind="websocket")
    assert answer["type"] == "websocket.close"
    assert "https://evil.example" in answer["reason"]


def test_a_foreign_name_for_a_loopback_address_is_refused() -> None:
    start, body = ask({"host": "rebound.example:8555"})
    assert start["status"] == 403
    assert "rebound.example:8555" in body["body"].decode()


def test_a_public_address_answers_to_the_names_that_it_was_given() -> None:
    own = {"host": "fila.example.com", "origin": "https://fila.example.com"}
    assert is_let_through(ask(own, listens_on="0.0.0.0"))
    assert not is_let_through(ask(own | {"origin": "https://evil.example"}, listens_on="0.0.0.0"))


@pytest.mark.parametrize(
    "host", ["10.0.0.7:8555", "[fd00::7]:8555", "127.0.0.1:8555", "localhost:8555", "broker.internal:8555"]
)
def test_a_public_address_answers_to_addresses_and_to_the_name_it_listens_on(host: str) -> None:
    assert is_let_through(ask({"host": host}, listens_on="broker.internal"))


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_foreign_name_for_a_public_address_is_refused(kind: str) -> None:
    rebound = {"host": "rebound.example:8555", "origin": "http://rebound.example:8555"}
    answer = ask(rebound, kind=kind, listens_on="0.0.0.0")[-1]
    assert b"allowed_hosts" in answer["body"] if kind == "http" else 0 < len(answer["reason"]) <= 123
    assert not is_let_through(ask({"host": "[nonsense"}, kind=kind, listens_on="0.0.0.0"))


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_collectors_may_use_any_name_of_a_public_address(path: str) -> None:
    assert is_let_through(ask({"host": "fila:8555"}, listens_on="0.0.0.0", path=path))
    assert not is_let_through(ask({"host": "fila:8555"}, path=path))


def test_the_start_and_the_end_are_no_requests() -> None:
    assert is_let_through(ask({}, kind="lifespan"))


@pytest.mark.parametrize(
    ("host", "expected"), [("127.8.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def answer_with(body: bytes, take: Any) -> None:
    """Answer a request of a client that takes each piece as it likes."""

    async def pages(scope: Any, _: Any, send: Any) -> None:
        await Response(body)(scope, None, send)  # type: ignore[arg-type]  # it receives nothing

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(Guard(pages, "127.0.0.1")(scope, None, take))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_a_long_body_is_sent_in_pieces(size: int) -> None:
    sent: list[dict[str, Any]] = []

    async def take(message: dict[str, Any]) -> None:
        sent.append(message)

    body = bytes(number % 251 for number in range(size))
    answer_with(body, take)
    pieces = [message["body"] for message in sent[1:]]
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert [message.get("more_body", False) for message in sent[1:]] == [True] * (len(pieces) - 1) + [False]


def test_a_client_that_does_not_read_its_answer_has_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_cluster.ops.observer.app.SEND_S_MAX", 0)

    async def never(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(ClientDisconnect):
        answer_with(b"hello", never)
