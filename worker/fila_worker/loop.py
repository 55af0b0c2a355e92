"""The worker's loop: read frames, do one turn, send frames, sleep until the next frame or due time."""

import gc
import os
import secrets
import selectors
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fila_process.clock import ProcessClock, SteadyClock
from fila_process.files import allow_many_connections, connections_allowed
from fila_process.journal import Journal
from fila_process.parent import DEPOSED, STDIN, ParentHeartbeat, StopRequests
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import (
    HostApart,
    HostReached,
    ProcessDeposed,
    ProcessFailed,
    ProcessStopped,
    ProcessStopping,
    ShardElsewhere,
)
from fila_worker.core.store import UnfitStoreError
from fila_worker.lua import compile_hooks
from fila_worker.process.backup_cuts import BackupCuts
from fila_worker.process.departures import Departures
from fila_worker.process.pauses import GAP_MS
from fila_worker.process.shard_process import LOG_FULL_MS, ShardProcess
from fila_worker.process.slots import Opener, Slot
from fila_worker.replication.replicated import MustEnd, ReplicatedShards, replicated_shards
from fila_worker.settings import WorkerSettings
from fila_worker.storage.made import mark_made, refuse_missing
from fila_worker.storage.options import SharedMemory
from fila_worker.storage.residence import Residence
from fila_worker.storage.rocks import RocksStore
from fila_worker.transport.client_socket import open_client_socket
from fila_worker.transport.deferrals import Deferrals
from fila_worker.transport.direct_clients import DOOR_BYTES, DirectClients, limits_here
from fila_worker.transport.router_links import PULSE_MS, RouterLinks


class Wakeup:
    """Readable from :meth:`set`, in any thread, until :meth:`clear`."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def set(self) -> None:
        """Wake the loop, now or at its next wait."""
        os.eventfd_write(self.descriptor, 1)

    def clear(self) -> None:
        """Let the loop sleep again. Call it before looking for what has changed."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.descriptor)

    def close(self) -> None:
        """Close the descriptor. No thread may call :meth:`set` any more."""
        os.close(self.descriptor)


IDLE_MS: Final = PULSE_MS
"""The longest sleep."""

BEAT_MS: Final = 100
"""How often to see whether the next heartbeat is due."""

LOOK_MS: Final = 1000
"""How often free disk space and CPU time are measured."""

PAUSE_MS: Final = 2000
"""A longer gap between turns is a pause of the process or a step of the clock: the loop sleeps for 250 ms at most."""

DESCRIPTORS_RESERVED: Final = 512
"""Descriptors for RocksDB's files and the rest of the process: the client socket may have the others."""

NEVER: Final = 1_000_000_000

RETIRE_MS: Final = 3000
"""How long a stopping worker waits until the shards of a replicated log are handed over."""
LEAVE_MS: Final = 1000
"""How long a stopping worker waits for the router's confirmation, and for its clients; the router may be gone, too."""
LEAVE_LOOK_MS: Final = 50
"""The longest sleep meanwhile."""


def open_host(settings: WorkerSettings, now_ms: int, wake: Callable[[], None]) -> ShardProcess:
    """Return a host that opens this worker's shards turn by turn.

    They are the shards of the settings and those that were moved here, without those that were moved away. On a replicated
    log each is followed until this host leads it. ``wake``: called in any thread after confirmations of commits.
    """
    if settings.replication is not None:
        replicated = replicated_shards(settings, settings.replication, wake)
        return ShardProcess(replicated.slots, settings.shards_total, now_ms, settings.name, [replicated])
    memory, data_dir = SharedMemory(), Path(settings.data_dir)
    residence = Residence(data_dir, settings.name, settings.shards_total)

    def make_slot(index: int) -> Slot:
        opener = _opener(settings, index, memory, residence, wake)
        return Slot(index, settings.shards_total, settings.shard, compile_hooks, opener)

    hosted = residence.hosted(settings.shards)
    features = [Departures(residence, make_slot), BackupCuts(data_dir, socket.gethostname(), hosted, now_ms)]
    host = ShardProcess(map(make_slot, hosted), settings.shards_total, now_ms, settings.name, features)
    for index in sorted({*settings.shards}.difference(hosted)):
        worker = residence.host_of(index) or ""
        host.notes.append(ShardElsewhere(index, worker, str(residence.file_of(index))))
    return host


def _opener(
    settings: WorkerSettings, index: int, memory: SharedMemory, residence: Residence, wake: Callable[[], None]
) -> Opener:
    path = Path(settings.data_dir) / f"shard-{index:04d}"

    def open_here() -> RocksStore:
        try:
            return RocksStore(path, fsync=settings.durability == "fsync", memory=memory, wake=wake)
        except UnfitStoreError as error:
            # Not a mistake of the start for a moved shard: the last host may not have closed it yet.
            if residence.is_here(index):
                raise StorageError(str(error), details=error.details) from error
            raise

    def open_store() -> RocksStore:
        refuse_missing(path)
        store = open_here()
        try:
            if residence.is_elsewhere(index):  # the database is open, so no other process can move it now
                raise UnfitStoreError(
                    f"shard {index} was moved to {residence.host_of(index)} at this moment: start this worker again"
                )
            mark_made(path)
        except StorageError:
            store.close()
            raise
        return store

    return open_store


