"""The server's key is replaced while the cluster runs, and clients that have both keys notice nothing."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import zmq

from fila_cluster import Client
from fila_cluster.errors import UnauthenticatedError
from tests.integration.cluster.test_auth import WITH_AUTH, Guarded, initialized
from tests.support.cluster.cluster import PATIENCE_S, command, environment, eventually, running

pytestmark = pytest.mark.whole


def rotate(data_dir: Path, *flags: str) -> dict[str, str]:
    done = subprocess.run(
        command("--json", "auth", "rotate-server-key", "--data-dir", data_dir, *flags),
        capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    keys: dict[str, str] = json.loads(done.stdout)
    return keys


def refused(client: Client) -> bool:
    """Whether a client is told that it has another key than the server."""
    try:
        client.list_queues()
    except UnauthenticatedError as error:
        return "is not this server's public key" in error.message
    return False


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    data_dir = tmp_path / "data"
    keys = initialized(data_dir)
    with running(data_dir, "--dashboard", "127.0.0.1:0", workers=2, logged="info", env=WITH_AUTH) as cluster:
        yield Guarded(cluster, keys["api_key"], keys["server_key"])


def work(client: Client, stop: Event) -> int:
    """Enqueue and take messages until asked to stop; return how many. No error is expected."""
    count = 0
    while not stop.is_set():
        client.enqueue("work", b"x", dedup_id=f"{id(client)}-{count}")
        count += 1
        (delivery,) = client.receive("work", 1, wait=PATIENCE_S)
        delivery.ack()
    return count


def test_who_has_both_keys_notices_nothing_and_who_has_the_old_one_is_refused(guarded: Guarded) -> None:
    data_dir, old = guarded.cluster.data_dir, guarded.server_key
    prepared = rotate(data_dir)
    assert prepared["server_key"] == old
    assert rotate(data_dir) == prepared  # it is made once
    new = prepared["next_server_key"]
    both = Guarded(guarded.cluster, guarded.api_key, f"{old},{new}")
    stop = Event()
    with (
        guarded.client() as unaware,
        both.client(direct=False) as by_router,
        both.client() as direct,
        ThreadPoolExecutor() as pool,
    ):
        unaware.create_queue("work")
        at_work = [pool.submit(work, client, stop) for client in (by_router, direct)]
        try:
            eventually(lambda: len(guarded.cluster.events("child.renewed")) >= 1, "the observer learns the next key")
            before = guarded.cluster.router_pid()
            switched = rotate(data_dir, "--switch")
            assert switched == {"server_key": new, "next_server_key": None}
            eventually(lambda: guarded.cluster.router_pid() != before, "another router")
            late = Guarded(guarded.cluster, guarded.api_key, new)
            with late.client() as knows_the_new_one:
                eventually(lambda: len(knows_the_new_one.cluster_status().workers) == 2, "the new key")
            for keys in (f"{new},{old}", f"{old},{new}"):
                with Guarded(guarded.cluster, guarded.api_key, keys).client() as has_both:
                    assert has_both.cluster_status().shards == 2
        finally:
            stop.set()
        assert all(done.result(2 * PATIENCE_S) > 0 for done in at_work)
        eventually(lambda: refused(unaware), "the end of the old key")
    renewed = {event["child"] for event in guarded.cluster.events("child.renewed")}
    assert renewed == {"router", "observer"}


def test_who_has_only_wrong_keys_is_told_so(guarded: Guarded) -> None:
    wrong = ",".join(zmq.curve_keypair()[0].decode() for _ in range(2))
    with Guarded(guarded.cluster, guarded.api_key, wrong).client(timeout=10.0) as client:
        for _ in range(2):
            with pytest.raises(UnauthenticatedError, match="is not this server's public key"):
                client.list_queues()


def test_nothing_is_switched_to_before_it_was_made(tmp_path: Path) -> None:
    def refused(*flags: str) -> str:
        done = subprocess.run(
            command("auth", "rotate-server-key", "--data-dir", tmp_path / "data", *flags),
            capture_output=True, text=True, timeout=PATIENCE_S, env=environment(), check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        return done.stderr

    assert "fila-cluster auth init" in refused()
    initialized(tmp_path / "data")
    assert "make one without --switch" in refused("--switch")
