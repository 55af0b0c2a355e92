"""Golden bytes: what travels, frozen. A change here breaks every client and every stored message."""

from typing import Any, NamedTuple

from fila_proto_zmq.commands import (
    ClusterStatus,
    CreateQueue,
    DeleteQueue,
    Delivered,
    Done,
    Enqueue,
    Enqueued,
    Extend,
    Extended,
    Fault,
    GetClusterStatus,
    GetQueueStats,
    Goodbye,
    Heartbeat,
    Hello,
    KeyStats,
    LeaseBatch,
    Leave,
    ListQueues,
    Pulse,
    QueueInfo,
    QueueList,
    QueueOptions,
    QueueStats,
    Receive,
    Redrive,
    Redriven,
    Register,
    Registered,
    Settle,
    Settled,
    Struct,
    Subscribe,
    Unsubscribe,
    Verb,
    Welcome,
    WorkerStatus,
)
from fila_proto_zmq.record import Extension, Record


class Body(NamedTuple):
    """A struct, the same as plain msgpack data, and its bytes."""

    struct: Struct
    plain: list[Any]
    hex: str

    @property
    def name(self) -> str:
        return type(self.struct).__name__


LEASE = 0x1_0000_0001
ORDERS = QueueInfo("orders", 3, 2, 1, 1, False, False, 3)
ACME = KeyStats("acme", 2, 3, 2, 1, 1999.0, 7, False)

BODIES = [
    Body(Hello([1], "py 0.1"), [[1], "py 0.1"], "929101a6707920302e31"),
    Body(
        Welcome(1, "0.1.0", 4, 15_000, 16_777_216),
        [1, "0.1.0", 4, 15_000, 16_777_216],
        "9501a5302e312e3004cd3a98ce01000000",
    ),
    Body(CreateQueue(QueueOptions(30_000, 5)), [[30_000, 5]], "9192cd753005"),
    Body(CreateQueue(QueueOptions()), [[None, None]], "9192c0c0"),
    Body(DeleteQueue(True), [True], "91c3"),
    Body(GetQueueStats(), [], "90"),
    Body(
        QueueStats(ORDERS, 1500, 1000, 10, 7, 4, 1, 1, 1, [ACME]),
        [["orders", 3, 2, 1, 1, False, False, 3], 1500, 1000, 10, 7, 4, 1, 1, 1, [["acme", 2, 3, 2, 1, 1999.0, 7, False]]],
        "9a98a66f726465727303020101c2c203cd05dccd03e80a07040101019198a461636d6502030201cb409f3c000000000007c2",
    ),
    Body(ListQueues("or"), ["or"], "91a26f72"),
    Body(
        QueueList([QueueInfo("orders.dlq", 0, 0, 0, 0, False, True, 3)]),
        [[["orders.dlq", 0, 0, 0, 0, False, True, 3]]],
        "919198aa6f72646572732e646c7100000000c2c303",
    ),
    Body(
        Enqueue([b"\0\0\0\0a", b"\0\0\0\0b"], "acme", 2, [-1, 5], 250, 0, 60_000),
        [[b"\0\0\0\0a", b"\0\0\0\0b"], "acme", 2, [-1, 5], 250, 0, 60_000],
        "9792c4050000000061c4050000000062a461636d650292ff05ccfa00cdea60",
    ),
    Body(
        Enqueued(0x0192_CC09_1400_7003, 2**63 + 1, 1, [(1, Fault("PAYLOAD_TOO_LARGE", "big", 0, {"max": 16}))]),
        [0x0192_CC09_1400_7003, 2**63 + 1, 1, [[1, ["PAYLOAD_TOO_LARGE", "big", 0, {"max": 16}]]]],
        "94cf0192cc0914007003cf80000000000000010191920194b15041594c4f41445f544f4f5f4c41524745a36269670081a36d617810",
    ),
    Body(Receive(10, 2_000), [10, 2_000], "920acd07d0"),
    Body(
        Delivered(1, [LeaseBatch(LEASE, 1_730_000_000_000, 1_730_000_030_000, ["a", "b"], 1, [b"\1", b"\2"])]),
        [1, [[LEASE, 1_730_000_000_000, 1_730_000_030_000, ["a", "b"], 1, [b"\1", b"\2"]]]],
        "92019196cf0000000100000001cf00000192cc091400cf00000192cc09893092a161a1620192c40101c40102",
    ),
    Body(Subscribe(1, 100, [LEASE]), [1, 100, [LEASE]], "93016491cf0000000100000001"),
    Body(Unsubscribe(1), [1], "9101"),
    Body(Heartbeat(), [], "90"),
    Body(Goodbye(), [], "90"),
    Body(
        Settle(Verb.ACK, [(LEASE, []), (LEASE + 1, [0, 2])]),
        [1, [[LEASE, []], [LEASE + 1, [0, 2]]], "", None, 0],
        "95019292cf00000001000000019092cf0000000100000002920002a0c000",
    ),
    Body(
        Settle(Verb.RETRY, [(LEASE, [7])], "429", b"\xff", 1_500),
        [3, [[LEASE, [7]]], "429", b"\xff", 1_500],
        "95039192cf00000001000000019107a3343239c401ffcd05dc",
    ),
    Body(
        Settled([(LEASE, 7, Fault("LEASE_EXPIRED", "too late"))]),
        [[[LEASE, 7, ["LEASE_EXPIRED", "too late", 0, {}]]]],
        "919193cf00000001000000010794ad4c454153455f45585049524544a8746f6f206c6174650080",
    ),
    Body(Extend([(LEASE, [0])], 45_000), [[[LEASE, [0]]], 45_000], "929192cf00000001000000019100cdafc8"),
    Body(Extended(1_730_000_045_000), [1_730_000_045_000, []], "92cf00000192cc09c3c890"),
    Body(Redrive(0, "acme"), [0, "acme"], "9200a461636d65"),
    Body(Redriven(2, 1), [2, 1], "920201"),
    Body(GetClusterStatus(), [], "90"),
    Body(
        ClusterStatus("0.1.0", 2, [WorkerStatus("worker-0", 42, "up", [0, 1], 123_456_789, 5)]),
        ["0.1.0", 2, [["worker-0", 42, "up", [0, 1], 123_456_789, 5]]],
        "93a5302e312e30029196a8776f726b65722d302aa27570920001ce075bcd1505",
    ),
    Body(
        Register("worker-0", 42, "0.1.0", [(0, 7), (1, 8)]),
        ["worker-0", 42, "0.1.0", [[0, 7], [1, 8]]],
        "94a8776f726b65722d302aa5302e312e3092920007920108",
    ),
    Body(Registered(), [], "90"),
    Body(Pulse(123_456_789, 5), [123_456_789, 5], "92ce075bcd1505"),
    Body(Leave(), [], "90"),
    Body(Done(), [], "90"),
    Body(
        Fault("OVERLOADED", "busy", 200, {"refused": True}),
        ["OVERLOADED", "busy", 200, {"refused": True}],
        "94aa4f5645524c4f41444544a462757379ccc881a772656675736564c3",
    ),
]

