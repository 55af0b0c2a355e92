"""A cluster with authentication: who may do what, through each door, and what a stranger sees."""

import json
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest
import zmq

from fila_cluster import AsyncClient, Client
from fila_cluster.client.calls import cluster as calls
from fila_cluster.client.io.reactor import run
from fila_cluster.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from tests.support.cluster.cluster import PATIENCE_S, SOON_S, command, environment, eventually, running
from tests.support.cluster.guarded import WITH_AUTH, Guarded, guarded_cluster, initialized, refusal


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded") / "data") as guarded:
        yield guarded


def test_dead_letters_go_only_where_their_sender_is_admin(guarded: Guarded) -> None:
    with guarded.client(guarded.key("of-shop", "admin:shop*")) as client:
        with pytest.raises(PermissionDeniedError, match="admin:secret"):
            client.create_queue("shop", dead_letter="secret")
        client.create_queue("shop-letters")
        client.create_queue("shop", dead_letter="shop-letters")
        with pytest.raises(PermissionDeniedError):
            client.update_queue("shop", dead_letter="secret")


def test_a_message_makes_its_whole_way(guarded: Guarded) -> None:
    with guarded.client() as admin:
        admin.create_queue("work")
    with guarded.client(guarded.key("maker", "produce:work")) as producer:
        sent = producer.enqueue("work", b"work")
    with guarded.client(guarded.key("taker", "consume:work")) as consumer:
        (delivery,) = consumer.receive("work", 1, wait=PATIENCE_S)
        assert (delivery.id, delivery.payload) == (sent, b"work")
        consumer.ack([delivery])


def test_a_waiting_consumer_ends_once_its_key_is_revoked(guarded: Guarded) -> None:
    with guarded.client() as admin, guarded.client(guarded.key("waiting", "consume:waited")) as consumer:
        admin.create_queue("waited")
        with consumer.consume("waited", prefetch=10) as deliveries:
            first = admin.enqueue("waited", b"1")
            delivery = next(iter(deliveries))
            assert delivery.id == first
            delivery.ack()
            guarded.revoke("waiting")
            admin.enqueue("waited", b"2")
            with pytest.raises(UnauthenticatedError):
                deque((delivery.nack() for delivery in deliveries), 0)  # a revocation reaches the worker within a second
        assert admin.queue_stats("waited").pending + admin.queue_stats("waited").in_flight == 1


