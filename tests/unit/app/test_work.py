"""Handlers on deliveries of both kinds of client: what they get, what becomes of the message, and what middleware sees."""

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import pytest
import structlog

from fila_cluster import AsyncDelivery, Delivery
from fila_cluster.app import App, Call, CallNext, Defer, Depends, Fail, RetryAfter, backoff
from fila_cluster.errors import LeaseExpiredError, PermissionDeniedError, ShardUnavailableError
from fila_proto_zmq.commands import Verb
from tests.support.cluster.handled import Desk, FakeAsyncClient, FakeClient

CLIENTS = [FakeClient, FakeAsyncClient]


@pytest.fixture
def app() -> App:
    return App("tcp://nowhere:1")


@pytest.fixture
def desk() -> Desk:
    return Desk()


def work_off(app: App, client: FakeClient) -> int:
    """Handle everything, the way that suits the client."""
    if isinstance(client, FakeAsyncClient):
        return asyncio.run(app.work_until_idle(client))  # type: ignore[arg-type]
    return app.run_until_idle(client)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLIENTS)
def test_functions_and_coroutines_get_what_they_ask_for(app: App, desk: Desk, kind: type[FakeClient]) -> None:
    got: list[Any] = []

    @app.handler("orders")
    async def order(body: dict[str, int], delivery: AsyncDelivery) -> None:
        got.append((body, delivery.headers, threading.current_thread() is threading.main_thread()))

    @app.handler("mail")
    def mail(text: str, delivery: Delivery, copies: int = 1) -> None:
        got.append((text, delivery.attempts, copies))

    @app.handler("ticks")
    def tick() -> None:
        got.append("tick")

    desk.put("orders", b'{"n": 1}', headers={"from": "shop"})
    desk.put("mail", b"hello")
    desk.put("ticks", b"\xff")
    assert work_off(app, kind(desk)) == 3
    assert got == [({"n": 1}, {"from": "shop"}, True), ("hello", 0, 1), "tick"]
    assert [verb for _, verb in desk.verbs()] == [Verb.ACK] * 3
    assert order is not None
    assert app.queues == ("orders", "mail", "ticks")


def test_functions_run_in_the_callers_thread_with_a_blocking_client_and_else_in_their_own(app: App, desk: Desk) -> None:
    threads = []

    @app.handler("mail")
    def mail(text: bytes) -> None:
        threads.append(threading.current_thread())

    for kind in CLIENTS:
        desk.put("mail", b"hello")
        work_off(app, kind(desk))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
    assert threads[1].daemon


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("is_coroutine", [True, False])
def test_what_a_handler_raises_decides(app: App, desk: Desk, kind: type[FakeClient], is_coroutine: bool) -> None:
    raised = {
        b"retry": RetryAfter(60, "busy"),
        b"fail": Fail("unknown customer"),
        b"defer": Defer(30),
        b"error": KeyError("total"),
        b"exit": SystemExit(3),
    }

    def body_of(payload: bytes) -> None:
        if payload in raised:
            raise raised[payload]

    if is_coroutine:

        @app.handler("orders", retry=backoff(first=5, attempts=2))
        async def awaited(payload: bytes) -> None:
            body_of(payload)
    else:
        app.handler("orders", retry=backoff(first=5, attempts=2))(body_of)

    desk.put("orders", b"good", *raised)
    work_off(app, kind(desk))
    assert [(payload, how.verb, how.error, how.after_ms) for payload, how in desk.settled] == [
        (b"good", Verb.ACK, "", 0),
        (b"retry", Verb.RETRY, "busy", 60_000),
        (b"fail", Verb.FAIL, "unknown customer", 0),
        (b"defer", Verb.DEFER, "", 30_000),
        (b"error", Verb.RETRY, "KeyError: 'total'", 5_000),
        (b"exit", Verb.RETRY, "HandlerExitError: the handler called sys.exit(3)", 5_000),
    ]


