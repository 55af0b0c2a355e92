"""Consuming until asked to stop: slots, the drain, calls over their limit, and a broker that is away."""

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from fila_cluster.app import App, Call, CallNext, Stop
from fila_cluster.app.serving import StuckError
from fila_cluster.errors import FilaError, PermissionDeniedError, QueueNotFoundError, ShardUnavailableError
from fila_cluster.testing import broker
from fila_proto_zmq.commands import Verb
from tests.support.cluster.handled import Desk, FakeAsyncClient

PATIENCE_S = 60.0


@pytest.fixture
def app() -> App:
    return App("tcp://nowhere:1")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_cluster.app.serving.PAUSES_S", (0.0,))


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test that hangs for a minute at most."""
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


async def until(condition: Any) -> None:
    """Wait until a condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def turns() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


def working(app: App, desk: Desk, stop: Stop, **options: Any) -> tuple[FakeAsyncClient, "asyncio.Task[None]"]:
    """Start an app on a desk."""
    client = FakeAsyncClient(desk)
    return client, asyncio.create_task(app.work(client=client, stop=stop, **options))  # type: ignore[arg-type]


def test_it_works_until_it_is_asked_to_stop(app: App, desk: Desk) -> None:
    app.handler("orders", concurrency=3)(lambda payload: None)
    desk.put("orders", *[b"%d" % number for number in range(20)])

    async def test() -> None:
        stop, ready = Stop(), asyncio.Event()
        _, task = working(app, desk, stop, ready=ready.set)
        await ready.wait()
        await until(lambda: len(desk.settled) == 20)
        desk.put("orders", b"late")
        await until(lambda: len(desk.settled) == 21)
        stop.ask()
        await task

    run(test())
    assert {verb for _, verb in desk.verbs()} == {Verb.ACK}


def test_a_handler_has_as_many_messages_as_it_has_slots(app: App, desk: Desk) -> None:
    go_on = asyncio.Event()

    @app.handler("orders", concurrency=3)
    async def order(payload: bytes) -> None:
        await go_on.wait()

    desk.put("orders", *[b"%d" % number for number in range(10)])

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        await until(lambda: app.handlers[0].tally.in_hand == 3)
        await turns()
        assert len(desk.queues["orders"]) == 7
        go_on.set()
        await until(lambda: len(desk.settled) == 10)
        stop.ask()
        await task

    run(test())


@pytest.mark.parametrize("is_coroutine", [True, False])
def test_the_drain_finishes_what_is_in_hand_and_takes_no_more(app: App, desk: Desk, is_coroutine: bool) -> None:
    go_on = threading.Event()

    def order(payload: bytes) -> None:
        go_on.wait(PATIENCE_S)

    async def order_async(payload: bytes) -> None:
        await until(go_on.is_set)

    app.handler("orders", concurrency=2)(order_async if is_coroutine else order)
    desk.put("orders", b"a", b"b", b"c")

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        await until(lambda: app.handlers[0].tally.in_hand == 2)
        stop.ask()
        await turns()
        assert desk.settled == []
        go_on.set()
        await task

    run(test())
    assert sorted(desk.verbs()) == [(b"a", Verb.ACK), (b"b", Verb.ACK)]
    assert [stored.payload for stored in desk.queues["orders"]] == [b"c"]


@pytest.mark.parametrize("is_coroutine", [True, False])
@pytest.mark.parametrize("hurried", [True, False])
def test_what_is_not_done_in_time_is_left_to_go_back(app: App, desk: Desk, is_coroutine: bool, hurried: bool) -> None:
    end = threading.Event()

    def order(payload: bytes) -> None:
        end.wait(PATIENCE_S)

    async def order_async(payload: bytes) -> None:
        await asyncio.sleep(1000)

    app.handler("orders")(order_async if is_coroutine else order)
    desk.put("orders", b"a")

    async def test() -> None:
        stop = Stop()
        client, task = working(app, desk, stop, grace=1000 if hurried else 0)
        await until(lambda: app.handlers[0].tally.in_hand == 1)
        stop.ask()
        if hurried:
            await turns()
            assert not task.done()
            stop.ask()
        await task
        assert [stored.payload for _, stored in client.held.values()] == [b"a"]
        await client.close()
        end.set()

    run(test())
    assert desk.settled == []
    assert app.handlers[0].tally.given_back == 1


