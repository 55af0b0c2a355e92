"""A cluster as the image and the chart of deploy/ run it: it writes to its data directory and to the one for temporary files only."""

import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from fila_cluster import Client
from tests.support import machine
from tests.support.cluster.cluster import PATIENCE_S, command, environment

SCRIPT = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -o remount,ro,bind /
if touch /written 2>/dev/null; then exit 3; fi
cd "$1"
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""


@pytest.mark.whole
def test_a_cluster_serves_without_capabilities_on_a_read_only_root(tmp_path: Path) -> None:
    machine.require(machine.NETWORK)  # it needs namespaces, too
    home, temporary = tmp_path / "home", tmp_path / "home" / "tmp"
    temporary.mkdir(parents=True)
    up = command("up", "--data-dir", home / "data", "--listen", "127.0.0.1:0", "--dashboard", "127.0.0.1:0", "--workers", 1)
    env = environment(HOME=str(home), TMPDIR=str(temporary), PYTHONDONTWRITEBYTECODE="1")
    arguments = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh", str(home), *up]
    with subprocess.Popen(arguments, env=env, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            ready = cluster.stdout.readline().split()
            assert ready, f"it has ended, with {cluster.wait(PATIENCE_S)}"
            with Client(ready[1]) as client:
                client.create_queue("orders", on_enqueue="function on_enqueue(msg) return {} end")
                client.enqueue("orders", b"x")
                client.receive("orders")[0].ack()
            with urlopen(f"{ready[4]}/metrics", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        finally:
            cluster.terminate()
            assert cluster.wait(PATIENCE_S) == 0
    assert sorted(each.name for each in home.iterdir()) == ["data", "tmp"]
