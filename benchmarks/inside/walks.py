"""Count the files and the Python calls that an enqueue, an ack and an idle turn go through in a worker.

A worker's real loop runs in this process, with RocksDB, its client socket and its link to a router. The router is a bare socket here that
answers registrations and pulses. The client is a bare socket, too, whose requests come straight to the worker. A walk is one pass of the
loop: it reads the request, makes its turn, and sends the answer. All calls of Python functions count, those in libraries, too, and all
files of the product.
"""

import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import zmq

from benchmarks.harness.machine import ROOT
from benchmarks.harness.workload import Benchmark, Run, number
from fila_process.clock import ProcessClock
from fila_process.journal import Journal
from fila_process.parent import ParentHeartbeat
from fila_proto_zmq import commands as c
from fila_proto_zmq.codec import decode_body, encode_command, encode_reply, from_fault
from fila_proto_zmq.events import LogSettings
from fila_proto_zmq.frames import ERROR, epoch_tag, pack_header, unpack_header
from fila_proto_zmq.ids import SESSION_BYTES
from fila_proto_zmq.record import seal_envelope
from fila_proto_zmq.stream import FrameReader, pack_lengths
from fila_worker.loop import Wakeup, WorkerLoop, open_host
from fila_worker.settings import WorkerSettings

ENQUEUE, ACK, IDLE, PULSE = "an enqueue", "an ack", "an idle turn", "an idle turn with a pulse"
FILES_MAX: Final = {ENQUEUE: 28, ACK: 28, IDLE: 10, PULSE: 18}
CALLS_MAX: Final = {ENQUEUE: 150, ACK: 150, IDLE: 45, PULSE: 120}
FILES, CALLS = "Files that a worker goes through", "Python calls of a worker"

QUEUE: Final = "q"
FRAME_BYTES_MAX: Final = 1 << 20
FOLDERS: Final = tuple(f"{ROOT / folder}{os.sep}" for folder in ("fila_cluster", "proto_zmq", "router", "worker"))
"""Where the product's files are."""
LATER_MS: Final = 10_000
"""When the worker pulses or measures next, so that it does neither in a walk."""
NEVER_MS: Final = 1 << 60
PASSES_MAX: Final = 5000
"""Passes of the loop without an answer after which something is wrong."""


@dataclass(frozen=True)
class Scale:
    """The numbers of this benchmark."""

    rounds: int = number("Walks of each kind. The shortest counts.")


