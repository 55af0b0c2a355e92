"""What can be seen of a run from outside: calls and how they ended, what came to whom, what was on the wire, and what went wrong when.

Checkers read this and nothing else.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fila_proto_zmq.codec import decode_body
from fila_proto_zmq.commands import DELIVERY, Delivered, FetchReserved, Receive
from fila_proto_zmq.errors import FilaError, PermissionDeniedError, QueueExistsError
from fila_proto_zmq.frames import ERROR, REPLY, unpack_header
from fila_proto_zmq.ids import format_id
from fila_proto_zmq.names import whole_queue
from fila_proto_zmq.partitions import partition_of
from fila_proto_zmq.record import Record, open_envelope, unpack_record
from tests.simulation.world.processes import BACKS, FRONTS
from tests.simulation.world.sockets import Connection, DealerSocket
from tests.simulation.world.world import World


@dataclass
class Done:
    """One call of a client's program. ``error`` is None if it succeeded; ``ended_us`` is None if it never returned."""

    number: int
    client: str
    kind: str
    queue: str
    started_us: int
    said: dict[str, Any]
    ended_us: int | None = None
    value: Any = None
    error: BaseException | None = None
    limit_us: int = 0
    """How long it may take."""

    @property
    def ok(self) -> bool:
        return self.ended_us is not None and self.error is None

    @property
    def denied(self) -> bool:
        """Whether it had no effect for certain: its client's API key never allowed it."""
        return isinstance(self.error, PermissionDeniedError)


@dataclass
class Grant:
    """One message in one delivery, as a worker sent it."""

    at_us: int
    shard: int
    lease: int
    index: int
    queue: str
    client: bytes
    token: str
    id: str
    key: str
    priority: int
    attempts: int
    cost: float
    throttle_keys: tuple[str, ...]
    leased_ms: int
    expires_ms: int
    pushed: bool
    at_most_once: bool
    error: str
    weight: int
    reason: str | None
    """Why it was dead-lettered, if it was."""
    source_queue: str | None
    by: tuple[str, int] = ("", 0)
    """The process that sent it, and in which of its lives."""
    arrived_us: int | None = None
    """When its client had it: the library, not yet the program."""
    repeated: bool = False
    """It was granted before: the answer to a repeated request is sent again, under the same lease."""
    place: str = ""
    """The partition that gave it out; the queue itself if that has none."""

    @property
    def fence(self) -> tuple[int, int]:
        return self.lease, self.index


@dataclass
class Handed:
    """A message that a client's program was given."""

    at_us: int
    client: str
    queue: str
    token: str
    id: str
    lease: int
    index: int
    attempts: int
    at_most_once: bool
    place: str = ""
    """The partition that it came from; the queue itself if that has none."""
    consumer: int | None = None
    """The number of the ``consume()`` that got it."""


@dataclass
class Sent:
    """A message that a program tried to enqueue."""

    token: str
    queue: str
    call: Done
    options: dict[str, Any]
    id: str | None = None
    """None: it was not confirmed."""


@dataclass
class BatchSeen:
    """A batch that a program opened: the tokens of its members, sent or not, and the call that sealed it."""

    members: list[str] = field(default_factory=list)
    seal: Done | None = None
    headers: dict[str, str] = field(default_factory=dict)
    """Those of the callback, when it was given out."""


@dataclass
class KeyLife:
    """An API key, as those saw it who made and ended it. Of a wrong key ``end_confirmed_us`` is 0."""

    allow: list[str]
    made_us: int
    expires_us: int | None = None
    end_began_us: int | None = None
    """When its revocation was asked for first."""
    end_confirmed_us: int | None = None
    grants: list[tuple[str, Done]] = field(default_factory=list)
    """Permissions that were added, and the calls that did it."""


