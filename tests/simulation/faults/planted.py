"""Bugs that are planted to see that they are caught: each is a small change of the product, by name.

They patch names inside the product; one that is gone makes the test of the planted bugs fail, and the bug has to be planted anew.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec

from fila_admission.keys import KeyRing
from fila_admission.permissions import KINDS, Permissions
from fila_cluster.client.protocol.consuming import Consumption
from fila_cluster.client.protocol.short_calls import ShortCalls
from fila_cluster.client.requests.call import PendingCall
from fila_proto_zmq import commands as wire
from fila_proto_zmq.bucket_limits import BucketLimits
from fila_proto_zmq.errors import ShardUnavailableError
from fila_proto_zmq.ids import sequence
from fila_proto_zmq.names import shard_of
from fila_proto_zmq.record import pack_record, unpack_record
from fila_router.core.tokens.bucket import Bucket
from fila_router.core.tokens.token_bank import TokenBank
from fila_worker.core.callback_groups.owned import OwnedBatches
from fila_worker.core.deliver import subscriptions
from fila_worker.core.enqueue import insert
from fila_worker.core.enqueue import replace as replacing
from fila_worker.core.enqueue.dedup import Dedup
from fila_worker.core.enqueue.sequences import Sequences
from fila_worker.core.manage import move, templates
from fila_worker.core.manage.backlog_walk import BacklogWalk
from fila_worker.core.model.drr import Ring
from fila_worker.core.model.fairness_keys import MILLI
from fila_worker.core.model.leases import LeaseBook, Reservation
from fila_worker.core.model.state import State
from fila_worker.core.schedules.table import KeptSchedule
from fila_worker.core.settle import dead_letters, failed_attempts, settle
from fila_worker.core.shard import Shard
from fila_worker.core.stored import messages as stored_messages
from fila_worker.process.departures import Departures
from fila_worker.process.held import HeldEffects
from fila_worker.transport.direct_clients import DirectClients
from tests.simulation.faults.host_bugs import HOST_BUGS
from tests.simulation.faults.partition_bugs import PARTITION_BUGS
from tests.simulation.faults.place_bugs import PLACE_BUGS
from tests.simulation.faults.planting import Plant, replace
from tests.simulation.replacing import replaced


def commit_after_reply(stack: ExitStack) -> None:
    """Every other turn is committed with the next one: its replies leave before."""

    def make(real: Any) -> Any:
        def commit(shard: Any, *, ticked: bool = True) -> Any:
            shard.planted_turns = getattr(shard, "planted_turns", 0) + 1
            if shard.planted_turns % 2:
                return real(shard, ticked=ticked)
            effects, shard.effects = shard.effects, []
            return effects

        return commit

    replace(stack, Shard, "commit", make)


def forgotten_fence(stack: ExitStack) -> None:
    """A settlement of a lease that is over ends whatever lease the message has now, whoever holds it."""

    def note(real: Any) -> Any:
        def add(book: Any, lease: Any) -> None:
            book.__dict__.setdefault("planted", {})[lease.id] = list(lease.members)
            real(book, lease)

        return add

    def fence_anyway(real: Any) -> Any:
        def fenced(shard: Any, call: Any, queue: Any, fences: Any, faults: Any, **options: Any) -> Any:
            others = {fence[0]: _now_held(shard.leases, *fence) for fence in fences}
            kept = [fence for fence in fences if not others[fence[0]]]
            yield from real(shard, call, queue, kept, faults, **options)
            for found in others.values():
                yield from found

        return fenced

    replace(stack, LeaseBook, "add", note)
    replace(stack, settle, "_fenced", fence_anyway)


def _now_held(book: Any, lease_id: int, indexes: list[int]) -> list[tuple[Any, list[int]]]:
    """The leases that have the members of an earlier lease now; none if it is not over, or if nobody has them."""
    if lease_id in book.leases or lease_id not in book.__dict__.get("planted", {}):
        return []
    members = book.planted[lease_id]
    wanted = {members[index][0] for index in (indexes or range(len(members))) if not isinstance(members[index], bool)}
    return [
        (lease, [index])
        for lease in list(book.leases.values())
        for index, member in enumerate(lease.members)
        if not isinstance(member, bool) and member[0] in wanted
    ]


def unreturned_lease(stack: ExitStack) -> None:
    """The leases of a client that leaves or is lost do not come back."""

    def make(real: Any) -> Any:
        def end_all(shard: Any, lease: Any, error: Any, now_ms: int) -> Any:
            if isinstance(lease.holder, Reservation):
                return real(shard, lease, error, now_ms)
            shard.leases.leases.pop(lease.id)
            lease.holder.leases.pop(lease.id)
            return 1

        return end_all

    replace(stack, subscriptions, "end_all", make)


def unbounded_buffer(stack: ExitStack) -> None:
    """All pending messages are kept in memory."""

    def make(real: Any) -> Any:
        def line_up(state: Any, lane: Any, message_key: bytes, record: bytes | None) -> None:
            state.buffers.bytes_max = 1 << 40
            real(state, lane, message_key, record)

        return line_up

    replace(stack, State, "line_up", make)


def late_dedup_entry(stack: ExitStack) -> None:
    """What a batch's dedup ids are is written with the next turn."""

    def remember_later(real: Any) -> Any:
        def remember(dedup: Any, *arguments: Any) -> None:
            dedup._state.__dict__.setdefault("planted_dedup", []).append((real, dedup, arguments))

        return remember

    def write(real: Any) -> Any:
        def act(shard: Any, now_ms: int) -> Any:
            late, shard.planted_dedup = getattr(shard, "planted_dedup", []), getattr(shard, "planted_dedup_next", [])
            shard.planted_dedup_next = late
            for remember, dedup, arguments in shard.planted_dedup:
                remember(dedup, *arguments)
            shard.planted_dedup = []
            return real(shard, now_ms)

        return act

    replace(stack, Dedup, "remember", remember_later)
    replace(stack, Shard, "_act", write)


