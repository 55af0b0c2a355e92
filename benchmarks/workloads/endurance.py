"""Use a cluster in every way for minutes or hours, and show that nothing grows: memory, descriptors, threads, files.

Two workers, with dashboard. A process of clients uses every verb at a modest, fixed rate (``mixed_use.py``): many queues and
keys, connects and disconnects, schedules, batches, queues made by a template that end when they are idle, hooks, throttles,
dedup ids, delays, dead letters and redrives, queues made and deleted. Every ten seconds each process, the data directory and
the cluster's counts are looked at.

The run has six windows of time. The median of the last one may not be above that of the second one by more than a tenth and a
slack (``harness/growth.py``). At the end all is drained, no process has died, no call has failed that may not, and
``fila-cluster check`` is clean.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from benchmarks.harness.cluster import OneCluster
from benchmarks.harness.fila import blocking_client, one_queue_on_each
from benchmarks.harness.growth import WINDOWS, Watch
from benchmarks.harness.processes import ClientProcess
from benchmarks.harness.report.results import Chart, Series
from benchmarks.harness.workload import Benchmark, Run, number
from benchmarks.workloads.mixed_use import Done, Names, use
from fila_cluster import Client, Message

ALL, WINDOW, END = "What was done", "Medians of the windows", "At the end"
SETTINGS = {"FILA_LIMITS__DEDUP_WINDOW_MS": "10000"}
"""What is kept for a window of time has to reach its usual size within the first sixth of a run."""
TOLD_S = 60.0
WORKERS = 2
CHECK_S_MAX = 600.0


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    minutes: float = number("Minutes.")
    rate: float = number("Actions a second.", 30.0)
    queues: int = number("Queues.", 200)
    keys: int = number("Fairness keys.", 5_000)
    every_s: float = number("Seconds between two looks.", 10.0)
    fill_mib: int = number(
        "MiB that go through each worker before: its caches are full then, which would take this rate an hour.", 128
    )


def fill(address: str, mib: int) -> None:
    """Have a backlog go through each worker: the write buffers and the block cache of its RocksDB grow to their bounds."""
    messages = [Message(bytes(1024))] * 1024
    with blocking_client(address) as client:
        for queue in one_queue_on_each(address, WORKERS, "filling"):
            for _ in range(mib):
                client.enqueue_many(queue, messages)
            while deliveries := client.receive(queue, 1000):
                client.ack(deliveries)
            client.delete_queue(queue)


def processes_of(cluster: OneCluster, client: ClientProcess) -> dict[str, psutil.Process]:
    """Return the processes by name, the client's too."""
    found = {
        f"{kind} {place}" if len(several) > 1 else kind: process
        for kind, several in cluster.processes().items()
        for place, process in enumerate(sorted(several, key=lambda each: each.pid))
    }
    return found | {"clients": psutil.Process(client.pid)}


def counts_of(client: Client) -> dict[str, int]:
    """Return what is in the cluster."""
    queues = client.list_queues()
    return {
        "queues": len(queues),
        "messages": sum(each.depth for each in queues),
        "connections": len(client.connections()),
    }


def watched(run: Run[Scale], cluster: OneCluster, client: ClientProcess, watch: Watch) -> bool:
    """Look at everything until the time is over. Return whether all processes lived on."""
    processes = processes_of(cluster, client)
    started, told_at, seconds = time.monotonic(), 0.0, run.scale.minutes * 60
    with blocking_client(cluster.address) as asking:
        while client.runs and (now := time.monotonic() - started) < seconds:
            watch.sample(now, processes, counts_of(asking))
            if now >= told_at:
                run.console.print(f"{now:.0f} s: {watch.line()}", soft_wrap=True)
                told_at += TOLD_S
            time.sleep(max(0.0, min(run.scale.every_s, seconds - now)))
    after = processes_of(cluster, client)
    return {name: each.pid for name, each in after.items()} == {name: each.pid for name, each in processes.items()}


def checked(data_dir: str) -> tuple[bool, str]:
    """Return whether ``fila-cluster check`` finds nothing, and what it says."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("FILA_")}
    command = [sys.executable, "-m", "fila_cluster", "check", "--data-dir", data_dir]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=CHECK_S_MAX, check=False)
    return done.returncode == 0, (done.stdout + done.stderr).strip()


def measure(run: Run[Scale]) -> None:
    """Run, and judge."""
    scale = run.scale
    names = Names.numbered(scale.queues, scale.keys)
    with run.directory() as directory:
        data_dir = directory / "data"
        facts = {"version": "", "durability": '"os"', "client": "fila-cluster (asyncio)"}
        with OneCluster(data_dir, "--dashboard", "127.0.0.1:0", workers=WORKERS, facts=facts, settings=SETTINGS) as cluster:
            fill(cluster.address, scale.fill_mib)
            watch = Watch(data_dir)
            client = ClientProcess(use, cluster.address, cluster.dashboard, names, scale.rate, scale.minutes * 60)
            try:
                client.await_ready()
                before = cluster.cpu_seconds()
                client.go()
                lived = watched(run, cluster, client, watch)
                spent = {kind: total - before[kind] for kind, total in cluster.cpu_seconds().items()}
                done: Done = client.result()
            finally:
                client.end()
        clean, said = checked(str(data_dir))
    report(run, done, watch, spent)
    judge(run, done, watch)
    run.promise("no process died", lived)
    if not clean:
        run.note(said)
    run.promise(f"check of the data directory: {said.splitlines()[-1] if said else 'nothing said'}", clean)


def report(run: Run[Scale], done: Done, watch: Watch, spent: Mapping[str, float]) -> None:
    """Write figures and charts."""
    for counts in (done.actions, done.settled, done.expected):
        for name, count in sorted(counts.items()):
            run.figure(ALL, name, "times", "", count)
    for kind, seconds in spent.items():
        run.figure(ALL, f"CPU time of {kind}", "times", "%", 100 * seconds / (run.scale.minutes * 60))
    for watched_figure in watch.figures.values():
        row = f"{watched_figure.name}, {watched_figure.unit}"
        for place, value in enumerate(watched_figure.windows(), 1):
            run.figure(WINDOW, row, f"window {place}", "", value)
    for unit in dict.fromkeys(unit for _, unit in watch.figures):
        lines = [Series(each.name, each.times_s, each.values) for each in watch.figures.values() if each.unit == unit]
        run.chart(Chart(f"{unit} over time", "seconds", unit, lines))


def judge(run: Run[Scale], done: Done, watch: Watch) -> None:
    """Say what was kept."""
    for each in watch.figures.values():
        medians = each.windows()
        if len(medians) == WINDOWS:
            text = f"{each.name}: {each.unit} from {medians[1]:.1f} (window 2) to {medians[-1]:.1f} (window {WINDOWS})"
            run.promise(f"no growth of {text}", not each.grows)
    for text, count in done.wrong.most_common(10):
        run.note(f"{count} times {text}")
    run.promise(f"calls that failed and may not: {done.wrong.total()}", not done.wrong)
    run.promise(f"messages and queues that were left after draining: {done.left or 'none'}", not done.left)


BENCHMARK = Benchmark("endurance", measure, Scale(0.1, queues=20, keys=50, every_s=0.5, fill_mib=1), Scale(10.0), Scale(60.0))
