"""The parts of batches that this shard counts: the members of one batch in one queue.

A part has its counts on disk, written with the change that they count: how many messages were stored as its members, and how
many of these were acked, dead-lettered and removed. So the counts do not depend on clients. A message carries the token of
its batch in its record while it is a member; a lease keeps the tokens of its messages, so an ack reads nothing.

A part begins when the owner of its batch has agreed (:mod:`core.callback_groups.batches`). Until then the enqueues that need
it wait here. The owner seals it, after which it takes no members, and removes it when it has its final counts. The shard asks
the owner about a part that stays open for longer than a batch may. So no part stays without its batch.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import msgspec

from fila_proto_zmq.errors import FilaError, InvalidArgumentError, OverloadedError, ShardUnavailableError
from fila_proto_zmq.names import BATCH_TOKEN_BYTES, ROUTING_KEY_BYTES_MAX, batch_id, parse_batch_id, whole_queue
from fila_worker.core.due_time import AT_ONCE, NEVER, DueTime
from fila_worker.core.keys import range_of

if TYPE_CHECKING:
    from fila_proto_zmq.commands import Enqueue
    from fila_worker.core.effects import ClientCall
    from fila_worker.core.settings import Limits
    from fila_worker.core.store import Families, Store, StoreBatch

PART: Final = b"batch part:"
"""The beginning of the records of parts. A queue's name, ``#`` and a token follow."""

WAIT_BYTES: Final = 1024
"""The memory of a waiting enqueue beside its envelopes."""

RETRY_S: Final = 1.0
"""When to try again if there are too many batches: when one ends is not known."""


class MemberOutcome(Enum):
    """How a member ended. The value is the field of the count."""

    ACKED = "acked"
    DEAD = "dead"
    REMOVED = "removed"


class PartRecord(msgspec.Struct, array_like=True):
    """The record of a part. ``until_ms``: when its batch is forgotten if it is not sealed, Unix ms."""

    owner: str
    until_ms: int
    added: int = 0
    acked: int = 0
    dead: int = 0
    removed: int = 0
    sealed: bool = False

    @property
    def open(self) -> int:
        """The number of members that are not done."""
        return self.added - self.acked - self.dead - self.removed


encode_part = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(PartRecord).decode


class PartPlace(NamedTuple):
    """The identity of a part: the queue of its members, and the token of its batch."""

    queue: str
    token: bytes


class JoinRequest:
    """A question to the owner of a batch, whether a queue may get members, and the enqueues that wait for the answer."""

    __slots__ = ("owner", "sent_ms", "ticket", "waiting")

    def __init__(self, owner: str, ticket: int) -> None:
        self.owner = owner
        self.ticket = ticket
        self.sent_ms: int | None = None
        self.waiting: list[tuple[ClientCall, Enqueue]] = []


Waiting: TypeAlias = "tuple[ClientCall, Enqueue, FilaError]"


