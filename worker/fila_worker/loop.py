"""The worker's loop: frames in, one turn, frames out, sleep until the next frame or timer."""

import gc
import shutil
import time
from pathlib import Path
from typing import Final

import zmq

from fila_process.clock import Clock
from fila_process.journal import Journal
from fila_process.parent import STDIN, Heartbeat, StopRequests
from fila_proto_zmq.errors import StorageError
from fila_proto_zmq.events import ProcessFailed, ProcessStopped, ProcessStopping
from fila_worker.core.store import UnfitStoreError
from fila_worker.host import Host
from fila_worker.link import PULSE_MS, Link
from fila_worker.lua import compile_hooks
from fila_worker.settings import WorkerSettings
from fila_worker.slots import Opener, Slot
from fila_worker.storage.made import mark_made, refuse_missing
from fila_worker.storage.rocks import RocksStore, SharedMemory

IDLE_MS: Final = PULSE_MS
"""The longest sleep."""

LOOK_MS: Final = 1000
"""How often free disk space and CPU time are measured."""

PAUSE_MS: Final = 2000
"""A longer gap between turns is a pause of the process or a step of the clock: the loop sleeps for 250 ms at most."""

NEVER: Final = 1_000_000_000

LEAVE_MS: Final = 1000
"""How long a stopping worker waits for the router's confirmation; the router may be gone itself."""


def open_host(settings: WorkerSettings, now_ms: int) -> Host:
    """Return a host of the shards that the settings name, which opens them turn by turn."""
    memory = SharedMemory()
    slots = [
        Slot(index, settings.shards_total, settings.shard, compile_hooks, _opener(settings, index, memory))
        for index in settings.shards
    ]
    return Host([], settings.shards_total, now_ms, settings.name, opening=slots)


def _opener(settings: WorkerSettings, index: int, memory: SharedMemory) -> Opener:
    path = Path(settings.data_dir) / f"shard-{index:04d}"

    def open_store() -> RocksStore:
        refuse_missing(path)
        store = RocksStore(path, fsync=settings.durability == "fsync", memory=memory)
        try:
            mark_made(path)
        except StorageError:
            store.close()
            raise
        return store

    return open_store


def run(settings: WorkerSettings) -> int:
    """Serve until asked to stop, then commit, flush and return 0; return 1 after a failure, which is in the log.

    Raise :class:`UnfitStoreError` for what keeps the worker from starting.
    """
    stop = StopRequests(STDIN)
    clock = Clock()
    began_ms = clock.now_ms()
    journal = Journal(settings.name, settings.log)
    host = open_host(settings, began_ms)
    link = Link(settings, host)
    _spare_the_collector()
    try:
        _live(settings, host, link, clock, stop, journal)
    except UnfitStoreError:
        raise
    except Exception as error:  # of the process itself: a shard's failure is handled by the host
        journal.tell([ProcessFailed.of(error)])
        return 1
    journal.tell([ProcessStopped(clock.now_ms() - began_ms)])
    return 0


def _live(settings: WorkerSettings, host: Host, link: Link, clock: Clock, stop: StopRequests, journal: Journal) -> None:
    link.register(clock.now_ms())
    _serve(host, link, clock, stop, Path(settings.data_dir), journal, Heartbeat(STDIN))
    journal.tell([ProcessStopping()])
    _leave(host, link, clock, journal)
    link.close()
    host.close()


def _serve(
    host: Host, link: Link, clock: Clock, stop: StopRequests, data_dir: Path, journal: Journal, heartbeat: Heartbeat
) -> None:
    poller = zmq.Poller()
    poller.register(link.socket, zmq.POLLIN)
    for descriptor in stop.fds:
        poller.register(descriptor, zmq.POLLIN)
    look_again_ms = 0
    stopping = started = False
    turned_ms = clock.now_ms()
    while not stopping:
        now_ms = clock.now_ms()
        started = started or not host.opening
        if started:  # before that, RocksDB may replay its logs for as long as the disk takes
            heartbeat.beat()
        if now_ms >= look_again_ms:
            look_again_ms = now_ms + LOOK_MS
            host.measured(shutil.disk_usage(data_dir).free, time.process_time_ns() // 1_000_000, now_ms)
        due = host.next_due(now_ms)
        ready = dict(poller.poll(IDLE_MS if due is None else min(due, IDLE_MS)))
        now_ms, before_ms = clock.now_ms(), turned_ms
        turned_ms = now_ms
        if now_ms - before_ms > PAUSE_MS:
            host.paused(now_ms - before_ms)
        _turn(host, link, now_ms, journal)
        stopping = stop.requested(ready)


def _turn(host: Host, link: Link, now_ms: int, journal: Journal) -> None:
    started_ns = time.perf_counter_ns()
    was_opening = host.opening
    host.begin_turn(now_ms)
    for frame in link.receive(now_ms):
        host.accept(frame, now_ms)
    link.send(host.turn(now_ms, drained=link.drained))
    link.register_changes(now_ms)
    link.pulse(now_ms)
    if host.dropped:
        host.dropped = False
        _spare_the_collector()
    elif was_opening and not host.opening:
        gc.freeze()  # the recovered objects stay
    if host.notes:
        notes, host.notes = host.notes, []
        journal.tell(notes)
    host.turn_ns.observe(time.perf_counter_ns() - started_ns)


def _leave(host: Host, link: Link, clock: Clock, journal: Journal) -> None:
    """Answer all requests that the router sent before it knew that this worker leaves."""
    link.leave()
    give_up_ms = clock.now_ms() + LEAVE_MS
    while not link.left and clock.now_ms() < give_up_ms:
        link.socket.poll(LEAVE_MS)
        _turn(host, link, clock.now_ms(), journal)


def _spare_the_collector() -> None:
    """Have the cyclic collector examine each new object once, and never all objects.

    Queues of tuples make the collector slow, and they hold no cycles. Its work is part of a turn: 10,000 objects take some 3
    ms, and a second look at them would cost 5 % of an enqueue. A full collection takes more than a second for a million
    fairness keys, so there is none except here. This function is called at the start, and when a shard was dropped after a
    failure: that shard's memory is all cycles, and its iterators keep its store locked.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, NEVER, NEVER)
