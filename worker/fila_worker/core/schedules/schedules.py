"""The commands about schedules, and the component that carries them out."""

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace

from fila_proto_zmq.codec import to_fault
from fila_proto_zmq.commands import (
    DeleteSchedule,
    GetSchedule,
    ListSchedules,
    PutSchedule,
    ScheduleDeleted,
    ScheduleFound,
    ScheduleList,
    ScheduleMetrics,
    ScheduleView,
)
from fila_proto_zmq.errors import InvalidArgumentError, OverloadedError, PayloadTooLargeError
from fila_proto_zmq.limits import HEADERS_BYTES_MAX, LIST_SCHEDULES_MAX
from fila_proto_zmq.names import check_new_queue_name, check_schedule_name, matches
from fila_proto_zmq.record import headers_length, open_envelope
from fila_worker.core.enqueue.dedup import check_window
from fila_worker.core.enqueue.one_by_one import check_enqueue
from fila_worker.core.metrics.meter import ReportState
from fila_worker.core.model.component import Component, InvariantBroken, Steps
from fila_worker.core.schedules.firing import ADDED_BYTES_MAX, FEATURE, HEADERS, carry_out_due, take_outcome
from fila_worker.core.schedules.table import (
    MESSAGE,
    PREFIXES,
    SCHEDULE,
    KeptSchedule,
    ScheduleProgress,
    ScheduleRecord,
    ScheduleTable,
    check_rest,
    decode_message,
    due_times,
    encode,
    stored_schedules,
)
from fila_worker.core.settle.remote_enqueues import Owners

if TYPE_CHECKING:
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.model.state import State

LISTED_COST: Final = 4
"""The effort of a schedule in a list."""

LOOKED_AT_ONCE: Final = 20
"""Names that a list passes over for one unit of effort."""


def put_schedule(state: "State", call: "ClientCall", command: PutSchedule) -> ScheduleFound:
    """Put a schedule: a new one, or a change. It begins now, unless one with the same due times is there."""
    name, table, now_ms = check_schedule_name(call.queue), state.part(ScheduleTable), call.now_ms
    _check_message(state, command, now_ms)
    check_rest(command.catch_up, command.jitter_ms, command.every_ms)
    state.calendar.check_zone(command.timezone)  # of an interval, too: it is stored
    old = table.by_name.get(name)
    record = ScheduleRecord(
        command.queue,
        command.cron,
        command.every_ms,
        command.timezone,
        command.catch_up,
        command.jitter_ms,
        now_ms,
        old.record.created_ms if old else now_ms,
        len(command.enqueue.envelopes[0]),
    )
    goes_on = old is not None and old.record.same_times(record)
    if old is not None and goes_on:
        record.anchor_ms = old.record.anchor_ms
    times = due_times(state.calendar, record.cron, record.every_ms, record.timezone, record.anchor_ms)
    _check_room(state, table, old, record.size_bytes)
    progress = replace(old.progress) if old is not None else ScheduleProgress(now_ms)
    if not goes_on:
        progress.handled_ms, progress.in_a_row = max(progress.handled_ms, now_ms), 0  # the clock may have been set back
    if old is not None and not (goes_on and old.record.queue == record.queue):
        progress.under_way_ms, progress.fault = 0, None  # not waited for: the other queue may stay full
    batch, family = state.batch, state.store.families.state
    batch.put(SCHEDULE + name.encode(), encode(record), family)
    batch.put(MESSAGE + name.encode(), encode(command.enqueue), family)
    schedule = KeptSchedule(name, record, progress, times)
    schedule.save(batch, family)
    state.to_be_synced = True
    table.add(schedule)
    return ScheduleFound(_view(state, schedule))


def _check_message(state: "State", command: PutSchedule, now_ms: int) -> None:
    check_new_queue_name(command.queue)
    message = command.enqueue
    if len(message.envelopes) != 1 or message.due_ms or message.after is not None:
        raise InvalidArgumentError("a schedule has one message, without a time of its own: use delay instead of deliver_at")
    size, most = len(message.envelopes[0]), state.settings.limits.schedule_bytes_max
    if size > most:
        raise PayloadTooLargeError(
            f"message of {size} bytes: a schedule stores up to {most}; store it elsewhere and send a reference",
            details={"payload_bytes": size, "max_payload_bytes": most},
        )
    if message.dedup_window_ms:
        check_window(message.dedup_window_ms)
    check_enqueue(message, state.settings.max_payload_bytes, now_ms)
    headers_bytes, most = headers_length(message.envelopes[0]), HEADERS_BYTES_MAX - ADDED_BYTES_MAX
    if headers_bytes > most:
        raise InvalidArgumentError(
            f"headers of {headers_bytes} bytes: those of a schedule's message may have {most}, because the broker adds some"
        )
    headers, _ = open_envelope(message.envelopes[0])
    for header in HEADERS:
        if header in headers:
            raise InvalidArgumentError(f"header {header!r} is the schedule's own: leave it out")


def _check_room(state: "State", table: ScheduleTable, old: KeptSchedule | None, size_bytes: int) -> None:
    limits = state.settings.limits
    count = len(table.by_name) + (old is None)
    held_bytes = table.size_bytes + size_bytes - (old.record.size_bytes if old else 0)
    if count > limits.schedules_max or held_bytes > limits.schedules_bytes_max:
        raise OverloadedError(
            f"this shard has {len(table.by_name)} schedules with messages of {table.size_bytes} bytes, and may have "
            f"{limits.schedules_max} with {limits.schedules_bytes_max}: delete some, or send references",
            details={"refused": True},
        )