def test_a_stop_before_it_serves_ends_it(app: App, desk: Desk) -> None:
    app.handler("orders")(lambda payload: None)
    desk.put("orders")
    desk.queues["orders"].clear()

    async def test() -> None:
        stop = Stop()
        stop.ask()
        await working(app, desk, stop)[1]

    run(test())


def test_a_function_over_its_limit_keeps_its_slot_until_it_ends(app: App, desk: Desk) -> None:
    may_end = threading.Event()

    @app.handler("orders", concurrency=2, timeout=0.05)
    def order(payload: bytes) -> None:
        if payload == b"hang":
            may_end.wait(PATIENCE_S)

    desk.put("orders", b"hang")

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        tally = app.handlers[0].tally
        await until(lambda: tally.overdue == 1)
        assert desk.verbs() == [(b"hang", Verb.NACK)]  # it is pending again, and taken by the other slot
        await until(lambda: tally.overdue == 2)
        desk.put("orders", b"a")
        await turns()
        assert desk.queues["orders"]
        may_end.set()
        await until(lambda: (b"a", Verb.ACK) in desk.verbs())
        await until(lambda: tally.overdue == 0)  # the thread of the other slot may end later
        stop.ask()
        await task

    run(test())


@pytest.mark.parametrize("limit", ["the handler's", "the middleware's"])
def test_a_call_that_goes_on_keeps_its_slot_whatever_middleware_makes_of_it(app: App, desk: Desk, limit: str) -> None:
    may_end, calls = threading.Event(), []

    @app.middleware
    async def hush(call: Call, call_next: CallNext) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if limit == "the handler's" else 0.01):
                await call_next(call)

    @app.handler("orders", concurrency=2, timeout=0.01 if limit == "the handler's" else None)
    def order(payload: bytes) -> None:
        calls.append(payload)
        may_end.wait(PATIENCE_S)

    desk.put("orders", *[b"%d" % number for number in range(9)])

    async def test() -> None:
        with pytest.raises(StuckError):
            await working(app, desk, Stop(), end_when_stuck=True)[1]

    run(test())
    may_end.set()
    assert calls == [b"0", b"1"]
    assert desk.verbs() == [(b"0", Verb.ACK), (b"1", Verb.ACK)]


def test_a_process_whose_slots_all_hang_ends_if_another_one_can_take_over(app: App, desk: Desk) -> None:
    may_end = threading.Event()

    @app.handler("orders", timeout=0.01)
    def order(payload: bytes) -> None:
        may_end.wait(PATIENCE_S)

    desk.put("orders", b"hang")

    async def test() -> None:
        _, task = working(app, desk, Stop(), end_when_stuck=True)
        with pytest.raises(StuckError, match="the handler of queue 'orders' is stuck"):
            await task

    run(test())
    may_end.set()
    assert desk.verbs() == [(b"hang", Verb.NACK)]


def test_the_first_request_to_stop_does_not_hurry_the_drain_of_a_process_that_is_stuck(app: App, desk: Desk) -> None:
    may_end, go_on = threading.Event(), asyncio.Event()

    @app.handler("orders", timeout=0.01)
    def order(payload: bytes) -> None:
        may_end.wait(PATIENCE_S)

    @app.handler("mail")
    async def mail(payload: bytes) -> None:
        await go_on.wait()

    desk.queues["orders"].clear()  # there is one
    desk.put("mail", b"letter")

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop, end_when_stuck=True)
        await until(lambda: app.handlers[1].tally.in_hand == 1)
        desk.put("orders", b"hang")
        await stop.asked.wait()
        stop.ask()
        await turns()
        go_on.set()
        with pytest.raises(StuckError):
            await task

    run(test())
    may_end.set()
    assert desk.verbs() == [(b"hang", Verb.NACK), (b"letter", Verb.ACK)]


