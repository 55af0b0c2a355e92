"""Book the requests of a web server's log, and announce each of them exactly when its transaction commits.

fila-cluster up                                                 # in one terminal
python examples/outbox.py tests/data/apache_access.log          # in another; needs pip install 'fila-cluster[outbox]'

Ten requests are a transaction, and every tenth transaction fails at its end. The relay is killed three times while it works. At last each
booked request must have been announced once, and the others never.
"""

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, func, insert, select

from fila_cluster import Client, outbox

QUEUE = "bookings"
REQUEST = re.compile(r'(?P<client>\S+) \S+ \S+ \[[^]]+\] "(?P<line>[^"]*)"')
METADATA = MetaData()
BOOKED = Table(
    "booked", METADATA, Column("number", Integer, primary_key=True), Column("client", String), Column("line", String)
)
KILLS = 3


class PaymentFailedError(Exception):
    """The error that makes a transaction fail."""


def book(engine: Engine, log: Path) -> None:
    """Book the requests of a log, ten in a transaction."""
    requests = enumerate(map(REQUEST.match, log.read_text(errors="replace").splitlines()))
    for transaction, ten in enumerate(iter(lambda: list(islice(requests, 10)), [])):
        try:
            with engine.begin() as connection:
                for place, request in ten:
                    client, line = (request["client"], request["line"]) if request else ("unknown", "")
                    connection.execute(insert(BOOKED).values(number=place, client=client, line=line))
                    outbox.add(connection, QUEUE, str(place).encode(), fairness_key=client)
                pay(transaction)
        except PaymentFailedError:
            continue


def pay(transaction: int) -> None:
    """Fail every tenth time."""
    if transaction % 10 == 9:
        raise PaymentFailedError


@contextmanager
def relaying(url: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a relay in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--relay", url])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def waiting(engine: Engine) -> int:
    """Return how many announcements are not with the broker."""
    return outbox.status(engine).waiting


def main(log: Path) -> None:
    """Run against the broker that ``FILA_ENDPOINT`` names, or the one on this machine."""
    with tempfile.TemporaryDirectory() as folder, Client() as client:
        url = f"sqlite:///{folder}/bookings.db"
        engine = create_engine(url)
        METADATA.create_all(engine)
        outbox.metadata.create_all(engine)
        client.create_queue(QUEUE)
        book(engine, log)
        left = to_do = waiting(engine)
        for kill in range(KILLS):
            with relaying(url) as relay:
                while left > to_do * (KILLS - kill) // (KILLS + 1):
                    left = waiting(engine)
                    time.sleep(0.005)
                relay.send_signal(signal.SIGKILL)
        with relaying(url):
            while waiting(engine):
                time.sleep(0.005)
        report(engine, client)
        client.delete_queue(QUEUE, force=True)
        engine.dispose()


def report(engine: Engine, client: Client) -> None:
    """Compare what is booked with what was announced."""
    announced = Counter[int]()
    while batch := client.receive(QUEUE, 500):
        announced.update(int(delivery.payload) for delivery in batch)
        client.ack(batch)
    with engine.connect() as connection:
        booked = set(connection.scalars(select(BOOKED.c.number)))
        clients = connection.scalar(select(func.count(BOOKED.c.client.distinct())))
    print(f"{len(booked):,} requests of {clients:,} clients booked, the relay killed {KILLS} times")
    print(
        f"{announced.total():,} announcements: {len(booked - announced.keys())} missing, "
        f"{announced.total() - len(announced)} twice, {len(announced.keys() - booked)} of requests that were not booked"
    )


if __name__ == "__main__":
    if sys.argv[1] == "--relay":
        with Client() as its_client:
            outbox.relay(create_engine(sys.argv[2]), its_client, batch=200)
    else:
        main(Path(sys.argv[1]))