@pytest.mark.parametrize("timeout", [None, 30])
def test_an_exit_or_a_cancelled_task_within_a_handler_ends_its_message_alone(
    app: App, desk: Desk, timeout: float | None
) -> None:
    def exits() -> None:
        raise SystemExit(3)

    @app.handler("orders", retry=backoff(first=5), timeout=timeout)
    async def order(payload: bytes) -> None:
        waiting = asyncio.ensure_future(asyncio.sleep(60))
        waiting.cancel()
        await waiting

    @app.handler("mail", retry=backoff(first=5), timeout=timeout)
    async def mail(payload: bytes, never: Annotated[None, Depends(exits)]) -> None: ...

    desk.put("orders", b"cancelled")
    desk.put("mail", b"exit")
    assert work_off(app, FakeAsyncClient(desk)) == 2
    assert [(payload, how.verb, how.error) for payload, how in desk.settled] == [
        (b"cancelled", Verb.RETRY, "CancelledError"),
        (b"exit", Verb.RETRY, "HandlerExitError: the handler called sys.exit(3)"),
    ]


@pytest.mark.parametrize("is_coroutine", [True, False])
@pytest.mark.parametrize("timeout", [None, 30])
def test_an_error_that_is_no_exception_ends_its_message_alone(
    app: App, desk: Desk, timeout: float | None, is_coroutine: bool
) -> None:
    def order(payload: bytes) -> None:
        raise PanicError("called `Option::unwrap()` on a `None` value")

    async def awaited(payload: bytes) -> None:
        order(payload)

    app.handler("orders", retry=backoff(first=5), timeout=timeout)(awaited if is_coroutine else order)
    desk.put("orders", b"a")
    assert work_off(app, FakeAsyncClient(desk)) == 1
    [(_, how)] = desk.settled
    assert (how.verb, how.error) == (Verb.RETRY, "PanicError: called `Option::unwrap()` on a `None` value")


def test_an_error_that_is_no_exception_ends_a_test(app: App, desk: Desk) -> None:
    @app.handler("orders")
    def order(payload: bytes) -> None:
        pytest.fail("not this one")

    desk.put("orders", b"a")
    client = FakeClient(desk)
    with pytest.raises(pytest.fail.Exception, match="not this one"):
        work_off(app, client)
    assert desk.settled == []
    client.closed = True  # it gives back what is in hand


class PanicError(BaseException):
    """Stands for what pyo3 raises."""


def test_a_dead_letter_that_fails_does_not_come_again_at_once(app: App, desk: Desk) -> None:
    """A .dlq has no dead letter queue of its own: what is nacked or failed there is pending again."""

    def fail(payload: bytes) -> None:
        raise {b"fail": Fail("no"), b"retry": RetryAfter(7)}.get(payload, OSError("x"))

    app.handler("orders.dlq")(fail)
    desk.put("orders.dlq", b"fail", b"retry", b"error")
    assert work_off(app, FakeClient(desk)) == 3
    assert [(how.verb, how.error, how.after_ms) for _, how in desk.settled] == [
        (Verb.RETRY, "no", 300_000),
        (Verb.RETRY, "", 7_000),
        (Verb.RETRY, "OSError: x", 300_000),
    ]


def test_an_error_without_a_policy_is_a_nack_and_comes_again(app: App, desk: Desk) -> None:
    seen = []

    @app.handler("orders")
    def order(payload: bytes, delivery: Delivery) -> None:
        seen.append((delivery.attempts, delivery.error))
        if delivery.attempts < 2:
            raise ConnectionError("no route")

    desk.put("orders", b"x")
    assert work_off(app, FakeClient(desk)) == 3
    assert seen == [(0, ""), (1, "ConnectionError: no route"), (2, "ConnectionError: no route")]


