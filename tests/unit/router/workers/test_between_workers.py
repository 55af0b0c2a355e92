"""What workers say to each other through the router: parked throttle keys, and frames from shard to shard."""

import pytest

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    Appoint,
    Appointed,
    BatchJoined,
    Command,
    ForgetParts,
    GrantPlaces,
    JoinBatch,
    MakeByTemplate,
    MessagesTransferred,
    Park,
    PartitionIdle,
    PartitionsClosed,
    PartReport,
    PlaceAccount,
    PlaceWant,
    Registered,
    ReportParts,
    ReportPlaces,
    SealParts,
    Transfer,
    TransferMessages,
)
from fila_proto_zmq.frames import pack_header
from fila_router.core.tokens import parks
from fila_router.core.tokens.parks import Parks
from tests.unit.router.desk import Desk


@pytest.fixture
def desk() -> Desk:
    desk = Desk(shards=3)
    for shard in range(3):
        desk.register(f"worker-{shard}", shards=(shard,))
    return desk


# --- parks ------------------------------------------------------------------------------------------------------------


def test_a_park_goes_to_all_other_workers(desk: Desk):
    desk.mention("worker-1", Park({"api": 5000}))
    assert desk.told() == [("worker-0", Park({"api": 5000})), ("worker-2", Park({"api": 5000}))]


def test_only_a_later_park_is_sent(desk: Desk):
    desk.mention("worker-1", Park({"api": 5000, "past": 0}))
    desk.told()
    desk.mention("worker-2", Park({"api": 4000, "sms": 3000}))
    assert [told for _, told in desk.told()] == [Park({"sms": 3000})] * 2
    desk.mention("worker-2", Park({"api": 5000}))
    assert desk.told() == []
    desk.mention("worker-2", Park({"api": 5001}))
    assert [told for _, told in desk.told()] == [Park({"api": 5001})] * 2


def test_a_worker_that_registers_brings_parks_and_gets_those_it_lacks(desk: Desk):
    desk.mention("worker-1", Park({"api": 5000, "sms": 3000}))
    desk.told()
    reply = desk.register("worker-2", shards=(2,), epoch=2, parks={"sms": 4000, "fax": 9000, "past": -1})
    assert reply == Registered(parks={"api": 5000})
    assert [told for _, told in desk.told()] == [Park({"sms": 4000, "fax": 9000})] * 2


def test_a_lost_worker_that_comes_back_gets_all_parks(desk: Desk):
    desk.unreachable("worker-2")
    desk.mention("worker-1", Park({"api": 5000}))
    assert [worker for worker, _ in desk.told()] == ["worker-0"]
    desk.pulse("worker-2")
    assert desk.told() == [("worker-2", Park({"api": 5000}))]


def test_a_park_that_is_over_is_forgotten(desk: Desk):
    desk.mention("worker-1", Park({"api": 5000}))
    desk.told()
    desk.now_ms = 5000
    assert desk.register("worker-2", shards=(2,)) == Registered()
    desk.mention("worker-1", Park({"api": 5000}))
    assert desk.told() == []


def test_so_many_parks_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parks, "PARKS_MAX", 2)
    board = Parks()
    board.merge({"a": 30, "b": 10}, 0)
    assert board.merge({"c": 20}, 0) == {"c": 20}
    assert board.missing_in({}, 0) == {"a": 30, "c": 20}


def test_a_park_of_an_unknown_worker_is_not_sent(desk: Desk):
    desk.mention("stranger", Park({"api": 5000}))
    assert desk.router.outgoing.to_workers == []


# --- shard to shard ---------------------------------------------------------------------------------------------------

MESSAGE = Transfer("q", "default", 1, [], False, bytes(1000))
BETWEEN = [
    TransferMessages(2, 0, 7, [MESSAGE], b"stream", b"stream"),
    MessagesTransferred(2, 0, 7, [], b"stream"),
    Appoint(2, 0, 5, "q"),
    Appointed(2, 0, 5, True),
    JoinBatch(2, 0, 5, "done", bytes(16), "q"),
    BatchJoined(2, 0, 5, "done", bytes(16), "q", 9, None),
    SealParts(2, 0, [("done", bytes(16), "q")]),
    ReportParts(2, 0, True, [PartReport("done", bytes(16), "q", 1, 1, 0, 0)]),
    ForgetParts(2, 0, [("done", bytes(16), "q")]),
    ReportPlaces(2, 0, 9, [8], [PlaceAccount("api", 7, 3, 1)], [PlaceWant(["api"], 2, 1)], []),
    GrantPlaces(2, 0, 9, [8], [PlaceAccount("api", 7, 3, 1)], [["api"]], [], []),
    MakeByTemplate(2, "q"),
    PartitionIdle(2, "q", 1, 3),
    PartitionsClosed(2, 0, "q", 4, [1]),
]


@pytest.mark.parametrize("command", BETWEEN, ids=lambda command: type(command).__name__)
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_a_frame_for_a_shard_goes_to_its_worker_as_it_is(desk: Desk, command: Command, wrap: type):
    header, body = pack_header(command.opcode, 0), wrap(encode_body(command))
    assert not desk.router.from_worker(b"worker-0", b"", header, b"", body, desk.now_ms)
    ((identity, client, sent, key, passed),) = desk.router.outgoing.to_workers
    assert (identity, client, sent, key) == (b"worker-2", b"", header, b"")
    assert passed is body


@pytest.mark.parametrize("to_shard", [-1, 3, 2**40])
def test_a_frame_for_a_shard_that_does_not_exist_is_dropped(desk: Desk, to_shard: int):
    desk.mention("worker-0", Appoint(to_shard, 0, 1, "q"))
    assert desk.router.outgoing.to_workers == []


def test_a_frame_for_a_shard_without_a_live_worker_is_dropped(desk: Desk):
    desk.unreachable("worker-2")
    desk.mention("worker-0", Appoint(2, 0, 1, "q"))
    assert desk.router.outgoing.to_workers == []


def test_a_stranger_s_frame_is_dropped(desk: Desk):
    desk.mention("stranger", Appoint(2, 0, 1, "q"))
    assert desk.router.outgoing.to_workers == []


def test_any_frame_shows_that_its_worker_lives(desk: Desk):
    desk.unreachable("worker-0")
    desk.mention("worker-0", Appoint(2, 0, 1, "q"))
    assert [frame[0] for frame in desk.router.outgoing.to_workers] == [b"worker-2"]
    assert desk.router._table.workers[b"worker-0"].routable