def late_progress(stack: ExitStack) -> None:
    """How far a schedule is is written with the next turn but one: the turn before has the message."""

    def save_later(real: Any) -> Any:
        def save(schedule: Any, batch: Any, family: Any) -> None:
            if schedule.progress.under_way_ms:
                late.append((real, schedule))
            else:
                real(schedule, batch, family)

        return save

    def write(real: Any) -> Any:
        def act(shard: Any, now_ms: int) -> Any:
            kept = shard.__dict__.setdefault("planted_progress", [])
            shard.planted_progress = [*late]
            late.clear()
            for save, schedule in kept:
                if schedule.progress.under_way_ms:
                    save(schedule, shard.batch, shard.store.families.state)
            return real(shard, now_ms)

        return act

    late: list[Any] = []
    replace(stack, KeptSchedule, "save", save_later)
    replace(stack, Shard, "_act", write)


def token_counted_twice(stack: ExitStack) -> None:
    """What comes into a bucket comes twice."""

    def make(real: Any) -> Any:
        def accrue(bucket: Any, now_ms: int) -> None:
            before = bucket.level
            real(bucket, now_ms)
            bucket.level += max(0, min(bucket.level - before, bucket.room))

        return accrue

    replace(stack, Bucket, "accrue", make)


def pattern_over_own(stack: ExitStack) -> None:
    """A pattern holds for keys with entries of their own, too."""

    def make(real: Any) -> Any:
        def sources(limits: Any, throttle_key: str, limit: str = "rate") -> Any:
            return iter(sorted(real(limits, throttle_key, limit), key=lambda name: name == throttle_key))

        return sources

    replace(stack, BucketLimits, "sources", make)


def forgotten_debt(stack: ExitStack) -> None:
    """A bucket of a key under a pattern is forgotten before it is full."""
    stack.enter_context(replaced([(Bucket, "at_rest", property(lambda bucket: not (bucket.outstanding or bucket.line)))]))


def unpaid_work(stack: ExitStack) -> None:
    """What work costs beyond its message's cost is not taken from the buckets."""

    def make(real: Any) -> Any:
        return lambda bucket, amount: real(bucket, min(0, amount))

    replace(stack, Bucket, "charge", make)


def refund_of_all(stack: ExitStack) -> None:
    """Work that cost less than its message's cost gives all of that back, and as much again."""

    def make(real: Any) -> Any:
        return lambda bucket, amount: real(bucket, amount if amount > 0 else 2 * amount)

    replace(stack, Bucket, "charge", make)


def deaf_to_deferrals(stack: ExitStack) -> None:
    """Deferrals do not lower a rate."""
    replace(stack, TokenBank, "defer", lambda real: lambda bank, keys, now_ms: None)


def last_page(stack: ExitStack) -> None:
    """A list of throttle keys ends with its first page."""

    def make(real: Any) -> Any:
        def joined(lists: Any) -> Any:
            page = real(lists)
            page.next = ""
            return page

        return joined

    replace(stack, wire, "joined_throttles", make)


