"""Carrying out due times: one message for each, whatever is restarted.

A due time is carried out in one batch: the schedule's progress and the enqueue (:mod:`core.settle.remote_enqueues`). A
schedule has at most one message under way. So if a queue is full, or a shard away, the schedule waits, and its due times
meanwhile are those of an outage.

A due time is *missed* if it is later than its jitter and a restart take (``Limits.schedule_grace_ms``). Then the schedule's
``catch_up`` decides about all due times up to now. The whole jitter counts, not the part of this due time: with a jitter
longer than the interval, a due time also waits for those before it.
"""

from typing import TYPE_CHECKING, Final

from fila_proto_zmq.commands import Enqueue
from fila_proto_zmq.events import ScheduleCaughtUp, ScheduleFailed
from fila_proto_zmq.limits import QUEUE_NAME_BYTES_MAX
from fila_proto_zmq.record import open_envelope, seal_envelope
from fila_worker.core.model.shard_transfers import Owner
from fila_worker.core.schedules.table import ALL, MESSAGE, SKIP, Interval, KeptSchedule, ScheduleTable, decode_message
from fila_worker.core.settle import remote_enqueues
from fila_worker.core.store import DamageError

if TYPE_CHECKING:
    from fila_worker.core.model.state import State

FEATURE: Final = "schedule"
NAME_HEADER: Final = "fila-schedule"
DUE_HEADER: Final = "fila-due-at"
HEADERS: Final = (NAME_HEADER, DUE_HEADER)
"""The headers that a schedule adds to its messages: its name, and the due time as ISO 8601 in UTC."""

ADDED_BYTES_MAX: Final = QUEUE_NAME_BYTES_MAX + 128
"""The bytes of these headers: names, values, and their lengths."""


def carry_out_due(state: "State", table: ScheduleTable, now_ms: int) -> None:
    """Carry out due times, a bounded number a turn."""
    limits = state.settings.limits
    left, left_bytes = limits.turn_schedules_max, limits.turn_schedules_bytes_max
    state.settle_writes()  # a message that was put in this turn
    for schedule in table.take_due(now_ms):
        left -= 1 + _carry_out(state, table, schedule, now_ms)
        left_bytes -= schedule.record.size_bytes
        if left <= 0 or left_bytes <= 0:
            break


def _carry_out(state: "State", table: ScheduleTable, schedule: KeptSchedule, now_ms: int) -> int:
    """Carry out what is due of a schedule. Return how many due times were counted one by one."""
    progress, times = schedule.progress, schedule.times
    assert times is not None, "a schedule without due times is not planned"
    due_ms = times.after(progress.handled_ms)
    assert due_ms is not None, "a planned schedule has a due time"
    if now_ms - due_ms - schedule.record.jitter_ms <= state.settings.limits.schedule_grace_ms:
        progress.in_a_row = 0
        _send(state, table, schedule, due_ms, now_ms)
        return 0
    # It is an outage. With a jitter, the last due time that has passed for certain is that much earlier.
    last_ms = max(times.before(now_ms - schedule.record.jitter_ms) or 0, due_ms)
    catch_up = schedule.record.catch_up
    if catch_up == ALL and progress.in_a_row < state.settings.limits.schedule_catch_up_max:
        progress.in_a_row += 1
        _send(state, table, schedule, due_ms, now_ms)
        return 0
    progress.in_a_row = 0
    skipped = _count(schedule, due_ms, last_ms, state.settings.limits.schedule_skips_counted_max) + (catch_up == SKIP)
    if skipped:
        progress.skipped += skipped
        table.skipped += skipped
        state.notes.append(ScheduleCaughtUp(schedule.name, state.index, catch_up, skipped))
    if catch_up == SKIP:
        progress.handled_ms = last_ms
        schedule.save(state.batch, state.store.families.state)
        table.plan(schedule)
    else:
        _send(state, table, schedule, last_ms, now_ms)
    return 0 if isinstance(times, Interval) else skipped


def _count(schedule: KeptSchedule, first_ms: int, last_ms: int, most: int) -> int:
    """Return the number of due times from one up to another, which does not count; of a cron expression at most ``most``."""
    times = schedule.times
    if isinstance(times, Interval):
        return (last_ms - first_ms) // times.every_ms
    assert times is not None, "a planned schedule has due times"
    count, due_ms = 0, times.after(first_ms - 1)
    while due_ms is not None and due_ms < last_ms and count < most:
        count += 1
        due_ms = times.after(due_ms)
    return count


def _send(state: "State", table: ScheduleTable, schedule: KeptSchedule, due_ms: int, now_ms: int) -> None:
    limits, progress = state.settings.limits, schedule.progress
    message = _message(state, schedule, due_ms)
    remote_enqueues.send(state, Owner(FEATURE, schedule.name, due_ms), schedule.record.queue, message)
    progress.handled_ms = progress.under_way_ms = due_ms
    schedule.save(state.batch, state.store.families.state)
    table.under_way += 1
    table.late += now_ms - schedule.at_ms > limits.schedule_late_ms


def _message(state: "State", schedule: KeptSchedule, due_ms: int) -> Enqueue:
    """Return a schedule's message for a due time."""
    data = state.store.get(MESSAGE + schedule.name.encode(), state.store.families.state)
    if data is None:
        raise DamageError(f"the message of schedule {schedule.name!r} is not stored")
    message = decode_message(data)
    headers, payload = open_envelope(message.envelopes[0])
    headers |= {NAME_HEADER: schedule.name, DUE_HEADER: state.calendar.iso(due_ms)}
    message.envelopes = [seal_envelope(payload, headers)]
    return message


def take_outcome(
    state: "State", table: ScheduleTable, name: str, outcome: remote_enqueues.RemoteOutcome, now_ms: int
) -> bool:
    """Note the outcome of a message; a final one continues the schedule. Return whether the schedule waits for it."""
    schedule = table.by_name.get(name)
    if schedule is None or not outcome.number or schedule.progress.under_way_ms != outcome.number:
        return False  # it was deleted, or put with other due times
    progress = schedule.progress
    fault, progress.fault = progress.fault, outcome.fault
    if outcome.retry_ms is None:
        table.under_way -= 1
        progress.under_way_ms = 0
        if outcome.message is not None:
            progress.fired += 1
            table.fired += 1
            progress.last_due_ms, progress.last_at_ms = outcome.number, now_ms
            progress.id_high, progress.id_low = outcome.message
        else:
            progress.failed += 1
            table.failed += 1
            code = outcome.fault.code if outcome.fault is not None else ""
            if fault is None or fault.code != code:
                state.notes.append(ScheduleFailed(name, state.index, schedule.record.queue, code))
        table.plan(schedule)
    schedule.save(state.batch, state.store.families.state)
    return True
