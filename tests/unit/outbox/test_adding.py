"""Messages into the outbox: with the caller's transaction, or not at all; and what is refused before it is there."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from sqlalchemy import Engine, Row, create_engine, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from fila_cluster import Message
from fila_cluster.errors import InvalidArgumentError
from fila_cluster.outbox import add, outbox
from fila_cluster.outbox.relaying import message_of
from fila_cluster.outbox.table import LANES, queue_of_strand, strand_of


def rows(engine: Engine) -> list[Row[Any]]:
    with engine.connect() as connection:
        return list(connection.execute(select(outbox).order_by(outbox.c.number)))


def message(engine: Engine, **options: Any) -> Message:
    """What comes out of the outbox for a message with these options."""
    with engine.begin() as connection:
        add(connection, "orders", b"payload", **options)
    return message_of(rows(engine)[-1])


def test_a_message_is_there_when_its_transaction_commits(engine: Engine) -> None:
    with Session(engine) as session:
        dedup_id = add(session, "orders", b"one", {"kind": "order"}, fairness_key="acme")
        assert rows(engine) == []
        session.commit()
    (row,) = rows(engine)
    assert (row.dedup_id, row.queue, row.payload, row.headers) == (dedup_id, "orders", b"one", {"kind": "order"})


def test_a_message_of_a_transaction_that_is_rolled_back_is_not(engine: Engine) -> None:
    with Session(engine) as session:
        add(session, "orders", b"no")
        session.rollback()
        add(session, "orders", b"yes")
        with session.begin_nested() as savepoint:
            add(session, "orders", b"neither")
            savepoint.rollback()
        session.commit()
    assert [row.payload for row in rows(engine)] == [b"yes"]


@pytest.mark.parametrize("kind", ["session", "scoped", "connection"])
def test_it_takes_what_has_a_transaction(engine: Engine, kind: str) -> None:
    if kind == "connection":
        with engine.begin() as connection:
            add(connection, "orders", b"one")
    else:
        session = Session(engine) if kind == "session" else scoped_session(sessionmaker(engine))
        add(session, "orders", b"one")
        session.commit()
        session.close()
    assert len(rows(engine)) == 1


def test_a_session_of_several_databases_uses_that_of_the_table(engine: Engine) -> None:
    bound = sessionmaker(binds={outbox: engine})
    with bound() as session, session.begin():
        add(session, "orders", b"one")
    with (
        sessionmaker(create_engine("sqlite:////no/such/folder/app.db"), binds={outbox: engine})() as session,
        session.begin(),
    ):
        add(session, "orders", b"two")
    assert len(rows(engine)) == 2


def test_other_things_are_no_transaction(engine: Engine) -> None:
    with pytest.raises(InvalidArgumentError, match="pass the Session or Connection"):
        add(engine, "orders", b"one")  # type: ignore[arg-type]
    session = AsyncSession()
    with pytest.raises(InvalidArgumentError, match=r"await session.run_sync\(outbox.add"):
        add(session, "orders", b"one")  # type: ignore[arg-type]
    asyncio.run(session.close())


def test_every_option_of_a_message_comes_through(engine: Engine) -> None:
    given: dict[str, Any] = {
        "fairness_key": "acme",
        "weight": 3,
        "throttle_keys": ("a", "b"),
        "priority": -2,
        "cost": Fraction(5, 2),
        "deliver_at": datetime.now(UTC) + timedelta(days=1),
        "ttl": 3600.0,
        "lease": 7.5,
        "dedup_id": "order-1",
        "dedup_mode": "last",
        "max_attempts": 3,
    }
    found = message(engine, headers={"kind": "order"}, delay=0.0, **given)
    assert (found.payload, found.headers, found.ttl) == (b"payload", {"kind": "order"}, pytest.approx(3600, abs=60))
    same = {"throttle_keys": ["a", "b"], "cost": 2.5} | {
        name: given[name] for name in given if name not in {"throttle_keys", "cost", "ttl"}
    }
    assert {name: getattr(found, name) for name in same} == same
    names = {name for name in Message.__dataclass_fields__ if name not in {"payload", "headers", "delay"}}
    assert names <= given.keys(), "a new option is tried here, too"


def test_a_delay_counts_from_the_adding(engine: Engine) -> None:
    before = datetime.now(UTC)
    found = message(engine, delay=3600)
    assert found.delay == 0
    assert found.deliver_at is not None
    assert before + timedelta(hours=1) <= found.deliver_at <= datetime.now(UTC) + timedelta(hours=1)
    later = datetime.now(UTC) + timedelta(days=2)
    assert message(engine, delay=3600, deliver_at=later).deliver_at == later


def test_a_time_to_live_counts_from_the_adding(engine: Engine) -> None:
    message(engine, ttl=60)
    with engine.begin() as connection:
        connection.execute(update(outbox).values(created_at=datetime.now(UTC) - timedelta(seconds=50)))
    assert message_of(rows(engine)[0]).ttl == pytest.approx(10, abs=5)
    with engine.begin() as connection:
        connection.execute(update(outbox).values(created_at=datetime.now(UTC) - timedelta(days=1)))
    assert message_of(rows(engine)[0]).ttl == 0.001, "it has expired: that is the broker's to deal with"


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("bad queue!", b""), {}, "queue"),
        (("orders", "text"), {}, "payload is bytes-like, not a str"),
        (("orders", b"", {"a": 1}), {}, "header 'a'"),
        (("orders", b""), {"cost": 0}, "cost"),
        (("orders", b""), {"cost": Decimal(1)}, "cost"),
        (("orders", b""), {"delay": -1}, "delay"),
        (("orders", b""), {"deliver_at": datetime(2030, 1, 1)}, "deliver_at"),
        (("orders", b""), {"throttle_keys": iter(["a"])}, "throttle_keys"),
        (("orders", b""), {"colour": "red"}, "unexpected keyword argument 'colour'; the options are cost, "),
    ],
)
def test_what_no_broker_would_take_is_refused_at_once(engine: Engine, arguments: Any, options: Any, text: str) -> None:
    with engine.begin() as connection, pytest.raises(InvalidArgumentError, match=text.replace("(", r"\(")):
        add(connection, *arguments, **options)
    assert rows(engine) == []


def test_a_fairness_key_is_always_in_the_same_strand() -> None:
    assert strand_of("orders", None) == strand_of("orders", "default")
    assert {strand_of("orders", f"key-{number}") for number in range(10 * LANES)} == {
        f"{lane:02d}:orders" for lane in range(LANES)
    }
    assert queue_of_strand(strand_of("shop/orders", "acme")) == "shop/orders"
