"""An application with an outbox, relays that are killed, and what must hold: each committed row delivered once, no other one ever.

``python -m tests.support.external.outbox_rounds --rounds 200`` kills relays at random, two at a time, while transactions commit and roll back; on a
PostgreSQL server of its own, or with ``--database sqlite``. It prints what it saw, and fails if a row is lost, doubled or out of order.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from fila_cluster import Client
from fila_cluster.outbox import add, metadata, status
from tests.support.cluster.cluster import eventually, running
from tests.support.cluster.relays import FOR_EVER, Relays, relays
from tests.support.external.postgres import postgres

QUEUES = ("outbox-a", "outbox-b")
KEYS = 5


class Application:
    """It adds messages in transactions, of which some roll back, and knows which were committed, in the order of each fairness key."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.committed: list[tuple[str, int, int]] = []
        self.rolled_back = 0
        self.repeated = 0
        """Rows that were sent once more than needed, because a relay died before they were noted: the broker knew them."""
        self._engine = engine
        self._random = random.Random(seed)
        self._numbers = 0

    def transact(self) -> None:
        """Run a transaction with some messages; every fourth one is undone as a whole or in part."""
        added: list[tuple[str, int, int]] = []
        with Session(self._engine) as session:
            for _ in range(self._random.randint(1, 4)):
                added += [self._add(session)]
            if self._random.random() < 0.25:
                with session.begin_nested() as savepoint:
                    self._add(session)
                    savepoint.rollback()
                self.rolled_back += 1
            if self._random.random() < 0.25:
                session.rollback()
                self.rolled_back += len(added)
            else:
                session.commit()
                self.committed += added

    def _add(self, session: Session) -> tuple[str, int, int]:
        self._numbers += 1
        queue, key = self._random.choice(QUEUES), self._random.randrange(KEYS)
        add(session, queue, b"%d %d" % (key, self._numbers), fairness_key=f"key-{key}")
        return queue, key, self._numbers


def received(client: Client) -> list[tuple[str, int, int]]:
    """All messages of both queues, in the order of each fairness key."""
    found = []
    for queue in QUEUES:
        while batch := client.receive(queue, 500):
            found += [(queue, *map(int, delivery.payload.split())) for delivery in batch]
            client.ack(batch)
    return found


def check(application: Application, found: list[tuple[str, int, int]]) -> None:
    """Fail unless each committed row was stored once, in order, and nothing else was."""
    assert Counter(found) == Counter(application.committed)
    for queue in QUEUES:
        for key in range(KEYS):
            mine = [row for row in application.committed if row[:2] == (queue, key)]
            assert [row for row in found if row[:2] == (queue, key)] == mine


def finish(relays: Relays, engine: Engine) -> None:
    """Have what is left be relayed."""
    eventually(lambda: relays.wait(relays.start(0)) == 0 and status(engine).waiting == 0, "an empty outbox")


@contextmanager
def application_with_outbox(url: str, seed: int) -> Iterator[Application]:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _patient)
    metadata.create_all(engine)
    try:
        yield Application(engine, seed)
    finally:
        metadata.drop_all(engine)
        engine.dispose()


def _patient(connection: object, _: object) -> None:
    """Write ahead, so that readers and a writer do not wait for each other."""
    connection.execute("PRAGMA journal_mode=WAL")  # type: ignore[attr-defined]


def kill_at_random(url: str, client: Client, rounds: int, seed: int) -> Application:
    """Kill a relay ``rounds`` times, at any moment, while another one and the application go on."""
    dice, stop, trouble = random.Random(seed), threading.Event(), []
    with (
        tempfile.TemporaryDirectory() as folder,
        application_with_outbox(url, seed) as application,
        relays(url, client.endpoint, Path(folder) / "repeated") as parent,
    ):

        def run() -> None:
            try:
                while not stop.is_set():
                    application.transact()
                    time.sleep(0.002)
            except BaseException as error:
                trouble.append(error)
                raise

        writer = threading.Thread(target=run)
        writer.start()
        try:
            alive = [parent.start(FOR_EVER)]
            for _ in range(rounds):
                alive.append(parent.start(FOR_EVER))
                time.sleep(dice.uniform(0.0, 0.6))
                pid = alive.pop(dice.randrange(2))
                os.kill(pid, signal.SIGKILL)
                assert parent.wait(pid) == -signal.SIGKILL, "it had ended by itself"
        finally:
            stop.set()
            writer.join()
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
                parent.wait(pid)
        assert not trouble
        finish(parent, application._engine)
        check(application, received(client))
        application.repeated = (Path(folder) / "repeated").stat().st_size
    return application


@contextmanager
def database(kind: str) -> Iterator[str]:
    if kind == "postgresql":
        with postgres() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/app.db"


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", choices=["postgresql", "sqlite"], default="postgresql")
    wanted = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        database(wanted.database) as url,
        running(Path(folder) / "data") as cluster,
        cluster.client() as client,
    ):
        for queue in QUEUES:
            client.create_queue(queue)
        began = time.monotonic()
        application = kill_at_random(url, client, wanted.rounds, wanted.seed)
    print(
        f"{wanted.rounds} relays killed in {time.monotonic() - began:.0f} s on {wanted.database}: {len(application.committed):,} committed rows "
        f"delivered once and in order, {application.rolled_back:,} rolled back ones never; {application.repeated} were sent again"
    )


if __name__ == "__main__":
    sys.exit(main())