class Walk:
    """The Python calls of one pass of the loop, each by its file and its function."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    @property
    def files(self) -> dict[str, int]:
        """The product's files, each with the number of its calls."""
        files: Counter[str] = Counter()
        for (file, _), count in self.calls.items():
            if file.startswith(FOLDERS):
                files[str(Path(file).relative_to(ROOT))] += count
        return dict(sorted(files.items()))

    def begin(self) -> None:
        """Count the calls of this thread from now on."""

        def called(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and frame.f_code.co_filename != __file__:
                self.calls[frame.f_code.co_filename, frame.f_code.co_qualname] += 1

        sys.setprofile(called)


class _BetweenPasses:
    """Stands in for what asks the loop to stop: it does so after two passes, the second of which is counted."""

    fds: Final[list[int]] = []

    def __init__(self) -> None:
        self.walk = Walk()
        self.prepare: Callable[[], None] | None = None
        """Called before the pass that is counted."""

    def requested(self, readable: object) -> bool:
        if self.prepare is None:
            sys.setprofile(None)
            return True
        prepare, self.prepare = self.prepare, None
        prepare()
        self.walk = Walk()
        self.walk.begin()
        return False


class _AfterEachPass:
    """Stands in for what asks the loop to stop: ``step`` says so after a pass."""

    fds: Final[list[int]] = []

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step = step

    def requested(self, readable: object) -> bool:
        return self._step()


NO_DESCRIPTOR = -1


class _SleeplessLoop(WorkerLoop):
    """A loop that looks for frames where it would sleep until some come."""

    def _sleep_ms(self, now_ms: int) -> int:
        super()._sleep_ms(now_ms)
        return 0

    def _wait(self, now_ms: int, timeout_ms: int) -> list[int]:
        return super()._wait(now_ms, timeout_ms) or [NO_DESCRIPTOR]  # so that each pass asks whether to stop


class Worker:
    """A worker of one shard, its router, and its client, in a directory with a short path."""

    def __init__(self, directory: Path) -> None:
        self._router: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._router.bind(f"ipc://{directory / 'router'}")
        settings = WorkerSettings(
            name="worker-0", router=f"ipc://{directory / 'router'}", data_dir=str(directory), shards=[0], shards_total=1,
            doors=[f"ipc://{directory / 'worker'}"], log=LogSettings(level="error"),
        )  # fmt: skip
        self._pipe = os.pipe()
        self._stop, wakeup, self._clock = _BetweenPasses(), Wakeup(), ProcessClock()
        self._process = open_host(settings, self._clock.now_ms(), wakeup.set)
        self._loop = _SleeplessLoop(
            settings, self._process, self._clock, self._stop, Journal("worker-0", settings.log),  # type: ignore[arg-type]
            ParentHeartbeat(self._pipe[0]), wakeup,
        )  # fmt: skip
        self._loop._links.register(self._clock.now_ms())
        self._requests = self._epoch = 0
        self._reader = FrameReader(FRAME_BYTES_MAX)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(directory / "worker"))
        self.socket.setblocking(False)
        self._settle()
        self._epoch = epoch_tag(self._process.shards[0].epoch)
        self.ask(c.Hello([1], "walks", bytes(SESSION_BYTES)), "")
        self.ask(c.CreateQueue(c.QueueOptions()))

    # --- passes -------------------------------------------------------------------------------------------------------

    def _pass(self, prepare: Callable[[], None]) -> Walk:
        """Make one pass of the loop, and another one after ``prepare``; return the walk of the second."""
        self._stop.prepare = prepare
        self._loop._serve()
        return self._stop.walk

    def _settle(self) -> None:
        """Make passes until the router has answered a new pulse, so that nothing is on its way."""
        link, links = self._loop._links.all[0], self._loop._links
        links._next_pulse_ms = 0
        for _ in range(PASSES_MAX):
            self._pass(self._answer_router)
            links._next_pulse_ms = self._loop._attend_again_ms = self._clock.now_ms() + LATER_MS
            if self._process.shards and not link._pulses and not link._offers:
                return
            time.sleep(0.001)
        raise RuntimeError(f"the worker does not come to rest in {PASSES_MAX} passes")

    def idle(self, *, pulses: bool = False) -> Walk:
        """Return the walk of a pass that finds nothing to do. ``pulses``: except to show that the worker lives."""

        def prepare() -> None:
            if pulses:
                self._loop._links._next_pulse_ms = 0

        self._settle()
        return self._pass(prepare)

    def ask(self, command: c.Command, queue: str = QUEUE) -> tuple[bytes, Walk]:
        """Return the body of the answer to a request, and the walk of the pass that answered."""
        self._requests += 1
        request = self.request(command, queue)
        self._settle()
        walk = self._pass(lambda: self.socket.sendall(request))
        for _ in range(PASSES_MAX):
            if (answer := self._answer()) is not None:
                return answer, walk
            walk = self._pass(self._answer_router)
        raise RuntimeError(f"{type(command).__name__} was not answered in {PASSES_MAX} passes")

    def serve(self, step: Callable[[], bool]) -> None:
        """Run the loop without walks, pulses and measurements, until ``step``, which is called after each pass, is true."""
        self._settle()
        self._loop._links._next_pulse_ms = self._loop._attend_again_ms = NEVER_MS
        self._loop._stop = _AfterEachPass(step)  # type: ignore[assignment]
        self._loop._serve()
        self._loop._stop = self._stop  # type: ignore[assignment]

    def request(self, command: c.Command, queue: str = QUEUE) -> bytes:
        """Return the frame of a request, as the client's socket takes it."""
        _, key, body = encode_command(command, self._requests, queue)
        header = pack_header(command.opcode, self._requests, epoch=self._epoch)
        return b"".join((pack_lengths(key, body), header, key, body))

    # --- the other sides ----------------------------------------------------------------------------------------------

    def _answer(self) -> bytes | None:
        with suppress(BlockingIOError):
            self._reader.feed(self.socket.recv(FRAME_BYTES_MAX))
        while (parts := self._reader.take()) is not None:
            header = unpack_header(parts[0])
            if header.request == self._requests:
                if header.flags & ERROR:
                    raise from_fault(decode_body(c.Fault, parts[2]))
                return bytes(parts[2])
        return None

    def _answer_router(self) -> None:
        """Answer the worker's registrations and pulses."""
        with suppress(zmq.Again):
            while True:
                worker, client, raw, *_ = self._router.recv_multipart(zmq.NOBLOCK)
                header = unpack_header(raw)
                if not client and header.opcode in {c.Register.opcode, c.Pulse.opcode}:
                    reply = c.Registered() if header.opcode == c.Register.opcode else c.Pulsed()
                    self._router.send_multipart([worker, b"", *encode_reply(header.opcode, header.request, reply)])

    def close(self) -> None:
        """Close everything."""
        self.socket.close()
        for part in (self._loop._apart, self._loop._unread, self._loop._client_socket, self._loop._links, self._process):
            part.close()
        self._loop._wakeup.close()
        self._router.close(0)
        for descriptor in self._pipe:
            os.close(descriptor)


@contextmanager
def worker(directory: Path) -> Iterator[Worker]:
    """Run a worker in a directory with a short path."""
    made = Worker(directory)
    try:
        yield made
    finally:
        made.close()


def walks(made: Worker, rounds: int = 5) -> dict[str, Walk]:
    """Return the shortest walk of each kind: the machine may hold this process up, and then a pass has more to do."""
    found: dict[str, list[Walk]] = {name: [] for name in FILES_MAX}
    for _ in range(rounds):
        found[ENQUEUE].append(made.ask(c.Enqueue([seal_envelope(b"x")]))[1])
        body, _ = made.ask(c.Receive(1, 0))
        (batch,) = decode_body(c.Delivered, body).batches
        found[ACK].append(made.ask(c.Settle(c.Verb.ACK, [(batch.lease, [])]))[1])
        found[IDLE].append(made.idle())
        found[PULSE].append(made.idle(pulses=True))
    return {name: min(each, key=lambda walk: walk.calls.total()) for name, each in found.items()}


def measure(run: Run[Scale]) -> None:
    """Measure and judge."""
    with run.directory() as path, worker(path) as made:
        found = walks(made, run.scale.rounds)
    for name, walk in found.items():
        files, calls = len(walk.files), walk.calls.total()
        for file, count in walk.files.items():
            run.figure(FILES, file, name, "calls", count)
        run.figure(CALLS, name, "files", "", files)
        run.figure(CALLS, name, "calls", "", calls)
        run.promise(f"{name} goes through {files} files, at most {FILES_MAX[name]}", files <= FILES_MAX[name])
        run.promise(f"{name} has {calls} Python calls, at most {CALLS_MAX[name]}", calls <= CALLS_MAX[name])


BENCHMARK = Benchmark("walks", measure, Scale(5), Scale(20), Scale(100))