class BatchParts:
    """All parts of a shard, and the questions that wait for an answer. Memory and disk have the same counts."""

    def __init__(self, families: "Families", epoch: int, limits: "Limits") -> None:
        self._family = families.state
        self._limits = limits
        self._tickets = epoch << 32
        self.timer = DueTime()
        """When there is something to say to owners of batches."""
        self.parts: dict[PartPlace, PartRecord] = {}
        self.complete: dict[PartPlace, int | None] = {}
        """Sealed parts whose members are all done, and when their counts were reported last."""
        self.asks: dict[PartPlace, JoinRequest] = {}
        self.check_ms = NEVER
        """When an open part may be there for too long, Unix ms."""
        self._waiting_bytes = 0

    def recover(self, store: "Store") -> Iterator[None]:
        """Read the stored parts, one at a step."""
        for key, value in store.scan(*range_of(PART), self._family):
            place = parse_place(key)
            part = self.parts[place] = decode_part(value)
            self._look(place, part)
            yield

    # --- members ------------------------------------------------------------------------------------------------------

    def admit(self, call: "ClientCall", command: "Enqueue", queue: str) -> bool:
        """Return whether messages may be stored as members now. Else they wait for the answer of their batch's owner.

        ``queue``: the name under which their queue counts members.

        Raise :class:`InvalidArgumentError` if the batch takes no more members.
        """
        owner, token = parse_batch_id(command.batch)
        place = PartPlace(queue, token)
        if place in self.parts:
            self._check(place, owner)
            return True
        self._wait(place, owner, call, command)
        return False

    def _check(self, place: PartPlace, owner: str) -> PartRecord:
        part = self.parts.get(place)
        if part is None or whole_queue(part.owner) != whole_queue(owner):
            raise InvalidArgumentError(f"batch {batch_id(owner, place.token)!r} is not known, or is over: open another one")
        if part.sealed:
            raise sealed_error(owner, place.token)
        return part

    def add(self, queue: str, batch_name: str, count: int, batch: "StoreBatch") -> None:
        """Count messages that were stored as members. :meth:`refusal` has returned None in this turn."""
        place = PartPlace(queue, parse_batch_id(batch_name)[1])
        part = self.parts[place]
        part.added += count
        self._save(place, part, batch)

    def refusal(self, queue: str, batch_name: str) -> FilaError | None:
        """Return why messages can't be members any more; None: they can."""
        owner, token = parse_batch_id(batch_name)
        try:
            self._check(PartPlace(queue, token), owner)
        except InvalidArgumentError as error:
            return error
        return None

    def end(self, queue: str, tokens: Iterable[bytes], outcome: MemberOutcome, batch: "StoreBatch") -> None:
        """Count members of a queue that are done, by the tokens of their batches. Batches that are not known are left out."""
        for token, named in Counter(tokens).items():
            place = PartPlace(queue, token)
            part = self.parts.get(place)
            if part is not None:
                count = min(named, part.open)  # a client may use a token twice, and have members of the batch before
                setattr(part, outcome.value, getattr(part, outcome.value) + count)
                self._save(place, part, batch)
                self._look(place, part)

    def has_open(self, queue: str) -> bool:
        """Return whether a queue has members that are not done. All parts are searched."""
        return any(part.open and place.queue == queue for place, part in self.parts.items())

    def remove_queue(self, queue: str, batch: "StoreBatch") -> None:
        """Count all members of a deleted queue as removed."""
        for place, part in self.parts.items():
            if place.queue == queue and part.open:
                part.removed += part.open
                self._save(place, part, batch)
                self._look(place, part)

    # --- parts --------------------------------------------------------------------------------------------------------

    def begin(self, place: PartPlace, owner: str, until_ms: int, batch: "StoreBatch") -> None:
        """Begin a part that its batch's owner has. Raise :class:`OverloadedError` for too many parts."""
        self._check_room(len(self.parts))
        part = self.parts[place] = PartRecord(owner, until_ms)
        self._save(place, part, batch)
        self._look(place, part)

    def _check_room(self, count: int) -> None:
        if count >= self._limits.batch_parts_max:
            raise OverloadedError(
                f"this shard counts the members of {count} batches and queues already: let batches end, or use fewer",
                retry_after=RETRY_S,
                details={"refused": True},
            )

    def seal(self, place: PartPlace, owner: str, batch: "StoreBatch") -> PartRecord:
        """Take no more members into a part, and return its counts. An unknown part is sealed without members.

        Enqueues that wait for the part are refused when its question is dropped.
        """
        part = self.parts.get(place)
        if part is None:
            part = PartRecord(owner, 0)
        elif part.sealed:
            return part
        part.sealed = True
        if place in self.parts:
            self._save(place, part, batch)
            self._look(place, part)
        return part

    def forget(self, place: PartPlace, batch: "StoreBatch") -> None:
        """Forget a part: its owner has the counts, or the batch is gone."""
        if self.parts.pop(place, None) is not None:
            self.complete.pop(place, None)
            batch.delete(part_key(place), self._family)

    def _save(self, place: PartPlace, part: PartRecord, batch: "StoreBatch") -> None:
        batch.put(part_key(place), encode_part(part), self._family)

    def _look(self, place: PartPlace, part: PartRecord) -> None:
        """Report the counts if they are final."""
        if part.sealed and not part.open:
            self.complete.setdefault(place, None)
            self.timer.by(AT_ONCE)
        elif not part.sealed and part.until_ms < self.check_ms:
            self.check_ms = part.until_ms
            self.timer.by(part.until_ms)

    def stale(self, now_ms: int) -> list[PartPlace]:
        """Return some parts that are open for longer than a batch may be, and plan the next look. All parts are searched."""
        if now_ms < self.check_ms:
            return []
        ends = {place: part.until_ms for place, part in self.parts.items() if not part.sealed}
        found = [place for place, until_ms in ends.items() if until_ms <= now_ms]
        self.check_ms = now_ms + self._limits.batch_check_ms if found else min(ends.values(), default=NEVER)
        return found[: self._limits.batch_parts_at_once]

    # --- questions ----------------------------------------------------------------------------------------------------

    def _wait(self, place: PartPlace, owner: str, call: "ClientCall", command: "Enqueue") -> None:
        size_bytes, limits = _size_of(command), self._limits
        if self._waiting_bytes and self._waiting_bytes + size_bytes > limits.batch_waits_bytes_max:
            raise OverloadedError(
                "too many messages wait to become members of batches: try again later",
                retry_after=RETRY_S,
                details={"refused": True},
            )
        ask = self.asks.get(place)
        if ask is None or whole_queue(ask.owner) != whole_queue(owner):
            if len(self.asks) >= limits.batch_waits_max:
                raise OverloadedError(
                    f"{len(self.asks)} batches wait to get members here: try again later",
                    retry_after=RETRY_S,
                    details={"refused": True},
                )
            if ask is not None:  # two batches with one token: at most one of them exists
                raise InvalidArgumentError(f"batch {batch_id(owner, place.token)!r} is not known: open another one")
            self._check_room(len(self.parts) + len(self.asks))  # before the owner notes the part
            self._tickets += 1
            ask = self.asks[place] = JoinRequest(owner, self._tickets)
        self._waiting_bytes += size_bytes
        ask.waiting.append((call, command))
        self.timer.by(AT_ONCE)

    def take_ask(self, place: PartPlace, ticket: int | None = None) -> "list[tuple[ClientCall, Enqueue]]":
        """Return the enqueues that wait for a part, and wait no longer. ``ticket``: only if this question is still open."""
        ask = self.asks.get(place)
        if ask is None or ticket not in {None, ask.ticket}:
            return []
        del self.asks[place]
        self._waiting_bytes -= sum(_size_of(command) for _, command in ask.waiting)
        return ask.waiting

    def overdue(self, now_ms: int) -> Iterator[Waiting]:
        """Yield the enqueues that have waited for too long, with their errors, and drop their questions."""
        oldest_ms = now_ms - self._limits.batch_wait_ms_max
        for place, ask in list(self.asks.items()):
            if ask.waiting[0][0].now_ms <= oldest_ms:
                error = ShardUnavailableError(
                    f"the shard of batch {batch_id(ask.owner, place.token)!r} does not answer: try again",
                    details={"refused": True},
                )
                for call, command in self.take_ask(place):
                    yield call, command, error


def _size_of(command: "Enqueue") -> int:
    """Return the memory that a waiting enqueue takes."""
    return WAIT_BYTES + sum(map(len, command.envelopes))


def sealed_error(owner: str, token: bytes) -> InvalidArgumentError:
    """Return the refusal of members by a sealed batch."""
    return InvalidArgumentError(f"batch {batch_id(owner, token)!r} is sealed: it takes no more messages")


def part_key(place: PartPlace) -> bytes:
    """Return the key of a part's record."""
    return PART + place.queue.encode() + b"#" + place.token


def parse_place(key: bytes) -> PartPlace:
    """Return the part of a key. Raise :class:`ValueError` for another key."""
    name, token = key[len(PART) : -BATCH_TOKEN_BYTES - 1], key[-BATCH_TOKEN_BYTES:]
    if not 0 < len(name) <= ROUTING_KEY_BYTES_MAX or key[-BATCH_TOKEN_BYTES - 1 : -BATCH_TOKEN_BYTES] != b"#":
        raise ValueError(f"{key.hex()} is not a key of a part of a batch")
    return PartPlace(name.decode(), token)
