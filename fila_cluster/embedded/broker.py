"""One durable broker in an application's process: its loop is a thread, its data directory that of a cluster.

The thread runs the loops of a worker and a router (:mod:`fila_cluster.embedded.joined`), on the real clock; clients of this
process reach it without sockets. Confirmed writes survive ``kill -9``, as in a cluster. ``fila-cluster up`` can open the same
directory later. Not for several processes: the directory is locked. Not for heavy load: the broker's turns hold the
interpreter.
"""

import atexit
import ctypes
import gc
import logging
import math
import os
import shutil
import threading
import time
import warnings
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Literal, Self

from fila_cluster.client import AsyncClient, Client, checks
from fila_cluster.client.io import inside
from fila_cluster.client.io.inside import InsideLink
from fila_cluster.embedded.joined import Joined, Joint
from fila_cluster.errors import FilaError, InvalidArgumentError, StorageError
from fila_cluster.run.supervisor import CannotStartError
from fila_cluster.run.supervisor.data_dir import DataDir, DirectoryInUseError
from fila_process.clock import ProcessClock
from fila_proto_zmq.events import Event
from fila_proto_zmq.limits import LEASE_MS_MAX
from fila_proto_zmq.outages import OPENING
from fila_worker.core.settings import ShardSettings
from fila_worker.loop import IDLE_MS, LOOK_MS, PAUSE_MS, open_host
from fila_worker.settings import WorkerSettings
from fila_worker.storage.residence import forget_moves

_log = logging.getLogger("fila_cluster.embedded")

SHARDS: Final = 1
"""Of a new directory."""
WORKER: Final = "worker-0"
FINISH_S_MAX: Final = 5.0
"""How long the thread runs after a request to stop: for requests that have come, and confirmations of the disk."""
CLOSE_S_MAX: Final = 10.0
"""How long closing waits for the thread, which may be in a commit."""
MIB: Final = 1024 * 1024
DISK_BYTES_MAX: Final = 2**63 - 1

_numbers = count(1)
_open: "weakref.WeakValueDictionary[Path, Broker]" = weakref.WeakValueDictionary()
_opening = threading.Lock()
_was_opened = False
"""Whether this process has opened a broker."""
_is_fork_of_opener = False
"""Whether this process was forked from one that had: RocksDB's threads are missing here, and closing a database waits for
them."""


