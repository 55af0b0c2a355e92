"""What a benchmark measures: a system, its server, and a connection of a client to it. Workloads know these protocols only.

A system is a value that can be pickled, because clients run in processes of their own. In such a process a client is opened
with :meth:`System.connect`, in a running event loop. Each system does the work as a good user of it would: ``send_all`` with
pipelines or many confirms in flight, ``drain`` with prefetching and acks in flight, ``follow`` with pushes. A message counts
as sent when the server has confirmed it, and as received when its ack was confirmed or, where a system has no such
confirmation, sent.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import psutil

from benchmarks.harness.messages import Check, Load


class Server(Protocol):
    """A running server, with an empty data directory of its own."""

    @property
    def address(self) -> str:
        """Where clients connect."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What the page says of it: "version", "durability", "client" (library and version), …"""

    def cpu_seconds(self) -> dict[str, float]:
        """Return user and system time so far, by kind of process."""

    def rss_bytes(self) -> dict[str, int]:
        """Return resident memory, by kind of process."""

    def disk_bytes(self) -> int:
        """Return what the data takes on the disk, in blocks."""


class Connection(Protocol):
    """A client of a system. All methods are awaited in one event loop."""

    async def create(self, queue: str) -> None:
        """Make a queue that is empty and durable."""

    def prepare(self, load: Load) -> Any:
        """Return the messages as ``send_all`` takes them, before the clock starts: an application has its messages
        already."""

    async def send_all(self, queue: str, prepared: Any) -> Sequence[object]:
        """Send messages in the fastest safe way. Return their ids, when all are confirmed; no ids: an empty sequence."""

    async def send(self, queue: str, payload: bytes, headers: dict[str, str]) -> None:
        """Send one message, and wait for its confirmation."""

    async def drain(self, queue: str, check: Check) -> None:
        """Receive messages in bulk, note their payloads, and ack them, until ``check.left`` is 0 and all acks are
        confirmed."""

    def follow(self, queue: str, ahead: int) -> "Pushed":
        """Yield the payload of each message when it comes, with at most ``ahead`` unsettled, and a function whose result is
        awaited to ack it."""


Pushed: TypeAlias = AsyncGenerator[tuple[bytes, Callable[[], Awaitable[None]]], None]
"""What :meth:`Connection.follow` yields."""


ServerType_co = TypeVar("ServerType_co", bound=Server, covariant=True)


class Serves(Protocol[ServerType_co]):
    """The part of a system that starts its server."""

    @property
    def name(self) -> str:
        """As tables show it, with what distinguishes it from other systems of the run."""

    def serve(self, directory: Path) -> AbstractContextManager[ServerType_co]:
        """Start a server on free ports, with its data in this empty directory."""


class System(Serves[Server], Protocol):
    """A message system. Instances are small, picklable values."""

    def environment(self) -> Mapping[str, str]:
        """Return what client processes have in their environment besides this process's."""

    def connect(self, address: str) -> AbstractAsyncContextManager[Connection]:
        """Open a client."""


class Processes:
    """CPU time and memory of a server's processes, which ``find`` names by kind. Systems use it for their servers."""

    def __init__(self, find: Callable[[], Mapping[str, Sequence[psutil.Process]]], data: Path) -> None:
        self._find = find
        self._data = data

    def cpu_seconds(self) -> dict[str, float]:
        """Return user and system time so far, by kind of process."""
        return {
            kind: sum(times.user + times.system for times in (process.cpu_times() for process in processes))
            for kind, processes in self._find().items()
        }

    def rss_bytes(self) -> dict[str, int]:
        """Return resident memory, by kind of process."""
        return {kind: sum(process.memory_info().rss for process in processes) for kind, processes in self._find().items()}

    def disk_bytes(self) -> int:
        """Return what the data takes on the disk, in blocks: what is allocated and not yet written counts too."""
        total = 0
        for path in self._data.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except FileNotFoundError:  # compacted away meanwhile
                continue
        return total
