"""The children of a run, seen from the parent."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, Self, TypeVar

import msgspec

from fila_cluster.run.bench.workload import Consumed, Done, Failed, Produced, Progress, Task

_MODULE: Final = "fila_cluster.run.bench"
_LENGTH_BYTES: Final = 4
ROLES: Final[dict[type, str]] = {Produced: "producer", Consumed: "consumer"}

Result = TypeVar("Result", bound=Produced | Consumed)
"""What a child hands in at the end decides what it is."""


class BenchError(Exception):
    """A run that did not come to its end; the text is for people."""


class Child(Generic[Result]):
    """One producer or consumer. ``count``: its messages so far."""

    def __init__(self, kind: type[Result], process: asyncio.subprocess.Process) -> None:
        self.count = 0
        self._kind: type[Result] = kind
        self._process = process
        self._decoder = msgspec.msgpack.Decoder(Failed | Progress | Done)

    @classmethod
    async def start(cls, kind: type[Result], task: Task) -> Self:
        """Start a child. Ctrl-C in the terminal does not reach it: the parent ends it."""
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-P", "-m", _MODULE, ROLES[kind]]
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, process_group=0)
        child = cls(kind, process)
        child.write(msgspec.json.encode(task))
        return child

    def write(self, line: bytes) -> None:
        """Send a line. A child that is dead does not get it: its output shows that."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def ready(self) -> None:
        """Wait until it is connected. :class:`BenchError` if that fails."""
        await self._read()

    async def result(self) -> Result:
        """Wait for its result, and note its progress until then. :class:`BenchError` if its work fails."""
        while (found := await self._read()) is None:
            pass
        assert isinstance(found, self._kind)
        return found

    async def end(self) -> None:
        """Wait for its end."""
        await self._process.communicate()

    async def kill(self) -> None:
        """End it, whatever it does. It takes nothing with it: what it holds goes back when its client is missed."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.communicate()

    async def _read(self) -> Produced | Consumed | None:
        assert self._process.stdout is not None
        try:
            length = int.from_bytes(await self._process.stdout.readexactly(_LENGTH_BYTES), "big")
            line = self._decoder.decode(await self._process.stdout.readexactly(length))
        except asyncio.IncompleteReadError:
            raise BenchError(f"a {ROLES[self._kind]} ended before its work was done") from None
        if isinstance(line, Failed):
            raise BenchError(line.error)
        if isinstance(line, Done):
            return line.result
        self.count = line.count
        return None


@asynccontextmanager
async def children(kind: type[Result], number: int, task: Callable[[int], Task]) -> AsyncIterator[list[Child[Result]]]:
    """Start children and wait until all are connected; kill those that are left when the context ends."""
    started: list[Child[Result]] = []
    try:
        for each in range(number):
            started.append(await Child.start(kind, task(each)))  # noqa: PERF401 # those that started are killed
        for child in started:
            await child.ready()
        yield started
    finally:
        for child in started:
            await child.kill()
