"""The steps of a run: a queue of its own, the children, their results, and the queue's end."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from itertools import chain
from secrets import randbits
from typing import Any, Final, Generic, Self, TypeVar
from uuid import uuid4

import msgspec

from fila_cluster import Client
from fila_cluster.errors import FilaError, QueueNotFoundError
from fila_cluster.run.bench.outcome import BenchOutcome, outcome_of
from fila_cluster.run.bench.workload import ChildDone, ChildFailed, ChildProgress, Consumed, Produced, Task, Workload
from fila_process.parent import handling

_MODULE: Final = "fila_cluster.run.bench"
_LENGTH_BYTES: Final = 4
ROLES: Final[dict[type, str]] = {Produced: "producer", Consumed: "consumer"}

Result = TypeVar("Result", bound=Produced | Consumed)
"""The result of a child decides its kind."""


class BenchError(Exception):
    """A run that did not come to its end; the text is for people."""


class BenchProcess(Generic[Result]):
    """One producer or consumer. ``count``: its messages so far."""

    def __init__(self, kind: type[Result], process: asyncio.subprocess.Process) -> None:
        self.count = 0
        self._kind: type[Result] = kind
        self._process = process
        self._decoder = msgspec.msgpack.Decoder(ChildFailed | ChildProgress | ChildDone)

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
        """End it at once. Its leases go back when its client is missed."""
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
        if isinstance(line, ChildFailed):
            raise BenchError(line.error)
        if isinstance(line, ChildDone):
            return line.result
        self.count = line.count
        return None


@asynccontextmanager
async def children(kind: type[Result], number: int, task: Callable[[int], Task]) -> AsyncIterator[list[BenchProcess[Result]]]:
    """Start children and wait until all are connected; kill those that are left when the context ends."""
    started: list[BenchProcess[Result]] = []
    try:
        for each in range(number):
            started.append(await BenchProcess.start(kind, task(each)))  # noqa: PERF401 # those that started are killed
        for child in started:
            await child.ready()
        yield started
    finally:
        for child in started:
            await child.kill()


QUEUE_PREFIX: Final = "fila-bench."
IDLE_EXPIRY_S: Final = 600.0
"""If everything here is killed before the first message, the broker itself removes the queue after so long."""
STILL_S_MAX: Final = 45.0
"""Messages that have not come after so long without any are lost. The lease of a consumer that is gone ends before."""
_QUIET_S: Final = 1.0
"""After so long without a message the broker is asked whether there are more."""
_LOOK_S: Final = 0.05
_LEAD_NS: Final = 50_000_000
"""Producers begin so long after the order, so that all of them begin together."""

Watch = Callable[[int, int], None]
"""Called with the messages sent and received so far, again and again."""


@contextmanager
def queue_of_its_own(client: Client) -> Iterator[str]:
    """Create a queue with a name that no other queue has, and remove it in the end, also after an error or an interrupt."""
    name = f"{QUEUE_PREFIX}{uuid4().hex}"
    client.create_queue(name, idle_expiry=IDLE_EXPIRY_S)
    try:
        yield name
    finally:
        with handling(signal.SIG_IGN):  # for as long as a call may take
            _remove(client, name)


def _remove(client: Client, name: str) -> None:
    try:
        client.delete_queue(name, force=True)
    except QueueNotFoundError:
        pass
    except FilaError as error:
        raise BenchError(
            f"cannot remove this run's queue: {error}. Do it later: fila-cluster queue delete --force {name}"
        ) from error


def interruptible() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt at a SIGTERM, as at Ctrl-C."""
    return handling(signal.default_int_handler, signal.SIGTERM)


def run(client: Client, queue: str, workload: Workload, watch: Watch) -> BenchOutcome:
    """Run a workload through a queue that is empty, and judge it. The children have clients of their own.

    :class:`BenchError` if it could not be run to its end. KeyboardInterrupt leaves no child behind.
    """
    try:
        return asyncio.run(_run(client, queue, workload, watch))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _run(client: Client, queue: str, workload: Workload, watch: Watch) -> BenchOutcome:
    if (this := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    seed = randbits(128)

    def task(number: int) -> Task:
        return Task(endpoint=client.endpoint, queue=queue, seed=seed, number=number, workload=workload)

    async def depth() -> int:
        stats = await asyncio.to_thread(client.queue_stats, queue)
        return stats.depth

    async with (
        children(Consumed, workload.consumers, task) as consumers,
        children(Produced, workload.producers, task) as producers,
    ):
        consuming = asyncio.gather(*(child.result() for child in consumers))
        producing = asyncio.gather(*(child.result() for child in producers))
        watching = asyncio.create_task(_watch(producers, consumers, watch))
        try:
            begin = str(time.monotonic_ns() + _LEAD_NS).encode()
            _write(begin, producers, [] if workload.backlog else consumers)
            both: set[asyncio.Future[Any]] = {consuming, producing}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if consuming.done():  # before it was asked to stop: it failed
                await consuming
            produced = await producing
            if workload.backlog:
                _write(begin, consumers)
            await all_received(consumers, sum(each.sent for each in produced), consuming, depth)
            _write(b"stop", producers, consumers)
            outcome = outcome_of(workload, produced, await consuming)
            for child in chain[BenchProcess[Any]](producers, consumers):
                await child.end()
            return outcome
        finally:
            for each in (watching, producing, consuming):
                each.cancel()
            await asyncio.gather(watching, producing, consuming, return_exceptions=True)


def _write(line: bytes, *groups: Iterable[BenchProcess[Any]]) -> None:
    for child in chain(*groups):
        child.write(line)


async def all_received(
    consumers: Iterable[BenchProcess[Consumed]],
    sent: int,
    consuming: "asyncio.Future[list[Consumed]]",
    depth: Callable[[], Awaitable[int]],
) -> None:
    """Wait until the queue is empty, or nothing came for long, or a consumer failed. (Deliveries do not count: some repeat.)"""
    last, since = -1, time.monotonic()
    while not consuming.done():
        count, now = sum(child.count for child in consumers), time.monotonic()
        if count != last:
            last, since = count, now
        is_quiet = now > since + _QUIET_S
        if (count >= sent or is_quiet) and await depth() == 0:
            return
        if now > since + STILL_S_MAX:
            return
        await asyncio.sleep(_LOOK_S)


async def _watch(producers: list[BenchProcess[Produced]], consumers: list[BenchProcess[Consumed]], watch: Watch) -> None:
    while True:
        watch(sum(child.count for child in producers), sum(child.count for child in consumers))
        await asyncio.sleep(_LOOK_S)
