"""Other brokers in benchmarks: each is used as it should be, and what it loses is noticed."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from rich.console import Console

from benchmarks.harness import clients
from benchmarks.harness.messages import Check, Load, time_of
from benchmarks.harness.report.results import Verified
from benchmarks.harness.systems import Connection, Server, System
from benchmarks.harness.workload import Run
from benchmarks.peers import comparison, promises
from benchmarks.peers.beanstalk import Beanstalkd
from benchmarks.peers.nats_jetstream import Nats
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.redis_streams import Redis
from benchmarks.workloads import throughput, unary
from tests.support.cluster.cluster import PATIENCE_S, eventually, is_dead
from tests.support.machine import PEERS, require

ROOT = Path(__file__).parents[2]

SYSTEMS = {
    "Redis": Redis(),
    "Redis, always, Unix socket": Redis("always", socket=True),
    "NATS": Nats(),
    "RabbitMQ": RabbitMQ(),
    "beanstalkd": Beanstalkd(),
}
SERVERS = {"redis-server", "nats-server", "beam.smp", "epmd", "beanstalkd"}
MESSAGES = 1_200
"""More than a batch of any client, and no multiple of one."""


class Peer:
    """A system and its server."""

    def __init__(self, system: System, server: Server) -> None:
        self.system = system
        self.server = server

    def use(self, work: Callable[[Connection, str], Coroutine[Any, Any, Any]]) -> Any:
        """Do some work with a client, and a queue that is empty."""
        return asyncio.run(self._use(work))

    async def _use(self, work: Callable[[Connection, str], Coroutine[Any, Any, Any]]) -> Any:
        queue = f"test-{uuid4().hex}"
        async with self.system.connect(self.server.address) as connection:
            await connection.create(queue)
            return await work(connection, queue)


@pytest.fixture(scope="module", params=SYSTEMS)
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    require(PEERS[request.param.partition(",")[0]])
    system = SYSTEMS[request.param]
    with system.serve(tmp_path_factory.mktemp("server") / "data") as server:
        yield Peer(system, server)
    assert {child.name() for child in psutil.Process().children(recursive=True)} & SERVERS == set()


def test_what_is_sent_in_bulk_comes_once_and_whole(peer: Peer):
    load = Load(MESSAGES)

    async def work(connection: Connection, queue: str) -> tuple[int, Verified]:
        ids = await connection.send_all(queue, connection.prepare(load))
        check = Check(load)
        await connection.drain(queue, check)
        return len(set(ids)), check.verified()

    ids, verified = peer.use(work)
    assert ids in (0, MESSAGES)
    assert verified == Verified(MESSAGES, MESSAGES, 0, 0, 0)


def test_what_was_acknowledged_does_not_come_again(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "STALLED_S", 0.5)

    async def work(connection: Connection, queue: str) -> None:
        await connection.send_all(queue, connection.prepare(Load(7)))
        await connection.drain(queue, Check(Load(7)))
        await clients.moving(connection.drain(queue, check), check)

    check = Check(Load(1))
    with pytest.raises(TimeoutError):
        peer.use(work)
    assert check.received == 0


def test_lone_messages_are_pushed_and_acknowledged(peer: Peer):
    async def work(connection: Connection, queue: str) -> list[int]:
        for number in range(20):
            await connection.send(queue, Load(20).payload(number, number + 1), Load(20).headers)
        came: list[int] = []
        async with aclosing(connection.follow(queue, 10)) as pushed:
            async for payload, ack in pushed:
                came.append(time_of(payload))
                await ack()
                if len(came) == 20:
                    return came
        raise AssertionError

    assert peer.use(work) == list(range(1, 21))


class Wrong(Load):
    """A load of which number 1 is lost, number 2 sent twice, and one byte of number 3 changed."""

    def payloads(self) -> list[bytes]:
        right = super().payloads()
        return [right[0], right[2], right[2], right[3][:-1] + bytes([right[3][-1] ^ 1]), *right[4:]]


def test_lost_repeated_and_damaged_messages_are_noticed(peer: Peer):
    async def work(connection: Connection, queue: str) -> Verified:
        await connection.send_all(queue, connection.prepare(Wrong(10)))
        check = Check(Load(10))
        await connection.drain(queue, check)
        return check.verified()

    verified = peer.use(work)
    assert verified == Verified(10, 10, 1, 1, 1)
    with pytest.raises(SystemExit, match="messages are not what was sent"):
        empty_run().verify(verified)


def test_a_lost_message_ends_the_wait_for_it(peer: Peer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clients, "STALLED_S", 0.5)

    async def work(connection: Connection, queue: str) -> None:
        await connection.send_all(queue, connection.prepare(Load(9)))
        await clients.moving(connection.drain(queue, Check(Load(10))), Check(Load(10)))

    with pytest.raises(TimeoutError):
        peer.use(work)


def test_a_server_has_costs_and_facts(peer: Peer):
    assert peer.server.facts.keys() == {"version", "durability", "client"}
    assert all(peer.server.facts.values())
    (cpu_s,) = peer.server.cpu_seconds().values()
    (rss_bytes,) = peer.server.rss_bytes().values()
    assert cpu_s >= 0
    assert rss_bytes > 1 << 20
    assert peer.server.disk_bytes() > 0


# --- the comparison ---------------------------------------------------------------------------------------------------


def empty_run(**changes: Any) -> Run[comparison.Scale]:
    return Run(comparison.BENCHMARK.scale("tiny", changes), "tiny", Console(file=io.StringIO()))


def test_a_run_beside_a_peer_has_all_its_figures():
    require(PEERS["beanstalkd"])
    changes = {"systems": "beanstalkd", "messages": 600, "sequential": 10, "lone": 5}
    result = comparison.BENCHMARK.run("tiny", changes, console=Console(file=io.StringIO()))
    assert result.verified.sound
    assert result.verified.received == 2 * 600 + 2 * 15
    assert result.systems.keys() == {"beanstalkd, fsync every 50 ms"}
    rows = {(figure.table, figure.row) for figure in result.figures}
    assert {(throughput.RATES, row) for row in promises.BATCHES} <= rows
    for placement in ("free", "one core"):
        assert {(unary.RATES, placement), (unary.LONE, f"p50, {placement}"), (unary.LONE, f"p99, {placement}")} <= rows
        assert (unary.COSTS, f"lone lifecycle, {placement}") in rows


def test_a_benchmark_that_is_ended_leaves_no_server_behind(tmp_path: Path):
    require(PEERS["beanstalkd"])
    command = [sys.executable, "-m", "benchmarks", "peers", "--systems", "beanstalkd", "--results", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        servers: list[psutil.Process] = []

        def serves() -> bool:
            with suppress(psutil.NoSuchProcess):  # a child that has just ended is no server
                children = [each for each in psutil.Process(run.pid).children() if each.name() == "beanstalkd"]
                servers[:] = [each for each in children if Path(each.cwd()) != ROOT]  # one in ROOT only prints its version
            return bool(servers)

        eventually(serves, "a server")
        directory = Path(servers[0].cwd())
        run.terminate()
        run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 143
    assert is_dead(servers[0])
    assert not directory.exists()


def test_only_the_systems_that_are_asked_for_are_measured():
    run = empty_run(systems="fila-cluster, fsync;fila-cluster, os, t")
    assert comparison.chosen(run, comparison.IN_BATCHES) == [comparison.FSYNC]
    assert comparison.chosen(run, comparison.ONE_BY_ONE) == [comparison.ALONE_TCP, comparison.ALONE_FSYNC]


def test_systems_without_a_server_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "find", lambda name: None)
    run = empty_run(systems="")
    assert comparison.missing() == list(comparison.PROGRAMS)
    assert comparison.chosen(run, comparison.IN_BATCHES) == [comparison.OS, comparison.FSYNC]
    monkeypatch.setattr(comparison, "IN_BATCHES", ())
    monkeypatch.setattr(comparison, "ONE_BY_ONE", ())
    comparison.measure(run)
    notes = run.result("peers", "").notes
    assert [note.split()[0] for note in notes] == ["Redis", "NATS", "RabbitMQ", "beanstalkd"]
    assert "redis-server" in notes[0]


OURS, ROUTED, REDIS, NATS = "ours", "ours, routed", "Redis", "NATS"


def judged(judge: Callable[[Run[Any]], None], *cells: tuple[str, str, str, float]) -> list[bool]:
    run = empty_run()
    for table, row, system, value in cells:
        run.figure(table, row, system, "", value / 2, value, value * 3)
    judge(run)
    return [promise.kept for promise in run.result("peers", "").promises]


def test_rates_in_batches_are_judged_beside_the_best_peer():
    rates = {OURS: [200.0, 200.0, 200.0], REDIS: [100.0, 90.0, 10.0], NATS: [50.0, 101.0, 20.0]}
    numbers = count()
    cells = [
        (throughput.RATES, row, system, rates[system][next(numbers) % 3]) for system in rates for row in promises.BATCHES
    ]
    assert judged(lambda run: promises.judge_batches(run, OURS, [REDIS, NATS, "absent"]), *cells) == [True, False, True]


def test_lone_messages_are_judged_by_p50_and_p99():
    cells = [
        (unary.LONE, "p50, free", OURS, 0.4),
        (unary.LONE, "p50, free", REDIS, 0.2),
        (unary.LONE, "p99, free", OURS, 0.9),
        (unary.LONE, "p50, one core", OURS, 0.41),
        (unary.LONE, "p50, one core", REDIS, 0.2),
        (unary.LONE, "p99, one core", OURS, 1.1),
    ]
    assert judged(lambda run: promises.judge_lone(run, OURS, REDIS), *cells) == [True, True, False, False]


def test_sequential_enqueues_are_judged_beside_redis_and_nats():
    rates = {OURS: 69.0, ROUTED: 50.0, REDIS: 100.0, NATS: 92.0}
    cells = [(unary.RATES, "free", system, rate) for system, rate in rates.items()]
    parts = {OURS: 0.7, ROUTED: 0.5}
    assert judged(lambda run: promises.judge_sequential(run, parts, REDIS, NATS), *cells) == [False, True, True, False]


def test_costs_are_judged_beside_redis():
    cells = [
        (throughput.COSTS, promises.CYCLE, OURS, 1.0),
        (throughput.COSTS, promises.CYCLE, REDIS, 1.0),
        (throughput.COSTS, "both at once", OURS, 1.1),
        (throughput.COSTS, "both at once", REDIS, 1.0),
        (unary.COSTS, "lone lifecycle, free", OURS, 0.3),
        (unary.COSTS, "lone lifecycle, one core", OURS, 0.31),
    ]
    assert judged(lambda run: promises.judge_costs(run, OURS, OURS, REDIS), *cells) == [True, False, True, False]


def test_fsync_is_judged_beside_os_and_redis_always():
    cells = [
        (throughput.RATES, row, system, rate) for row in promises.BATCHES for system, rate in (("os", 10.0), (OURS, 6.0))
    ]
    cells += [(throughput.RATES, row, REDIS, rate) for row, rate in zip(promises.BATCHES, (5.0, 6.0, 5.0), strict=True)]
    cells += [(unary.LONE, "p50, free", OURS, 1.0), (unary.LONE, "p50, free", REDIS, 1.1)]
    cells += [(unary.RATES, "free", OURS, 1.0), (unary.RATES, "free", REDIS, 1.1)]
    kept = judged(lambda run: promises.judge_fsync(run, (OURS, OURS), "os", REDIS), *cells)
    assert kept == [True, True, True, True, False, True, False, True]


def test_what_was_not_measured_is_not_judged():
    def judge(run: Run[Any]) -> None:
        promises.judge_batches(run, OURS, [REDIS])
        promises.judge_lone(run, OURS, REDIS)
        promises.judge_sequential(run, {OURS: 0.7}, REDIS, NATS)
        promises.judge_costs(run, OURS, OURS, REDIS)
        promises.judge_fsync(run, (OURS, OURS), "os", REDIS)

    assert judged(judge) == []
