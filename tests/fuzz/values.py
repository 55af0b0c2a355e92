"""Values of every field of every command, made from the types that the structs declare.

A command that is added to the protocol is fuzzed without a change here. :data:`PLAUSIBLE` only makes some fields meaningful more
often than chance would: a settlement of a lease that exists goes deeper than one of a lease that does not.

All choices come from one :class:`random.Random`, so a seed, Hypothesis or a coverage-guided fuzzer can stand behind it.
"""

import types
import typing
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import msgspec

from fila_proto_zmq.commands import BY_OPCODE, Command, QueueOptions, Struct
from fila_proto_zmq.record import pack_record, seal_envelope, unpack_record

S = TypeVar("S", bound=Struct)

EXTREME_INTS = (
    -1, -2, -3, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
    -(2**63), 10_000, 10_001, 100_000, 100_001, 86_400_000, 86_400_001, 10 * 366 * 24 * 3600 * 1000,
)  # fmt: skip
SMALL_INTS = (0, 1, 1, 2, 3, 5)
TIMES = (0, 1, 50, 200, 1000, 5000, 60_000)
EXTREME_TEXTS = (
    "", "x" * 201, "x" * 1025, "\0", "\0reserved\0", "ä" * 150, "a/b/c", "../../etc", "%s%n{}", "nan", "-1", "1e308", "\n",
)  # fmt: skip
TEXTS = ("a", "b", "c", "default", "t", "u", "q")
EXTREME_BYTES = (b"", b"\xff" * 4, b"\0" * 3, b"\0" * 26, b"\xff\xff\xff\xff" + b"x" * 40, bytes(5000))
ITEMS_MAX = 4
MANY = 100
"""The length of a list that is to be long."""

QUEUES = ("q", "q", "q", "r", "r", "q.dlq", "ns/s", "")
"""Queues that fuzzed clients name. No honest client uses them."""
WRONG_QUEUES = ("no-such", "no such", ".dlq", "q.dlq.dlq", "x" * 200, "x" * 201, "a/b/c", "\x00")
SCRIPTS = (
    "function on_enqueue(msg) return {fairness_key = msg.headers.tenant, weight = 2, priority = -1} end",
    "function on_enqueue(msg) return {throttle_keys = {'t'}, cost = 1e308, delay_ms = -5, weight = 0/0} end",
    "function on_failure(msg) return {action = 'retry', delay_ms = msg.attempts * 10} end",
    "function on_enqueue(msg) error(msg.queue) end",
    "function on_enqueue(", "return 1", "",
)  # fmt: skip
CONFIG_KEYS = ("throttle:t:rate", "throttle:t:burst", "throttle.u", "namespace:ns:max_enqueues_per_minute", "plain")
CONFIG_VALUES = ("0", "1", "100", "0.5", "5,5", "nan", "inf", "-1", "1e308", "x", "", None)


@dataclass
class Known:
    """What clients got and may repeat: the newest last."""

    leases: deque[int] = field(default_factory=lambda: deque([1], maxlen=30))
    ids: deque[tuple[int, int]] = field(default_factory=lambda: deque([(1, 1)], maxlen=30))
    records: deque[bytes] = field(default_factory=lambda: deque(maxlen=10))