ID = (0x0192_CC09_1400_7003, 0x8000_0000_0000_0005)
"""Shard 3's message 5, enqueued at 1,730,000,000,000 ms."""
ID_TEXT = "0192cc09-1400-7003-8000-000000000005"

ENVELOPE = bytes.fromhex("0000000781a16ba376c3a96869")
"""Headers ``{"k": "vé"}``, payload ``hi``."""
BARE_ENVELOPE = bytes.fromhex("000000006869")

PLAIN_RECORD = Record(2, -7, *ID, Extension(), ENVELOPE)
PLAIN_RECORD_HEX = (
    "0100" "00000002" "fffffff9" "0192cc0914007003" "8000000000000005"
    "00000007" "81a16ba376c3a9" "6869"
)  # fmt: skip

EXTENSION = {
    "lease_ms": 60_000,
    "error": "boom",
    "metadata": b"\x01\x02",
    "reason": "failed",
    "source_queue": "orders",
    "dead_lettered_ms": 1_730_000_001_000,
}
EXTENDED_RECORD = Record(1, 0, *ID, Extension(**EXTENSION), ENVELOPE)
EXTENDED_RECORD_HEX = (
    "0101" "00000001" "00000000" "0192cc0914007003" "8000000000000005"
    "00000061"
    "86" "a86c656173655f6d73" "cdea60" "a56572726f72" "a4626f6f6d" "a86d65746164617461" "c4020102"
    "a6726561736f6e" "a66661696c6564" "ac736f757263655f7175657565" "a66f7264657273"
    "b0646561645f6c657474657265645f6d73" "cf00000192cc0917e8"
    "00000007" "81a16ba376c3a9" "6869"
)  # fmt: skip
