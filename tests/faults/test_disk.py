"""A disk that is full, read-only or broken, and a clock that steps: of the processes of a real cluster, by a preloaded library.

Whatever the disk refuses is refused to the client, never confirmed. When it works again, the queues are served again, and what was
confirmed is there.
"""

from contextlib import suppress
from pathlib import Path

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError, LeaseExpiredError
from tests.support.cluster.cluster import Cluster, eventually, running, settling_may_fail
from tests.support.cluster.faults import check_disk, kill, wait_until_served
from tests.support.external.shim import BROKEN_DISK, FULL_DISK, READ_ONLY, Shim

pytestmark = pytest.mark.whole

QUEUE = "on-disk"
HOUR_MS = 3600 * 1000


def enqueued(client: Client, payloads: list[bytes]) -> set[bytes]:
    """Those that were confirmed."""
    confirmed = set()
    for payload in payloads:
        with suppress(FilaError):
            client.enqueue(QUEUE, payload, dedup_id=payload.decode())
            confirmed.add(payload)
    return confirmed


def drained(cluster: Cluster) -> list[bytes]:
    """All that can be had, acked."""
    got: list[bytes] = []
    with cluster.client() as client:
        while client.queue_stats(QUEUE).depth:
            with suppress(FilaError):
                for delivery in client.receive(QUEUE, 100, wait=0.2):
                    delivery.ack()
                    got.append(delivery.payload)
    return got


@settling_may_fail
@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("errors", [FULL_DISK, READ_ONLY, BROKEN_DISK], ids=["full", "read-only", "broken"])
def test_what_the_disk_refuses_is_refused_and_the_rest_is_kept(
    tmp_path: Path, errors: dict[str, int], durability: str
) -> None:
    (tmp_path / "fila.toml").write_text(f'[storage]\ndurability = "{durability}"\n')
    shim = Shim(tmp_path, tmp_path / "data")
    with running(tmp_path / "data", "--config", tmp_path / "fila.toml", logged="error", env=shim.env) as cluster:
        with cluster.client(timeout=1.0) as client:
            client.create_queue(QUEUE)
            before = enqueued(client, [b"before-%d" % number for number in range(50)])
            assert len(before) == 50
            with shim.failing(**errors):
                during = enqueued(client, [b"during-%d" % number for number in range(3)])
                eventually(lambda: shim.failures > 0, "the disk refused something")
            assert during == set(), "confirmed, although the disk took nothing"
            wait_until_served(cluster, QUEUE)
            after = enqueued(client, [b"after-%d" % number for number in range(50)])
        assert len(after) == 50
        got = drained(cluster)
        assert before | after <= set(got)
        assert len(got) == len(set(got))
        assert cluster.stop() == 0
    assert check_disk(cluster.data_dir)[QUEUE] == 0


@settling_may_fail
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["ahead", "back"])
def test_a_clock_that_steps_loses_nothing_and_stops_no_client(tmp_path: Path, step_ms: int) -> None:
    shim = Shim(tmp_path, tmp_path / "data")
    with running(tmp_path / "data", workers=1, env=shim.env) as cluster, cluster.client() as client:
        client.create_queue(QUEUE)
        confirmed = enqueued(client, [b"before-%d" % number for number in range(20)])
        (held,) = client.receive(QUEUE)
        shim.step_clock(step_ms)
        confirmed |= enqueued(client, [b"stepped-%d" % number for number in range(20)])
        with suppress(LeaseExpiredError):  # an hour ahead its lease is over
            held.extend(30)
        kill(cluster, "worker-0")  # its next life begins with the other time
        wait_until_served(cluster, QUEUE)
        confirmed |= enqueued(client, [b"restarted-%d" % number for number in range(20)])
        with suppress(FilaError):
            held.ack()
        client.enqueue(QUEUE, b"soon", delay=0.3)
        got = drained(cluster)
    assert confirmed | {b"soon"} <= {*got, held.payload}


def test_many_are_written_while_the_disk_fills_up_and_empties(tmp_path: Path) -> None:
    shim = Shim(tmp_path, tmp_path / "data")
    with running(tmp_path / "data", logged="error", env=shim.env) as cluster, cluster.client(timeout=1.0) as client:
        client.create_queue(QUEUE)
        confirmed: set[str] = set()
        for round_ in range(3):
            messages = [Message(b"%d-%d" % (round_, number), dedup_id=f"{round_}-{number}") for number in range(500)]
            confirmed |= set(client.enqueue_many(QUEUE, messages))
            with shim.failing(**FULL_DISK), suppress(FilaError):
                client.enqueue(QUEUE, b"refused")
            wait_until_served(cluster, QUEUE)
        assert client.queue_stats(QUEUE).depth >= len(confirmed) == 1500