@dataclass
class History:
    """Everything that was seen, in the order in which it happened."""

    world: World
    shard_of: Callable[[str], int]
    calls: list[Done] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    leased_us: dict[tuple[int, int], int] = field(default_factory=dict)
    """When each lease was written first, by shard and lease id."""
    handed: list[Handed] = field(default_factory=list)
    sent: dict[str, Sent] = field(default_factory=dict)
    prefetches: list[int] = field(default_factory=list)
    """By the number of a ``consume()``."""
    batches: dict[str, BatchSeen] = field(default_factory=dict)
    """By the token of the callback."""
    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The options that each queue was created with first."""
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The options of queues that a template makes."""
    power_cuts: list[tuple[int, int, int]] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """``(checker, what it found)``."""
    identities: dict[bytes, str] = field(default_factory=dict)
    clients: list[Any] = field(default_factory=list)
    """Their processes."""
    keys: dict[str, KeyLife] = field(default_factory=dict)
    """The API keys of clients that may not do everything, by client."""
    healed_us: int = 0
    """When faults ended."""
    audit_us: int = 1 << 60
    """When the auditor came: from then on limits are lifted."""
    schedules_end_us: int = 0
    """When the auditor began to delete the schedules."""
    drained_us: int = 0
    deaths: list[tuple[str, int]] = field(default_factory=list)
    """Which process of the cluster died when."""
    clock_steps: int = 0
    """How often a wall clock was set."""
    clocks_differ: bool = False
    """Whether wall clocks of hosts are a minute apart."""

    def __post_init__(self) -> None:
        self._by_fence: dict[tuple[int, int, int], Grant] = {}
        self._by_body: dict[bytes, list[Grant]] = {}
        self.world.fail = self.fail
        self._repartitions: dict[str, list[Done]] = {}
        """By queue: the calls after which it may have another number of partitions."""
        self._named = 0
        self._kinds: set[str] = set()

    def opened(self, prefetch: int) -> int:
        """Note a ``consume()``, and return its number."""
        self.prefetches.append(prefetch)
        return len(self.prefetches) - 1

    def new_token(self) -> str:
        """The name of a message that is about to be sent."""
        self._named += 1
        return f"m{self._named}"

    def fail(self, checker: str, what: str) -> None:
        """Note that something is wrong."""
        if len(self.failures) < 20:
            self.failures.append((checker, what))
            self.world.tell("CHECKER", f"{checker}: {what}")

    # --- what checkers ask --------------------------------------------------------------------------------------------

    def grants_by_token(self) -> dict[str, list[Grant]]:
        """What was given out, by message, in the order in which it was sent."""
        found: dict[str, list[Grant]] = defaultdict(list)
        for grant in self.grants:
            found[grant.token].append(grant)
        return found

    def grants_by_message(self) -> dict[tuple[str, str], list[Grant]]:
        """The same by token and id: an enqueue that is repeated after its dedup window stores a second message with the same token."""
        found: dict[tuple[str, str], list[Grant]] = defaultdict(list)
        for grant in self.grants:
            found[grant.token, grant.id].append(grant)
        return found

    def saw(self, kind: str) -> bool:
        """Whether anybody made such a call."""
        return kind in self._kinds

    def had_a_death(self, since_us: int, until_us: int) -> bool:
        """Whether a worker died between two moments: then what it had committed may not have been sent."""
        return any(since_us <= at_us <= until_us for at_us in self.worker_deaths())

    def worker_deaths(self) -> list[int]:
        """When workers died. Routers, of which each host may have one, keep nothing that was committed."""
        return [at_us for name, at_us in self.deaths if not name.startswith("router")]

    def was_gone(self, token: str) -> bool:
        """Whether somebody may have taken it out by other means than a settlement."""
        sent = self.sent.get(token)
        return (
            sent is None
            or self.was_swept(sent)
            or any(call.kind == "cancel" and call.said.get("token") == token for call in self.calls)
        )

    def homes_of(self, sent: Sent) -> set[str]:
        """The queues in which a message may have been, beside those of dead letters: moves may have taken it from one to another."""
        homes, known = {sent.queue}, 0
        hooked = any("on_enqueue" in options for options in self.queues.values())
        while known < len(homes):
            known = len(homes)
            for call in self.calls:
                if call.kind != "set_aside" or call.denied:
                    continue
                takes = call.said["key"] in (None, sent.options.get("fairness_key")) or hooked
                if takes and homes & {call.queue, call.queue.removesuffix(".dlq"), *self._sources_of(call.queue)}:
                    homes.add(call.said["target"])
        return homes

    def _sources_of(self, queue: str) -> set[str]:
        """The queues whose dead letters go to a queue."""
        return {name for name, options in self.queues.items() if options.get("dead_letter") == queue}

    def spread_of(self, queue: str) -> tuple[int, str]:
        """The most partitions that a queue may have had so far, and how its messages are spread over them."""
        return max(self.numbers_of(queue)), self._options_of(queue).get("spread", "key")

    def _options_of(self, queue: str) -> dict[str, Any]:
        """The options that a queue, or the queue of these dead letters, was made with first."""
        root = queue.removesuffix(".dlq")
        return self.queues.get(root, self.made.get(root, {}))

    def numbers_of(self, queue: str, since_us: int = 0, until_us: int = 1 << 60) -> set[int]:
        """The numbers of partitions that a queue may have had within a time."""
        first = self._options_of(queue).get("partitions", 1)
        root = queue.removesuffix(".dlq")
        spans = [(0, 0, first)]  # when each was asked for, and confirmed
        for call in self._repartitions.get(root, ()):
            if not _is_no_change(call) and call.started_us <= until_us:
                confirmed_us = call.ended_us if call.ok and call.ended_us is not None else 1 << 60
                spans.append((call.started_us, confirmed_us, call.said.get("partitions", first)))
        return {
            number
            for _, confirmed_us, number in spans
            if not any(confirmed_us < began_us and done_us <= since_us for began_us, done_us, _ in spans)
        }

    def is_repartitioned(self, queue: str) -> bool:
        """Whether anybody has asked for another number of partitions of a queue."""
        calls = self._repartitions.get(queue.removesuffix(".dlq"), ())
        return any(call.kind == "update_queue" for call in calls)

    def entrance_of(self, sent: Sent) -> str:
        """What a message was sent to: its queue, or a partition; those that are spread by message differ by their dedup ids only.

        Of a queue whose number of partitions changes, the messages of a key have one partition at a time: so it is the key.
        """
        partitions, spread = self.spread_of(sent.queue)
        if partitions == 1 or spread == "message":
            return sent.queue
        key = sent.options["fairness_key"]
        return f"{sent.queue}@{key if self.is_repartitioned(sent.queue) else partition_of(key, partitions)}"

    def shard_of_call(self, call: Done) -> int:
        """The shard that a call about a lease went to."""
        return self.shard_of(call.said.get("place", call.queue))

    def was_swept(self, sent: Sent) -> bool:
        """Whether a purge or a deletion may have met it."""
        homes = self.homes_of(sent)
        letters = {self.queues.get(home, {}).get("dead_letter") for home in homes}
        swept = homes | {f"{home}.dlq" for home in homes} | letters
        return any(
            call.kind in ("purge_queue", "delete_queue")
            and call.queue in swept
            and (call.ended_us is None or call.ended_us >= sent.call.started_us or self._may_come_later(call))
            and not call.denied
            for call in self.calls
        )

    def _may_come_later(self, call: Done) -> bool:
        """Whether a deletion without an answer may be on its way to some shards: it is a change of the runtime config."""
        return call.kind == "delete_queue" and not call.ok and self.spread_of(call.queue)[0] > 1

    def is_excused(self, token: str) -> bool:
        """Whether a power cut may have undone something about it: then it may be lost, or return."""
        if not self.power_cuts:
            return False
        sent = self.sent.get(token)
        if sent is None:
            return True
        spans = [(sent.call.started_us, sent.call.ended_us or 1 << 60)]
        spans += [(grant.at_us, grant.at_us) for grant in self.grants if grant.token == token]
        spans += [
            (call.started_us, call.ended_us or 1 << 60)
            for call in self.calls
            if call.said.get("token") == token
            or token in (call.said.get("tokens") or ())
            or call.kind in ("redrive", "set_aside")
        ]
        for _shard, first_us, cut_us in self.power_cuts:
            if any(began_us <= cut_us and ended_us >= first_us - 1_000_000 for began_us, ended_us in spans):
                return True
            elsewhere = self.queues.get(sent.queue, {}).get("dead_letter", "dlq") not in ("dlq", "discard")
            if (elsewhere or self.spread_of(sent.queue)[0] > 1) and sent.call.started_us <= cut_us:
                return True  # of a queue with partitions, the definition may be older than they are
        return False

    def is_excused_id(self, message: str) -> bool:
        """The same for a message's id."""
        return any(self.is_excused(sent.token) for sent in self.sent.values() if sent.id == message) or (
            not any(sent.id == message for sent in self.sent.values()) and bool(self.power_cuts)
        )

    def undone(self, call: Done, by_us: int) -> bool:
        """Whether a power cut between a call and a moment may have undone it."""
        assert call.ended_us is not None
        return any(
            first_us <= call.ended_us and cut_us >= call.started_us and cut_us <= by_us
            for _, first_us, cut_us in self.power_cuts
        )

    def settlements_undone(self, shard: int, lease: int) -> bool:
        """Whether a power cut may have undone settlements of a lease that had reached its client.

        The client has forgotten these messages. The lease keeps them until it expires.
        """
        had = [
            grant for grant in self.grants if (grant.shard, grant.lease) == (shard, lease) and grant.arrived_us is not None
        ]
        return any(
            cut_shard == shard and any(grant.at_us <= cut_us for grant in had) for cut_shard, _, cut_us in self.power_cuts
        )

    # --- calls --------------------------------------------------------------------------------------------------------

    def began(self, client: str, kind: str, queue: str, limit_us: int, **said: Any) -> Done:
        """A program calls its client."""
        call = Done(len(self.calls), client, kind, queue, self.world.now_us, said, limit_us=limit_us)
        self.calls.append(call)
        self._kinds.add(kind)
        if kind == "create_queue" or (kind == "update_queue" and "partitions" in said):
            self._repartitions.setdefault(queue, []).append(call)
        words = " ".join(f"{key}={value!r}" for key, value in said.items() if value is not None)
        self.world.tell(client, f"#{call.number} {kind} {queue} {words}"[:300])
        return call

    def ended(self, call: Done, value: Any = None, error: BaseException | None = None) -> None:
        """It returned."""
        if call.ended_us is not None:
            self.fail("answers", f"#{call.number} {call.kind} of {call.client} ended twice")
        call.ended_us, call.value, call.error = self.world.now_us, value, error
        if error is None:
            outcome = "" if value is None else f": {value!r}"
        else:
            outcome = f": {getattr(error, 'code', type(error).__name__)} {error}"
        self.world.tell(call.client, f"#{call.number} done{outcome}"[:300])

    # --- the wire -----------------------------------------------------------------------------------------------------

    def tap(self, dealer: DealerSocket, parts: list[bytes]) -> None:
        """See a frame that is sent, or dropped because its router is away."""
        if dealer.endpoint in BACKS and len(parts) == 4 and parts[0]:
            self._from_worker(parts, dealer.owner)

    def direct_tap(self, identity: bytes, frame: list[bytes]) -> None:
        """See a frame that a worker sends straight to a client."""
        self._from_worker([identity, *frame], self.world.current)

    def direct_arrived(self, frame: list[bytes]) -> None:
        """A frame has reached a client straight from a worker."""
        self._reached(frame)

    def _from_worker(self, parts: list[bytes], sender: Any) -> None:
        client, raw_header, key, body = parts
        header = unpack_header(raw_header)
        pushed = header.opcode == DELIVERY and not header.flags & REPLY
        if not pushed and (header.opcode not in (Receive.opcode, FetchReserved.opcode) or header.flags & ERROR):
            return
        try:
            delivered = decode_body(Delivered, body)
        except FilaError:
            return
        if header.opcode == FetchReserved.opcode:
            return
        self._by_body[body] = grants = self._grants(client, key.decode(), delivered, sender, pushed=pushed)
        for grant in grants:
            self._note(grant)

    def _grants(self, client: bytes, place: str, delivered: Delivered, sender: Any, *, pushed: bool) -> list[Grant]:
        shard, now_us = self.shard_of(place), self.world.now_us
        queue = whole_queue(place)
        by = sender.name, sender.lives
        grants = []
        for batch in delivered.batches:
            for index, data in enumerate(batch.records):
                record = unpack_record(data)
                key = batch.fairness_key if isinstance(batch.fairness_key, str) else batch.fairness_key[index]
                keys = batch.throttle_keys[index if len(batch.throttle_keys) > 1 else 0] if batch.throttle_keys else []
                weight = batch.weight if isinstance(batch.weight, int) else batch.weight[index]
                extension = record.extension
                source = None if extension.source_queue is None else whole_queue(extension.source_queue)
                if (batched := self.batches.get(token_of(record))) is not None:
                    batched.headers = open_envelope(record.envelope)[0]
                grants.append(
                    Grant(
                        now_us, shard, batch.lease, index, queue, client, token_of(record),
                        format_id(record.id_high, record.id_low), key, record.priority, record.attempts,
                        extension.cost_milli / 1000, tuple(keys), batch.leased_ms, batch.expires_ms, pushed,
                        batch.at_most_once or batch.lease == 0, extension.error, weight, extension.reason, source, by,
                        place=place,
                    )
                )  # fmt: skip
        return grants

    def committed(self, shard: int, changes: list[Any], families: Any) -> None:
        """See a commit."""
        for family, *change in changes:
            if family is families.leases and change[1] is not None:
                self.leased_us.setdefault((shard, int.from_bytes(change[0], "big")), self.world.now_us)

    def _note(self, grant: Grant) -> None:
        if grant.lease:
            fence = (grant.shard, grant.lease, grant.index)
            known = self._by_fence.get(fence)
            if known is not None and (known.token, known.client) != (grant.token, grant.client):
                self.fail("fences", f"{fence} was given out for {known.token} to {known.client.hex()} and for {grant.token}")
            grant.repeated = known is not None
            self._by_fence[fence] = grant
        self.grants.append(grant)
        how = "pushes" if grant.pushed else "gives"
        self.world.tell(
            f"shard {grant.shard}",
            f"{how} {grant.token} of {grant.place}/{grant.key} as {grant.lease & 0xFFFFF}.{grant.index} of epoch "
            f"{grant.lease >> 40}, attempts {grant.attempts}, to {grant.client[1:8]!r}",
        )

    def arrived(self, connection: Connection, parts: list[bytes]) -> None:
        """A frame has reached a client."""
        if connection.router.endpoint in FRONTS and len(parts) == 3 and len(parts[0]) >= 6:
            self._reached(parts)

    def _reached(self, parts: list[bytes]) -> None:
        opcode, flags = parts[0][3], parts[0][5]
        pushed = opcode == DELIVERY and not flags & REPLY
        if not pushed and (opcode != Receive.opcode or flags & ERROR):
            return
        for sent in self._by_body.get(parts[2], ()):  # the router passes it on as it is
            grant = self._by_fence.get((sent.shard, *sent.fence))
            if grant is not None and grant.arrived_us is None:
                grant.arrived_us = self.world.now_us

    def grant_of(self, shard: int, lease: int, index: int) -> Grant | None:
        """What was given out under a fence."""
        return self._by_fence.get((shard, lease, index))


def _is_no_change(call: Done) -> bool:
    """Whether a call has surely not changed a queue's number of partitions."""
    refused = isinstance(call.error, QueueExistsError) or bool(getattr(call.error, "details", {}).get("moving"))
    return call.denied or refused


def token_of(record: Record) -> str:
    """Which message it is: the payload says so, or the headers of a schedule's."""
    headers, payload = open_envelope(record.envelope)
    return token_in(headers, payload)


def token_in(headers: dict[str, str], payload: bytes) -> str:
    """The same for a message that is open."""
    if "fila-schedule" in headers:
        return f"{headers['fila-schedule']}@{headers['fila-due-at']}"
    return bytes(payload).decode(errors="replace")
