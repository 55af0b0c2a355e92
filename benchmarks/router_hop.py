"""Measure what one forwarded frame costs the router, in CPU time of its process (both directions, I/O thread included).

    python benchmarks/router_hop.py [frames]

A client keeps 32 requests open at one fake worker that answers each with 30 bytes.
"""

import subprocess
import sys
import tempfile
import threading
import time

import msgspec
import psutil
import zmq

from fila_proto_zmq.commands import Enqueue, Register
from fila_proto_zmq.frames import REPLY, pack_header
from fila_router.settings import RouterSettings

OPEN_MAX = 32
BODY_BYTES = (100, 2_000, 110_000)


def start_router(cwd: str) -> subprocess.Popen[bytes]:
    settings = RouterSettings("ipc://front.ipc", "ipc://back.ipc", 1, 15_000, 1 << 24)
    router = subprocess.Popen([sys.executable, "-P", "-m", "fila_router"], cwd=cwd, stdin=subprocess.PIPE)
    assert router.stdin
    router.stdin.write(msgspec.json.encode(settings) + b"\n")
    router.stdin.flush()
    return router


def connect(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, identity: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.hwm = 0
    socket.identity = identity
    socket.connect(endpoint)
    return socket


def answer_until(stop: threading.Event, worker: zmq.Socket[bytes]) -> None:
    """Answer every request, until the socket is to be closed: a socket must not be closed while a thread uses it."""
    while not stop.is_set():
        if worker.poll(50):
            client, header, key, _ = worker.recv_multipart()
            worker.send_multipart([client, header[:4] + b"\0\1" + header[6:], key, bytes(30)])


def register(worker: zmq.Socket[bytes]) -> None:
    offer = Register("worker-0", 0, "bench", [(0, 1)])
    worker.send_multipart([b"", pack_header(Register.opcode, 1), b"", msgspec.msgpack.encode(offer)])
    assert worker.recv_multipart()[1] == pack_header(Register.opcode, 1, REPLY)


def exchange(client: zmq.Socket[bytes], frames: int, body: bytes) -> None:
    for request in range(1, frames + 1):
        if request > OPEN_MAX:
            client.recv_multipart()
        client.send_multipart([pack_header(Enqueue.opcode, request), b"orders", body])
    for _ in range(min(frames, OPEN_MAX)):
        client.recv_multipart()


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with tempfile.TemporaryDirectory() as cwd, zmq.Context() as context:
        router = start_router(cwd)
        worker = connect(context, f"ipc://{cwd}/back.ipc", b"worker-0")
        register(worker)
        stop = threading.Event()
        answering = threading.Thread(target=answer_until, args=[stop, worker])
        answering.start()
        client = connect(context, f"ipc://{cwd}/front.ipc", b"client")
        for size in BODY_BYTES:
            before, start = psutil.Process(router.pid).cpu_times(), time.perf_counter()
            exchange(client, frames, bytes(size))
            after, spent = psutil.Process(router.pid).cpu_times(), time.perf_counter() - start
            cpu = after.user + after.system - before.user - before.system
            print(
                f"{size:>7} B bodies: {cpu / frames / 2 * 1e6:5.1f} µs CPU per forwarded frame, {frames / spent:7.0f} calls/s"
            )
        stop.set()
        answering.join()
        client.close()
        worker.close()
        router.terminate()
        router.wait()


if __name__ == "__main__":
    main()