def run(settings: WorkerSettings) -> int:
    """Serve until asked to stop, then return 0; 1 after a logged failure. Raise :class:`UnfitStoreError` at a start."""
    stop = StopRequests(STDIN)
    clock = ProcessClock()
    began_ms = clock.now_ms()
    journal = Journal(settings.name, settings.log)
    allow_many_connections()
    wakeup = Wakeup()
    loop = WorkerLoop(
        settings, open_host(settings, began_ms, wakeup.set), clock, stop, journal, ParentHeartbeat(STDIN), wakeup
    )
    _spare_the_collector()
    try:
        loop.run()
    except MustEnd as end:
        journal.tell([ProcessDeposed(str(end))])
        os._exit(DEPOSED)
    except UnfitStoreError:
        raise
    except Exception as error:  # of the process itself: the host handles a shard's failure
        journal.tell([ProcessFailed.of(error)])
        return 1
    journal.tell([ProcessStopped(clock.now_ms() - began_ms)])
    stop.close()
    return 0


class WorkerLoop:
    """The running worker: its host between the routers' links and the client socket."""

    def __init__(
        self,
        settings: WorkerSettings,
        host: ShardProcess,
        clock: ProcessClock,
        stop: StopRequests,
        journal: Journal,
        heartbeat: ParentHeartbeat,
        wakeup: Wakeup,
    ) -> None:
        """``wakeup``: set when commits of the host are confirmed."""
        self._host = host
        self._clock = clock
        self._stop = stop
        self._journal = journal
        self._heartbeat = heartbeat
        self._wakeup = wakeup
        self._data_dir = Path(settings.data_dir)
        self._replicated = next((feature for feature in host.features if isinstance(feature, ReplicatedShards)), None)
        self._finds_routers = not settings.other_routers
        self._own_router = "" if settings.replication is None else settings.replication.router
        shard = settings.shard
        self._clients = DirectClients(
            host,
            secrets.token_bytes(DOOR_BYTES),
            shard.consumer_timeout_ms,
            shard.max_payload_bytes,
            settings.shards_total,
            limits_here(connections_allowed(DESCRIPTORS_RESERVED)),
            auth=settings.auth,
        )
        address = settings.replication.address if settings.replication is not None else ""
        self._client_socket = open_client_socket(
            settings.doors, self._clients, host, shard.max_payload_bytes, clock.now_ms, address
        )
        self._links = RouterLinks(settings, host, self._clients, self._client_socket.endpoints, SteadyClock().now_ms)
        self._deferrals = Deferrals(self._links)
        host.add(self._deferrals, clock.now_ms())
        self._attend_again_ms = self._look_again_ms = 0
        self._started = False
        """Whether the shards were opened. Before that, RocksDB may replay its logs for as long as the disk takes."""
        self._apart = selectors.DefaultSelector()
        """The descriptors to watch while the client socket may not be served."""
        self._unread = selectors.DefaultSelector()
        """The descriptors that are watched while no frames are read."""
        for descriptor in (wakeup.descriptor, *stop.fds):
            self._unread.register(descriptor, selectors.EVENT_READ)
        for descriptor in (*self._links.descriptors, wakeup.descriptor, *stop.fds):
            self._apart.register(descriptor, selectors.EVENT_READ)
            self._client_socket.watch(descriptor)
        self._stop_descriptors = stop.fds
        self._clients_first = False
        """Which of both is read first, in turn: either of them may fill a turn."""

    def run(self) -> None:
        """Serve until asked to stop, then take leave and close everything."""
        self._links.register(self._clock.now_ms())
        self._serve()
        self._journal.tell([ProcessStopping()])
        self._leave()
        self._apart.close()
        self._unread.close()
        self._client_socket.close()
        self._links.close()
        self._host.close()
        self._wakeup.close()

    def _serve(self) -> None:
        now_ms = turned_ms = self._clock.now_ms()
        while True:
            if now_ms >= self._attend_again_ms:
                self._attend(now_ms)
            readable = self._wait(now_ms, self._sleep_ms(now_ms))
            now_ms, before_ms = self._clock.now_ms(), turned_ms
            turned_ms = now_ms
            if now_ms - before_ms > GAP_MS:
                readable = self._wait(now_ms, 0)  # what came during the pause
                if now_ms - before_ms > PAUSE_MS:
                    self._host.paused(now_ms - before_ms)
            now_ms += self._turn(now_ms)
            if readable and self._stop.requested(readable):
                return

    def _attend(self, now_ms: int) -> None:
        """Do what need not be done in each turn."""
        self._attend_again_ms = now_ms + BEAT_MS
        self._started = self._started or not self._host.slots.opening
        if self._started:
            self._heartbeat.beat()
        if now_ms >= self._look_again_ms:
            self._look_again_ms = now_ms + LOOK_MS
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        self._host.metrics.measured(shutil.disk_usage(self._data_dir).free, time.process_time_ns() // 1_000_000, now_ms)
        self._client_socket.tick(now_ms)
        if self._replicated is not None and self._finds_routers:
            for descriptor in self._links.join(self._replicated.routers - {self._own_router}, now_ms):
                self._apart.register(descriptor, selectors.EVENT_READ)
                self._client_socket.watch(descriptor)
        if (apart := self._links.apart(now_ms)) != self._host.apart:
            self._host.apart = apart
            self._host.notes.append(HostApart() if apart else HostReached())

    def _sleep_ms(self, now_ms: int) -> int:
        """Return how long the worker may sleep."""
        longest_ms = IDLE_MS
        if self._host.log_is_full:
            longest_ms = LOG_FULL_MS
        elif self._links.has_more or (self._client_socket.has_more and self._clients.trusted(now_ms)):
            return 0
        due = self._host.next_due(now_ms)
        return longest_ms if due is None else min(due, longest_ms)

    def _wait(self, now_ms: int, timeout_ms: int) -> list[int]:
        """Sleep until a frame comes; for clients only while they may be served. Return the other readable descriptors."""
        if self._clients.trusted(now_ms) and not self._host.log_is_full:
            readable = self._client_socket.wait(timeout_ms)
        else:
            selector = self._unread if self._host.log_is_full else self._apart
            readable = [key.fd for key, _ in selector.select(timeout_ms / 1000)]
        if self._wakeup.descriptor in readable:
            self._wakeup.clear()
        self._links.woken(readable)
        return readable

    def _turn(self, now_ms: int) -> int:
        """Read frames, do a turn, and send frames. Return how long it took, ms."""
        started_ns = time.perf_counter_ns()
        host, links, client_socket = self._host, self._links, self._client_socket
        host.begin_turn(now_ms)
        trusted = self._clients.trusted(now_ms)
        self._clients_first = not self._clients_first
        if self._clients_first and trusted:
            client_socket.receive(now_ms)
        for link in links.in_line():
            for frame in link.receive(now_ms, links.intake):
                host.accept(frame, now_ms, link.number)
        if trusted and not self._clients_first:
            client_socket.receive(now_ms)
        self._clients.part_from_lost(now_ms)
        drained = links.drained and (client_socket.empty or (trusted and not client_socket.has_more))
        effects = host.turn(now_ms, drained=drained)
        if self._deferrals.acts:
            effects = self._deferrals.sift(effects, now_ms)
        if effects:
            routed = [effect for effect in effects if not client_socket.send(effect)] if self._clients.busy else effects
            if routed:
                links.send(routed, now_ms)
        if host.failed:  # after the answers of what was committed before the failure
            failed, host.failed = host.failed, []
            client_socket.interrupt(frozenset(failed))
        client_socket.flush()
        links.tend(now_ms)
        if host.dropped:
            host.dropped = False
            _spare_the_collector()
        elif host.recovered and not host.slots.opening:
            host.recovered = False
            gc.freeze()  # the recovered objects stay
        if host.notes:
            notes, host.notes = host.notes, []
            self._journal.tell(notes)
        took_ns = time.perf_counter_ns() - started_ns
        host.metrics.turn_ns.observe(took_ns)
        return took_ns // 1_000_000

    def _has_left(self, now_ms: int) -> bool:
        answered = self._links.left(now_ms) and not self._host.holds_effects
        return answered and (self._client_socket.empty or self._clients.quiet(now_ms))

    def _leave(self) -> None:
        """Answer all requests that were sent here before the router and the clients knew that this worker leaves."""
        for descriptor in self._stop_descriptors:  # they stay readable
            self._apart.unregister(descriptor)
            self._unread.unregister(descriptor)
            self._client_socket.watch_no_more(descriptor)
        self._retire()
        self._links.leave()
        now_ms = self._clock.now_ms()
        self._client_socket.retire(now_ms)
        give_up_ms = now_ms + LEAVE_MS
        while now_ms < give_up_ms and not self._has_left(now_ms):
            now_ms = self._one_more_turn(now_ms)

    def _retire(self) -> None:
        """Hand over the shards that other hosts can lead, before the router and the clients are asked to stop sending."""
        self._host.retire()
        now_ms = self._clock.now_ms()
        give_up_ms = now_ms + RETIRE_MS
        while self._host.slots.retires and now_ms < give_up_ms:
            now_ms = self._one_more_turn(now_ms)

    def _one_more_turn(self, now_ms: int) -> int:
        self._wait(now_ms, min(self._sleep_ms(now_ms), LEAVE_LOOK_MS))
        self._links.look_at_all()
        now_ms = self._clock.now_ms()
        self._turn(now_ms)
        return now_ms


def _spare_the_collector() -> None:
    """Set the cyclic collector to examine each new object once, and never all objects.

    Queues of tuples make the collector slow, and hold no cycles. Its work is part of a turn: 10,000 objects take some 3 ms,
    and a second look at them would cost 5 % of an enqueue. A full collection takes more than a second for a million fairness
    keys. So only this function makes one: at the start, and after a failed shard was dropped, whose memory is all cycles, and
    whose iterators keep its store locked.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, NEVER, NEVER)
