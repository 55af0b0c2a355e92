"""The due work of the clock: carrying out the entries of the due index.

Each turn takes due entries in bounded steps. Messages past their time to live are dead-lettered, delayed messages come in
line, dedup ids are forgotten, the broker's own enqueues are tried again, and idle queues are checked.
"""

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING

from fila_worker.core.enqueue import dedup
from fila_worker.core.keys import lane_of
from fila_worker.core.manage.deletion import delete_if_idle
from fila_worker.core.model.component import Component, Steps
from fila_worker.core.model.due_index import DueKind, lift, parse_delayed, too_old
from fila_worker.core.settle import dead_letters, remote_enqueues

if TYPE_CHECKING:
    from collections.abc import Callable

    from fila_worker.core.model.due_index import DueEntry
    from fila_worker.core.model.lanes import Lane
    from fila_worker.core.model.state import State


def act_on_due(state: "State", now_ms: int) -> None:
    """Carry out the due entries, a bounded number a turn."""
    due_ms = state.due_index.next_due_ms
    if due_ms is None or due_ms > now_ms:
        return
    state.settle_writes()
    by_kind: defaultdict[int, list[DueEntry]] = defaultdict(list)
    for entry in state.due_index.take_due(now_ms, state.batch):  # after this the turn must not be committed in parts
        by_kind[entry.kind].append(entry)
    expired: set[bytes] = set()
    _in_pieces(state, by_kind[DueKind.EXPIRE], partial(_expire, expired=expired), now_ms)
    still_delayed = [entry for entry in by_kind[DueKind.RELEASE] if entry.subject not in expired]
    _in_pieces(state, still_delayed, _release, now_ms)
    dedup.forget(state, by_kind[DueKind.FORGET], now_ms)
    remote_enqueues.go_on(state, by_kind[DueKind.ENQUEUE], now_ms)
    for entry in by_kind[DueKind.IDLE]:
        delete_if_idle(state, int.from_bytes(entry.subject, "big"), entry.due_ms, now_ms)


def _in_pieces(state: "State", due: "list[DueEntry]", act: "Callable[[State, list[bytes], int], int]", now_ms: int) -> None:
    """Act on the messages of some entries, some at a time, until enough bytes were read. The others are put back."""
    limits = state.settings.limits
    piece = limits.due_read_messages_max
    entries = {entry.subject: entry for entry in due}
    keys = list(entries)
    bytes_read = done = 0
    while done < len(keys) and bytes_read < limits.due_read_bytes_max:
        bytes_read += act(state, keys[done : done + piece], now_ms)
        done += piece
    for key in keys[done:]:
        state.due_index.put_back(entries[key], state.batch)


def _release(state: "State", keys: list[bytes], now_ms: int) -> int:
    """Put the delayed messages that are due in line. Return the bytes read."""
    bytes_read = 0
    for key, value in zip(keys, state.store.get_many(keys, state.store.families.delayed), strict=True):
        bytes_read += len(value or b"")
        lane = state.find_lane(lane_of(key))
        delayed = parse_delayed(value) if value is not None else None
        if lane is None or delayed is None or delayed.due_ms > now_ms:
            continue  # its queue was deleted, it was cancelled, or delayed again
        lift(state, lane, key, delayed)
        if too_old(delayed.record, now_ms):
            dead_letters.dead_letter(state, lane, key, delayed.record, dead_letters.EXPIRED, now_ms)
        else:
            state.put_in_line(lane, key[8:], delayed.record)
        if delayed.retrying:
            state.release_slot(lane.key)
    return bytes_read


def _expire(state: "State", keys: list[bytes], now_ms: int, expired: set[bytes]) -> int:
    """Dead-letter the messages past their time to live. Leased ones are checked when they come back. Return the bytes read.

    The keys of delayed messages are added to ``expired``: until the turn is committed, they are still delayed on disk.
    """
    by_lane: defaultdict[Lane, list[bytes]] = defaultdict(list)
    for key in keys:
        lane = state.find_lane(lane_of(key))
        if lane is not None and key not in lane.claimed:
            by_lane[lane].append(key)
    bytes_read = 0
    for lane, found in by_lane.items():
        bytes_read += _expire_pending(state, lane, found, now_ms)
        if lane.delayed:
            bytes_read += _expire_delayed(state, lane, found, now_ms, expired)
    return bytes_read


def _expire_pending(state: "State", lane: "Lane", keys: list[bytes], now_ms: int) -> int:
    found = state.store.get_many(keys, state.store.families.messages)
    old = {key: record for key, record in zip(keys, found, strict=True) if record and too_old(record, now_ms)}
    state.ledger.show(lane)
    state.buffers.remove(lane, old.keys())
    for key, record in old.items():
        state.take_out(lane, key, len(record))
        dead_letters.dead_letter(state, lane, key, record, dead_letters.EXPIRED, now_ms)
    return sum(len(record or b"") for record in found)


def _expire_delayed(state: "State", lane: "Lane", keys: list[bytes], now_ms: int, expired: set[bytes]) -> int:
    found = state.store.get_many(keys, state.store.families.delayed)
    for key, value in zip(keys, found, strict=True):
        delayed = parse_delayed(value) if value is not None else None
        if delayed is not None and too_old(delayed.record, now_ms):
            lift(state, lane, key, delayed)
            expired.add(key)
            dead_letters.dead_letter(state, lane, key, delayed.record, dead_letters.EXPIRED, now_ms)
            if delayed.retrying:
                state.release_slot(lane.key)
    return sum(len(value or b"") for value in found)


class DueEntries(Component):
    """The entries of the due index: delayed messages, times to live, dedup windows, idle queues."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.due_index.timer)

    def recover(self, now_ms: int) -> Steps:
        """Find the earliest due time."""
        self.state.due_index.recover()
        yield

    def tick(self, now_ms: int) -> int | None:
        """Carry out due entries."""
        act_on_due(self.state, now_ms)
        return self.state.due_index.next_due_ms


class OpenJobs(Component):
    """The steps of the open jobs."""

    def __init__(self, state: "State") -> None:
        super().__init__(state, state.jobs.timer)

    def tick(self, now_ms: int) -> int | None:
        """Take steps of the open jobs."""
        jobs = self.state.jobs
        if jobs.open:
            jobs.run(now_ms)
        return jobs.next_step(now_ms)