@pytest.mark.parametrize("direct", [True, False])
def test_a_key_that_is_revoked_keeps_no_message_from_others(guarded: Guarded, direct: bool) -> None:
    """Neither what its client holds, nor what comes while its client still waits."""
    queue = f"kept-{direct}"
    with guarded.client() as admin, guarded.client(guarded.key(queue, f"consume:{queue}"), direct=direct) as consumer:
        admin.create_queue(queue)
        admin.enqueue(queue, b"held")
        (held,) = consumer.receive(queue, wait=PATIENCE_S)
        errors: list[Exception] = []

        def waiting(receive: Callable[[], object]) -> None:
            try:
                receive()
            except UnauthenticatedError as error:
                errors.append(error)

        consuming = consumer.consume(queue)
        calls = (lambda: consumer.receive(queue, wait=PATIENCE_S), lambda: next(iter(consuming)))
        threads = [threading.Thread(target=waiting, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        eventually(lambda: admin.queue_stats(queue).consumers == 1, "the consumer")
        guarded.revoke(queue)
        (again,) = admin.receive(queue, wait=SOON_S)
        assert (again.id, again.attempts) == (held.id, 0)
        admin.enqueue(queue, b"new")
        (new,) = admin.receive(queue, wait=SOON_S)
        assert new.payload == b"new"
        admin.ack([again, new])
        with pytest.raises(UnauthenticatedError):
            held.ack()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert len(errors) == len(threads)


def test_asyncio_clients_too(guarded: Guarded) -> None:
    async def ask(api_key: str) -> list[str]:
        async with AsyncClient(guarded.cluster.endpoint, api_key=api_key, server_key=guarded.server_key) as client:
            return [queue.name for queue in await client.list_queues("sec")]

    assert run(ask(guarded.api_key)) == ["secret", "secret.dlq"]
    with pytest.raises(UnauthenticatedError):
        run(ask("fila_wrong"))


# --- keys -------------------------------------------------------------------------------------------------------------


def test_an_admin_of_some_queues_makes_keys_within_them(guarded: Guarded) -> None:
    with guarded.client(guarded.key("eu", "admin:eu*")) as part:
        made = part.request(calls.create_key("eu-shop", ["produce:eu.shop*", "admin:eu.shop"], None))
        for allow in ("produce:e*", "consume:us", "admin:*"):
            with pytest.raises(PermissionDeniedError, match="wants to give away"):
                part.request(calls.create_key("more", [allow], None))
            with pytest.raises(PermissionDeniedError, match="wants to give away"):
                part.request(calls.grant_key("eu-shop", [allow]))
        part.request(calls.grant_key("eu-shop", ["consume:eu.shop"]))
        assert [key.name for key in part.request(calls.list_keys()).keys] == ["eu", "eu-shop"]
        with pytest.raises(InvalidArgumentError, match="among those"):
            part.request(calls.revoke_key("admin"))
        with guarded.client(made.secret) as shop:
            shop.create_queue("eu.shop")
            shop.enqueue("eu.shop", b"")
            shop.ack(shop.receive("eu.shop", 1, wait=PATIENCE_S))  # as it was granted meanwhile
        part.request(calls.revoke_key("eu-shop"))


@pytest.mark.parametrize(
    "allow", ["", "produce", "send:orders", "produce:", "produce:a*b", "produce:a b", "produce:" + "x" * 300]
)
def test_what_is_no_permission_is_refused(guarded: Guarded, allow: str) -> None:
    with guarded.client() as admin, pytest.raises(InvalidArgumentError, match="bad p"):
        admin.request(calls.create_key("bad", [allow], None))


def test_a_key_ends_in_time(guarded: Guarded) -> None:
    with guarded.client(guarded.key("short", "consume:orders", expires=3.0)) as client:
        client.queue_stats("orders")
        eventually(lambda: refusal(lambda: client.queue_stats("orders")) is UnauthenticatedError, "its end")


def test_the_command_line_manages_keys(guarded: Guarded) -> None:
    made = guarded.run("--json", "auth", "key", "create", "--name", "cli", "--allow", "produce:orders", "--expires", "12h")
    shown = json.loads(made.stdout)
    assert shown["allow"] == ["produce:orders"]
    assert datetime.fromisoformat(shown["expires_at"]) > datetime.now(UTC)
    assert guarded.run("enqueue", "orders", "hello", api_key=shown["api_key"]).returncode == 0
    denied = guarded.run("queue", "inspect", "secret", api_key=shown["api_key"])
    assert (denied.returncode, denied.stdout) == (1, "")
    assert "does not have any permission on 'secret'" in denied.stderr
    assert "produce:orders" in guarded.run("auth", "show", "cli").stdout
    assert guarded.run("auth", "grant", "cli", "consume:orders").returncode == 0
    assert guarded.run("consume", "orders", "--count", "1", api_key=shown["api_key"]).returncode == 0
    names = [key["name"] for key in json.loads(guarded.run("--json", "auth", "key", "list").stdout)]
    assert {"admin", "cli"} <= set(names)
    assert "internal" not in names
    assert guarded.run("auth", "key", "revoke", "cli").returncode == 0
    again = guarded.run("enqueue", "orders", "hello", api_key=shown["api_key"])
    assert again.returncode == 1
    assert "mistyped, or was revoked" in again.stderr


def test_keys_outlive_a_restart_and_the_files_are_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    first = initialized(data_dir)
    refused = subprocess.run(
        command("auth", "init", "--data-dir", data_dir), capture_output=True, text=True, env=environment(), check=False
    )
    assert refused.returncode == 1
    assert "has keys already" in refused.stderr
    with running(data_dir, env=WITH_AUTH) as cluster:
        guarded = Guarded(cluster, first["api_key"], first["server_key"])
        shop, gone = guarded.key("shop", "consume:*"), guarded.key("gone", "consume:*")
        guarded.revoke("gone")
        cluster.kill_all()
    assert {file.name for file in (data_dir / "auth").iterdir()} == {"keys.json", "server.json"}
    assert all(file.stat().st_mode & 0o77 == 0 for file in [data_dir / "auth", *(data_dir / "auth").iterdir()])
    text = (data_dir / "auth" / "keys.json").read_text()
    assert all(secret not in text for secret in (shop, gone, first["api_key"]))
    with running(data_dir, env=WITH_AUTH) as cluster:
        guarded = Guarded(cluster, first["api_key"], first["server_key"])
        with guarded.client(shop) as client:
            assert client.list_queues() == []
        with guarded.client(gone) as client, pytest.raises(UnauthenticatedError):
            client.list_queues()


def test_a_cluster_does_not_start_without_its_keys_or_with_half_a_certificate(tmp_path: Path) -> None:
    def refused(*flags: object, **env: str) -> str:
        started = subprocess.run(
            command("up", "--data-dir", tmp_path / "data", *flags),
            capture_output=True,
            text=True,
            env=environment(**WITH_AUTH, **env),
            timeout=PATIENCE_S,
            check=False,
        )
        assert started.returncode == 1
        (line,) = started.stderr.splitlines()
        return line

    assert "fila-cluster auth init --data-dir" in refused()
    assert not (tmp_path / "data").exists()
    assert "belong together" in refused(FILA_HTTP__KEY="key.pem")
    assert "in the clear" in refused("--dashboard", "0.0.0.0:0")


# --- strangers at the ports -------------------------------------------------------------------------------------------


NOT_ENCRYPTED = (None, "refuses connections without encryption")
ANOTHER_KEY = (zmq.curve_keypair()[0].decode(), "is not this server's public key")


@pytest.mark.parametrize(("server_key", "cause"), [NOT_ENCRYPTED, ANOTHER_KEY], ids=["no key", "another key"])
def test_who_does_not_encrypt_or_pins_another_key_is_told_so(guarded: Guarded, server_key: str | None, cause: str) -> None:
    endpoint, api_key = guarded.cluster.endpoint, guarded.api_key

    async def ask() -> None:
        async with AsyncClient(endpoint, api_key=api_key, server_key=server_key, timeout=PATIENCE_S) as client:
            await client.list_queues()

    with pytest.raises(UnauthenticatedError, match=cause):
        run(ask())
    with Client(endpoint, api_key=api_key, server_key=server_key, timeout=PATIENCE_S) as client:
        for _ in range(2):
            with pytest.raises(UnauthenticatedError, match=cause):
                client.list_queues()
    env = environment(FILA_ENDPOINT=endpoint, FILA_API_KEY=api_key, **({"FILA_SERVER_KEY": server_key} if server_key else {}))
    shown = subprocess.run(command("queue", "list"), env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (shown.returncode, shown.stdout) == (1, "")
    assert cause in shown.stderr


def test_who_encrypts_for_a_server_that_does_not_is_told_so(tmp_path: Path) -> None:
    with running(tmp_path / "data") as cluster:
        server_key = zmq.curve_keypair()[0].decode()
        with Client(cluster.endpoint, server_key=server_key, timeout=5.0) as client:
            with pytest.raises(UnauthenticatedError, match="does not encrypt"):
                client.list_queues()
        with Client(cluster.endpoint, api_key="fila_unneeded") as client:
            assert client.list_queues() == []
            with pytest.raises(InvalidArgumentError, match="has no authentication"):
                client.request(calls.list_keys())


GREETING_BYTES = 64
"""What libzmq says by itself: version and mechanism."""


def everything_from(stranger: socket.socket) -> bytes:
    """What comes until the other side closes the connection."""
    heard = b""
    with suppress(ConnectionResetError):
        while piece := stranger.recv(4096):
            heard += piece
    return heard


@pytest.mark.parametrize(
    "noise",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x01\x00" * 50,
        b"\xff" + b"\x00" * 63,
        b"\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL" + b"\0" * 48,
    ],
)
def test_noise_at_the_port_disturbs_nobody(guarded: Guarded, noise: bytes) -> None:
    host, port = guarded.cluster.endpoint.removeprefix("tcp://").split(":")
    before = guarded.cluster.router_pid()
    for _ in range(3):
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as stranger:
            stranger.sendall(noise)
            assert len(everything_from(stranger)) <= GREETING_BYTES
    with guarded.client() as client:
        client.list_queues()
    assert guarded.cluster.router_pid() == before


# --- HTTP -------------------------------------------------------------------------------------------------------------


class _Stay(HTTPRedirectHandler):
    """Follows no redirect."""

    def redirect_request(self, *_: Any) -> None:
        return None


def fetch(guarded: Guarded, path: str, data: bytes | None = None, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of a page."""
    url = guarded.cluster.ready_line.split("dashboard ")[1].split(" ")[0] + path
    try:
        with build_opener(_Stay).open(Request(url, data, headers), timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except HTTPError as error:
        with error:
            return error.code, error.read().decode(), dict(error.headers)


def test_pages_need_a_login_that_ends_with_its_key(guarded: Guarded) -> None:
    assert fetch(guarded, "/healthz")[0] == 200
    assert fetch(guarded, "/readyz")[0] == 200
    for path in ("/", "/metrics", "/history", "/queues", "/_nicegui/anything"):
        assert fetch(guarded, path)[0] == 401, path
    status, _, headers = fetch(guarded, "/", Accept="text/html")
    assert (status, headers["location"]) == (303, "/login")
    assert "API key" in fetch(guarded, "/login")[1]
    status, text, _ = fetch(guarded, "/login", b"key=fila_%3Cwrong%3E")
    assert status == 401
    assert "mistyped" in text
    page = guarded.key("page", "admin:*")
    status, _, headers = fetch(guarded, "/login", f"key={page}".encode())
    assert (status, headers["location"]) == (303, "/")
    assert headers["x-frame-options"] == "DENY"
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    session = cookie.split(";")[0]
    assert fetch(guarded, "/metrics", Cookie=session)[0] == 200
    assert page not in cookie
    for path, form in (("/metrics", None), ("/login", f"key={page}".encode()), ("/logout", b"")):
        assert fetch(guarded, path, form, Cookie=session, Origin="http://evil.example")[0] == 403, path
        assert fetch(guarded, path, form, Cookie=session, Host="evil.example")[0] == 403, path
    guarded.revoke("page")
    eventually(lambda: fetch(guarded, "/metrics", Cookie=session)[0] == 401, "the end of the session", PATIENCE_S)


def test_a_login_ends_where_it_was_made(guarded: Guarded) -> None:
    shop = guarded.key("visitor", "consume:orders*")
    sessions = [fetch(guarded, "/login", f"key={shop}".encode())[2]["set-cookie"].split(";")[0] for _ in range(2)]
    assert [fetch(guarded, "/queues", Cookie=session)[0] for session in sessions] == [200, 200]
    assert fetch(guarded, "/logout", Cookie=sessions[0])[0] == 405
    assert fetch(guarded, "/logout", b"", Cookie=sessions[0])[2]["location"] == "/login"
    assert [fetch(guarded, "/queues", Cookie=session)[0] for session in sessions] == [401, 200]


def test_programs_send_their_key(guarded: Guarded) -> None:
    reader, shop = guarded.key("prometheus", "consume:*"), guarded.key("narrow", "consume:orders*")
    assert "fila_queue" in fetch(guarded, "/metrics", Authorization=f"Bearer {reader}")[1]
    assert fetch(guarded, "/", Authorization=f"Bearer {reader}")[0] == 200
    for path in ("/metrics", "/history", "/history?queue=secret", "/history?queue=missing"):
        assert fetch(guarded, path, Authorization=f"Bearer {shop}")[0] == 403, path
    eventually(lambda: fetch(guarded, "/history?queue=orders", Authorization=f"Bearer {shop}")[0] == 200, "a first look")
    assert fetch(guarded, "/metrics", Authorization="Bearer fila_wrong")[0] == 401
    assert fetch(guarded, "/history", Authorization=f"Bearer {guarded.api_key}")[0] == 200
