"""Who may talk to the dashboard: its own pages, and programs."""

import asyncio
from typing import Any

import pytest

from fila_cluster.observer.guard import Guard, is_loopback


async def _pages(scope: Any, _: Any, send: Any) -> None:
    """What is guarded: says that it was reached."""
    await send({"type": "reached", "method": scope.get("method")})


def ask(
    headers: dict[str, str], *, kind: str = "http", method: str = "GET", loopback_only: bool = True
) -> list[dict[str, Any]]:
    """What a request with these headers is answered."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": f"{kind}.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": kind, "method": method, "headers": [(name.encode(), text.encode()) for name, text in headers.items()]}
    asyncio.run(Guard(_pages, loopback_only=loopback_only)(scope, receive, send))
    return sent


def is_let_through(sent: list[dict[str, Any]]) -> bool:
    return [message["type"] for message in sent] == ["reached"]


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("host", ["127.0.0.1:8555", "localhost:8555", "[::1]:8555", "fila.localhost"])
def test_programs_and_own_pages_are_let_through(host: str, kind: str) -> None:
    assert is_let_through(ask({"host": host}, kind=kind))
    assert is_let_through(ask({"host": host, "origin": f"http://{host}"}, kind=kind, method="POST"))


@pytest.mark.parametrize("origin", ["https://evil.example", "http://127.0.0.1:9000", "null"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_others_are_refused_and_told_why(method: str, origin: str) -> None:
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


def test_a_public_address_has_names_that_nobody_knows_here() -> None:
    own = {"host": "fila.example.com", "origin": "https://fila.example.com"}
    assert is_let_through(ask(own, loopback_only=False))
    assert not is_let_through(ask(own | {"origin": "https://evil.example"}, loopback_only=False))


def test_the_start_and_the_end_are_no_requests() -> None:
    assert is_let_through(ask({}, kind="lifespan"))


@pytest.mark.parametrize(
    ("host", "expected"), [("127.8.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("x", False)]
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
