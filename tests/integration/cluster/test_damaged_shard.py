"""A cluster with one damaged shard serves the others, and says everywhere which file is damaged."""

import json
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fila_cluster.errors import ShardUnavailableError
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import command, running

QUEUES = {shard: next(name for name in map("q{}".format, range(99)) if shard_of(name, 2) == shard) for shard in (0, 1)}


def test_the_others_serve_and_the_file_is_named_everywhere(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running(data_dir, "--shards", 2) as cluster:
        with cluster.client() as client:
            for name in QUEUES.values():
                client.create_queue(name)
                for number in range(20):
                    client.enqueue(name, b"payload %02d" % number)
        cluster.kill_all()
    log = max((data_dir / "shard-0001").glob("*.log"), key=lambda log: log.stat().st_size)
    content = bytearray(log.read_bytes())
    content[content.index(b"payload 10")] ^= 1
    log.write_bytes(content)
    with running(data_dir, "--dashboard", "127.0.0.1:0") as cluster:
        with cluster.client() as client:
            assert client.queue_stats(QUEUES[0]).pending == 20
            (worker,) = client.cluster_status().workers
            assert (worker.state, worker.shards) == ("up", [0, 1])
            assert [(outage.shard, outage.state) for outage in worker.outages] == [(1, "quarantined")]
            assert str(log) in client.why(QUEUES[1]).reasons[0].text
        with cluster.client(timeout=1) as client, pytest.raises(ShardUnavailableError, match=log.name):
            client.enqueue(QUEUES[1], b"x")
        url = cluster.ready_line.split("dashboard ")[1].split(" ")[0]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/readyz", timeout=10)
        (reason,) = json.load(refused.value)["reasons"]
        assert (reason["shard"], reason["state"], log.name in reason["text"]) == (1, "quarantined", True)
        assert str(log.parent) not in reason["text"], "it needs no key, and shows no paths"
        status = subprocess.run(
            command("--endpoint", cluster.endpoint, "status"), capture_output=True, text=True, timeout=60, check=True
        )
        assert "quarantined" in status.stdout
        assert log.name in status.stdout.replace("\n", "")
        (event,) = cluster.events("shard.quarantined")
        assert str(log) in event["reason"]
    assert log.read_bytes() == bytes(content), "nothing was overwritten"