@pytest.mark.parametrize("error", [QueueNotFoundError("queue 'orders' does not exist"), PermissionDeniedError("not yours")])
def test_what_does_not_pass_by_itself_is_raised_at_the_start(app: App, desk: Desk, error: Exception) -> None:
    app.handler("orders")(lambda payload: None)
    desk.put("orders")
    desk.refusals.append(error)  # type: ignore[arg-type]

    async def test() -> None:
        with pytest.raises(type(error)):
            await working(app, desk, Stop())[1]

    run(test())


def test_a_queue_that_a_template_makes_later_is_waited_for(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "fila_cluster.app")
    app.handler("tenant-acme")(lambda payload: None)
    desk.templates["tenant-"] = "tenant-*"

    async def test() -> None:
        stop, ready = Stop(), asyncio.Event()
        client, task = working(app, desk, stop, ready=ready.set)
        await ready.wait()
        await until(lambda: len(client.consumers) > 3)
        desk.put("tenant-acme", b"a")
        await until(lambda: desk.settled)
        stop.ask()
        await task

    run(test())
    assert desk.verbs() == [(b"a", Verb.ACK)]
    assert [each.levelname for each in caplog.records] == ["INFO"]
    assert "its first message makes it" in caplog.text


def test_until_idle_passes_over_queues_that_a_template_makes_later(app: App) -> None:
    seen = []
    with broker() as fila:
        fila.put_template("tenant-*")

        @app.handler("tenant-acme")
        def acme(payload: bytes) -> None:
            seen.append(payload)
            fila.enqueue("tenant-ajax", b"from acme")

        @app.handler("tenant-ajax")
        def ajax(payload: bytes) -> None:
            seen.append(payload)

        assert app.run_until_idle(fila) == 0
        fila.enqueue("tenant-acme", b"a")
        assert app.run_until_idle(fila) == 2
        fila.delete_template("tenant-*")
        fila.delete_queue("tenant-ajax")
        with pytest.raises(QueueNotFoundError):
            app.run_until_idle(fila)
    assert seen == [b"a", b"from acme"]


def test_a_broker_that_is_away_at_the_start_is_waited_for(app: App, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    app.handler("orders")(lambda payload: None)
    desk.put("orders", b"a")
    desk.refusals.extend([ShardUnavailableError("shard 3 is away")] * 3)

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        await until(lambda: desk.verbs() == [(b"a", Verb.ACK)])
        stop.ask()
        await task

    run(test())
    assert caplog.text.count("queue 'orders' cannot be consumed now: shard 3 is away") == 3


def test_a_queue_that_is_deleted_and_made_again_is_consumed_again(app: App, desk: Desk) -> None:
    app.handler("orders", concurrency=4)(lambda payload: None)
    desk.put("orders", b"a")

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        await until(lambda: len(desk.settled) == 1)
        del desk.queues["orders"]
        desk.wake()
        await turns()
        desk.put("orders", b"b")
        await until(lambda: len(desk.settled) == 2)
        stop.ask()
        await task

    run(test())


def test_a_client_that_is_closed_meanwhile_ends_the_work(app: App, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    app.handler("orders", concurrency=2)(lambda payload: None)
    desk.put("orders", b"a")

    async def test() -> None:
        client, task = working(app, desk, Stop())
        await until(lambda: len(desk.settled) == 1)

        def consume(queue: str, *, prefetch: int) -> Any:
            raise FilaError("this client is closed: open another one")

        monkeypatch.setattr(client, "consume", consume)
        await client.consumers[0].close()
        with pytest.raises(FilaError, match="this client is closed"):
            await task

    run(test())


def test_a_stop_while_the_queue_cannot_be_consumed_ends_at_once(
    app: App, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fila_cluster.app.serving.PAUSES_S", (1000.0,))
    app.handler("orders", concurrency=3)(lambda payload: None)
    desk.put("orders", b"a")

    async def test() -> None:
        stop = Stop()
        _, task = working(app, desk, stop)
        await until(lambda: len(desk.settled) == 1)
        del desk.queues["orders"]
        desk.wake()
        await turns()
        stop.ask()
        await task

    run(test())


def test_an_app_without_handlers_is_refused(app: App) -> None:
    with pytest.raises(ValueError, match="this app has no handlers"):
        asyncio.run(app.work())
