"""Who gets in with which key, and for how long."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fila_cluster.errors import FilaError, OverloadedError, RequestTimeoutError, UnauthenticatedError
from fila_cluster.ops.analysis.visitor import SCOPE_KEY
from fila_cluster.ops.observer.login import COOKIE, FAILURE_S, FAILURES_MAX, KEYS_MAX, SESSION_S, Keys, Login
from fila_proto_zmq.commands import KeyView, OwnKey
from tests.support.cluster.cluster import PATIENCE_S


class Router:
    """What the router knows, and the clients that ask it."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {"fila_shop": ["consume:orders*"], "fila_all": ["admin:*"]}
        self.is_away = False
        self.open: set[Any] = set()
        self.greetings = 0
        self.now = 1000.0

    def connect(self, secret: str) -> Any:
        self.greetings += 1
        return _Client(self, secret)

    def keys_in_use(self) -> Keys:
        return Keys(self.connect, lambda: self.now)


class _Client:
    def __init__(self, router: Router, secret: str) -> None:
        self.router, self.secret = router, secret

    async def __aenter__(self) -> "_Client":
        self.router.open.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        self.router.open.discard(self)

    async def request(self, _: object) -> OwnKey:
        await asyncio.sleep(0)
        if self.router.is_away:
            raise RequestTimeoutError("away")
        if self.secret not in self.router.keys:
            raise UnauthenticatedError("unknown")
        return OwnKey(KeyView(self.secret.removeprefix("fila_"), self.router.keys[self.secret], 1, 0, 0))


