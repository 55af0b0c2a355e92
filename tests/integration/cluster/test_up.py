"""``fila-cluster up``: starts, refuses to start, restarts its children, stops; all with real processes."""

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from fila_cluster import Client
from fila_cluster.errors import FilaError, QueueNotFoundError, ShardUnavailableError
from fila_cluster.run.supervisor.supervisor import ROUTER_STOP_S, WORKERS_STOP_S
from fila_proto_zmq.names import shard_of
from tests.support.cluster.cluster import PATIENCE_S, command, environment, eventually, is_dead, running


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def refused(*arguments: object, cwd: Path | None = None, **env: str) -> str:
    """The one line of a command that does not start."""
    result = subprocess.run(
        command(*arguments), cwd=cwd, env=environment(**env), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (result.returncode, result.stdout) == (1, "")
    (line,) = result.stderr.splitlines()
    return line


def is_there(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def name_on(shard: int, shards: int) -> str:
    """A queue name that lives on a shard."""
    return next(name for name in map("q{}".format, range(1000)) if shard_of(name, shards) == shard)


# --- starting ---------------------------------------------------------------------------------------------------------


def test_it_says_when_it_serves_and_then_it_does(data_dir: Path):
    with running(data_dir, "--shards", 3, workers=2) as cluster:
        assert cluster.ready_line == f"ready: {cluster.endpoint} · 2 workers"
        status = cluster.status()
        assert status.shards == 3
        assert [(worker.name, worker.state, worker.shards) for worker in status.workers] == [
            ("worker-0", "up", [0, 2]),
            ("worker-1", "up", [1]),
        ]
        assert {worker.pid for worker in status.workers} < {child.pid for child in cluster.children()}
        assert json.loads((data_dir / "fila.json").read_text()) == {"format": 1, "shards": 3, "made": [0, 1, 2]}
        assert cluster.stop() == 0
        assert cluster.log == []


@pytest.mark.whole
def test_it_says_where_the_dashboard_is_once_it_answers(data_dir: Path):
    with running(data_dir, "--dashboard", "127.0.0.1:0", workers=2) as cluster:
        ready = re.fullmatch(r"ready: (\S+) · dashboard (http://127\.0\.0\.1:\d+) · 2 workers", cluster.ready_line)
        assert ready is not None
        assert ready[1] == cluster.endpoint
        with urlopen(f"{ready[2]}/healthz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert len(cluster.children()) == 4
        assert cluster.stop() == 0
        assert cluster.log == []


def test_at_a_terminal_it_says_what_to_try_next(data_dir: Path):
    ours, theirs = os.openpty()
    up = command("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--no-dashboard", "--workers", 1)
    with subprocess.Popen(up, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs) as running_up:
        os.close(theirs)
        shown = b""
        while b"Ctrl-C" not in shown:
            shown += os.read(ours, 4096)
        running_up.send_signal(signal.SIGINT)
        assert running_up.wait(PATIENCE_S) == 0
    os.close(ours)
    first, *more = shown.decode().splitlines()
    endpoint = first.removeprefix("ready: ").removesuffix(" · 1 workers")
    assert f"  try next   fila-cluster --endpoint {endpoint} queue create orders" in more


def test_without_a_dashboard_there_is_no_observer(data_dir: Path):
    with running(data_dir) as cluster:
        assert len(cluster.children()) == 2


def test_the_first_start_makes_a_shard_for_every_worker_and_a_worker_for_every_core(data_dir: Path):
    with running(data_dir, workers=None) as cluster:
        status = cluster.status()
        assert status.shards == len(status.workers) == len(os.sched_getaffinity(0))


@pytest.mark.whole
def test_the_shards_stay_and_the_workers_may_change(data_dir: Path):
    with running(data_dir, "--shards", 2, workers=2) as cluster, cluster.client() as client:
        for shard in range(2):
            client.create_queue(name_on(shard, 2))
            client.enqueue(name_on(shard, 2), b"kept")
        assert cluster.stop() == 0
    with running(data_dir) as cluster, cluster.client() as client:
        assert [worker.shards for worker in cluster.status().workers] == [[0, 1]]
        for shard in range(2):
            (delivery,) = client.receive(name_on(shard, 2))
            assert delivery.payload == b"kept"
            delivery.ack()


def test_children_see_the_whole_configuration(data_dir: Path, tmp_path: Path):
    (tmp_path / "fila.toml").write_text(
        "[scheduler]\nquantum = 7\n[limits]\nmax_payload_bytes = 100\n[server]\nworkers = 1\n"
    )
    with running(data_dir, workers=None, cwd=tmp_path) as cluster, cluster.client() as client:
        client.create_queue("orders")
        assert client.queue_stats("orders").quantum == 7
        with pytest.raises(FilaError, match="100"):
            client.enqueue("orders", bytes(101))


def test_any_address_with_a_word_for_it(data_dir: Path):
    with running(data_dir, "--insecure", listen="0.0.0.0:0") as cluster:
        port = cluster.endpoint.rsplit(":", 1)[1]
        assert cluster.endpoint == f"tcp://0.0.0.0:{port}"
        with Client(f"tcp://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            assert client.cluster_status().shards == 1


def test_workers_may_meet_their_router_over_tcp(data_dir: Path):
    with running(data_dir, "--worker-listen", "127.0.0.1:0", workers=2) as cluster:
        assert len(cluster.status().workers) == 2
        assert not (data_dir / "router.ipc").exists()


def test_two_clusters_run_beside_each_other(tmp_path: Path):
    with running(tmp_path / "a") as first, running(tmp_path / "b") as second:
        with first.client() as client:
            client.create_queue("orders")
        with second.client() as client, pytest.raises(QueueNotFoundError):
            client.queue_stats("orders")


# --- refusing ---------------------------------------------------------------------------------------------------------


def test_a_data_directory_in_use_is_refused(data_dir: Path):
    with running(data_dir) as cluster:
        before = sorted(data_dir.iterdir())
        line = refused("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0")
        assert line == (
            f"Error: data directory {data_dir} is in use by process {cluster.supervisor.pid}: "
            "stop that one, or choose another --data-dir"
        )
        assert sorted(data_dir.iterdir()) == before
        assert cluster.all_up()


@pytest.mark.parametrize("flag", ["--listen", "--worker-listen", "--dashboard"])
def test_a_port_in_use_is_refused_before_anything_is_made(data_dir: Path, flag: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        line = refused("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", flag, address)
    assert (
        line
        == f"Error: cannot listen on tcp://{address}: address already in use; stop the other process or choose another {flag}"
    )
    assert not data_dir.exists()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--workers", 3, "--shards", 2), "3 workers have only 2 shards to share"),
        (("--workers", 0), "--workers 0: should be greater than or equal to 1"),
        (("--listen", "nonsense"), "--listen nonsense: not an address"),
        (("--listen", "0.0.0.0:0"), "--insecure"),
        (("--listen", "127.0.0.1:0", "--worker-listen", "0.0.0.0:0"), "--insecure"),
        (("--dashboard", "0.0.0.0:8555"), "--insecure"),
        (("--worker-listen", "nonsense"), "--worker-listen nonsense: write tcp://HOST:PORT or ipc://PATH"),
        (("--config", "missing.toml"), "cannot read missing.toml"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(data_dir: Path, flags: tuple[object, ...], reason: str):
    assert reason in refused("up", "--data-dir", data_dir, *flags)
    assert not data_dir.exists()


def test_a_bad_file_is_refused(data_dir: Path, tmp_path: Path):
    (tmp_path / "fila.toml").write_text("[server]\nwrokers = 2\n")
    assert refused("up", "--data-dir", data_dir, cwd=tmp_path).startswith(
        "Error: fila.toml: there is no 'wrokers' in [server]"
    )
    assert not data_dir.exists()


def test_a_bad_variable_is_refused(data_dir: Path):
    assert "FILA_SERVER__WORKERS=x" in refused("up", "--data-dir", data_dir, FILA_SERVER__WORKERS="x")


@pytest.mark.whole
def test_another_number_of_shards_is_refused(data_dir: Path):
    with running(data_dir, "--shards", 2) as cluster:
        assert cluster.stop() == 0
    assert "reshard" in refused("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--shards", 4)
    assert "use --workers 2 or fewer" in refused("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--workers", 4)


def test_a_child_that_cannot_start_is_not_tried_for_ever(data_dir: Path):
    data_dir.mkdir()
    (data_dir / "fila.json").write_text('{"format": 1, "shards": 1}')
    (data_dir / "shard-0000").write_text("no database")
    line = refused(
        "up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--no-dashboard", FILA_TELEMETRY__LOG_LEVEL="error"
    )
    assert "shard-0000" in line


# --- keeping going ----------------------------------------------------------------------------------------------------


def test_a_killed_worker_comes_back_and_its_neighbours_notice_nothing(data_dir: Path):
    with running(data_dir, "--shards", 2, workers=2) as cluster, cluster.client() as client:
        broken, well = name_on(0, 2), name_on(1, 2)
        for queue in (broken, well):
            client.create_queue(queue)
        message_id = client.enqueue(broken, b"kept")
        victim = cluster.worker_of(0)
        os.kill(victim.pid, signal.SIGKILL)
        for _ in range(20):
            client.enqueue(well, b"")
        (delivery,) = client.receive(broken, wait=PATIENCE_S)
        assert delivery.id == message_id
        delivery.ack()
        assert cluster.worker_of(0).pid != victim.pid
        eventually(lambda: len(cluster.events("child.died")) == 1, "its end is told")
        (died,) = cluster.events("child.died")
        assert (died["child"], died["child_pid"], died["restart_ms"]) == ("worker-0", victim.pid, 0)
        assert died["exit"] == "was killed by signal 9 (Killed)"


def test_a_killed_worker_s_queues_are_unavailable_at_once_not_hanging(data_dir: Path):
    with running(data_dir) as cluster, cluster.client() as client:
        client.create_queue("orders")
        (router,) = [child for child in cluster.children() if child.pid == cluster.router_pid()]
        worker = psutil.Process(cluster.worker_of(0).pid)
        psutil.Process(cluster.supervisor.pid).suspend()  # nobody restarts it
        try:
            worker.kill()
            with cluster.client(timeout=2.0) as impatient:
                impatient.cluster_status()
                with pytest.raises(ShardUnavailableError) as caught:  # and not that nobody answered in time
                    impatient.enqueue("orders", b"")
            assert caught.value.retryable
            assert router.is_running()
        finally:
            psutil.Process(cluster.supervisor.pid).resume()
        client.enqueue("orders", b"")


def test_a_killed_router_comes_back(data_dir: Path):
    with running(data_dir, workers=2) as cluster, cluster.client() as client:
        client.create_queue("orders")
        before = cluster.router_pid()
        os.kill(before, signal.SIGKILL)
        eventually(cluster.all_up, "router and workers together again")
        assert cluster.router_pid() != before
        assert client.enqueue("orders", b"")


def test_a_killed_observer_comes_back_and_no_other_process_notices(data_dir: Path):
    with running(data_dir, "--dashboard", "127.0.0.1:0") as cluster, cluster.client() as client:
        client.create_queue("orders")
        others = {child.pid for child in cluster.children() if "fila_cluster.ops.observer" not in child.cmdline()}
        (observer,) = [child for child in cluster.children() if child.pid not in others]
        observer.kill()
        page = f"{cluster.ready_line.split(' ')[4]}/healthz"

        def answers() -> bool:
            with suppress(OSError), urlopen(page, timeout=PATIENCE_S) as answer:
                return answer.status == 200
            return False

        assert client.enqueue("orders", b"")
        eventually(lambda: [event["child"] for event in cluster.events("child.died")] == ["observer"], "its end is noticed")
        eventually(answers, "another observer answers")
        assert others < {child.pid for child in cluster.children()}


@pytest.mark.whole
def test_a_child_that_dies_before_it_has_served_is_restarted_with_growing_pauses(data_dir: Path):
    with running(data_dir, logged="info") as cluster:

        def starts() -> list[int]:
            return [event["child_pid"] for event in cluster.events("child.started") if event["child"] == "worker-0"]

        for count in range(1, 5):
            eventually(lambda count=count: len(starts()) == count, "the worker is started")
            os.kill(starts()[-1], signal.SIGKILL)
        eventually(lambda: len(cluster.events("child.died")) == 4, "all ends are told")
        assert [event["restart_ms"] for event in cluster.events("child.died")] == [0, 100, 200, 400]


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_in_order_and_keeps_everything(data_dir: Path, number: signal.Signals):
    with running(data_dir, workers=2) as cluster, cluster.client() as client:
        client.create_queue("orders")
        ids = client.enqueue_many("orders", [])
        ids = [client.enqueue("orders", b"%d" % index) for index in range(10)]
        children = cluster.children()
        assert cluster.stop(number) == 0
        assert all(map(is_dead, children))
        assert cluster.log == []
    with running(data_dir, workers=2) as cluster, cluster.client() as client:
        deliveries = client.receive("orders", 10)
        assert [delivery.id for delivery in deliveries] == ids
        client.ack(deliveries)


def test_it_stops_before_it_was_ready_too(data_dir: Path):
    data_dir.mkdir()
    with subprocess.Popen(
        command("up", "--data-dir", data_dir, "--listen", "127.0.0.1:0", "--dashboard", "127.0.0.1:0"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as supervisor:
        eventually(lambda: bool(psutil.Process(supervisor.pid).children()), "a child was started")
        children = psutil.Process(supervisor.pid).children()
        supervisor.terminate()
        assert supervisor.wait(PATIENCE_S) == 0
        assert not any(is_there(child) for child in children)
        assert "Traceback" not in supervisor.stderr.read()


def test_ctrl_c_in_a_terminal_reaches_the_children_through_the_supervisor_only(data_dir: Path):
    with running(data_dir) as cluster:
        groups = {os.getpgid(child.pid) for child in cluster.children()}
        assert os.getpgid(cluster.supervisor.pid) not in groups


@pytest.mark.whole
def test_a_worker_that_does_not_stop_is_killed(data_dir: Path):
    with running(data_dir) as cluster:
        worker = psutil.Process(cluster.worker_of(0).pid)
        worker.suspend()
        assert cluster.stop() == 0
        (killed,) = cluster.events("child.killed")
        assert (killed["child"], killed["child_pid"], killed["waited_ms"]) == ("worker-0", worker.pid, 1000 * WORKERS_STOP_S)
        assert WORKERS_STOP_S + ROUTER_STOP_S < 10


def test_children_do_not_outlive_a_killed_supervisor_and_the_next_one_starts_at_once(data_dir: Path):
    with running(data_dir, workers=2) as cluster:
        with cluster.client() as client:
            client.create_queue("orders")
            message_id = client.enqueue("orders", b"kept")
        children = cluster.children()
        listen = cluster.endpoint
        cluster.supervisor.kill()
        cluster.wait()
        with running(data_dir, listen=listen) as again, again.client() as client:
            assert not any(is_there(child) for child in children)
            (delivery,) = client.receive("orders")
            assert delivery.id == message_id
            delivery.ack()


def test_after_killing_everything_it_starts_again(data_dir: Path):
    with running(data_dir, workers=2) as cluster:
        cluster.kill_all()
    with running(data_dir, workers=None) as cluster:
        assert len(cluster.status().workers) == min(2, len(os.sched_getaffinity(0)))


# --- parts alone ------------------------------------------------------------------------------------------------------


def test_router_and_workers_alone_make_a_cluster(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as front, socket.create_server(("127.0.0.1", 0)) as back:
        listen, join = (f"tcp://127.0.0.1:{taken.getsockname()[1]}" for taken in (front, back))
    parts = [
        subprocess.Popen(command(*arguments), env=environment(), cwd=tmp_path, stdin=subprocess.DEVNULL)
        for arguments in (
            ("router", "--listen", listen, "--worker-listen", join, "--shards", 3),
            ("worker", "--join", join, "--shard", 0, "--shard", 2, "--shards", 3, "--data-dir", tmp_path / "a"),
            (
                "worker",
                "--join",
                join,
                "--shard",
                1,
                "--shards",
                3,
                "--data-dir",
                tmp_path / "b",
                "--direct-listen",
                "127.0.0.1:0",
            ),
        )
    ]
    try:
        with Client(listen, timeout=10.0) as client:

            def complete() -> bool:
                try:
                    workers = client.cluster_status().workers
                except FilaError:
                    return False
                return [(worker.name, worker.shards) for worker in workers] == [("worker-0", [0, 2]), ("worker-1", [1])]

            eventually(complete, "both workers have joined")
            for shard in range(3):
                client.create_queue(name_on(shard, 3))
            assert len(client.list_queues()) == 6

            def doors() -> list[list[str]]:
                client.list_queues()  # a placement that was pushed is read with the next answer
                return sorted(way.endpoints for way in client._session.routes.doors.values())

            eventually(lambda: len(doors()) == 2, "both doors are known")
            first, second = doors()
            assert first == [f"ipc://{tmp_path}/a/door-0000.ipc"]
            assert second[0] == f"ipc://{tmp_path}/b/door-0001.ipc"
            assert re.fullmatch(r"tcp://127\.0\.0\.1:\d+", second[1])
    finally:
        for part in reversed(parts):
            part.terminate()
        assert [part.wait(PATIENCE_S) for part in parts] == [0, 0, 0]


@pytest.mark.whole
def test_parts_that_cannot_work_are_refused(data_dir: Path):
    assert "add --shards" in refused("router", "--worker-listen", "ipc://x")
    assert "--insecure" in refused("router", "--worker-listen", "tcp://0.0.0.0:5556", "--shards", 1)
    assert "tcp://HOST:PORT" in refused("router", "--worker-listen", "nonsense", "--shards", 1)
    worker = ("worker", "--join", "ipc://x", "--shard", 0, "--shards", 1, "--data-dir", data_dir)
    assert "--insecure" in refused(*worker, "--direct-listen", "tcp://0.0.0.0:5557")
    assert "--direct-listen" in refused(*worker, "--direct-listen", "nonsense")
    assert "tcp://HOST:PORT" in refused("worker", "--join", "nonsense", "--shard", 0, "--shards", 1, "--data-dir", data_dir)
    assert "add --shards" in refused("worker", "--join", "ipc://x", "--shard", 0, "--data-dir", data_dir)
    assert "there is no shard 3" in refused(
        "worker", "--join", "ipc://x", "--shard", 3, "--shards", 3, "--data-dir", data_dir
    )
    assert not data_dir.exists()
