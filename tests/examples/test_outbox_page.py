"""The blocks of docs/outbox.md, run as they stand there, on SQLite or PostgreSQL."""

import asyncio
import subprocess
import textwrap
from typing import Any

from sqlalchemy import Column, Integer, String, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session

from fila_cluster import Client, outbox
from tests.examples.documents import blocks
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually
from tests.support.external.postgres import postgres
from tests.support.machine import POSTGRES, require

IN_THE_DOCS = "postgresql+psycopg://app@localhost/shop"


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id = Column(Integer, primary_key=True)
    customer = Column(String)


def test_its_blocks_do_what_it_says(shared_cluster: Cluster, client: Client) -> None:
    require(POSTGRES)
    adding, awaiting, relaying = (block.text for block in blocks("outbox.md") if block.language == "python")
    with postgres() as url:
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        client.create_queue("orders")
        env = environment(FILA_ENDPOINT=shared_cluster.endpoint)
        names: dict[str, Any] = {"Order": Order, "AsyncSession": AsyncSession, "async_engine": create_async_engine(url)}
        exec(adding.replace(IN_THE_DOCS, url), names)
        with Session(engine) as session:
            assert session.get(Order, 17) is not None

        async def in_a_loop() -> None:
            exec(f"async def run():\n{textwrap.indent(awaiting, '    ')}", names)
            await names["run"]()
            await names["async_engine"].dispose()

        asyncio.run(in_a_loop())
        assert outbox.status(engine).waiting == 2
        wait = "eventually(lambda: outbox.status(engine).waiting == 0, 'two messages')"
        names |= {"eventually": eventually, "Client": shared_cluster.client}
        code = relaying.replace("from fila_cluster import Client\n", "").replace("...  # your program", wait)
        exec(code, names)
        deliveries = client.receive("orders", 10)
        assert [delivery.payload for delivery in deliveries] == [b'{"order": 17}', b'{"order": 18}']
        client.ack(deliveries)
        client.delete_queue("orders", force=True)
        status = next(block.text for block in blocks("outbox.md") if block.text.startswith("fila-cluster outbox status"))
        words = status.split()[1:]
        words[-1] = url.replace("+psycopg", "")
        done = subprocess.run(command(*words), env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.stdout == "nothing waits; 2 sent ones kept\n", done.stderr
        engine.dispose()
        names["engine"].dispose()