class Broker:
    """A durable broker in this process, from its making until it is closed. Use it as a context manager.

    ::

        with Broker("./jobs") as broker, broker.client() as client:
            client.create_queue("mail")
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        durability: Literal["os", "fsync"] = "os",
        visibility_timeout: float = 30.0,
        min_free_disk_bytes: int = 1024 * MIB,
        name: str | None = None,
    ) -> None:
        """Open a data directory, or make it; return when the broker serves.

        ``durability``: ``os`` survives the end of any process, ``fsync`` a power cut, too. ``visibility_timeout``: the
        default of queues, in seconds. ``min_free_disk_bytes``: with less than this, enqueues are refused. ``name``: clients
        find it as ``memory://NAME``; by default a new one.

        Raise :class:`~fila_cluster.errors.StorageError` if the directory cannot be used, for example because another process
        has it open.
        """
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._closed = True
        if durability not in {"os", "fsync"}:
            raise InvalidArgumentError(f"durability={durability!r}: use 'os' or 'fsync'")
        visibility_timeout_ms = checks.positive_milliseconds("visibility_timeout", visibility_timeout, LEASE_MS_MAX)
        min_free_disk_bytes = checks.whole_number("min_free_disk_bytes", min_free_disk_bytes, 0, DISK_BYTES_MAX)
        self.path = Path(data_dir).expanduser().resolve()
        self.name = name or f"embedded-{os.getpid()}-{next(_numbers)}"
        self._clients: weakref.WeakSet[Client] = weakref.WeakSet()
        self._bell = _Bell()
        self._ready = threading.Event()
        self._stop_at = math.inf
        """When the thread is to stop."""
        self._failure: Exception | None = None
        self._clock = ProcessClock()
        self._data_dir = _claim(self)
        try:
            settings = WorkerSettings(
                name=WORKER,
                router="",
                data_dir=str(self.path),
                shards=list(range(self._data_dir.shards or SHARDS)),
                shards_total=self._data_dir.shards or SHARDS,
                durability=durability,
                shard=ShardSettings(visibility_timeout_ms=visibility_timeout_ms, min_free_disk_bytes=min_free_disk_bytes),
            )
            self._start(settings)
        except BaseException:
            self._stop()
            raise

    def _start(self, settings: WorkerSettings) -> None:
        host = open_host(settings, self._clock.now_ms(), self._bell.ring)
        self._joined = Joined(host, settings.shard, settings.shards_total, WORKER)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"fila {self.name}", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        inside.enter(self.name, self)

    @property
    def endpoint(self) -> str:
        """The endpoint for clients of this process."""
        return f"memory://{self.name}"

    @property
    def closed(self) -> bool:
        """Whether it is closed, or has failed."""
        return self._closed

    def client(self, *, timeout: float = 5.0) -> Client:
        """Return a blocking client. It is closed with the broker, if not before."""
        self._check_open()
        client = Client(self.endpoint, timeout=timeout)
        self._clients.add(client)
        return client

    def async_client(self, *, timeout: float = 5.0) -> AsyncClient:
        """Return a client for asyncio. Close it before the broker."""
        self._check_open()
        return AsyncClient(self.endpoint, timeout=timeout)

    def close(self) -> None:
        """Close its blocking clients, commit, flush, and unlock the directory."""
        if self._pid != os.getpid():
            return  # it is the parent's
        for client in list(self._clients):
            client.close()
        self._stop()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed and self._pid == os.getpid():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Broker of {self.path}{', closed' if self._closed else ''}>"

    # --- for clients --------------------------------------------------------------------------------------------------

    keeps_time = False

    def now(self) -> float:
        """Return monotonic seconds."""
        return max(time.monotonic(), inside.earliest())

    def connect(self, link: InsideLink) -> Joint:
        """Open a connection."""
        return self._joined.connect(link.ring)

    def serve(self) -> None:
        """Wake the thread, which carries out the sent requests."""
        self._bell.ring()

    def rest(self, until: float) -> bool:
        """Return False: no thread moves the real clock."""
        return False

    def reach(self, until: float) -> None:
        """Do nothing: the real clock advances by itself."""

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:
            self._failure = error
            if self._ready.is_set():  # else the error is raised where the broker is made
                _log.exception("the embedded broker of %s has failed; open it again", self.path)
        finally:
            self._closed = True
            inside.leave(self.name, self)
            try:
                self._joined.close()
                gc.collect()  # a shard's memory is all cycles, and its iterators keep the database locked
            finally:
                self._ready.set()

    def _serve(self) -> None:
        joined, clock, bell = self._joined, self._clock, self._bell
        turned_ms, look_at_ms = clock.now_ms(), 0
        while time.monotonic() < self._stop_at or self._has_more:
            bell.silence()
            now_ms = clock.now_ms()
            if now_ms >= look_at_ms:
                look_at_ms = now_ms + LOOK_MS
                joined.host.metrics.measured(shutil.disk_usage(self.path).free, time.process_time_ns() // 1_000_000, now_ms)
            if now_ms - turned_ms > PAUSE_MS:
                joined.host.paused(now_ms - turned_ms)
            turned_ms = now_ms
            joined.turn(now_ms)
            self._tell(joined.notes)
            if not self._ready.is_set() and self._has_started():
                self._ready.set()
            due_ms = joined.next_due(clock.now_ms())
            if due_ms != 0:
                bell.wait((IDLE_MS if due_ms is None else min(due_ms, IDLE_MS)) / 1000)

    @property
    def _has_more(self) -> bool:
        if time.monotonic() > self._stop_at + FINISH_S_MAX:
            return False
        return bool(self._joined.arrived) or self._joined.host.holds_effects

    def _has_started(self) -> bool:
        """Return whether all shards serve. Raise if one of them cannot."""
        for slot in self._joined.host.slots.values():
            if slot.outage is not None and slot.outage.state != OPENING:
                raise StorageError(f"shard {slot.index} of {self.path} cannot be opened: {slot.outage.reason}")
        return self._joined.is_ready

    def _tell(self, notes: list[Event]) -> None:
        for note in notes:
            _log.log(getattr(logging, note.level.upper()), "%s %s", note.event, note.fields())
        notes.clear()

    def _stop(self) -> None:
        self._stop_at = min(self._stop_at, time.monotonic())
        self._bell.ring()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)
            if self._thread.is_alive():
                _log.error("%s does not close: its disk takes no commit; it stays locked until this process ends", self.path)
                return
        self._closed = True
        with _opening:
            if _open.get(self.path) is self:
                del _open[self.path]
        self._data_dir.release()

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise FilaError("this broker was opened before the fork: it is the parent's")
        if self._closed:
            raise FilaError(f"this broker is closed: open another one on {self.path}")


class _Bell:
    """Wakes the thread. Any thread may ring it, also in a finalizer or at an interrupt: each step is one call into C."""

    def __init__(self) -> None:
        self._strokes: SimpleQueue[None] = SimpleQueue()
        self._rung = False

    def ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._strokes.put(None)

    def wait(self, seconds: float) -> None:
        with suppress(Empty):
            self._strokes.get(timeout=seconds)

    def silence(self) -> None:
        """Allow the thread to sleep again. The following turn has all requests that were sent before the last stroke."""
        while not self._strokes.empty():
            self._strokes.get()
        self._rung = False  # after that: a stroke in between costs a turn, and none is missed


def _claim(broker: Broker) -> DataDir:
    """Lock a directory for a broker. Raise :class:`StorageError`."""
    global _was_opened  # noqa: PLW0603
    path = broker.path
    if _is_fork_of_opener:
        raise StorageError(
            f"{path} cannot be opened here: this process was forked from one that had opened a broker, and RocksDB does not "
            "work in both. Open brokers in one of them only, or start this process anew (multiprocessing's 'spawn')"
        )
    with _opening:
        _was_opened = True
        if path in _open:
            raise StorageError(
                f"{path} is open in this process as {_open[path].endpoint}: use its client(), or close it first"
            )
        try:
            data_dir = DataDir(path)
            try:
                data_dir.claim(data_dir.shards or SHARDS)
            except BaseException:
                data_dir.release()
                raise
        except DirectoryInUseError as error:
            raise StorageError(
                f"{path} is in use by another process: stop it, or choose another directory ({error})"
            ) from None
        except CannotStartError as error:
            raise StorageError(str(error)) from None
        forget_moves(path)  # all shards are here
        _open[path] = broker
    return data_dir


def _leave_to_the_parent() -> None:
    """Drop the locks, in the child of a fork: they are the parent's."""
    global _opening, _is_fork_of_opener  # noqa: PLW0603
    _opening = threading.Lock()
    _is_fork_of_opener = _is_fork_of_opener or _was_opened
    if _was_opened:
        _end_without_destructors()
    for broker in list(_open.values()):
        broker._closed = True
        broker._data_dir.release()
        _never_free(broker)
    _open.clear()


def _end_without_destructors() -> None:
    """End after Python's own end, before the destructors of RocksDB join threads that a fork does not have."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # in glibc; it gets the exit status, unlike what atexit() calls
        libc.on_exit(libc._exit, None)


def _never_free(broker: Broker) -> None:
    """Keep a broker until the process ends, longer than the interpreter.

    To free its databases would close them, on the files of the parent, and wait for threads that are not here.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(broker))


os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _close_all() -> None:
    """Close the brokers that the program has left open: otherwise their threads end in the middle of a turn."""
    for broker in list(_open.values()):
        broker.close()