def whole_queue_moves(stack: ExitStack) -> None:
    """A move of one key takes the messages of all keys."""

    def make(real: Any) -> Any:
        def first_ones(walk: Any, count: int, key_name: str | None) -> Any:
            return real(walk, count, key_name if walk.moved or not walk.takes_delayed else None)

        return first_ones

    replace(stack, BacklogWalk, "first_ones", make)


def kept_original(stack: ExitStack) -> None:
    """A message that goes to another shard stays in its queue, too."""

    def make(real: Any) -> Any:
        def take_pending(walk: Any, lane: Any, message_key: bytes, record: bytes) -> None:
            if shard_of(walk._target, walk._state.shards) == walk._state.index or lane.key.name != "a":
                real(walk, lane, message_key, record)
            else:
                walk._goes(lane, message_key, record, 0)

        return take_pending

    replace(stack, move._Move, "take_pending", make)


def endless_turn(stack: ExitStack) -> None:
    """A key whose turn is over goes on with the next one, as long as it has anything."""

    def make(real: Any) -> Any:
        def end_turn(ring: Any, key: Any) -> None:
            key.credit += key.weight * MILLI
            if key.credit > 0:
                ring.current = key
            else:
                real(ring, key)

        return end_turn

    replace(stack, Ring, "end_turn", make)


def early_burial(stack: ExitStack) -> None:
    """A message has one attempt less than its queue allows."""

    def make(real: Any) -> Any:
        def reason(queue: Any, message: Any, attempt: Any, decision: Any) -> Any:
            cap = queue.options.max_attempts
            if cap is not None and message.record.attempts == cap - 1 and not queue.is_dead_letter:
                return dead_letters.MAX_ATTEMPTS
            return real(queue, message, attempt, decision)

        return reason

    replace(stack, failed_attempts, "_dead_letter_reason", make)


def lost_letter(stack: ExitStack) -> None:
    """A message that was failed leaves its queue and comes nowhere."""

    def make(real: Any) -> Any:
        def lay_down(shard: Any, target: Any, lane: Any, place: bytes, letter: Any) -> None:
            if letter.extension.reason != dead_letters.FAILED:
                real(shard, target, lane, place, letter)

        return lay_down

    replace(stack, dead_letters, "_lay_down", make)


def counted_deferral(stack: ExitStack) -> None:
    """A deferral counts as a failed attempt."""

    def make(real: Any) -> Any:
        def put_off(state: Any, lane: Any, key: bytes, stored: bytes, record: bytes, *due: Any, **options: Any) -> None:
            if options.get("deferred"):
                counted = unpack_record(record)
                counted.attempts += 1
                record = pack_record(counted)
            real(state, lane, key, stored, record, *due, **options)

        return put_off

    replace(stack, failed_attempts, "_put_off", make)


def late_timeout(stack: ExitStack) -> None:
    """A call that has no answer ends a second after its time."""
    replace(stack, PendingCall, "ends_at", lambda real: property(lambda call: real.fget(call) + 1.0))


def any_incarnation(stack: ExitStack) -> None:
    """A client takes in pushes of each incarnation."""

    def make(real: Any) -> Any:
        def pushed(consumption: Any, queue: str, delivered: Any) -> None:
            subscription = consumption.subscriptions.get(delivered.subscription)
            if subscription is not None:
                delivered.incarnation = subscription.incarnation
            real(consumption, queue, delivered)

        return pushed

    replace(stack, Consumption, "pushed", make)


def broken_sequence(stack: ExitStack) -> None:
    """A chunk of a producer's messages is stored also if the chunk before it is not."""

    def make(real: Any) -> Any:
        def go_on(sequences: Any, call: Any, after: int) -> None:
            with suppress(ShardUnavailableError):
                real(sequences, call, after)

        return go_on

    replace(stack, Sequences, "go_on", make)


def unheard_revocation(stack: ExitStack) -> None:
    """A worker goes on with connections whose API key was revoked."""

    def make(real: Any) -> Any:
        def replace(ring: Any, records: Any) -> None:
            earlier = list(ring)
            real(ring, records)
            for key in earlier:
                key.ended = False

        return replace

    replace(stack, KeyRing, "replace", make)
    replace(stack, DirectClients, "end", lambda real: lambda clients, client: None)


def lease_to_nobody(stack: ExitStack) -> None:
    """A worker goes on to lease messages to a client whose connection has closed."""
    replace(stack, DirectClients, "lose", lambda real: lambda clients, client, link, now_ms: None)


