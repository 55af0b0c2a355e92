"""A relay that is killed at each of its steps, and at random: each committed row is delivered once, and no other one ever."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from fila_cluster import Client
from fila_cluster.cli.queues.outbox import _engine
from fila_cluster.outbox import add, metadata, status
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually
from tests.support.cluster.relays import relays
from tests.support.external.outbox_rounds import QUEUES, application_with_outbox, check, finish, kill_at_random, received
from tests.support.external.postgres import postgres
from tests.support.machine import POSTGRES, require

pytestmark = [pytest.mark.whole, pytest.mark.timeout(600)]
STEPS_MAX = 200


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    require(POSTGRES)
    with postgres() as url:
        yield url


def test_the_command_leaves_nothing_in_a_session(server: str) -> None:
    """So it works through a pooler of transactions, such as PgBouncer, whose version does not follow prepared statements."""
    with _engine(server) as engine, engine.connect() as connection:
        asked = [connection.scalar(text("SELECT count(*) FROM pg_prepared_statements")) for _ in range(10)]
    assert asked == [0] * 10


@pytest.fixture(params=["postgresql", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database; PostgreSQL's server is one for all tests."""
    return request.getfixturevalue("server") if request.param == "postgresql" else f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def queues(client: Client) -> Iterator[None]:
    for queue in QUEUES:
        client.create_queue(queue)
    yield
    for queue in QUEUES:
        client.delete_queue(queue, force=True)


@pytest.mark.usefixtures("queues")
def test_a_relay_that_is_killed_at_each_of_its_steps(client: Client, url: str, tmp_path: Path) -> None:
    repeated = tmp_path / "repeated"
    with application_with_outbox(url, seed=1) as application, relays(url, client.endpoint, repeated) as parent:
        for step in range(1, STEPS_MAX):
            application.transact()
            ended = parent.wait(parent.start(step))
            if ended == 0:
                break
            assert ended == -signal.SIGKILL
        assert 15 < step < STEPS_MAX - 1, "all its steps"
        finish(parent, application._engine)
        assert application.rolled_back
        check(application, received(client))
    assert repeated.stat().st_size > 0, "some were killed between the broker's answer and their note of it"


@pytest.mark.usefixtures("queues")
def test_relays_that_are_killed_at_random(client: Client, url: str) -> None:
    """The short form: ``python -m tests.support.external.outbox_rounds`` is the long one."""
    application = kill_at_random(url, client, rounds=6, seed=2)
    assert application.committed
    assert application.rolled_back


def test_the_command_relays_hears_of_commits_and_ends_in_order(
    shared_cluster: Cluster, client: Client, server: str, queue: str
) -> None:
    def run(*words: object) -> str:
        env = environment(FILA_OUTBOX_URL=server.replace("+psycopg", ""), FILA_ENDPOINT=shared_cluster.endpoint)
        done = subprocess.run(command(*words), env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return done.stdout + done.stderr

    engine = create_engine(server)
    assert "there is no table fila_outbox" in run("outbox", "relay")
    assert "fila_outbox is there" in run("outbox", "init")
    env = environment(FILA_OUTBOX_URL=server.replace("+psycopg", ""), FILA_ENDPOINT=shared_cluster.endpoint)
    relay = subprocess.Popen(
        command("outbox", "relay", "--poll", "1h"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert relay.stdout
        assert relay.stdout.readline().startswith("relaying from postgresql+psycopg://fila@/postgres")
        for payload in (b"1", b"2"):
            with engine.begin() as connection:
                add(connection, queue, payload)
            (delivery,) = client.receive(queue, wait=PATIENCE_S)
            assert delivery.payload == payload
            delivery.ack()
        with engine.begin() as connection:
            add(connection, "no-such-queue", b"3")
        eventually(lambda: bool(status(engine).rows), "a refused row")
        shown = run("outbox", "status")
        assert "1 message waiting" in shown
        assert "QUEUE_NOT_FOUND" in shown
        relay.send_signal(signal.SIGTERM)
        assert "sent 2 messages" in relay.communicate(timeout=PATIENCE_S)[0]
        assert relay.returncode == 0
    finally:
        relay.kill()
        relay.wait()
        metadata.drop_all(engine)
        engine.dispose()
