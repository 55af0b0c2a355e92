"""Golden bytes: what travels, frozen. A change here breaks every client and every stored message."""

from typing import Any, NamedTuple

from fila_proto_zmq.commands import (
    AbandonBatch,
    Act,
    ActList,
    AdoptShards,
    ApiKey,
    Appoint,
    Appointed,
    BackupParts,
    BankLease,
    BatchJoined,
    BatchOpened,
    BeginBackup,
    Browse,
    Browsed,
    BrowseView,
    Cancel,
    Cancelled,
    CancelReceive,
    ClientsDescribed,
    ClientWork,
    CloseConnection,
    ClusterStatus,
    ConfigChange,
    ConfigEdit,
    ConfigHistory,
    ConfigTaken,
    ConfigValues,
    ConnectionList,
    ConnectionView,
    ConsumerView,
    CostCharge,
    CreateByTemplate,
    CreateKey,
    CreatePartitioned,
    CreateQueue,
    CutBackup,
    DeletePartitioned,
    DeleteQueue,
    DeleteSchedule,
    DeleteTemplate,
    Delivered,
    DescribeClients,
    DescribeQueue,
    Done,
    DoorView,
    DrainWorker,
    EndClient,
    EndReservation,
    Enqueue,
    Enqueued,
    EnqueueOutcome,
    Explain,
    Explained,
    Extend,
    Extended,
    Fault,
    FetchKeys,
    FetchReserved,
    ForgetParts,
    GetClusterStatus,
    GetConfig,
    GetHosts,
    GetMetrics,
    GetOwnKey,
    GetPlacement,
    GetQueueStats,
    GetSchedule,
    GetTemplate,
    Goodbye,
    Grant,
    GrantKey,
    GrantPlaces,
    Grants,
    Heartbeat,
    Hello,
    Histogram,
    HookMetrics,
    HookState,
    HostCopy,
    HostList,
    HostWorker,
    JoinBatch,
    KeepBackup,
    KeyList,
    KeyMade,
    KeyMetrics,
    KeyStats,
    KeyView,
    LeaseBatch,
    Leave,
    ListActs,
    ListConfig,
    ListConfigHistory,
    ListConnections,
    ListKeys,
    ListQueues,
    ListSchedules,
    ListTemplates,
    ListThrottles,
    LogReplicas,
    MakeByTemplate,
    MessagesTransferred,
    MessageView,
    Metrics,
    Moved,
    MoveMessages,
    MoveShard,
    OpenBatch,
    OpenView,
    OwnKey,
    Park,
    PartitionIdle,
    PartitionLeft,
    PartitionsClosed,
    PartReport,
    Pause,
    PlaceAccount,
    Placement,
    PlaceMetrics,
    PlaceOpening,
    PlaceWant,
    PrepareShard,
    Pulse,
    Pulsed,
    Purged,
    PurgeQueue,
    PutConfig,
    PutDraining,
    PutKeys,
    PutSchedule,
    PutTemplate,
    QueueDescription,
    QueueInfo,
    QueueList,
    QueueMetrics,
    QueueMove,
    QueueOptions,
    QueueStats,
    Reason,
    Receive,
    Redrive,
    Redriven,
    Register,
    Registered,
    ReleaseShard,
    RenewReservation,
    ReportMove,
    ReportParts,
    ReportPlaces,
    ReservationEnded,
    Reserve,
    Reserved,
    RevokeKey,
    RouterMetrics,
    ScheduleDeleted,
    ScheduleFound,
    ScheduleList,
    ScheduleMetrics,
    ScheduleView,
    SealBatch,
    SealParts,
    SetConfig,
    Settle,
    Settled,
    ShardCut,
    ShardMetrics,
    ShardOutage,
    StoredKeys,
    StoreKeys,
    StoreMetrics,
    Struct,
    Subscribe,
    Subscribed,
    Template,
    TemplateList,
    ThrottleHolder,
    ThrottleList,
    ThrottleMetrics,
    ThrottleStats,
    ThrottleWaiter,
    Tokens,
    TokenWant,
    Transfer,
    TransferMessages,
    UndoConfig,
    Unsubscribe,
    UpdatePartitioned,
    UpdateQueue,
    Verb,
    ViewBrowsed,
    ViewedQueue,
    ViewOpened,
    Welcome,
    WorkerMetrics,
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
VIEW = MessageView("leased", "acme", 2, ["api"], 0, 5, 9, "0102", b"\1")

TIMES = Histogram([10, 100], [1, 0, 2], 1234)
MOVE = QueueMove(2, 3, 9, [0], [1], [PartitionLeft(1, 4, 5, 6, True, [7])], 8)
PLAIN_MOVE = [2, 3, 9, [0], [1], [[1, 4, 5, 6, True, [7]]], 8]
QUEUE_METRICS = QueueMetrics(
    ORDERS, 1500, 10, 7, 4, 1, 1, 1, 2, {"OVERLOADED": 2}, 5, 4, 9, 8, [KeyMetrics("acme", 2, 3, 7, 0.5)], 1, TIMES,
    HookMetrics(4, 1, 2, True, TIMES), TIMES, 50, MOVE,
)  # fmt: skip
SCHEDULED = Enqueue([b"\0\0\0\0x"], "acme")
SCHEDULE = ScheduleView(
    "nightly",
    "orders",
    "0 3 * * *",
    0,
    "Europe/Lisbon",
    "once",
    500,
    1,
    3,
    2,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    Fault("OVERLOADED", "full"),
    SCHEDULED,
)
SHARD_METRICS = ShardMetrics(
    3, [QUEUE_METRICS], 0, [ThrottleMetrics("api", 10.5, 20.0, -1.0, 6, 7)], 6, 7, {"LEASE_EXPIRED": 1}, 4096,
    StoreMetrics(TIMES, TIMES, 1, 2, 3, False), ScheduleMetrics(4, 3, 2, 1, 5, 6), [PlaceMetrics("llm", 5, 3, 40, 9, 8)],
)  # fmt: skip
HOST_WORKER = HostWorker(
    "a",
    "a/worker-0",
    "a.example",
    [
        HostCopy(3, "leads", 7, 90, -1, 0, 4096, 250, 5, "", TIMES, LogReplicas(2, 3, 2)),
        HostCopy(4, "follows", 8, 60, 91, 30),
    ],
    True,
    2,
    "its disk is full",
    "retention.ms is 1",
)
PLAIN_TIMES = [[10, 100], [1, 0, 2], 1234]
PLAIN_QUEUE_METRICS = [
    ["orders", 3, 2, 1, 1, False, False, 3], 1500, 10, 7, 4, 1, 1, 1, 2, {"OVERLOADED": 2}, 5, 4, 9, 8,
    [["acme", 2, 3, 7, 0.5]], 1, PLAIN_TIMES, [4, 1, 2, True, PLAIN_TIMES], PLAIN_TIMES, 50, PLAIN_MOVE,
]  # fmt: skip
PLAIN_SHARD_METRICS = [
    3, [PLAIN_QUEUE_METRICS], 0, [["api", 10.5, 20.0, -1.0, 6, 7]], 6, 7, {"LEASE_EXPIRED": 1}, 4096,
    [PLAIN_TIMES, PLAIN_TIMES, 1, 2, 3, False], [4, 3, 2, 1, 5, 6], [["llm", 5, 3, 40, 9, 8]],
]  # fmt: skip
PLAIN_HOST_WORKER = [
    "a",
    "a/worker-0",
    "a.example",
    [
        [3, "leads", 7, 90, -1, 0, 4096, 250, 5, "", PLAIN_TIMES, [2, 3, 2]],
        [4, "follows", 8, 60, 91, 30, 0, -1, 0, "", None, None],
    ],
    True,
    2,
    "its disk is full",
    "retention.ms is 1",
]

SESSION = bytes(range(32))

DOOR = DoorView("worker-0", b"door", ["ipc:///a", "tcp://*:1"], [(0, 7), (1, 8)])
PLAIN_DOOR = ["worker-0", b"door", ["ipc:///a", "tcp://*:1"], [[0, 7], [1, 8]]]
DOOR_HEX = "94a8776f726b65722d30c404646f6f7292a86970633a2f2f2f61a97463703a2f2f2a3a319292000792" + "0108"

ACT = Act(5, "shop", "0a1b2c3d", "10.0.0.1", "queue.create", "orders", "max_attempts", "ok", 2)
PLAIN_ACT = [5, "shop", "0a1b2c3d", "10.0.0.1", "queue.create", "orders", "max_attempts", "ok", 2]

BODIES = [
    Body(
        Hello([1], "py 0.1", SESSION, True, "fila_x"),
        [[1], "py 0.1", SESSION, True, "fila_x"],
        "959101a6707920302e31c420" + SESSION.hex() + "c3a666696c615f78",
    ),
    Body(GetPlacement(), [], "90"),
    Body(Placement([DOOR]), [[PLAIN_DOOR]], "9191" + DOOR_HEX),
    Body(
        Welcome(1, "0.1.0", 4, 15_000, 16_777_216, SESSION, [DOOR]),
        [1, "0.1.0", 4, 15_000, 16_777_216, SESSION, [PLAIN_DOOR]],
        "9701a5302e312e3004cd3a98ce01000000c420" + SESSION.hex() + "91" + DOOR_HEX,
    ),
    Body(
        CreateQueue(
            QueueOptions(
                30_000, 5, "x=1", "y=2", "discard", "at_most_once", 1, 60_000, 3_600_000, 20, 65_536, 100, 4, "message"
            )
        ),
        [[30_000, 5, "x=1", "y=2", "discard", "at_most_once", 1, 60_000, 3_600_000, 20, 65_536, 100, 4, "message"]],
        "919ecd753005a3783d31a3793d32a764697363617264ac61745f6d6f73745f6f6e636501cdea60ce0036ee8014ce000100006404a76d657373616765",
    ),
    Body(CreateQueue(QueueOptions()), [[None] * 14], "919ec0c0c0c0c0c0c0c0c0c0c0c0c0c0"),
    Body(
        UpdateQueue(QueueOptions(max_attempts=3), ["max_attempts", "on_failure"]),
        [[None, 3, *[None] * 12], ["max_attempts", "on_failure"]],
        "929ec003c0c0c0c0c0c0c0c0c0c0c0c092ac6d61785f617474656d707473aa6f6e5f6661696c757265",
    ),
    Body(DeleteQueue(True), [True], "91c3"),
    Body(
        CreatePartitioned("orders", QueueOptions(partitions=0), "shop", True),
        ["orders", [*[None] * 12, 0, None], "shop", True],
        "94a66f72646572739ec0c0c0c0c0c0c0c0c0c0c0c000c0a473686f70c3",
    ),
    Body(CreateByTemplate("orders", "shop"), ["orders", "shop"], "92a66f7264657273a473686f70"),
    Body(
        UpdatePartitioned("orders", QueueOptions(max_attempts=3), ["max_attempts"], "shop"),
        ["orders", [None, 3, *[None] * 12], ["max_attempts"], "shop"],
        "94a66f72646572739ec003c0c0c0c0c0c0c0c0c0c0c0c091ac6d61785f617474656d707473a473686f70",
    ),
    Body(DeletePartitioned("orders", "shop"), ["orders", "shop"], "92a66f7264657273a473686f70"),
    Body(PurgeQueue("acme"), ["acme"], "91a461636d65"),
    Body(Purged(1_000, 7), [1_000, 7], "92cd03e807"),
    Body(Pause(True, "acme"), [True, "acme"], "92c3a461636d65"),
    Body(
        Browse(100, (0x0192_CC09_1400_7003, 2**63 + 5), "acme", "delayed"),
        [100, [0x0192_CC09_1400_7003, 2**63 + 5], "acme", "delayed"],
        "946492cf0192cc0914007003cf8000000000000005a461636d65a764656c61796564",
    ),
    Body(
        Browsed([VIEW], True),
        [[["leased", "acme", 2, ["api"], 0, 5, 9, "0102", b"\1"]], True],
        "929199a66c6561736564a461636d650291a3617069000509a430313032c40101c3",
    ),
    Body(
        Cancel(0x0192_CC09_1400_7003, 2**63 + 5), [0x0192_CC09_1400_7003, 2**63 + 5], "92cf0192cc0914007003cf8000000000000005"
    ),
    Body(Cancelled(False), [False], "91c2"),
    Body(
        Explain((0x0192_CC09_1400_7003, 2**63 + 5)),
        [[0x0192_CC09_1400_7003, 2**63 + 5], None],
        "9292cf0192cc0914007003cf8000000000000005c0",
    ),
    Body(Explain(None, "acme"), [None, "acme"], "92c0a461636d65"),
    Body(
        Explained("pending", [Reason("throttled", "soon", 9, {"tokens": 0.5})], 4, 1_000),
        ["pending", [["throttled", "soon", 9, {"tokens": 0.5}]], 4, 1_000],
        "94a770656e64696e679194a97468726f74746c6564a4736f6f6e0981a6746f6b656e73cb3fe000000000000004cd03e8",
    ),
    Body(GetQueueStats(17), [17], "9111"),
    Body(
        QueueStats(
            ORDERS, 1500, 1000, 10, 7, 4, 1, 1, 1, [ACME], [ThrottleStats("api", 10.5, 20.0, -1.0, 5, 3, 40)], 41, 50, MOVE
        ),
        [
            ["orders", 3, 2, 1, 1, False, False, 3],
            1500,
            1000,
            10,
            7,
            4,
            1,
            1,
            1,
            [["acme", 2, 3, 2, 1, 1999.0, 7, False]],
            [["api", 10.5, 20.0, -1.0, 5, 3, 40, None, None]],
            41,
            50,
            PLAIN_MOVE,
        ],
        (
            "9e98a66f726465727303020101c2c203cd05dccd03e80a07040101019198a461636d6502030201cb409f3c000000000007c29199a36170"
            "69cb4025000000000000cb4034000000000000cbbff0000000000000050328c0c029329702030991009101919601040506c3910708"
        ),
    ),
    Body(DescribeQueue(), [], "90"),
    Body(
        QueueDescription(
            ORDERS,
            QueueOptions(max_attempts=3),
            1_730_000_000_000,
            4096,
            False,
            [ConsumerView("0102", "push", 100, 98, 2, 1_730_000_000_500, 1_730_000_030_000)],
            7,
            HookState(4, 2, 1, 2, 3, 1_730_000_010_000, "boom"),
        ),
        [
            ["orders", 3, 2, 1, 1, False, False, 3],
            [None, 3, *[None] * 12],
            1_730_000_000_000,
            4096,
            False,
            [["0102", "push", 100, 98, 2, 1_730_000_000_500, 1_730_000_030_000]],
            7,
            [4, 2, 1, 2, 3, 1_730_000_010_000, "boom"],
        ],
        (
            "9898a66f726465727303020101c2c2039ec003c0c0c0c0c0c0c0c0c0c0c0c0cf00000192cc091400cd1000c29197a430313032a47075"
            "7368646202cf00000192cc0915f4cf00000192cc09893007970402010203cf00000192cc093b10a4626f6f6d"
        ),
    ),
    Body(
        ListQueues("or", True, "orders", ["o*"]), ["or", True, "orders", ["o*"], False], "95a26f72c3a66f726465727391a26f2ac2"
    ),
    Body(
        CreateKey("shop", ["produce:orders*"], 1_730_000_000_000),
        ["shop", ["produce:orders*"], 1_730_000_000_000],
        "93a473686f7091af70726f647563653a6f72646572732acf00000192cc091400",
    ),
    Body(
        KeyMade("fila_x", KeyView("shop", ["admin:*"], 1, 2, 3)),
        ["fila_x", ["shop", ["admin:*"], 1, 2, 3]],
        "92a666696c615f7895a473686f7091a761646d696e3a2a010203",
    ),
    Body(ListKeys("shop"), ["shop", ""], "92a473686f70a0"),
    Body(KeyList([KeyView("shop", [], 1, 0, 0)], True), [[["shop", [], 1, 0, 0]], True], "929195a473686f7090010000c3"),
    Body(GetOwnKey(), [], "90"),
    Body(OwnKey(KeyView("shop", [], 1, 0, 0)), [["shop", [], 1, 0, 0]], "9195a473686f7090010000"),
    Body(RevokeKey("shop"), ["shop"], "91a473686f70"),
    Body(GrantKey("shop", ["consume:a"]), ["shop", ["consume:a"]], "92a473686f7091a9636f6e73756d653a61"),
    Body(MoveShard(3, "worker-1"), [3, "worker-1"], "9203a8776f726b65722d31"),
    Body(DrainWorker("worker-1", undo=True), ["worker-1", True], "92a8776f726b65722d31c3"),
    Body(PrepareShard(3), [3], "9103"),
    Body(ReleaseShard(3, "worker-1"), [3, "worker-1"], "9203a8776f726b65722d31"),
    Body(AdoptShards(), [], "90"),
    Body(PutDraining(True), [True], "91c3"),
    Body(
        PutKeys([ApiKey("shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3)], 8, [], 4),
        [[["shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3]], 8, [], 4],
        "949197a473686f70a6736861323536c402010291a761646d696e3a2a010203089004",
    ),
    Body(
        StoreKeys(8, [ApiKey("shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3)]),
        [8, [["shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3]]],
        "92089197a473686f70a6736861323536c402010291a761646d696e3a2a010203",
    ),
    Body(FetchKeys(), [], "90"),
    Body(
        StoredKeys(8, [ApiKey("shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3)]),
        [8, [["shop", "sha256", b"\1\2", ["admin:*"], 1, 2, 3]]],
        "92089197a473686f70a6736861323536c402010291a761646d696e3a2a010203",
    ),
    Body(
        QueueList([QueueInfo("orders.dlq", 0, 0, 0, 0, False, True, 3)], True, [3]),
        [[["orders.dlq", 0, 0, 0, 0, False, True, 3]], True, [3]],
        "939198aa6f72646572732e646c7100000000c2c303c39103",
    ),
    Body(
        Enqueue(
            [b"\0\0\0\0a", b"\0\0\0\0b"],
            "acme",
            2,
            [-1, 5],
            250,
            0,
            60_000,
            [["api", "sms"], []],
            1_500,
            9_000,
            ["d1", ""],
            86_400_000,
            7,
            [3, 0],
            [True, False],
            "done#00",
        ),
        [
            [b"\0\0\0\0a", b"\0\0\0\0b"],
            "acme",
            2,
            [-1, 5],
            250,
            0,
            60_000,
            [["api", "sms"], []],
            1_500,
            9_000,
            ["d1", ""],
            86_400_000,
            7,
            [3, 0],
            [True, False],
            "done#00",
        ],
        "dc001092c4050000000061c4050000000062a461636d650292ff05ccfa00cdea609292a3617069a3736d7390cd05dccd232892"
        "a26431a0ce05265c000792030092c3c2a7646f6e65233030",
    ),
    Body(
        Enqueued(
            0x0192_CC09_1400_7003,
            2**63 + 1,
            1,
            [(1, Fault("PAYLOAD_TOO_LARGE", "big", 0, {"max": 16}))],
            [(2, 0x0192_CC09_1400_7003, 2**63)],
        ),
        [
            0x0192_CC09_1400_7003,
            2**63 + 1,
            1,
            [[1, ["PAYLOAD_TOO_LARGE", "big", 0, {"max": 16}]]],
            [[2, 0x0192_CC09_1400_7003, 2**63]],
        ],
        (
            "95cf0192cc0914007003cf80000000000000010191920194b15041594c4f41445f544f4f5f4c41524745a36269670081a36d6178109193"
            "02cf0192cc0914007003cf8000000000000000"
        ),
    ),
    Body(Receive(10, 2_000, True, 8), [10, 2_000, True, 8], "940acd07d0c308"),
    Body(
        Delivered(
            1,
            [LeaseBatch(LEASE, 1_730_000_000_000, 1_730_000_030_000, ["a", "b"], 1, [b"\1", b"\2"], [["api"]], True)],
            LEASE - 1,
            7,
            5,
        ),
        [1, [[LEASE, 1_730_000_000_000, 1_730_000_030_000, ["a", "b"], 1, [b"\1", b"\2"], [["api"]], True]], LEASE - 1, 7, 5],
        (
            "95019198cf0000000100000001cf00000192cc091400cf00000192cc09893092a161a1620192c40101c401029191a3617069c3"
            "cf00000001000000000705"
        ),
    ),
    Body(
        Subscribe(1, 100, [LEASE], LEASE - 1, [7], 8),
        [1, 100, [LEASE], LEASE - 1, [7], 8],
        "96016491cf0000000100000001cf0000000100000000910708",
    ),
    Body(Subscribed(LEASE, 3, [7]), [LEASE, 3, [7]], "93cf0000000100000001039107"),
    Body(Unsubscribe(1, [7]), [1, [7]], "92019107"),
    Body(Heartbeat(), [], "90"),
    Body(Goodbye([(7, [0])]), [[[7, [0]]]], "919192079100"),
    Body(CancelReceive(77, True), [77, True], "924dc3"),
    Body(
        Settle(Verb.ACK, [(LEASE, []), (LEASE + 1, [0, 2])]),
        [1, [[LEASE, []], [LEASE + 1, [0, 2]]], "", None, 0, []],
        "96019292cf00000001000000019092cf0000000100000002920002a0c00090",
    ),
    Body(
        Settle(Verb.RETRY, [(LEASE, [7])], "429", b"\xff", 1_500, [(LEASE, 7, 2_500)]),
        [3, [[LEASE, [7]]], "429", b"\xff", 1_500, [[LEASE, 7, 2_500]]],
        "96039192cf00000001000000019107a3343239c401ffcd05dc9193cf000000010000000107cd09c4",
    ),
    Body(
        Settled([(LEASE, 7, Fault("LEASE_EXPIRED", "too late"))]),
        [[[LEASE, 7, ["LEASE_EXPIRED", "too late", 0, {}]]]],
        "919193cf00000001000000010794ad4c454153455f45585049524544a8746f6f206c6174650080",
    ),
    Body(Extend([(LEASE, [0])], 45_000), [[[LEASE, [0]]], 45_000], "929192cf00000001000000019100cdafc8"),
    Body(Extended(1_730_000_045_000), [1_730_000_045_000, []], "92cf00000192cc09c3c890"),
    Body(Redrive(0, "acme"), [0, "acme", None], "9300a461636d65c0"),
    Body(
        Redrive(0, None, [(0x0192_CC09_1400_7003, 2**63 + 5)]),
        [0, None, [[0x0192_CC09_1400_7003, 2**63 + 5]]],
        "9300c09192cf0192cc0914007003cf8000000000000005",
    ),
    Body(Redriven(2, 1, 3), [2, 1, 3], "93020103"),
    Body(Reserve("q/7", 2, 500, 60_000, 1_000), ["q/7", 2, 500, 60_000, 1_000], "95a3712f3702cd01f4cdea60cd03e8"),
    Body(
        Reserved([(0, 500), (2, 7)], 1_730_000_060_000),
        [[[0, 500], [2, 7]], 1_730_000_060_000],
        "92929200cd01f4920207cf00000192cc09fe60",
    ),
    Body(FetchReserved("q/7", 2), ["q/7", 2], "92a3712f3702"),
    Body(RenewReservation("q/7", 60_000), ["q/7", 60_000], "92a3712f37cdea60"),
    Body(EndReservation("q/7", 5), ["q/7", 5], "92a3712f3705"),
    Body(ReservationEnded(507), [507], "91cd01fb"),
    Body(
        OpenView("v1", ["a", "b"], 50_000, 600_000), ["v1", ["a", "b"], 50_000, 600_000], "94a2763192a161a162cdc350ce000927c0"
    ),
    Body(ViewOpened([ViewedQueue("a", 70_000, ["m"])]), [[["a", 70_000, ["m"]]]], "919193a161ce0001117091a16d"),
    Body(
        BrowseView("v1", 100, ("acme", b"\1"), "a", "m", ["acme"], ["leased"]),
        ["v1", 100, ["acme", b"\1"], "a", "m", ["acme"], ["leased"]],
        "97a276316492a461636d65c40101a161a16d91a461636d6591a66c6561736564",
    ),
    Body(
        ViewBrowsed([VIEW], ("acme", b"\1")),
        [[["leased", "acme", 2, ["api"], 0, 5, 9, "0102", b"\1"]], ["acme", b"\1"]],
        "929199a66c6561736564a461636d650291a3617069000509a430313032c4010192a461636d65c40101",
    ),
    Body(GetClusterStatus(), [], "90"),
    Body(
        ClusterStatus(
            "0.1.0", 2, [WorkerStatus("worker-0", 42, "up", [0], 123_456_789, 5, [ShardOutage(1, "quarantined", "why")])]
        ),
        ["0.1.0", 2, [["worker-0", 42, "up", [0], 123_456_789, 5, [[1, "quarantined", "why"]], False]]],
        "93a5302e312e30029198a8776f726b65722d302aa275709100ce075bcd1505919301ab71756172616e74696e6564a3776879c2",
    ),
    Body(BeginBackup("20261123-1"), ["20261123-1"], "91aa32303236313132332d31"),
    Body(CutBackup("20261123-1"), ["20261123-1"], "91aa32303236313132332d31"),
    Body(KeepBackup("20261123-1", 30_000), ["20261123-1", 30_000], "92aa32303236313132332d31cd7530"),
    Body(
        BackupParts([ShardCut(3, 7, True, True, "/d/c/b/shard-0003", 4096)], ["host"]),
        [[[3, 7, True, True, "/d/c/b/shard-0003", 4096]], ["host"]],
        "9291960307c3c3b12f642f632f622f73686172642d30303033cd100091a4686f7374",
    ),
    Body(ListActs(50), [50], "9132"),
    Body(
        ActList([ACT]),
        [[PLAIN_ACT]],
        "91919905a473686f70a83061316232633364a831302e302e302e31ac71756575652e637265617465a66f7264657273ac6d61785f617474656d707473a26f6b02",
    ),
    Body(ListConnections("0a1b2c3d", 50), ["0a1b2c3d", 50], "92a8306131623263336432"),
    Body(
        ConnectionList([ConnectionView("0a1b2c3d", "shop", "10.0.0.1", "python/0.1.0", 5, 6, ["q"], 2, 3)], True),
        [[["0a1b2c3d", "shop", "10.0.0.1", "python/0.1.0", 5, 6, ["q"], 2, 3]], True],
        "929199a83061316232633364a473686f70a831302e302e302e31ac707974686f6e2f302e312e30050691a1710203c3",
    ),
    Body(CloseConnection("0a1b2c3d"), ["0a1b2c3d"], "91a83061316232633364"),
    Body(GetHosts(), [], "90"),
    Body(
        HostList([HOST_WORKER], 8, ["b/worker-0"], [3]),
        [[PLAIN_HOST_WORKER], 8, ["b/worker-0"], [3]],
        (
            "949198a161aa612f776f726b65722d30a9612e6578616d706c65929c03a56c65616473075aff00cd1000ccfa05a093920a64"
            "93010002cd04d2930203029c04a7666f6c6c6f7773083c5b1e00ff00a0c0c0c302b0697473206469736b2069732066756c6c"
            "b1726574656e74696f6e2e6d7320697320310891aa622f776f726b65722d309103"
        ),
    ),
    Body(GetMetrics(), [], "90"),
    Body(
        Metrics(
            [WorkerMetrics("worker-0", 5, 6, TIMES, [SHARD_METRICS], HOST_WORKER)],
            ClusterStatus("0.1.0", 1, [WorkerStatus("worker-0", 42, "up", [3], 7, 1, draining=True)]),
            RouterMetrics(
                1, 2, 3, 4, 5, {"OVERLOADED": 1}, {"worker-0": 2}, {"worker-0": 900}, 7, 8, {"worker-0": 9}, {"worker-0": 10}
            ),
        ),
        [
            [["worker-0", 5, 6, [[10, 100], [1, 0, 2], 1234], [PLAIN_SHARD_METRICS], PLAIN_HOST_WORKER]],
            ["0.1.0", 1, [["worker-0", 42, "up", [3], 7, 1, [], True]]],
            [1, 2, 3, 4, 5, {"OVERLOADED": 1}, {"worker-0": 2}, {"worker-0": 900}, 7, 8, {"worker-0": 9}, {"worker-0": 10}],
        ],
        (
            "939196a8776f726b65722d30050693920a6493010002cd04d2919b0391dc001598a66f726465727303020101c2c203cd05dc0a07"
            "040101010281aa4f5645524c4f4144454402050409089195a461636d65020307cb3fe00000000000000193920a6493010002cd04"
            "d295040102c393920a6493010002cd04d293920a6493010002cd04d2329702030991009101919601040506c3910708009196a361"
            "7069cb4025000000000000cb4034000000000000cbbff00000000000000607060781ad4c454153455f4558504952454401cd1000"
            "9693920a6493010002cd04d293920a6493010002cd04d2010203c2960403020105069196a36c6c6d050328090898a161aa612f77"
            "6f726b65722d30a9612e6578616d706c65929c03a56c65616473075aff00cd1000ccfa05a093920a6493010002cd04d293020302"
            "9c04a7666f6c6c6f7773083c5b1e00ff00a0c0c0c302b0697473206469736b2069732066756c6cb1726574656e74696f6e2e6d73"
            "206973203193a5302e312e30019198a8776f726b65722d302aa275709103070190c39c010203040581aa4f5645524c4f41444544"
            "0181a8776f726b65722d300281a8776f726b65722d30cd0384070881a8776f726b65722d300981a8776f726b65722d300a"
        ),
    ),
    Body(SetConfig("throttle.api", "10,20"), ["throttle.api", "10,20", ""], "93ac7468726f74746c652e617069a531302c3230a0"),
    Body(SetConfig("color", None, "shop"), ["color", None, "shop"], "93a5636f6c6f72c0a473686f70"),
    Body(
        ConfigChange(8, {"color": None, "size": "3"}, True),
        [8, {"color": None, "size": "3"}, True],
        "930882a5636f6c6f72c0a473697a65a133c3",
    ),
    Body(ListConfigHistory("color", 9, 50), ["color", 9, 50], "93a5636f6c6f720932"),
    Body(
        ConfigHistory([ConfigEdit(8, 5, "shop", "color", None, "blue")], True),
        [[[8, 5, "shop", "color", None, "blue"]], True],
        "9291960805a473686f70a5636f6c6f72c0a4626c7565c3",
    ),
    Body(UndoConfig(8, True, "shop"), [8, True, "shop"], "9308c3a473686f70"),
    Body(
        PutTemplate("tenant-*", QueueOptions(max_attempts=3), "shop"),
        ["tenant-*", [None, 3, *[None] * 12], "shop"],
        "93a874656e616e742d2a9ec003c0c0c0c0c0c0c0c0c0c0c0c0a473686f70",
    ),
    Body(GetTemplate("tenant-*"), ["tenant-*"], "91a874656e616e742d2a"),
    Body(ListTemplates("ten", "tenant-*"), ["ten", "tenant-*"], "92a374656ea874656e616e742d2a"),
    Body(DeleteTemplate("tenant-*", "shop"), ["tenant-*", "shop"], "92a874656e616e742d2aa473686f70"),
    Body(
        TemplateList([Template("tenant-*", QueueOptions(max_attempts=3))], True),
        [[["tenant-*", [None, 3, *[None] * 12]]], True],
        "929192a874656e616e742d2a9ec003c0c0c0c0c0c0c0c0c0c0c0c0c3",
    ),
    Body(MoveMessages("aside", 100, "acme"), ["aside", 100, "acme"], "93a5617369646564a461636d65"),
    Body(Moved(3, 40), [3, 40], "920328"),
    Body(GetConfig("color"), ["color"], "91a5636f6c6f72"),
    Body(ListThrottles("tenant:", "tenant:a", True), ["tenant:", "tenant:a", True], "93a774656e616e743aa874656e616e743a61c3"),
    Body(
        ThrottleList(
            [ThrottleStats("api", 10.5, 20.0, -1.0, 5, 3, 7, 0.5, 5.25)],
            "api",
            [ThrottleHolder("m1", "orders", "acme", "c1", 5)],
            [ThrottleWaiter("orders", "acme", 7)],
        ),
        [
            [["api", 10.5, 20.0, -1.0, 5, 3, 7, 0.5, 5.25]],
            "api",
            [["m1", "orders", "acme", "c1", 5]],
            [["orders", "acme", 7]],
        ],
        "949199a3617069cb4025000000000000cb4034000000000000cbbff0000000000000050307cb3fe0000000000000cb401500"
        "0000000000a36170699195a26d31a66f7264657273a461636d65a26331059193a66f7264657273a461636d6507",
    ),
    Body(ListConfig("throttle:"), ["throttle:"], "91a97468726f74746c653a"),
    Body(ConfigValues({"color": "blue"}), [{"color": "blue"}], "9181a5636f6c6f72a4626c7565"),
    Body(
        Register(
            "worker-0",
            42,
            "0.1.0",
            [(0, 7), (1, 8)],
            3,
            {"color": "blue"},
            {"api": 1_730_000_000_000},
            [ShardOutage(2, "opening", "why")],
            b"door",
            ["tcp://*:1"],
            "boot:1:2",
            True,
        ),
        [
            "worker-0",
            42,
            "0.1.0",
            [[0, 7], [1, 8]],
            3,
            {"color": "blue"},
            {"api": 1_730_000_000_000},
            [[2, "opening", "why"]],
            b"door",
            ["tcp://*:1"],
            "boot:1:2",
            True,
        ],
        "9ca8776f726b65722d302aa5302e312e30929200079201080381a5636f6c6f72a4626c756581a3617069cf00000192cc091400919302a76f70656e696e67a3776879c404646f6f7291a97463703a2f2f2a3a31a8626f6f743a313a32c3",
    ),
    Body(
        Registered(8, {"color": "red"}, {"api": 1_730_000_000_000}),
        [8, {"color": "red"}, {"api": 1_730_000_000_000}],
        "930881a5636f6c6f72a372656481a3617069cf00000192cc091400",
    ),
    Body(Registered(), [0, None, {}], "9300c080"),
    Body(
        Pulse(123_456_789, 5, 6, 7, [ACT], 8, BankLease(9, 10, 4000), 11),
        [123_456_789, 5, 6, 7, [PLAIN_ACT], 8, [9, 10, 4000], 11],
        "98ce075bcd15050607919905a473686f70a83061316232633364a831302e302e302e31ac71756575652e637265617465a66f7264657273ac6d61785f617474656d707473a26f6b020893090acd0fa00b",
    ),
    Body(Pulsed(10, 9), [10, 9], "920a09"),
    Body(Leave(), [], "90"),
    Body(PutConfig(9, {"color": None}, True, 2, True), [9, {"color": None}, True, 2, True], "950981a5636f6c6f72c0c302c3"),
    Body(ConfigTaken([0, 3]), [[0, 3]], "91920003"),
    Body(
        Tokens(
            1, 5, [TokenWant(["api", "sms"], 1_000_000, 50_000_000, 7_000_000, 2_500_000)], 4, [CostCharge(["api"], -500_000)]
        ),
        [1, 5, [[["api", "sms"], 1_000_000, 50_000_000, 7_000_000, 2_500_000]], 4, [[["api"], -500_000]]],
        "950105919592a3617069a3736d73ce000f4240ce02faf080ce006acfc0ce002625a004919291a3617069d2fff85ee0",
    ),
    Body(
        Grants(
            1, 5, [Grant(["api", "sms"], 12_000_000), Grant(["fax"], 0, 250, True)], [("api", -1, 10_000_000, 20_000_000)], 9
        ),
        [
            1,
            5,
            [[["api", "sms"], 12_000_000, 0, False, False], [["fax"], 0, 250, True, False]],
            [["api", -1, 10_000_000, 20_000_000]],
            9,
        ],
        "950105929592a3617069a3736d73ce00b71b0000c2c29591a366617800ccfac3c29194a3617069ffce00989680ce01312d0009",
    ),
    Body(Park({"api": 1_730_000_000_000}), [{"api": 1_730_000_000_000}], "9181a3617069cf00000192cc091400"),
    Body(DescribeClients([b"\1\2"]), [[b"\1\2"]], "9191c4020102"),
    Body(
        ClientsDescribed([ClientWork(b"\1\2", 5, ["q"], 2, 3)]), [[[b"\1\2", 5, ["q"], 2, 3]]], "919195c40201020591a1710203"
    ),
    Body(EndClient(b"\1\2", True), [b"\1\2", True], "92c4020102c3"),
    Body(
        TransferMessages(
            2,
            1,
            7,
            [
                Transfer("dead", "acme", 2, ["api"], False, b"\1"),
                Transfer("q", "", 0, [], False, b"", Enqueue([b"\3"])),
                Transfer("q", "acme", 1, [], True, b"\2", due_ms=9),
                Transfer("q@3", "acme", 1, [], True, b"\2", due_ms=0, forwarded=300, version=301, number=7, came_back=True),
            ],
            b"\5",
            b"\4",
        ),
        [
            2,
            1,
            7,
            [
                ["dead", "acme", 2, ["api"], False, b"\x01", None, None, 0, 0, 0, 0, False],
                [
                    "q",
                    "",
                    0,
                    [],
                    False,
                    b"",
                    [[b"\x03"], "default", 0, 0, 0, 0, 0, [], 1000, 0, "", 0, None, 0, False, ""],
                    None,
                    0,
                    0,
                    0,
                    0,
                    False,
                ],
                ["q", "acme", 1, [], True, b"\x02", None, 9, 0, 0, 0, 0, False],
                ["q@3", "acme", 1, [], True, b"\x02", None, 0, 300, 301, 7, 0, True],
            ],
            b"\x05",
            b"\x04",
        ],
        "96020107949da464656164a461636d650291a3617069c2c40101c0c000000000c29da171a00090c2c400dc001091c40103a764"
        "656661756c74000000000090cd03e800a000c000c2a0c000000000c29da171a461636d650190c3c40102c00900000000c29da3714033a461636d650190c3c40102c000cd012ccd012d0700c3c40105c40104",
    ),
    Body(
        MessagesTransferred(
            1, 2, 9, [8], b"\5", [EnqueueOutcome(9, 10, 11), EnqueueOutcome(10, fault=Fault("QUEUE_NOT_FOUND", "gone"))]
        ),
        [1, 2, 9, [8], b"\x05", [[9, 10, 11, None], [10, 0, 0, ["QUEUE_NOT_FOUND", "gone", 0, {}]]]],
        "960102099108c401059294090a0bc0940a000094af51554555455f4e4f545f464f554e44a4676f6e650080",
    ),
    Body(
        ReportMove(0, 1, "orders", 23, 3, True, False),
        [0, 1, "orders", 23, 3, True, False],
        "970001a66f726465727317" + "03c3c2",
    ),
    Body(Appoint(2, 1, 3, "dead"), [2, 1, 3, "dead"], "94020103a464656164"),
    Body(Appointed(1, 2, 3, True), [1, 2, 3, True], "94010203c3"),
    Body(MakeByTemplate(0, "q"), [0, "q"], "9200a171"),
    Body(PartitionIdle(0, "q", 1, 3), [0, "q", 1, 3], "9400a1710103"),
    Body(PartitionsClosed(0, 2, "q", 4, [1]), [0, 2, "q", 4, [1]], "950002a171049101"),
    Body(
        PutSchedule("orders", SCHEDULED, "0 3 * * *", 0, "Europe/Lisbon", "all", 500),
        [
            "orders",
            [[b"\x00\x00\x00\x00x"], "acme", 0, 0, 0, 0, 0, [], 1000, 0, "", 0, None, 0, False, ""],
            "0 3 * * *",
            0,
            "Europe/Lisbon",
            "all",
            500,
        ],
        "97a66f7264657273dc001091c4050000000078a461636d65000000000090cd03e800a000c000c2a0a9302033202a202a202a00"
        "ad4575726f70652f4c6973626f6ea3616c6ccd01f4",
    ),
    Body(GetSchedule(), [], "90"),
    Body(
        ScheduleFound(SCHEDULE),
        [
            [
                "nightly",
                "orders",
                "0 3 * * *",
                0,
                "Europe/Lisbon",
                "once",
                500,
                1,
                3,
                2,
                4,
                5,
                6,
                7,
                8,
                9,
                10,
                11,
                12,
                ["OVERLOADED", "full", 0, {}],
                [[b"\x00\x00\x00\x00x"], "acme", 0, 0, 0, 0, 0, [], 1000, 0, "", 0, None, 0, False, ""],
            ]
        ],
        "91dc0015a76e696768746c79a66f7264657273a9302033202a202a202a00ad4575726f70652f4c6973626f6ea46f6e6365cd01"
        "f40103020405060708090a0b0c94aa4f5645524c4f41444544a466756c6c0080dc001091c4050000000078a461636d65000000"
        "000090cd03e800a000c000c2a0",
    ),
    Body(ListSchedules("n", "m", ["n*"]), ["n", "m", ["n*"]], "93a16ea16d91a26e2a"),
    Body(
        ScheduleList([SCHEDULE], True),
        [
            [
                [
                    "nightly",
                    "orders",
                    "0 3 * * *",
                    0,
                    "Europe/Lisbon",
                    "once",
                    500,
                    1,
                    3,
                    2,
                    4,
                    5,
                    6,
                    7,
                    8,
                    9,
                    10,
                    11,
                    12,
                    ["OVERLOADED", "full", 0, {}],
                    [[b"\x00\x00\x00\x00x"], "acme", 0, 0, 0, 0, 0, [], 1000, 0, "", 0, None, 0, False, ""],
                ]
            ],
            True,
        ],
        "9291dc0015a76e696768746c79a66f7264657273a9302033202a202a202a00ad4575726f70652f4c6973626f6ea46f6e6365cd"
        "01f40103020405060708090a0b0c94aa4f5645524c4f41444544a466756c6c0080dc001091c4050000000078a461636d650000"
        "00000090cd03e800a000c000c2a0c3",
    ),
    Body(DeleteSchedule(), [], "90"),
    Body(ScheduleDeleted(False), [False], "91c2"),
    Body(
        OpenBatch(b"\1", Enqueue([b"\0\0\0\0a"]), "import"),
        [b"\x01", [[b"\x00\x00\x00\x00a"], "default", 0, 0, 0, 0, 0, [], 1000, 0, "", 0, None, 0, False, ""], "import"],
        "93c40101dc001091c4050000000061a764656661756c74000000000090cd03e800a000c000c2a0a6696d706f7274",
    ),
    Body(
        BatchOpened(86_400_000),
        [86400000],
        "91ce05265c00",
    ),
    Body(
        SealBatch(b"\1"),
        [b"\x01"],
        "91c40101",
    ),
    Body(
        AbandonBatch(b"\1"),
        [b"\x01"],
        "91c40101",
    ),
    Body(
        JoinBatch(2, 1, 3, "done", b"\1", "orders"),
        [2, 1, 3, "done", b"\x01", "orders"],
        "96020103a4646f6e65c40101a66f7264657273",
    ),
    Body(
        BatchJoined(1, 2, 3, "done", b"\1", "orders", 0, Fault("INVALID_ARGUMENT", "over")),
        [1, 2, 3, "done", b"\x01", "orders", 0, ["INVALID_ARGUMENT", "over", 0, {}]],
        "98010203a4646f6e65c40101a66f72646572730094b0494e56414c49445f415247554d454e54a46f7665720080",
    ),
    Body(
        SealParts(1, 2, [("done", b"\1", "orders")]),
        [1, 2, [["done", b"\x01", "orders"]]],
        "9301029193a4646f6e65c40101a66f7264657273",
    ),
    Body(
        ReportParts(2, 1, True, [PartReport("done", b"\1", "orders", 9, 5, 3, 1)]),
        [2, 1, True, [["done", b"\x01", "orders", 9, 5, 3, 1]]],
        "940201c39197a4646f6e65c40101a66f726465727309050301",
    ),
    Body(
        ForgetParts(1, 2, [("done", b"\1", "orders")]),
        [1, 2, [["done", b"\x01", "orders"]]],
        "9301029193a4646f6e65c40101a66f7264657273",
    ),
    Body(
        ReportPlaces(
            0, 2, 9, [8], [PlaceAccount("api", 7, 3, 1)], [PlaceWant(["api", "acme"], 2, 5)], [PlaceOpening("api", 6)]
        ),
        [0, 2, 9, [8], [["api", 7, 3, 1, False, 0]], [[["api", "acme"], 2, 5]], [["api", 6, 0]]],
        "9700020991089196a3617069070301c200919392a3617069a461636d6502059193a36170690600",
    ),
    Body(
        GrantPlaces(
            2, 0, 9, [8], [PlaceAccount("api", 7, 3, 1, True, 4)], [["api"]], [["b"]], [PlaceOpening("acme", 6, 12)], True
        ),
        [2, 0, 9, [8], [["api", 7, 3, 1, True, 4]], [["api"]], [["b"]], [["acme", 6, 12]], True],
        "9902000991089196a3617069070301c3049191a36170699191a1629193a461636d65060cc3",
    ),
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
    "cost_milli": 2_500,
    "expires_ms": 1_730_000_002_000,
    "batch": bytes(range(16)),
}
EXTENDED_RECORD = Record(1, 0, *ID, Extension(**EXTENSION), ENVELOPE)
EXTENDED_RECORD_HEX = (
    "0117" "00000001" "00000000" "0192cc0914007003" "8000000000000005"
    "0000009b"
    "89" "a86c656173655f6d73" "cdea60" "a56572726f72" "a4626f6f6d" "a86d65746164617461" "c4020102"
    "a6726561736f6e" "a66661696c6564" "ac736f757263655f7175657565" "a66f7264657273"
    "b0646561645f6c657474657265645f6d73" "cf00000192cc0917e8"
    "aa636f73745f6d696c6c69" "cd09c4" "aa657870697265735f6d73" "cf00000192cc091bd0"
    "a56261746368" "c410000102030405060708090a0b0c0d0e0f"
    "00000007" "81a16ba376c3a9" "6869"
)  # fmt: skip
