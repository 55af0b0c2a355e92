"""Secrets are in the files that are for them, and nowhere else: not in arguments, environments, logs or pages; and all files are private."""

import json
import re
import socket
import subprocess
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest

from fila_admission.keys import SECRET_PREFIX
from fila_cluster import Client
from fila_cluster.client.calls import cluster as calls
from fila_cluster.errors import PermissionDeniedError, UnauthenticatedError
from tests.support.cluster.cluster import PATIENCE_S, Cluster, command, environment, eventually, running
from tests.support.cluster.guarded import WITH_AUTH, Guarded, initialized

ANY_API_KEY = re.compile(rf"{SECRET_PREFIX}[A-Za-z0-9_-]{{43}}")
"""An API key, whichever."""
PAYLOAD, HEADER, SCRIPT = "payload-of-a-customer", "header-of-a-customer", "script_of_a_customer"


def shown_of(cluster: Cluster) -> dict[str, str]:
    """What other users, and readers of logs, could see of a cluster's processes."""
    seen = {"log": "\n".join(cluster.log)}
    seen["arguments of the supervisor"] = " ".join(psutil.Process(cluster.supervisor.pid).cmdline())
    for process in cluster.children():
        seen |= shown_of_process(process)
    return seen


def shown_of_process(process: psutil.Process) -> dict[str, str]:
    """Its arguments, and the environment in which it began."""
    return {
        f"arguments of {process.pid}": " ".join(process.cmdline()),
        f"environment of {process.pid}": " ".join(process.environ().values()),
    }


def test_secrets_are_nowhere_but_in_their_files(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o777)  # it was there before, and is open to all
    (data_dir / "auth").mkdir(mode=0o755)
    made = initialized(data_dir)
    env = WITH_AUTH | {"FILA_API_KEY": made["api_key"], "FILA_WORKER_TOKEN": made["worker_token"]}
    with running(data_dir, "--dashboard", "127.0.0.1:0", logged="debug", env=env) as cluster:
        guarded = Guarded(cluster, made["api_key"], made["server_key"])
        shop = work_with_keys(guarded)
        url = cluster.ready_line.split("dashboard ")[1].split(" ")[0]
        with urlopen(
            Request(f"{url}/metrics", headers={"Authorization": f"Bearer {guarded.api_key}"}), timeout=PATIENCE_S
        ) as page:
            metrics = page.read().decode()
        seen = shown_of(cluster) | {"metrics": metrics}
        modes = {path: path.stat().st_mode & 0o077 for path in data_dir.rglob("*")}
    seen["log"] = "\n".join(cluster.log)
    assert "api_key.created" in seen["log"]
    stored = json.loads((data_dir / "auth" / "server.json").read_text())
    secrets = [made["api_key"], made["worker_token"], shop, stored["server"]["secret_key"], stored["workers"]["secret_key"]]
    for where, text in seen.items():
        assert not [secret for secret in (*secrets, PAYLOAD, HEADER, SCRIPT, "fila_mistyped") if secret in text], where
        assert not ANY_API_KEY.search(text), where
    for path in data_dir.rglob("*"):
        if path.is_file() and path.name != "server.json":
            content = path.read_bytes()
            assert not [secret for secret in secrets if secret.encode() in content], path
    assert {path.relative_to(data_dir) for path, mode in modes.items() if mode} == set()


def work_with_keys(guarded: Guarded) -> str:
    """Make, use and revoke keys, also wrong ones, and leave a key's secret."""
    shop = guarded.key("shop", "produce:orders")
    with guarded.client() as admin:
        admin.create_queue("orders")
        with pytest.raises(Exception, match="on_enqueue"):
            admin.create_queue("scripted", on_enqueue=f"{SCRIPT}(")
    with guarded.client(shop) as producer:
        producer.enqueue("orders", PAYLOAD.encode(), {"customer": HEADER})
        with pytest.raises(PermissionDeniedError):
            producer.receive("orders")
    with guarded.client("fila_mistyped") as stranger, pytest.raises(UnauthenticatedError) as refused:
        stranger.list_queues()
    assert "fila_mistyped" not in str(refused.value)
    with guarded.client() as admin:
        admin.request(calls.grant_key("shop", ["consume:orders"]))
        admin.request(calls.revoke_key("shop"))
    return shop


@pytest.mark.whole
def test_workers_on_other_hosts_join_with_the_token_alone_and_it_is_not_in_their_environment(tmp_path: Path) -> None:
    made, other = initialized(tmp_path / "router"), initialized(tmp_path / "other")
    with socket.create_server(("127.0.0.1", 0)) as front, socket.create_server(("127.0.0.1", 0)) as back:
        listen, join = (f"tcp://127.0.0.1:{taken.getsockname()[1]}" for taken in (front, back))
    router = ("router", "--listen", listen, "--worker-listen", join, "--shards", 3, "--data-dir", tmp_path / "router")
    tokens = {1: other["worker_token"], 2: "", 0: made["worker_token"]}  # the last one to start is the one to join
    parts = [started(*router, **WITH_AUTH)] + [
        started(
            "worker",
            "--join",
            join,
            "--shard",
            shard,
            "--shards",
            3,
            "--data-dir",
            tmp_path / str(shard),
            **with_token(token),
        )
        for shard, token in tokens.items()
    ]
    try:
        with Client(listen, api_key=made["api_key"], server_key=made["server_key"], timeout=PATIENCE_S) as client:

            def joined() -> list[int]:
                return [shard for worker in client.cluster_status().workers for shard in worker.shards]

            eventually(lambda: 0 in joined(), "the worker with the token")
            assert joined() == [0], "the others can't speak with the router"
            for part in parts:
                for where, text in shown_of_process(psutil.Process(part.pid)).items():
                    assert not [token for token in tokens.values() if token and token in text], where
    finally:
        for part in reversed(parts):
            part.kill()
            part.wait(PATIENCE_S)


def with_token(token: str) -> dict[str, str]:
    return {"FILA_WORKER_TOKEN": token} if token else {}


def started(*arguments: object, **env: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command(*arguments),
        env=environment(**env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