def test_a_payload_that_does_not_fit_is_dead_lettered_and_the_handler_not_called(
    app: App, desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("orders", retry=backoff())
    def order(body: dict[str, int]) -> None:
        raise AssertionError

    desk.put("orders", b'{"n": "secret"}')
    work_off(app, FakeClient(desk))
    [(_, how)] = desk.settled
    assert how.verb is Verb.FAIL
    assert how.error == "the payload is no dict[str, int]: Expected `int`, got `str` - at `$[...]`"
    assert "its payload is not what" in caplog.text
    assert "secret" not in caplog.text


def test_an_endless_loop_of_handlers_is_told(app: App, desk: Desk) -> None:
    @app.handler("orders")
    def order(payload: bytes) -> None:
        desk.put("orders", b"another")

    desk.put("orders", b"x")
    with pytest.raises(RuntimeError, match="50 deliveries, and there are more"):
        app.run_until_idle(FakeClient(desk), most=50)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_handler_may_settle_by_itself(app: App, desk: Desk, kind: type[FakeClient]) -> None:
    @app.handler("orders")
    async def order(payload: bytes, delivery: AsyncDelivery) -> None:
        await delivery.extend(60)
        await delivery.fail("by hand")

    @app.handler("mail")
    def mail(payload: bytes, delivery: Delivery) -> None:
        delivery.extend(60)
        delivery.ack()

    desk.put("orders", b"a")
    desk.put("mail", b"b")
    work_off(app, kind(desk))
    assert [(payload, how.verb, how.error) for payload, how in desk.settled] == [
        (b"a", Verb.FAIL, "by hand"),
        (b"b", Verb.ACK, ""),
    ]
    assert [handler.tally.own for handler in app.handlers] == [1, 1]


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_handler_may_say_what_its_work_cost(app: App, desk: Desk, kind: type[FakeClient]) -> None:
    told: list[float | None] = []

    @app.handler("orders")
    async def order(delivery: AsyncDelivery) -> None:
        delivery.actual_cost = 2.5

    @app.handler("mail")
    def mail(delivery: Delivery) -> None:
        delivery.actual_cost = 7
        told.append(delivery.actual_cost)

    desk.put("orders", b"x")
    desk.put("mail", b"x")
    assert work_off(app, kind(desk)) == 2
    assert told == [7]
    assert set(desk.costs) == {2.5, 7}


def test_a_lost_lease_is_logged_and_not_raised(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app.handler("orders")(lambda payload: None)
    desk.refusals.append(LeaseExpiredError("the lease of message 7 has ended"))
    desk.put("orders", b"a", b"b")
    assert work_off(app, FakeAsyncClient(desk)) == 2
    assert "its lease had ended before the ack" in caplog.text
    assert desk.verbs() == [(b"b", Verb.ACK)]
    assert (app.handlers[0].tally.lost, app.handlers[0].tally.ack) == (1, 1)


def test_a_settlement_is_tried_again_while_the_broker_is_away(
    app: App, desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fila_cluster.app.work.PAUSES_S", (0.0,))
    app.handler("orders")(lambda payload: None)
    desk.refusals.extend([ShardUnavailableError("shard 3 is away")] * 5)
    desk.put("orders", b"a")
    work_off(app, FakeAsyncClient(desk))
    assert desk.verbs() == [(b"a", Verb.ACK)]
    assert caplog.text.count("is not confirmed yet") == 1


def test_a_settlement_that_is_refused_for_good_is_logged(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app.handler("orders")(lambda payload: None)
    desk.refusals.append(PermissionDeniedError("this key was revoked"))
    desk.put("orders", b"a")
    work_off(app, FakeAsyncClient(desk))
    assert "the broker refused the ack: this key was revoked" in caplog.text


def test_at_most_once_messages_have_nothing_to_settle(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    @app.handler("orders")
    def order(payload: bytes) -> None:
        raise ValueError("too late")

    desk.at_most_once = True
    desk.put("orders", b"a")
    assert work_off(app, FakeClient(desk)) == 1
    assert desk.settled == []
    assert "raised after the message was settled" in caplog.text


def test_middleware_goes_around_each_call_the_first_one_outermost(app: App, desk: Desk) -> None:
    steps: list[Any] = []

    @app.middleware
    async def outer(call: Call, call_next: CallNext) -> Any:
        steps.append(("outer", call.queue, call.delivery.payload))
        try:
            return await call_next(call)
        except KeyError as error:
            raise Fail(f"translated {error}") from error

    @app.middleware
    async def inner(call: Call, call_next: CallNext) -> Any:
        steps.append("inner")
        return await call_next(call)

    @app.handler("orders")
    def order(payload: bytes) -> None:
        steps.append("handler")
        raise KeyError("x")

    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert steps == [("outer", "orders", b"a"), "inner", "handler"]
    assert desk.settled[0][1].error == "translated 'x'"


def test_logs_of_a_handler_have_the_messages_id(app: App, desk: Desk) -> None:
    found = []

    @app.handler("orders")
    async def order(payload: bytes, delivery: AsyncDelivery) -> None:
        found.append((structlog.contextvars.get_contextvars(), delivery.id))

    @app.handler("mail")
    def mail(payload: bytes, delivery: Delivery) -> None:
        found.append((structlog.contextvars.get_contextvars(), delivery.id))

    desk.put("orders", b"a")
    desk.put("mail", b"a")
    work_off(app, FakeAsyncClient(desk))
    for (context, message_id), handler in zip(found, app.handlers, strict=True):
        assert context == {"message_id": message_id, "queue": handler.queue, "handler": handler.name}
    assert structlog.contextvars.get_contextvars() == {}


# --- time limits ----------------------------------------------------------------------------------------------------------


def test_a_coroutine_out_of_time_is_cancelled(app: App, desk: Desk) -> None:
    ends = []

    @app.handler("orders", timeout=0.01)
    async def order(payload: bytes) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    desk.put("orders", b"a")
    desk.queues["orders"][0].attempts = 1

    async def once() -> None:
        client = FakeAsyncClient(desk)
        [delivery] = await client.receive_any({"orders": 1})
        async with app.opened(threads=True) as work:
            verdict = await work.handle(delivery)
        assert verdict is not None
        assert verdict.error == "HandlerTimeoutError: did not end within 0.01 s"

    asyncio.run(once())
    assert ends == ["cancelled"]
    assert desk.verbs() == [(b"a", Verb.NACK)]


def test_a_function_out_of_time_goes_on_and_its_message_is_nacked(app: App, desk: Desk) -> None:
    may_end = threading.Event()

    @app.handler("orders", timeout=0.01)
    def order(payload: bytes) -> None:
        may_end.wait(60)

    desk.put("orders", b"a")

    async def once() -> None:
        client = FakeAsyncClient(desk)
        [delivery] = await client.receive_any({"orders": 1})
        async with app.opened(threads=True) as work:
            _, (running,) = await work.serve(delivery)
            assert desk.verbs() == [(b"a", Verb.NACK)]
            assert "it goes on" in desk.settled[0][1].error
            assert not running.done()
            may_end.set()
            await running

    asyncio.run(once())


# --- dependencies ---------------------------------------------------------------------------------------------------------


def test_dependencies_live_around_their_message_or_around_the_app(app: App, desk: Desk) -> None:
    events: list[Any] = []

    @asynccontextmanager
    async def pool() -> AsyncIterator[str]:
        events.append("pool opens")
        yield "pool"
        events.append("pool closes")

    def session(pool: Annotated[str, Depends(pool, scope="app")], delivery: Delivery) -> Iterator[str]:
        events.append(("session opens", delivery.payload))
        yield f"session of {pool}"
        events.append("session closes")

    def user(session: Annotated[str, Depends(session)]) -> str:
        return f"user in {session}"

    @app.handler("orders")
    def order(payload: bytes, who: Annotated[str, Depends(user)], session: Annotated[str, Depends(session)]) -> None:
        events.append((who, session))

    desk.put("orders", b"a", b"b")
    work_off(app, FakeAsyncClient(desk))
    once = [
        "session closes",
        ("user in session of pool", "session of pool"),
    ]
    assert events == [
        "pool opens",
        ("session opens", b"a"), once[1], once[0],
        ("session opens", b"b"), once[1], once[0],
        "pool closes",
    ]  # fmt: skip


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_dependency_that_fails_while_it_closes_fails_the_message(app: App, desk: Desk, is_coroutine: bool) -> None:
    @contextmanager
    def transaction() -> Iterator[None]:
        yield
        raise ConnectionError("commit failed")

    def order(payload: bytes, of: Annotated[None, Depends(transaction)]) -> None: ...

    async def order_async(payload: bytes, of: Annotated[None, Depends(transaction)]) -> None: ...

    app.handler("orders", retry=backoff(first=7))(order_async if is_coroutine else order)
    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert [(how.verb, how.error) for _, how in desk.settled] == [(Verb.RETRY, "ConnectionError: commit failed")]


def test_a_dependency_sees_the_handlers_error(app: App, desk: Desk) -> None:
    seen = []

    async def transaction() -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(str(error))
            raise

    @app.handler("orders", retry=backoff())
    async def order(payload: bytes, of: Annotated[None, Depends(transaction)]) -> None:
        raise ValueError("no stock")

    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert seen == ["no stock"]


def test_classes_that_are_contexts_are_entered_and_what_functions_return_is_not(app: App, desk: Desk) -> None:
    class Connection:
        opened = 0

        def __enter__(self) -> "Connection":
            self.opened += 1
            return self

        def __exit__(self, *_: object) -> None:
            self.opened -= 10

    shared = Connection()

    def the_shared_one() -> Connection:
        return shared

    got = []

    @app.handler("orders")
    def order(
        payload: bytes,
        own: Annotated[Connection, Depends(Connection)],
        of_all: Annotated[Connection, Depends(the_shared_one)],
    ) -> None:
        got.append((own, own.opened, of_all.opened))

    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert [(opened, of_all) for _, opened, of_all in got] == [(1, 0)]
    assert got[0][0].opened == -9


def test_tests_may_replace_a_dependency(app: App, desk: Desk) -> None:
    def session() -> str:
        raise AssertionError

    got = []

    @app.handler("orders")
    async def order(payload: bytes, session: Annotated[str, Depends(session)]) -> None:
        got.append(session)

    desk.put("orders", b"a")
    with app.override(session, lambda: "a fake"):
        work_off(app, FakeClient(desk))
    assert got == ["a fake"]


# --- what is wrong at registration ----------------------------------------------------------------------------------------


async def async_dependency() -> str:
    return "x"


def wants_the_message(delivery: Delivery) -> str:
    return delivery.id


class Odd: ...


def needs_app_wide(payload: bytes, x: Annotated[str, Depends(wants_the_message, scope="app")]) -> None: ...
def needs_async(payload: bytes, x: Annotated[str, Depends(async_dependency)]) -> None: ...
def two_payloads(payload: bytes, other: dict[str, int]) -> None: ...
def positional(payload: bytes, /) -> None: ...
def odd(payload: Odd) -> None: ...
def quoted(payload: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def generator(payload: bytes) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (needs_app_wide, "wants_the_message has scope=\"app\", but its parameter 'delivery' lives for one message only"),
        (needs_async, "handler needs_async is a plain function, but its dependency async_dependency is async"),
        (two_payloads, "nothing fits its parameter 'other'"),
        (positional, "parameter 'payload' is positional-only"),
        (odd, "handler odd, parameter 'payload': Odd cannot be read from JSON"),
        (quoted, "handler quoted: its annotations cannot be read: name 'NoSuchType' is not defined"),
        (generator, "handler generator is a generator"),
    ],
)
def test_a_handler_that_could_never_be_called_is_refused(app: App, function: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        app.handler("orders")(function)
    assert said in str(caught.value)
    assert app.queues == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": True}, "concurrency=True"),
        ({"concurrency": 10**6}, "concurrency=1000000"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": float("nan")}, "timeout=nan"),
        ({"retry": 3}, "retry=3 .* backoff"),
        ({"concurrency": 8, "prefetch": 4}, "prefetch=4 .* at least 8"),
        ({"queue": "no good"}, "no good"),
    ],
)
def test_options_are_checked_when_a_handler_is_made(app: App, options: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        app.handler(**{"queue": "orders"} | options)(lambda payload: None)


def test_a_function_that_returns_a_coroutine_is_told_and_its_message_not_acked(app: App, desk: Desk) -> None:
    async def order(payload: bytes) -> None: ...

    def wrapped(payload: bytes) -> Any:
        return order(payload)

    app.handler("orders", retry=backoff())(wrapped)
    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert desk.settled[0][1].verb is Verb.RETRY
    assert "is not a coroutine function, but returned a coroutine" in desk.settled[0][1].error


@pytest.mark.parametrize("kind", [FakeClient, FakeAsyncClient])
@pytest.mark.parametrize("awaited", [False, True])
def test_work_that_has_not_begun_is_not_acked(app: App, desk: Desk, kind: type[FakeClient], awaited: bool) -> None:
    async def order(payload: bytes) -> None: ...

    def steps(payload: bytes) -> Any:
        yield

    async def async_steps(payload: bytes) -> Any:
        yield

    def hidden(function: Any) -> Any:
        """Hide what kind of function it is, as decorators do."""

        async def awaiting(payload: bytes) -> Any:
            return function(payload)

        def calling(payload: bytes) -> Any:
            return function(payload)

        return awaiting if awaited else calling

    for queue, function in {"orders": order, "steps": steps, "async steps": async_steps}.items():
        app.handler(queue.replace(" ", "-"), retry=backoff())(hidden(function))
        desk.put(queue.replace(" ", "-"), b"a")
    assert work_off(app, kind(desk)) == 3
    assert [how.verb for _, how in desk.settled] == [Verb.RETRY] * 3
    said = ["which nobody awaits" if awaited else "make it async def", "does not yield", "does not yield"]
    assert all(words in how.error for words, (_, how) in zip(said, desk.settled, strict=True))


def test_a_delivery_may_be_annotated_with_more_words(app: App, desk: Desk) -> None:
    seen: list[Delivery | None] = []

    @app.handler("orders")
    def order(first: Annotated[Delivery, "this one"], payload: bytes, second: Delivery | None = None) -> None:
        seen.extend((first, second))

    desk.put("orders", b"a")
    work_off(app, FakeClient(desk))
    assert seen[0] is not None
    assert seen[0] is seen[1]


def test_annotations_of_a_partial_function_count(app: App, desk: Desk) -> None:
    got: list[Any] = []

    def order(found: list[Any], body: dict[str, int]) -> None:
        found.append(body)

    app.handler("orders")(functools.partial(order, got))
    desk.put("orders", b'{"n": 1}')
    work_off(app, FakeClient(desk))
    assert got == [{"n": 1}]


def test_blocking_within_an_event_loop_is_refused(app: App, desk: Desk) -> None:
    async def test() -> None:
        with pytest.raises(RuntimeError, match=r"await app\.work_until_idle"):
            app.run_until_idle(FakeClient(desk))  # type: ignore[arg-type]

    asyncio.run(test())


def test_a_queue_has_one_handler(app: App) -> None:
    app.handler("orders")(positional_free)
    with pytest.raises(ValueError, match="queue 'orders' has a handler already: positional_free"):
        app.handler("orders")(lambda payload: None)


def positional_free(payload: bytes) -> None: ...


def test_middleware_is_a_coroutine(app: App) -> None:
    with pytest.raises(TypeError, match="is not a coroutine"):
        app.middleware(lambda call, call_next: None)  # type: ignore[arg-type, return-value]


def test_a_queue_without_a_handler_is_an_error(app: App, desk: Desk) -> None:
    app.handler("orders")(positional_free)
    desk.put("mail", b"x")

    async def once() -> None:
        [delivery] = FakeClient(desk).receive_any({"mail": 1})
        async with app.opened() as work:
            with pytest.raises(LookupError, match="no handler for queue 'mail': this app works on orders"):
                await work.handle(delivery)
        delivery.ack()

    asyncio.run(once())


def test_the_module_stays_quiet_by_default(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app.handler("orders")(positional_free)
    desk.put("orders", b"x")
    with caplog.at_level(logging.INFO):
        work_off(app, FakeClient(desk))
    assert caplog.records == []