async def _page(scope: Any, _: Any, send: Any) -> None:
    """Answers with the name of the key."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-key", scope[SCOPE_KEY].key.name.encode())]})
    await send({"type": "http.response.body", "body": b""})


class Browser:
    """Asks a login, and keeps its cookie."""

    def __init__(self, login: Login, address: str = "10.0.0.1") -> None:
        self.login, self.address, self.cookie = login, address, ""

    async def ask(self, path: str, form: bytes | None = None, *, bearer: str = "") -> tuple[int, dict[str, str]]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": form or b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"x")] + [(b"cookie", f"{COOKIE}={self.cookie}".encode())] * bool(self.cookie)
        headers += [(b"authorization", f"Bearer {bearer}".encode())] * bool(bearer)
        scope = {
            "type": "http", "method": "GET" if form is None else "POST", "path": path.partition("?")[0], "headers": headers,
            "query_string": path.partition("?")[2].encode(), "client": (self.address, 1), "scheme": "https", "server": ("x", 443),
        }  # fmt: skip
        await self.login(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        if "set-cookie" in found:
            assert "Secure" in found["set-cookie"]
            self.cookie = found["set-cookie"].split(";")[0].partition("=")[2].strip('"')
        return sent[0]["status"], found


def run(test: Callable[[Router, Login], Awaitable[None]]) -> None:
    router = Router()
    asyncio.run(test(router, Login(_page, router.keys_in_use(), lambda: router.now)))  # type: ignore[arg-type]


def test_a_login_has_the_rights_of_its_key_until_it_ends() -> None:
    async def test(router: Router, login: Login) -> None:
        browser, other = Browser(login), Browser(login)
        assert (await browser.ask("/login", b"key=fila_shop"))[0] == 303
        assert (await browser.ask("/queues"))[1]["x-key"] == "shop"
        assert (await browser.ask("/metrics"))[0] == 403
        assert (await browser.ask("/history?queue=orders"))[0] == 200
        assert (await browser.ask("/history?queue=secret"))[0] == 403
        assert (await other.ask("/queues"))[0] == 401
        router.keys["fila_shop"] = ["consume:*"]
        router.now += 1
        assert (await browser.ask("/metrics"))[0] == 200
        router.now += SESSION_S - 2
        assert (await browser.ask("/queues"))[0] == 200
        router.now += 2
        assert (await browser.ask("/queues"))[0] == 401

    run(test)


def test_a_key_that_each_request_brings_has_no_end_but_its_own() -> None:
    async def test(router: Router, login: Login) -> None:
        visitors = []

        async def stream(scope: Any, receive: Any, send: Any) -> None:
            visitors.append(scope[SCOPE_KEY])
            await _page(scope, receive, send)

        login._app = stream
        await Browser(login).ask("/queues/orders/consume", bearer="fila_shop")
        router.now += 10 * SESSION_S
        await visitors[0].check()
        del router.keys["fila_shop"]
        router.now += 1
        with pytest.raises(UnauthenticatedError):
            await visitors[0].check()

    run(test)


def test_a_revoked_key_is_out_and_keeps_no_connection() -> None:
    async def test(router: Router, login: Login) -> None:
        browser = Browser(login)
        await browser.ask("/login", b"key=fila_shop")
        assert len(router.open) == 1
        del router.keys["fila_shop"]
        router.now += 1
        assert (await browser.ask("/queues"))[0] == 401
        assert not router.open

    run(test)


def test_a_router_that_is_away_lets_nobody_in_and_ends_no_session() -> None:
    async def test(router: Router, login: Login) -> None:
        browser = Browser(login)
        await browser.ask("/login", b"key=fila_shop")
        router.is_away = True
        router.now += 1
        assert [(await browser.ask("/queues"))[0] for _ in range(2)] == [503, 503]
        assert (await Browser(login).ask("/login", b"key=fila_all"))[0] == 503
        router.is_away = False
        router.now += 1
        assert (await browser.ask("/queues"))[0] == 200

    run(test)


def test_so_many_logins_of_an_address_may_fail_and_the_router_hears_of_no_more() -> None:
    async def test(router: Router, login: Login) -> None:
        browser = Browser(login)
        statuses = [(await browser.ask("/login", b"key=wrong"))[0] for _ in range(FAILURES_MAX + 5)]
        assert statuses == [401] * FAILURES_MAX + [429] * 5
        assert router.greetings == FAILURES_MAX
        assert (await browser.ask("/", bearer="fila_wrong"))[0] == 429
        assert (await Browser(login, "10.0.0.2").ask("/login", b"key=fila_all"))[0] == 303
        assert (await browser.ask("/login", b"key=fila_all"))[0] == 303  # a key that is known already is no guess
        router.now += FAILURE_S
        assert [(await browser.ask("/login", b"key=wrong"))[0] for _ in range(2)] == [401, 429]
        assert len(router.open) == 1

    run(test)


def test_right_keys_are_no_failures_and_the_key_that_was_idle_longest_goes() -> None:
    async def test(router: Router, login: Login) -> None:
        browsers = [Browser(login) for _ in range(KEYS_MAX + 1)]
        for number, browser in enumerate(browsers):
            router.keys[f"fila_{number}"] = ["consume:a"]
            assert (await browser.ask("/login", f"key=fila_{number}".encode()))[0] == 303
        assert len(router.open) == KEYS_MAX
        assert [(await browser.ask("/"))[0] for browser in browsers[:2]] == [401, 200]
        router.now += SESSION_S
        await browsers[0].ask("/login", b"key=fila_0")
        assert len(router.open) == 1

    run(test)


def test_a_key_that_holds_something_keeps_its_client() -> None:
    async def test(router: Router, login: Login) -> None:
        await Browser(login).ask("/", bearer="fila_shop")
        (held,) = login._keys._holders.values()
        held.holds = 1
        for number in range(KEYS_MAX + 1):
            router.keys[f"fila_{number}"] = ["consume:a"]
            assert (await Browser(login).ask("/", bearer=f"fila_{number}"))[0] == 200
        assert (len(router.open), held.ended) == (KEYS_MAX, False)
        held.holds = 0
        router.now += SESSION_S
        await Browser(login).ask("/", bearer="fila_all")
        assert (len(router.open), held.ended) == (1, True)

    run(test)


def test_the_door_takes_no_cookie_and_says_so_as_json() -> None:
    async def test(router: Router, login: Login) -> None:
        browser = Browser(login)
        await browser.ask("/login", b"key=fila_shop")
        status, headers = await browser.ask("/queues/orders/messages", b"{}")
        assert (status, headers["content-type"]) == (401, "application/json")
        assert (await browser.ask("/queues/orders/messages", b"{}", bearer="fila_shop"))[0] == 200

    run(test)


def test_a_login_that_does_not_come_is_not_awaited_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_cluster.ops.observer.login.FORM_S_MAX", 0.01)
    statuses = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    async def test(_: Router, login: Login) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/login",
            "headers": [],
            "query_string": b"",
            "client": ("10.0.0.1", 1),
        }
        await asyncio.wait_for(login(scope, receive, send), PATIENCE_S)

    run(test)
    assert statuses[0] == 408


def test_an_open_page_is_cut_off_when_its_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_cluster.ops.observer.login.CUT_S", 0.001)
    heard: list[dict[str, Any]] = []

    async def socket(scope: Any, receive: Any, _: Any) -> None:
        while not heard or heard[-1]["type"] != "websocket.disconnect":
            heard.append(await receive())

    async def test(router: Router, login: Login) -> None:
        browser = Browser(login)
        await browser.ask("/login", b"key=fila_shop")
        login._app = socket
        coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        coming.put_nowait({"type": "websocket.connect"})
        cookie = (b"cookie", f"{COOKIE}={browser.cookie}".encode())
        scope = {"type": "websocket", "path": "/ws", "query_string": b"", "headers": [cookie]}
        page = asyncio.ensure_future(login(scope, coming.get, coming.put))
        while not (heard or page.done()):
            await asyncio.sleep(0)
        del router.keys["fila_shop"]
        router.now += 1
        await page
        assert [message["type"] for message in heard] == ["websocket.connect", "websocket.disconnect"]

    run(test)


def test_many_unknown_keys_at_once_open_few_connections() -> None:
    async def test(router: Router, login: Login) -> None:
        most = 0

        async def count() -> None:
            nonlocal most
            while True:
                most = max(most, len(router.open))
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        answers = await asyncio.gather(*(Browser(login, f"10.0.0.{n}").ask("/", bearer=f"fila_{n}") for n in range(200)))
        counting.cancel()
        assert {status for status, _ in answers} == {401}
        assert 0 < most <= 16
        assert not router.open

    run(test)


def test_an_error_that_is_no_refusal_is_forgiven() -> None:
    async def test(router: Router, login: Login) -> None:
        router.is_away = True
        keys = router.keys_in_use()
        for _ in range(2 * FAILURES_MAX):
            with pytest.raises(FilaError) as raised:
                await keys.admit("fila_all", "here")
            assert not isinstance(raised.value, OverloadedError)

    run(test)
