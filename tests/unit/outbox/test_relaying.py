"""What a relay sends, in which order, and what it does with what the broker refuses. On SQLite, with a broker in memory."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sqlalchemy import Engine, create_engine, event, func, select, update
from sqlalchemy.exc import InternalError as SqlInternalError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as NoConnectionLeftError
from sqlalchemy.ext.asyncio import create_async_engine

from fila_cluster import AsyncClient
from fila_cluster.errors import (
    FilaError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    PayloadTooLargeError,
    UnauthenticatedError,
)
from fila_cluster.outbox import Turn, add, metadata, outbox, relay, relay_turn, status
from fila_cluster.outbox.claims import BATCH_BYTES_MAX, STRANDS_SEEN
from fila_cluster.outbox.relaying import PAUSE_S_MIN, _Options, _Relay, send
from fila_cluster.testing import broker as kit_broker
from tests.support.cluster.cluster import PATIENCE_S
from tests.unit.outbox.brokers import Broker


def put(engine: Engine, *messages: bytes, queue: str = "orders", **options: Any) -> None:
    with engine.begin() as connection:
        for message in messages:
            add(connection, queue, message, **options)


def drain(engine: Engine, broker: Broker, **options: Any) -> Turn:
    """Relay until nothing more may be waiting; the sums of all turns."""
    sent = refused = 0
    while True:
        turn = relay_turn(engine, broker, **options)  # type: ignore[arg-type]
        sent, refused = sent + turn.sent, refused + turn.refused
        if not turn.sent:
            return Turn(sent, refused, turn.more)


def count(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(outbox)) or 0


def test_rows_go_to_their_queues_in_order_and_once(engine: Engine) -> None:
    broker = Broker("orders", "invoices")
    put(engine, b"1", b"2", b"3", fairness_key="acme")
    put(engine, b"a", queue="invoices", headers={"kind": "invoice"})
    assert drain(engine, broker) == Turn(4, 0, False)
    assert broker.queues == {"orders": [b"1", b"2", b"3"], "invoices": [b"a"]}
    assert drain(engine, broker) == Turn(0, 0, False)
    assert status(engine).sent == 4


def test_small_batches_keep_the_order_of_each_fairness_key(engine: Engine) -> None:
    broker = Broker("orders")
    for number in range(60):
        put(engine, b"%d %d" % (number % 5, number), fairness_key=f"key-{number % 5}")
    drain(engine, broker, batch=3)
    sent = [tuple(map(int, payload.split())) for payload in broker.queues["orders"]]
    assert sorted(sent) == sorted((number % 5, number) for number in range(60))
    for key in range(5):
        assert [number for its, number in sent if its == key] == list(range(key, 60, 5))


def test_a_turn_holds_a_bounded_number_of_bytes(engine: Engine) -> None:
    broker = Broker("orders")
    put(engine, b"x" * (BATCH_BYTES_MAX - 10), b"y" * 100, b"z" * 100)
    assert relay_turn(engine, broker).sent == 1  # type: ignore[arg-type]
    assert relay_turn(engine, broker).sent == 2  # type: ignore[arg-type]


def test_large_rows_of_one_key_do_not_keep_others_waiting(engine: Engine) -> None:
    """Each turn has room for one of them; the strands come in turn."""
    broker, keys = Broker("orders"), [f"key-{number}" for number in range(4)]
    for key in keys:
        put(
            engine,
            *(b"%s %d" % (key.encode(), number) + b"." * (BATCH_BYTES_MAX - 20) for number in range(2)),
            fairness_key=key,
        )
    one = _Relay(engine, broker, _Options(500, timedelta(0), 0))  # type: ignore[arg-type]
    first = [[one.turn().sent, broker.queues["orders"][-1].split()[0].decode()] for _ in keys]
    assert first == [[1, key] for _, key in first]
    assert sorted(key for _, key in first) == keys


def test_sent_rows_are_kept_for_their_retention(engine: Engine) -> None:
    broker = Broker("orders")
    put(engine, b"1", b"2")
    drain(engine, broker, retention=60)
    assert count(engine) == 2
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.number == 1).values(sent_at=datetime.now(UTC) - timedelta(hours=1)))
    drain(engine, broker, retention=60)
    assert count(engine) == 1
    put(engine, b"3")
    drain(engine, broker, retention=0)
    assert count(engine) == 0
    assert broker.queues["orders"] == [b"1", b"2", b"3"]


def test_a_row_that_is_refused_for_itself_stops_no_other(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals[b"large"] = PayloadTooLargeError("a payload of 5 bytes: at most 4")
    put(engine, b"1", b"large", b"2")
    assert drain(engine, broker) == Turn(2, 1, False)
    assert broker.queues["orders"] == [b"1", b"2"]
    (row,) = status(engine).rows
    assert (row.attempts, row.error) == (1, "PAYLOAD_TOO_LARGE: a payload of 5 bytes: at most 4")
    assert row.due_at is not None
    del broker.refusals[b"large"]
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.due_at.is_not(None)).values(due_at=datetime.now(UTC)))
    assert drain(engine, broker).sent == 1
    assert broker.queues["orders"] == [b"1", b"2", b"large"]
    assert status(engine).waiting == 0


def test_each_refusal_makes_the_pause_longer(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals[b"large"] = PayloadTooLargeError("no")
    put(engine, b"large")
    pauses = []
    for _ in range(3):
        relay_turn(engine, broker)  # type: ignore[arg-type]
        (row,) = status(engine).rows
        assert row.due_at is not None
        pauses.append(row.due_at - datetime.now(UTC))
        with engine.begin() as connection:
            connection.execute(update(outbox).values(due_at=datetime.now(UTC) - timedelta(seconds=1)))
    assert pauses[0] < pauses[1] < pauses[2]


def test_a_clock_that_was_ahead_keeps_no_refused_row_waiting(engine: Engine) -> None:
    broker = Broker("orders")
    put(engine, b"soon", b"far ahead")
    with engine.begin() as connection:
        for number, wait in enumerate((timedelta(minutes=59), timedelta(hours=2)), 1):
            this = outbox.c.number == number
            connection.execute(update(outbox).where(this).values(due_at=datetime.now(UTC) + wait))
    assert drain(engine, broker).sent == 1
    assert broker.queues["orders"] == [b"far ahead"]


def test_an_error_keeps_no_rows_in_memory(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals["orders"] = PayloadTooLargeError("no")
    put(engine, b"large")
    with engine.connect() as connection:
        rows = connection.execute(select(outbox)).all()
    fates = send(broker, rows, 0)  # type: ignore[arg-type]
    assert [error.__traceback__ for error in fates.refused.values()] == [None]


def test_the_guilty_row_of_a_refused_frame_is_found(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals |= {
        b"frames of several": InternalError("the shard failed twice"),
        b"bad": InternalError("the shard failed twice"),
    }
    put(engine, b"1", b"2", b"bad", b"3")
    assert drain(engine, broker) == Turn(3, 1, False)
    assert broker.queues["orders"] == [b"1", b"2", b"3"]


def test_what_this_version_cannot_read_is_refused(engine: Engine) -> None:
    broker = Broker("orders")
    put(engine, b"1", b"2")
    with engine.begin() as connection:
        connection.execute(update(outbox).where(outbox.c.number == 1).values(options={"of_tomorrow": 1}))
    assert drain(engine, broker) == Turn(1, 1, False)
    assert "of_tomorrow" in status(engine).rows[0].error


@pytest.mark.parametrize("queues", [1, 4])
def test_a_queue_that_takes_nothing_rests_in_order_and_stops_no_other(engine: Engine, queues: int) -> None:
    """Also many of them, with more strands than a turn looks at."""
    broker = Broker("orders")
    away = [f"away-{number}" for number in range(queues)]
    for queue in away:
        for number in range(STRANDS_SEEN):
            put(engine, b"%d" % number, queue=queue, fairness_key=str(number))
    put(engine, b"1", b"2")
    stop, turns = threading.Event(), []

    def look(turn: Turn) -> None:
        turns.append(turn)
        if not turn.more:
            stop.set()

    relay(engine, broker, stop=stop, on_turn=look)  # type: ignore[arg-type]
    assert broker.queues["orders"] == [b"1", b"2"]
    assert len(turns) < 60, "a queue that rests costs no turn"
    found = status(engine)
    assert (found.waiting, found.refused) == (queues * STRANDS_SEEN, 0)
    assert {row.error.partition(":")[0] for row in found.rows} == {"QUEUE_NOT_FOUND"}
    broker.queues |= {queue: [] for queue in away}
    assert drain(engine, broker).sent == queues * STRANDS_SEEN
    assert {queue: sorted(map(int, broker.queues[queue])) for queue in away} == {
        queue: list(range(STRANDS_SEEN)) for queue in away
    }


def test_a_refused_row_of_a_queue_that_takes_nothing_rests_with_it(engine: Engine) -> None:
    """Its time has come, but its queue takes nothing now."""
    broker = Broker()
    put(engine, b"1")
    with engine.begin() as connection:
        connection.execute(update(outbox).values(due_at=datetime.now(UTC) - timedelta(seconds=1), attempts=3))
    one = _Relay(engine, broker, _Options(500, timedelta(hours=1), 0))  # type: ignore[arg-type]
    turns = [one.turn() for _ in range(5)]
    assert len(broker.frames) == 1
    assert not turns[-1].more
    assert status(engine).rows[0].attempts == 4
    broker.queues["orders"] = []
    assert drain(engine, broker).sent == 1


def test_an_overloaded_queue_is_tried_again_in_order(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals["orders"] = OverloadedError("the queue is full", retry_after=0.01)
    put(engine, b"1", b"2")
    assert relay_turn(engine, broker) == Turn(0, 0, True)  # type: ignore[arg-type]
    assert status(engine).rows[0].due_at is None
    del broker.refusals["orders"]
    drain(engine, broker)
    assert broker.queues["orders"] == [b"1", b"2"]


def test_a_client_that_is_not_let_in_ends_the_relay(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals["orders"] = UnauthenticatedError("unknown key")
    put(engine, b"1")
    with pytest.raises(UnauthenticatedError):
        relay(engine, broker)  # type: ignore[arg-type]
    assert status(engine).waiting == 1


def test_a_client_that_is_closed_is_no_fault_of_a_row(engine: Engine) -> None:
    broker = Broker("orders")
    broker.refusals["orders"] = FilaError("this client is closed: open another one")
    put(engine, b"1", b"2")
    with pytest.raises(FilaError, match="is closed"):
        relay(engine, broker)  # type: ignore[arg-type]
    assert (status(engine).waiting, status(engine).rows) == (2, [])


def test_a_queue_without_rows_that_has_rested_wakes_nobody(engine: Engine) -> None:
    one = _Relay(engine, Broker(), _Options(500, timedelta(0), 0))  # type: ignore[arg-type]
    put(engine, b"1")
    one.turn()
    assert 0 < one.rests_for() <= PAUSE_S_MIN
    one._resting["orders"].until = time.monotonic() - 1
    assert one.rests_for() == math.inf


def test_a_database_that_is_away_for_a_while_is_no_end(engine: Engine) -> None:
    broker, stop, failures = (
        Broker("orders"),
        threading.Event(),
        [
            OperationalError("", {}, Exception("away")),
            NoConnectionLeftError(),
            SqlInternalError("", {}, Exception("the server is a standby now, and read-only")),
        ],
    )
    put(engine, b"1")

    def fail(*_: object) -> None:
        if failures:
            raise failures.pop()

    event.listen(engine, "begin", fail)
    relay(engine, broker, stop=stop, on_turn=lambda turn: stop.set() if turn.sent else None)  # type: ignore[arg-type]
    assert not failures
    assert broker.queues["orders"] == [b"1"]


def test_a_relay_works_until_it_is_stopped(engine: Engine) -> None:
    broker, stop, sent = Broker("orders"), threading.Event(), threading.Semaphore(0)
    running = threading.Thread(
        target=relay,
        args=(engine, broker),
        kwargs={"stop": stop, "poll": 0.01, "on_turn": lambda turn: sent.release(turn.sent) if turn.sent else None},
    )
    running.start()
    for payload in (b"1", b"2"):
        put(engine, payload)
        assert sent.acquire(timeout=PATIENCE_S)
    stop.set()
    running.join(PATIENCE_S)
    assert not running.is_alive()
    assert broker.queues["orders"] == [b"1", b"2"]


def test_the_window_of_its_dedup_ids_is_its_own_to_choose(engine: Engine) -> None:
    broker = Broker("orders")
    put(engine, b"1")
    drain(engine, broker, dedup_window=3600)
    put(engine, b"2")
    drain(engine, broker)
    assert [command.dedup_window_ms for _, command in broker.frames] == [3_600_000, 0]


def test_what_is_for_asyncio_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"AsyncEngine.*create_engine\(\)"):
        relay(create_async_engine("postgresql+psycopg://app@nowhere/shop"), Broker())  # type: ignore[arg-type]
    client = AsyncClient()
    with pytest.raises(InvalidArgumentError, match=r"AsyncClient.*pass a Client"):
        relay_turn(create_engine("sqlite://"), client)  # type: ignore[arg-type]
    asyncio.run(client.close())


def test_a_missing_table_and_a_foreign_database_are_told(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(InvalidArgumentError, match="fila-cluster outbox init"):
        relay(engine, Broker())  # type: ignore[arg-type]
    engine.dispose()
    engine.dialect.name = "mysql"
    with pytest.raises(InvalidArgumentError, match="PostgreSQL and SQLite, not with mysql"):
        relay_turn(engine, Broker())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", [{"batch": 0}, {"batch": 10_001}, {"poll": 0}, {"retention": -1}, {"dedup_window": 8 * 24 * 3600}]
)
def test_bad_options_are_refused(engine: Engine, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
        relay(engine, Broker(), **bad)  # type: ignore[arg-type]


# --- crashes ----------------------------------------------------------------------------------------------------------


class Crashed(BaseException):
    """The process has died."""


@contextmanager
def crash_at(engine: Engine, broker: Broker, step: int) -> Iterator[None]:
    """Die at the step of this number: before a statement, before a commit, before or after a frame is answered."""
    left = [step]

    def tick(*_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Crashed

    answer = broker.answer

    def answered(*sent: Any) -> Any:
        tick()
        reply = answer(*sent)
        tick()
        return reply

    broker.answer = answered  # type: ignore[method-assign]
    listeners = [(engine, "before_cursor_execute"), (engine, "commit")]
    for listener in listeners:
        event.listen(*listener, tick)
    try:
        yield
    except Crashed:
        pass
    finally:
        broker.answer = answer  # type: ignore[method-assign]
        for listener in listeners:
            event.remove(*listener, tick)


@settings(max_examples=25)
@given(
    some.lists(some.tuples(some.integers(0, 3), some.integers(1, 25)), min_size=1, max_size=12),
    some.sampled_from([0.0, 60.0]),
)
def test_whatever_step_it_dies_at_each_row_is_stored_once(rounds: list[tuple[int, int]], retention: float) -> None:
    with TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/app.db")
        metadata.create_all(engine)
        try:
            die_and_go_on(engine, rounds, retention)
        finally:
            engine.dispose()


def die_and_go_on(engine: Engine, rounds: list[tuple[int, int]], retention: float) -> None:
    broker, added = Broker("orders", "invoices"), 0
    for count_added, step in rounds:
        for _ in range(count_added):
            queue = ("orders", "invoices")[added % 2]
            put(engine, b"%d" % added, queue=queue, fairness_key=str(added % 3))
            added += 1
        with crash_at(engine, broker, step):
            drain(engine, broker, batch=2, retention=retention)
    drain(engine, broker, batch=2)
    for offset, queue in enumerate(("orders", "invoices")):
        stored = [int(payload) for payload in broker.queues[queue]]
        assert sorted(stored) == list(range(offset, added, 2))
        for key in range(3):
            own = [number for number in stored if number % 3 == key]
            assert own == sorted(own)
    assert status(engine).waiting == 0


@pytest.mark.parametrize("by_template", [False, True])
def test_a_queue_with_partitions_gets_each_row_once_in_the_order_of_its_key(engine: Engine, by_template: bool) -> None:
    with kit_broker() as fila:
        if by_template:
            fila.put_template("o*", partitions=4)
        else:
            fila.create_queue("orders", partitions=4)
        for number in range(30):
            put(engine, b"%d" % number, fairness_key=f"k{number % 5}")
        assert relay_turn(engine, fila).sent == 30
        put(engine, b"31", fairness_key="k1")
        assert relay_turn(engine, fila).sent == 1
        got: dict[str, list[int]] = {}
        for view in fila.browse("orders", limit=100):
            got.setdefault(view.fairness_key, []).append(int(view.payload))
        wanted = {f"k{key}": list(range(key, 30, 5)) for key in range(5)}
        wanted["k1"].append(31)
        assert got == wanted
