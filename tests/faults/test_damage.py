"""A bit that turns in the log or in a table: the shard that it hurts is quarantined and named, the others serve, nothing is overwritten."""

import json
from hashlib import sha256
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from fila_cluster import Client, Message
from fila_cluster.errors import FilaError, QueueNotFoundError, ShardUnavailableError
from fila_worker.storage.made import mark_of
from tests.support.cluster.cluster import Cluster, eventually, running
from tests.support.cluster.faults import kill, queue_on

pytestmark = pytest.mark.whole

MESSAGES = 200


def filled(tmp_path: Path, *, closed_well: bool) -> tuple[str, str, Path]:
    """Queues on shard 0 and shard 1 with messages; the first one's directory. Killed, its messages are in the log; stopped, in tables."""
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        hurt, sound = (queue_on(client, shard) for shard in (0, 1))
        for queue in (hurt, sound):
            client.enqueue_many(queue, [Message(b"%d " % number + bytes(500)) for number in range(MESSAGES)])
        if closed_well:
            assert cluster.stop() == 0
        else:
            cluster.kill_all()
    return hurt, sound, tmp_path / "data" / "shard-0000"


def turn_a_bit(path: Path, share: float) -> None:
    """Damage a file at some part of its length."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * share)] ^= 0x10
    path.write_bytes(data)


def largest(directory: Path, pattern: str) -> Path:
    return max(directory.glob(pattern), key=lambda path: path.stat().st_size)


def contents(directory: Path) -> dict[str, str]:
    """What the log and the tables hold."""
    files = [path for path in directory.iterdir() if path.suffix in {".log", ".sst", ".blob"} and path.stat().st_size]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def refusal(client: Client, queue: str) -> str:
    """Why a queue is refused; empty if it is not, or only for the moment."""
    try:
        client.queue_stats(queue)
    except ShardUnavailableError as error:
        return str(error)
    except FilaError:
        return ""
    return ""


def not_ready(cluster: Cluster) -> str:
    """What ``/readyz`` says against it."""
    url = cluster.ready_line.split("dashboard ")[1].split(" ")[0]
    try:
        with urlopen(f"{url}/readyz") as answer:
            return "" if answer.status == 200 else str(answer.read())
    except HTTPError as error:
        with error:
            return json.dumps(json.loads(error.read()))
    except URLError:  # nobody listens there yet
        return ""


@pytest.mark.parametrize("where", ["log", "table"])
def test_a_damaged_shard_is_named_and_the_other_one_serves(tmp_path: Path, where: str) -> None:
    hurt, sound, directory = filled(tmp_path, closed_well=where == "table")
    victim = largest(directory, "*.log" if where == "log" else "*.sst")
    turn_a_bit(victim, 0.4)
    before = contents(directory)
    with (
        running(tmp_path / "data", "--dashboard", "127.0.0.1:0", workers=2) as cluster,
        cluster.client(timeout=2.0) as client,
    ):
        eventually(lambda: victim.name in refusal(client, hurt), "the damaged file is named")
        eventually(lambda: victim.name in not_ready(cluster), "it is named by /readyz")
        assert victim.name in "\n".join(cluster.log)
        with pytest.raises(ShardUnavailableError):
            client.enqueue(hurt, b"refused")
        got = client.receive(sound, MESSAGES, wait=5)
        client.ack(got)
        assert len(got) == MESSAGES
        client.enqueue(sound, b"more")
        kill(cluster, "worker-0")  # a restart heals nothing, and spoils nothing
        eventually(lambda: victim.name in refusal(client, hurt), "it is named again")
        assert cluster.stop() == 0
    assert {name: contents(directory).get(name) for name in before} == before, (
        "something of the damaged shard was overwritten"
    )


def test_a_log_that_was_cut_off_by_a_crash_is_no_damage(tmp_path: Path) -> None:
    hurt, _, directory = filled(tmp_path, closed_well=False)
    log = largest(directory, "*.log")
    log.write_bytes(log.read_bytes()[:-7])
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        assert client.queue_stats(hurt).pending >= 0


@pytest.mark.parametrize("emptied", [False, True], ids=["deleted", "not mounted"])
def test_a_shard_whose_directory_is_gone_is_not_begun_anew(tmp_path: Path, emptied: bool) -> None:
    hurt, sound, directory = filled(tmp_path, closed_well=True)
    elsewhere = directory.rename(tmp_path / "elsewhere")
    if emptied:
        directory.mkdir()
    with running(tmp_path / "data", workers=2) as cluster, Client(cluster.endpoint, timeout=2.0) as client:
        assert "is empty or missing" in refusal(client, hurt)
        with cluster.client() as patient:  # the other worker may still be starting
            assert patient.queue_stats(sound).pending == MESSAGES
    assert not directory.exists() or not any(directory.iterdir())
    if emptied:
        directory.rmdir()
    elsewhere.rename(directory)
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        assert client.queue_stats(hurt).pending == MESSAGES
        assert cluster.stop() == 0


def test_the_loss_of_a_shard_can_be_accepted(tmp_path: Path) -> None:
    hurt, sound, directory = filled(tmp_path, closed_well=True)
    directory.rename(tmp_path / "elsewhere")
    mark_of(directory).unlink()
    with running(tmp_path / "data", workers=2) as cluster, Client(cluster.endpoint, timeout=2.0) as client:
        assert 'take 0 from "made" in' in refusal(client, hurt), "the mark may be lost with the directory"
        with cluster.client() as patient:
            assert patient.queue_stats(sound).pending == MESSAGES
    identity = tmp_path / "data" / "fila.json"
    identity.write_text(identity.read_text().replace('"made": [0, 1]', '"made": [1]'))
    with running(tmp_path / "data", workers=2) as cluster, cluster.client() as client:
        with pytest.raises(QueueNotFoundError):
            client.queue_stats(hurt)
        assert client.queue_stats(sound).pending == MESSAGES
        assert cluster.stop() == 0
