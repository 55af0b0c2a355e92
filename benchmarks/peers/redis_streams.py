"""Redis Streams with an append-only file: a stream and a consumer group for each queue, redis-py with hiredis.

Enqueues are XADD in pipelines. A consumer reads 500 entries at a time, and the pipeline that reads the next ones acknowledges
and deletes these, because an acknowledged entry of a stream stays there until it is deleted. The blocking client: redis-py's
asyncio client is slower in each of these workloads. A confirmation means what ``appendfsync`` says: ``everysec`` is in the
hands of the operating system, ``always`` is on the disk.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import redis

from benchmarks.harness.messages import Check, Load
from benchmarks.harness.systems import Pushed
from benchmarks.peers.programs import HOST, Program, free_port, output_of, required, started

PACKAGE = "redis-server"
GROUP, NAME = "workers", "one"
PIPELINE = 500
BLOCK_MS = 1000
_NEW = ">"


@dataclass(frozen=True)
class Redis:
    """A Redis server. ``fsync``: its appendfsync; ``socket``: clients use its Unix socket."""

    fsync: str = "everysec"
    socket: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        return f"Redis Streams, AOF {self.fsync}{', Unix socket' if self.socket else ''}"

    def environment(self) -> Mapping[str, str]:
        """Return what clients have in their environment: nothing."""
        return {}

    @contextmanager
    def serve(self, directory: Path) -> Iterator[Program]:
        """Start a server."""
        program = required("redis-server", PACKAGE)
        port, path = free_port(), directory / "redis.sock"
        address = f"unix://{path}" if self.socket else f"redis://{HOST}:{port}"
        command = [
            program,
            "--bind",
            HOST,
            "--port",
            str(port),
            "--unixsocket",
            str(path),
            "--dir",
            str(directory),
            "--appendonly",
            "yes",
            "--appendfsync",
            self.fsync,
            "--save",
            "",
        ]
        facts = {
            "version": output_of(program, "--version").partition("v=")[2].split()[0],
            "durability": f"appendfsync {self.fsync}",
            "client": f"redis-py {version('redis')}, hiredis {version('hiredis')}, {'Unix socket' if self.socket else 'tcp'}",
        }
        with started(command, directory, lambda: _answers(address)) as process:
            yield Program("redis", process, address, facts, directory)

    @asynccontextmanager
    async def connect(self, address: str) -> AsyncIterator["RedisConnection"]:
        """Open a client."""
        with redis.Redis.from_url(address) as client:
            client.ping()
            yield RedisConnection(client)


class RedisConnection:
    """A client. It blocks its process, which has nothing else to do."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client: Any = client

    async def create(self, queue: str) -> None:
        """Make a stream and its group."""
        self._client.xgroup_create(queue, GROUP, id="0", mkstream=True)

    def prepare(self, load: Load) -> list[dict[str, Any]]:
        """Return the fields of all entries."""
        return [{"payload": payload, **load.headers} for payload in load.payloads()]

    async def send_all(self, queue: str, prepared: list[dict[str, Any]]) -> Sequence[object]:
        """Add entries in pipelines."""
        ids: list[bytes] = []
        for first in range(0, len(prepared), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for fields in prepared[first : first + PIPELINE]:
                pipeline.xadd(queue, fields)
            ids += pipeline.execute()
        return ids

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Add an entry."""
        self._client.xadd(queue, {"payload": payload, **headers})

    async def drain(self, queue: str, check: Check) -> None:
        """Read, and acknowledge and delete what was read in the pipeline that reads on."""
        done: list[bytes] = []
        while check.left or done:
            pipeline = self._client.pipeline(transaction=False)
            if done:
                pipeline.xack(queue, GROUP, *done)
                pipeline.xdel(queue, *done)
            if check.left:
                pipeline.xreadgroup(GROUP, NAME, {queue: _NEW}, count=PIPELINE, block=BLOCK_MS)
            answers = pipeline.execute()
            entries = answers[-1][0][1] if check.left and answers[-1] else []
            check.note([fields[b"payload"] for _, fields in entries])
            done = [entry_id for entry_id, _ in entries]
            await asyncio.sleep(0)

    async def follow(self, queue: str, ahead: int) -> Pushed:
        """Yield entries as they come."""
        while True:
            for _, entries in self._client.xreadgroup(GROUP, NAME, {queue: _NEW}, count=ahead, block=BLOCK_MS):
                for entry_id, fields in entries:

                    async def ack(entry_id: bytes = entry_id) -> None:
                        pipeline = self._client.pipeline(transaction=False)
                        pipeline.xack(queue, GROUP, entry_id)
                        pipeline.xdel(queue, entry_id)
                        pipeline.execute()

                    yield fields[b"payload"], ack
                    await asyncio.sleep(0)  # the ack has its turn before the next read blocks the loop


def _answers(address: str) -> bool:
    try:
        with redis.Redis.from_url(address) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