def any_kind_will_do(stack: ExitStack) -> None:
    """Who may do anything with a queue may do everything with it."""
    replace(stack, Permissions, "allow", lambda real: lambda permissions, kind, queue: any(
        real(permissions, each, queue) for each in KINDS
    ))  # fmt: skip


def lost_arrival(stack: ExitStack) -> None:
    """A worker opens a shard that was moved to it only if the router says so."""

    def make(real: Any) -> Any:
        def look(departures: Any, *, asked: bool = False) -> None:
            if asked:
                real(departures, asked=asked)

        return look

    replace(stack, Departures, "look_for_arrivals", make)


def old_number(stack: ExitStack) -> None:
    """A message that comes back from another shard takes the number that its id has."""

    def make(real: Any) -> Any:
        def store(state: Any, queue: Any, message: Any, now_ms: int) -> Any:
            record = message.record
            if not message.number and state.is_own(queue, record.id_high, record.id_low):
                message.number = sequence(record.id_low)
            return real(state, queue, message, now_ms)

        return store

    replace(stack, insert, "store", make)


def hasty_answer(stack: ExitStack) -> None:
    """What a turn says leaves the process before its commit is confirmed."""
    replace(stack, HeldEffects, "hold", lambda real: lambda held, store, effects, now_ms: effects)


def dropped_update(stack: ExitStack) -> None:
    """A message that would replace one that is leased or gone is confirmed, and not stored."""
    replace(stack, replacing.Replacements, "replace", lambda real: lambda *arguments: real(*arguments) or True)


def half_a_replacement(stack: ExitStack) -> None:
    """A pending message that is replaced is replaced on the disk, and not in its line in memory."""

    def make(real: Any) -> Any:
        def rewrite(state: Any, lane: Any, key: bytes, old_bytes: int, record: bytes) -> None:
            old = state.store.get(key, state.store.families.messages)
            real(state, lane, key, old_bytes, record)
            if old is not None:
                state.buffers.remove(lane, {key})
                state.line_up(lane, key, old)

        return rewrite

    replace(stack, replacing, "_rewrite", make)


def idle_queue_kept(stack: ExitStack) -> None:
    """A queue that a template makes is kept, however long it is idle."""

    def make(real: Any) -> Any:
        def made(state: Any, name: str, options: Any, *rest: Any) -> Any:
            return real(state, name, msgspec.structs.replace(options, idle_expiry_ms=None), *rest)

        return made

    replace(stack, templates, "make_queue", make)


def hasty_callback(stack: ExitStack) -> None:
    """A sealed batch takes the first counts that it hears of a part for the last ones."""

    def make(real: Any) -> Any:
        def add_report(owned: Any, batch: Any, report: Any, writes: Any) -> bool:
            report.acked = report.added - report.dead - report.removed
            return bool(real(owned, batch, report, writes))

        return add_report

    replace(stack, OwnedBatches, "add_report", make)


def forgotten_call(stack: ExitStack) -> None:
    """A short call that does not go as usual is not looked after by the general code."""

    def make(real: Any) -> Any:
        def widen(short: Any) -> PendingCall:
            call = short.usual = PendingCall(short._key, short._command, short._now, short._timeout_s)
            short.way = None
            return call

        return widen

    replace(stack, ShortCalls, "widen", make)


def uncounted_lease(stack: ExitStack) -> None:
    """Leases that a restart finds do not count as in flight of their queues."""

    def make(real: Any) -> Any:
        def restore(state: Any, lease: Any, key: bytes) -> None:
            real(state, lease, key)
            lease.queue.max_in_flight += lease.open

        return restore

    replace(stack, stored_messages, "_restore", make)


BUGS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        commit_after_reply, forgotten_fence, unreturned_lease, unbounded_buffer, late_dedup_entry, token_counted_twice, pattern_over_own, forgotten_debt, unpaid_work, refund_of_all, deaf_to_deferrals, last_page, whole_queue_moves, kept_original, endless_turn,
        late_timeout, early_burial, lost_letter, counted_deferral, late_progress,
        any_incarnation, broken_sequence, unheard_revocation, lease_to_nobody, any_kind_will_do, lost_arrival,
        hasty_answer, old_number, dropped_update, half_a_replacement, hasty_callback, idle_queue_kept, forgotten_call, uncounted_lease,
        *PLACE_BUGS, *HOST_BUGS, *PARTITION_BUGS,
    )
}  # fmt: skip


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have a bug in the product; None: have none."""
    with ExitStack() as stack:
        if name is not None:
            BUGS[name](stack)
        yield