def get_schedule(state: "State", call: "ClientCall", command: GetSchedule) -> ScheduleFound:
    """Return a schedule with its message."""
    schedule = state.part(ScheduleTable).by_name.get(call.queue)
    if schedule is None:
        return ScheduleFound()
    state.settle_writes()
    view = _view(state, schedule)
    data = state.store.get(MESSAGE + schedule.name.encode(), state.store.families.state)
    view.enqueue = None if data is None else decode_message(data)
    return ScheduleFound(view)


def list_schedules(state: "State", call: "ClientCall", command: ListSchedules) -> ScheduleList:
    """Return a page of the shard's schedules by name: those after a given name that the asking client may see."""
    found: list[KeptSchedule] = []
    looks = 0
    by_name = state.part(ScheduleTable).by_name
    for name in by_name.irange(max(command.prefix, command.after)):
        if not name.startswith(command.prefix) or len(found) > LIST_SCHEDULES_MAX:
            break
        looks += 1
        if name > command.after and (command.within is None or any(matches(each, name) for each in command.within)):
            found.append(by_name[name])
    shown = found[:LIST_SCHEDULES_MAX]
    state.jobs.charge(looks // LOOKED_AT_ONCE + LISTED_COST * len(shown))
    return ScheduleList([_view(state, schedule) for schedule in shown], len(shown) < len(found))


def delete_schedule(state: "State", call: "ClientCall", command: DeleteSchedule) -> ScheduleDeleted:
    """Delete a schedule. Its message may be on its way and still arrive; a waiting one is given up."""
    table = state.part(ScheduleTable)
    if call.queue not in table.by_name:
        return ScheduleDeleted(False)
    table.remove(call.queue)
    for prefix in PREFIXES:
        state.batch.delete(prefix + call.queue.encode(), state.store.families.state)
    state.to_be_synced = True
    return ScheduleDeleted()


def _view(state: "State", schedule: KeptSchedule) -> ScheduleView:
    record, progress = schedule.record, schedule.progress
    planned = schedule.due_ms is not None
    return ScheduleView(
        schedule.name, record.queue, record.cron, record.every_ms, record.timezone, record.catch_up, record.jitter_ms,
        record.created_ms, state.index, schedule.due_ms or 0, schedule.at_ms if planned else 0, progress.under_way_ms,
        progress.last_due_ms, progress.last_at_ms, progress.id_high, progress.id_low, progress.fired, progress.skipped,
        progress.failed, progress.fault,
    )  # fmt: skip


def metrics(state: "State") -> ScheduleMetrics | None:
    """Return the numbers of the shard's schedules; None if it has never had one."""
    table = state.part(ScheduleTable)
    counts = (table.fired, table.late, table.skipped, table.failed)
    return ScheduleMetrics(len(table.by_name), *counts, table.under_way) if table.by_name or any(counts) else None


class Schedules(Component):
    """The schedules whose names hash to this shard."""

    verbs: ClassVar = {
        PutSchedule: put_schedule,
        GetSchedule: get_schedule,
        ListSchedules: list_schedules,
        DeleteSchedule: delete_schedule,
    }

    def __init__(self, state: "State") -> None:
        self._table = state.keep(ScheduleTable())
        super().__init__(state, self._table.timer)

    def recover(self, now_ms: int) -> Steps:
        """Read the schedules, and find their next due times."""
        state, table = self.state, self._table
        state.part(Owners).register(FEATURE, partial(take_outcome, state, table))
        state.part(ReportState).schedules = partial(metrics, state)
        for number, (name, record, progress) in enumerate(stored_schedules(state.store), 1):
            schedule = KeptSchedule(name, record, progress, None)
            try:
                schedule.times = due_times(state.calendar, record.cron, record.every_ms, record.timezone, record.anchor_ms)
            except InvalidArgumentError as error:  # a time zone that is not known any more
                progress.fault = to_fault(error)
            table.add(schedule)
            if number % state.settings.limits.schedules_recovered_max == 0:
                yield
        yield

    def tick(self, now_ms: int) -> int | None:
        """Carry out due times."""
        due_ms = self._table.next_due()
        if due_ms is not None and due_ms <= now_ms:
            carry_out_due(self.state, self._table, now_ms)
        return self._table.next_due()

    def check(self) -> None:
        """Check the table's invariants."""
        table = self._table
        if table.size_bytes != sum(each.record.size_bytes for each in table.by_name.values()):
            raise InvariantBroken("the bytes of schedules are counted wrongly")
        if table.under_way != sum(each.progress.under_way_ms != 0 for each in table.by_name.values()):
            raise InvariantBroken("the schedules under way are counted wrongly")
        if table.is_crowded:
            raise InvariantBroken("the heap of schedules has too many entries")
        first_ms = table.next_due()
        for name, schedule in table.by_name.items():
            if schedule.due_ms is not None and (
                schedule.due_ms <= schedule.progress.handled_ms or first_ms is None or schedule.at_ms < first_ms
            ):
                raise InvariantBroken(f"schedule {name!r} is planned wrongly")
            if schedule.due_ms is not None and schedule.progress.under_way_ms:
                raise InvariantBroken(f"schedule {name!r} is planned while a message is under way")
