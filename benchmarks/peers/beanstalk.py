"""beanstalkd with its binlog, over its protocol: commands are sent in batches of 500, and their answers read in order.

There are no headers: they stand before the payload, as an application would write them. A consumer asks for as many jobs as
are still to come, at most 500 at a time, and deletes them in the batch that asks for the next ones. The binlog is synced to
the disk every 50 ms, which is the default, or with each write.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchmarks.harness import clients
from benchmarks.harness.messages import Check, Load
from benchmarks.harness.systems import Pushed
from benchmarks.peers.programs import HOST, Program, accepts, free_port, output_of, required, started

PACKAGE = "beanstalkd"
BATCH = 500
LEASE_S = 120
JOB_BYTES_MAX = 2 << 20
_BLANK = b"\n\n"


@dataclass(frozen=True)
class Beanstalkd:
    """A beanstalkd. ``fsync_ms``: how often its binlog is synced; 0: with each write."""

    fsync_ms: int = 50

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"beanstalkd, fsync {f'every {self.fsync_ms} ms' if self.fsync_ms else 'always'}"

    def environment(self) -> Mapping[str, str]:
        """Return what clients have in their environment: nothing."""
        return {}

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Program]:
        """Start a server."""
        program = required("beanstalkd", PACKAGE)
        port = free_port()
        command = [program, "-l", HOST, "-p", str(port), "-b", str(directory), f"-f{self.fsync_ms}", "-z", str(JOB_BYTES_MAX)]
        facts = {
            "version": output_of(program, "-v").split()[-1],
            "durability": f"binlog, -f{self.fsync_ms}",
            "client": "the protocol over a tcp socket",
        }
        with started(command, directory, lambda: accepts(HOST, port)) as process:
            yield Program("beanstalkd", process, f"{HOST}:{port}", facts, directory)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator["BeanstalkConnection"]:
        """Open a client."""
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=clients.STALLED_S) as connected:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connected.makefile("rb") as answers:
                yield BeanstalkConnection(connected, answers)


class UnexpectedAnswerError(Exception):
    """An answer that the protocol does not have for this command, or an error."""


class BeanstalkConnection:
    """A client. It blocks its process, which has nothing else to do."""

    def __init__(self, connected: socket.socket, answers: BinaryIO) -> None:
        self._socket = connected
        self._answers = answers
        self._used = ""
        self._watched = ""

    async def create(self, queue: str) -> None:
        """Do nothing: a tube comes with its first job."""

    def prepare(self, load: Load) -> list[bytes]:
        """Return the commands."""
        return [_put(payload, load.headers) for payload in load.payloads()]

    async def send_all(self, queue: str, prepared: list[bytes]) -> Sequence[object]:
        """Put jobs in batches; the next one is sent before the answers to the last one are read."""
        self._use(queue)
        ids: list[bytes] = []
        unanswered = 0
        for first in range(0, len(prepared), BATCH):
            batch = prepared[first : first + BATCH]
            self._socket.sendall(b"".join(batch))
            ids += self._inserted(unanswered)
            unanswered = len(batch)
        return ids + self._inserted(unanswered)

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Put a job."""
        self._use(queue)
        self._socket.sendall(_put(payload, headers))
        self._expect(b"INSERTED")

    async def drain(self, queue: str, check: Check) -> None:
        """Reserve jobs, and delete them in the batch that reserves the next ones."""
        self._watch(queue)
        ids: list[bytes] = []
        while check.left or ids:
            asked = min(BATCH, check.left)
            self._socket.sendall(_deletes(ids) + b"reserve\r\n" * asked)
            for _ in ids:
                self._expect(b"DELETED")
            jobs = [self._reserved() for _ in range(asked)]
            check.note([payload for _, payload in jobs])
            ids = [job_id for job_id, _ in jobs]
            await asyncio.sleep(0)

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield jobs as they come."""
        self._watch(queue)
        while True:
            self._socket.sendall(b"reserve\r\n")
            job_id, payload = self._reserved()

            async def ack(job_id: bytes = job_id) -> None:
                self._socket.sendall(_deletes([job_id]))
                self._expect(b"DELETED")

            yield payload, ack
            await asyncio.sleep(0)  # the ack has its turn before the next read blocks the loop

    def _use(self, queue: str) -> None:
        if self._used != queue:
            self._socket.sendall(f"use {queue}\r\n".encode())
            self._expect(b"USING")
            self._used = queue

    def _watch(self, queue: str) -> None:
        if self._watched != queue:
            self._socket.sendall(f"watch {queue}\r\nignore default\r\n".encode())
            self._expect(b"WATCHING")
            self._expect(b"WATCHING")
            self._watched = queue

    def _inserted(self, count: int) -> list[bytes]:
        return [self._expect(b"INSERTED")[0] for _ in range(count)]

    def _reserved(self) -> tuple[bytes, bytes]:
        job_id, size = self._expect(b"RESERVED")
        body = self._answers.read(int(size) + 2)
        return job_id, body[body.index(_BLANK) + len(_BLANK) : -2]

    def _expect(self, kind: bytes) -> list[bytes]:
        """Read an answer. Return its words after the first one."""
        line = self._answers.readline()
        found, *words = line.split() or [b""]
        if found != kind:
            raise UnexpectedAnswerError(f"{line!r} instead of {kind.decode()}")
        return words


def _put(payload: bytes, headers: Mapping[str, str]) -> bytes:
    body = "\n".join(f"{name}:{value}" for name, value in headers.items()).encode() + _BLANK + payload
    return b"put 1024 0 %d %d\r\n%b\r\n" % (LEASE_S, len(body), body)


def _deletes(ids: Iterable[bytes]) -> bytes:
    return b"".join([b"delete %b\r\n" % job_id for job_id in ids])