@dataclass
class Values:
    """Makes values of a type. ``wild``: the share of absurd ones."""

    random: Random
    known: Known = field(default_factory=Known)
    wild: float = 0.3

    def command(self, struct: type[S]) -> S:
        """A struct with a value for each field, extreme ones among them."""
        return struct(**{each.name: self._field(struct, each) for each in msgspec.structs.fields(struct)})

    def any_command(self, opcodes: list[int]) -> Command:
        """A command with one of the opcodes."""
        return self.command(BY_OPCODE[self.random.choice(opcodes)])

    def queue(self) -> str:
        """A routing key."""
        return self.random.choice(WRONG_QUEUES if self.random.random() < self.wild / 5 else QUEUES)

    def _field(self, struct: type[Struct], each: msgspec.structs.FieldInfo) -> Any:
        if self.random.random() >= self.wild:
            plausible = PLAUSIBLE.get(each.name)
            if plausible is not None:
                return plausible(self)
            if not each.required and self.random.random() < 0.6:
                return each.default if each.default is not msgspec.NODEFAULT else each.default_factory()
        return self.of(each.type)

    def of(self, kind: Any) -> Any:
        """A value of an annotation."""
        origin = typing.get_origin(kind)
        if origin in {typing.Union, types.UnionType}:
            return self.of(self.random.choice(typing.get_args(kind)))
        if origin is typing.Annotated:
            return self.of(typing.get_args(kind)[0])
        if origin is list:
            return [self.of(typing.get_args(kind)[0]) for _ in range(self._length())]
        if origin is tuple:
            return tuple(self.of(each) for each in typing.get_args(kind))
        if origin is dict:
            key, value = typing.get_args(kind)
            return {self.of(key): self.of(value) for _ in range(self._length())}
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self.command(kind)
        return _PLAIN[kind](self)

    def _length(self) -> int:
        return MANY if self.random.random() < self.wild / 30 else self.random.choice((0, 1, 1, 2, ITEMS_MAX))

    def integer(self) -> int:
        if self.random.random() < self.wild:
            return self.random.choice(EXTREME_INTS)
        return self.random.choice(SMALL_INTS + TIMES)

    def text(self) -> str:
        return self.random.choice(EXTREME_TEXTS if self.random.random() < self.wild else TEXTS)

    def octets(self) -> bytes:
        return self.random.choice(EXTREME_BYTES) if self.random.random() < self.wild else self.envelope()

    def envelope(self) -> bytes:
        return seal_envelope(b"payload", {"tenant": self.text()})

    # --- fields that chance alone would hardly ever fill well ---------------------------------------------------------

    def fences(self) -> list[tuple[int, list[int]]]:
        """Deliveries that exist, with indexes around those that do."""
        return [
            (
                self.random.choice(self.known.leases),
                [self.random.randint(-4, 6) for _ in range(self.random.choice((0, 1, 3)))],
            )
            for _ in range(self.random.choice((1, 1, 2)))
        ]

    def id(self) -> tuple[int, int]:
        return self.random.choice(self.known.ids)

    def record(self) -> bytes:
        """A record as it was stored, perhaps with another extension or a byte turned."""
        if not self.known.records:
            return b""
        record = bytearray(self.random.choice(self.known.records))
        if self.random.random() < self.wild:
            record[self.random.randrange(min(len(record), 40))] ^= 1 << self.random.randrange(8)
        elif self.random.random() < 0.5:
            unpacked = unpack_record(bytes(record))
            unpacked.extension.source_queue, unpacked.extension.reason = self.queue(), "failed"
            return pack_record(unpacked)
        return bytes(record)

    def options(self) -> QueueOptions:
        """Options of which most are left out, and most of the others valid."""
        chosen: dict[str, Any] = {}
        for each in msgspec.structs.fields(QueueOptions):
            if self.random.random() < 0.3:
                chosen[each.name] = self._field(QueueOptions, each)
        return QueueOptions(**chosen)


_PLAIN: dict[Any, Callable[[Values], Any]] = {
    int: Values.integer,
    str: Values.text,
    bytes: Values.octets,
    bool: lambda values: values.random.random() < 0.5,
    float: lambda values: values.random.choice((0.0, -1.0, 1e308, 0.5)),
    type(None): lambda _: None,
    Any: lambda values: values.text(),
}

PLAUSIBLE: dict[str, Callable[[Values], Any]] = {
    "fences": Values.fences,
    "renew": lambda values: [fence[0] for fence in values.fences()],
    "lease": lambda values: values.random.choice(values.known.leases),
    "id": Values.id,
    "ids": lambda values: [values.id() for _ in range(values.random.choice((0, 1, 3)))],
    "after": Values.id,
    "envelopes": lambda values: [values.envelope() for _ in range(values.random.choice((1, 1, 2, 5)))],
    "record": Values.record,
    "options": Values.options,
    "given": lambda values: [values.random.choice([each.name for each in msgspec.structs.fields(QueueOptions)])],
    "on_enqueue": lambda values: values.random.choice(SCRIPTS),
    "on_failure": lambda values: values.random.choice(SCRIPTS),
    "dead_letter": lambda values: values.random.choice(("dlq", "discard", "r", "ns/s", "q")),
    "delivery": lambda values: values.random.choice(("at_least_once", "at_most_once")),
    "lua_memory_limit_bytes": lambda values: values.random.choice((65_536, 1 << 20)),
    "verb": lambda values: values.random.choice((1, 1, 1, 1, 2, 3, 4, 5, 6, 0, 7)),
    "key": lambda values: values.random.choice(CONFIG_KEYS),
    "value": lambda values: values.random.choice(CONFIG_VALUES),
    "queue": Values.queue,
    "queues": lambda values: [values.queue() for _ in range(values.random.choice((0, 1, 3)))],
    "view": lambda values: values.random.choice(("v", "w")),
    "reservation": lambda values: values.random.choice(("batch", "other")),
    "part": lambda values: values.random.randint(0, 3),
    "throttle_keys": lambda values: values.random.choice(([], [], [["t"]], [["t", "u"]])),
    "fairness_key": lambda values: values.random.choice(("a", "b", "default")),
    "to_shard": lambda values: values.random.randint(0, 2),
    "from_shard": lambda values: values.random.randint(0, 2),
    "shard": lambda values: values.random.randint(0, 2),
    "session": lambda values: values.random.randint(0, 3),
    "versions": lambda values: values.random.choice(([1], [1, 2], [2], [])),
    "timeout_ms": lambda values: values.random.choice((1000, 5000, 60_000)),
    "range_messages": lambda values: values.random.choice((1, 2, 100)),
    "idle_ms": lambda values: values.random.choice((1000, 5000)),
    "count": lambda values: values.random.choice((0, 1, 2, 10)),
    "limit": lambda values: values.random.choice((1, 2, 100)),
}
"""By the field's name."""
