"""Measure what one forwarded frame costs the router, in CPU time of its process (both directions, I/O thread included).

A client keeps 32 requests open at one worker, which is a bare socket here that answers each with 30 bytes.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import psutil
import zmq

from benchmarks.harness.ending import undisturbed
from benchmarks.harness.workload import Benchmark, Run, number
from fila_proto_zmq.commands import Enqueue, Register
from fila_proto_zmq.frames import REPLY, pack_header
from fila_router.settings import RouterSettings

OPEN_MAX = 32
BODIES = {"100 B": 100, "2 KB": 2_000, "110 KB": 110_000}
COSTS, RATES = "CPU time of the router for a forwarded frame", "Calls a second"
Socket: TypeAlias = "zmq.Socket[bytes]"


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    frames: int = number("Requests of each size.")
    rounds: int = number("Rounds.", 3)


@contextmanager
def router(cwd: Path) -> "Iterator[psutil.Process]":
    """Start a router that listens on sockets in a directory."""
    settings = RouterSettings("ipc://front.ipc", "ipc://back.ipc", 1, 15_000, 1 << 24)
    with ExitStack() as stack:
        with undisturbed():
            process = subprocess.Popen([sys.executable, "-P", "-m", "fila_router"], cwd=cwd, stdin=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.terminate)
        assert process.stdin
        process.stdin.write(msgspec.json.encode(settings) + b"\n")
        process.stdin.flush()
        yield psutil.Process(process.pid)


def connect(context: "zmq.Context[Socket]", endpoint: str, identity: bytes) -> Socket:
    """Open a socket of a client or a worker."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.hwm = 0
    socket.identity = identity
    socket.connect(endpoint)
    return socket


def answer_until(stop: threading.Event, worker: Socket) -> None:
    """Answer every request, until the socket is to be closed: a socket must not be closed while a thread uses it."""
    while not stop.is_set():
        if worker.poll(50):
            client, header, key, _ = worker.recv_multipart()
            worker.send_multipart([client, header[:4] + b"\0\1" + header[6:], key, bytes(30)])


def register(worker: Socket) -> None:
    """Offer the only shard."""
    offer = Register("worker-0", 0, "bench", [(0, 1)])
    worker.send_multipart([b"", pack_header(Register.opcode, 1), b"", msgspec.msgpack.encode(offer)])
    assert worker.recv_multipart()[1] == pack_header(Register.opcode, 1, REPLY)


def exchange(client: Socket, frames: int, body: bytes) -> None:
    """Send requests, some at a time, and take the answers."""
    for request in range(1, frames + 1):
        if request > OPEN_MAX:
            client.recv_multipart()
        client.send_multipart([pack_header(Enqueue.opcode, request), b"orders", body])
    for _ in range(min(frames, OPEN_MAX)):
        client.recv_multipart()


def measure(run: Run[Scale]) -> None:
    """Measure each size of a body."""
    with run.directory() as cwd, router(cwd) as process, zmq.Context() as context:
        worker = connect(context, f"ipc://{cwd}/back.ipc", b"worker-0")
        register(worker)
        stop = threading.Event()
        answering = threading.Thread(target=answer_until, args=[stop, worker])
        answering.start()
        client = connect(context, f"ipc://{cwd}/front.ipc", b"client")
        try:
            for name in run.rounds(run.scale.rounds, BODIES, "router"):
                _sized(run, process, client, name)
        finally:
            stop.set()
            answering.join()
            client.close()
            worker.close()


def _sized(run: Run[Scale], process: psutil.Process, client: Socket, name: str) -> None:
    before, start = process.cpu_times(), time.perf_counter()
    exchange(client, run.scale.frames, bytes(BODIES[name]))
    after, spent = process.cpu_times(), time.perf_counter() - start
    cpu_s = after.user + after.system - before.user - before.system
    run.figure(COSTS, f"bodies of {name}", "router", "µs", cpu_s / run.scale.frames / 2 * 1e6)
    run.figure(RATES, f"bodies of {name}", "router", "/s", run.scale.frames / spent)


BENCHMARK = Benchmark("router_hop", measure, Scale(200, 1), Scale(20_000), Scale(50_000, 5))
