"""Which client is on which connection, what is taken in, and the way of each answer: sans I/O, on a virtual clock."""

from contextlib import suppress

import pytest

from fila_admission.in_flight import CALL_MS_MAX, REPEATS_MAX
from fila_admission.keys import ALGORITHM, KeyRing, digest_of
from fila_admission.limits import TRUST_MS
from fila_proto_zmq.commands import (
    DELIVERY,
    WORKER_BANNER,
    ApiKey,
    Browse,
    Command,
    CreateQueue,
    Delivered,
    Done,
    Enqueued,
    GetClusterStatus,
    GetConfig,
    GetMetrics,
    GetPlacement,
    GetQueueStats,
    Goodbye,
    Grants,
    Heartbeat,
    Hello,
    ListConfig,
    ListQueues,
    Pause,
    Pulse,
    PurgeQueue,
    PutKeys,
    QueueOptions,
    Receive,
    Redrive,
    SetConfig,
    Subscribe,
    Welcome,
    WorkerBanner,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidFrameError,
    OverloadedError,
    QueueNotFoundError,
    ShardUnavailableError,
    UnsupportedVersionError,
)
from fila_proto_zmq.events import AdminActed
from fila_proto_zmq.frames import REPLY, epoch_tag, pack_header
from fila_proto_zmq.ids import client_of
from fila_worker.transport.direct_clients import (
    QUIET_MS,
    SWEEP_MS,
    ClientSocketLimits,
    DirectClients,
    DirectConnection,
    limits_here,
)
from tests.support.shard.shard_process import NAMES
from tests.unit.worker.transport.socket_peers import (
    DOOR,
    OTHER,
    QUEUE,
    SECRET,
    Got,
    SocketPeers,
    break_shard,
    delayed,
    enqueue,
)


@pytest.fixture
def peers() -> SocketPeers:
    peers = SocketPeers()
    peers.create()
    return peers


# --- greetings ----------------------------------------------------------------------------------------------------------


def test_a_connection_begins_with_the_plate_and_a_greeting(peers: SocketPeers) -> None:
    connection = peers.connect(None)
    assert peers.got(connection) == [Got(WORKER_BANNER, 0, WorkerBanner(DOOR))]
    request = peers.say(connection, Hello([7, 1], "test", SECRET))
    ((opcode, answered, welcome),) = peers.got(connection)
    assert (opcode, answered) == (Hello.opcode, request)
    assert isinstance(welcome, Welcome)
    assert (welcome.version, welcome.shards, welcome.consumer_timeout_ms, welcome.max_payload_bytes) == (
        1,
        4,
        15_000,
        1 << 24,
    )
    assert (welcome.session, welcome.doors) == (b"", None)
    assert peers.clients.clients == 1


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (Hello([1]), InvalidFrameError),
        (Hello([1], session=SECRET[1:]), InvalidFrameError),
        (Hello([1], session=SECRET + b"x"), InvalidFrameError),
        (Hello([2, 3], session=SECRET), UnsupportedVersionError),
        (Hello([], session=SECRET), UnsupportedVersionError),
        (enqueue(), InvalidFrameError),
        (Pulse(1, 1), InvalidFrameError),
    ],
)
@pytest.mark.parametrize("greeted", [False, True])
def test_what_is_no_greeting_is_answered_and_ends_the_connection(
    peers: SocketPeers, command: Command, error: type[FilaError], *, greeted: bool
) -> None:
    if greeted and not isinstance(command, Hello):
        return
    connection = peers.connect(SECRET if greeted else None)
    peers.got(connection)
    request = peers.say(connection, command)
    ((_, answered, content),) = peers.got(connection)
    assert (answered, type(content)) == (request, error)
    assert not connection.open
    assert peers.clients.take_to_close() == [connection]
    assert (peers.clients.clients, peers.clients.connections) == (0, {})


def test_many_greetings_on_one_connection_are_one_client(peers: SocketPeers) -> None:
    """A client that invents sessions leaves nothing behind."""
    connection = peers.connect(None)
    for number in range(1000):
        peers.say(connection, Hello([1], "test", number.to_bytes(32, "big")))
    assert peers.clients.clients == 1
    peers.clients.closed(connection)
    assert peers.clients.clients == 0
    assert not peers.clients.busy


def test_a_connection_that_greets_for_another_session_gets_nothing_of_the_first(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, Subscribe(1, 10), QUEUE)
    peers.turn()
    peers.say(connection, Hello([1], "test", OTHER))
    peers.got(connection)
    maker = peers.connect(bytes([2]) * 32)
    assert isinstance(peers.ask(maker, enqueue()), Enqueued)
    assert peers.got(connection) == []


def test_a_second_connection_of_a_client_ends_the_first(peers: SocketPeers) -> None:
    first = peers.connect()
    second = peers.connect()
    assert peers.clients.take_to_close() == [first]
    assert not first.open
    assert second.open
    assert isinstance(peers.ask(second, enqueue()), Enqueued)


def test_a_greeting_may_be_repeated_as_a_probe(peers: SocketPeers) -> None:
    connection = peers.connect()
    assert isinstance(peers.ask(connection, Hello([1], "", SECRET), ""), Welcome)
    assert isinstance(peers.ask(connection, enqueue()), Enqueued)


# --- what is taken in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [GetPlacement(), ListQueues(""), GetClusterStatus(), GetMetrics(), SetConfig("a", "b"), GetConfig("a"), ListConfig("")],
)
def test_what_concerns_all_shards_is_for_the_router(peers: SocketPeers, command: Command) -> None:
    assert isinstance(peers.ask(peers.connect(), command, ""), InvalidFrameError)


@pytest.mark.parametrize("command", [Pulse(1, 1), Grants(0, 1, 1, {})])
def test_what_passes_between_processes_is_refused(peers: SocketPeers, command: Command) -> None:
    assert isinstance(peers.ask(peers.connect(), command), InvalidFrameError)


@pytest.mark.parametrize(
    "header",
    [b"X" * 18, pack_header(20, 1, REPLY), pack_header(20, 1, version=2), pack_header(255, 1)],
)  # fmt: skip
def test_a_header_that_is_none_is_refused(peers: SocketPeers, header: bytes) -> None:
    connection = peers.connect()
    peers.clients.arrived(connection, header, QUEUE.encode(), b"\x90", peers.now_ms)
    ((_, _, content),) = peers.got(connection)
    assert isinstance(content, InvalidFrameError)
    assert connection.open


def test_names_and_bodies_that_are_none_are_refused(peers: SocketPeers) -> None:
    connection = peers.connect()
    header = peers.frame(enqueue(), QUEUE)[0]
    for key, body, error in (
        (b"\xff\xfe", b"\x90", InvalidFrameError),
        (b"", b"\x90", InvalidArgumentError),
        (b"a b", b"\x90", InvalidArgumentError),
        (QUEUE.encode(), b"", InvalidFrameError),
        (QUEUE.encode(), b"\xc1", InvalidFrameError),
    ):
        peers.clients.arrived(connection, header, key, body, peers.now_ms)
        peers.turn()
        ((_, _, content),) = peers.got(connection)
        assert isinstance(content, error), content


def test_errors_of_the_core_are_those_of_the_other_way(peers: SocketPeers) -> None:
    assert isinstance(peers.ask(peers.connect(), GetQueueStats(), NAMES[2]), QueueNotFoundError)


def test_a_shard_that_is_not_here_is_refused_before_any_work(peers: SocketPeers) -> None:
    refusal = peers.ask(peers.connect(), enqueue(), NAMES[1])
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details["refused"] is True


@pytest.mark.parametrize("off", [-1, 1, 1 << 31])
def test_another_epoch_is_refused_and_the_client_is_to_ask_for_the_placement(peers: SocketPeers, off: int) -> None:
    connection = peers.connect()
    epoch = (epoch_tag(peers.host.shards[0].epoch) + off) & 0xFFFF_FFFF
    refusal = peers.ask(connection, enqueue(), epoch=epoch)
    assert isinstance(refusal, ShardUnavailableError)
    assert (refusal.details["refused"], refusal.details["moved"]) == (True, True)
    stats = peers.ask(connection, GetQueueStats())
    assert not isinstance(stats, FilaError)


# --- answers ------------------------------------------------------------------------------------------------------------


def test_a_request_that_is_repeated_on_its_connection_is_done_once(peers: SocketPeers) -> None:
    connection = peers.connect()
    for _ in range(3):
        peers.say(connection, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    assert peers.got(connection) == []
    maker = peers.connect(OTHER)
    peers.say(maker, enqueue(3), QUEUE)
    peers.turn()
    peers.turn()
    ((_, answered, content),) = peers.got(connection)
    assert answered == 7
    assert isinstance(content, Delivered)
    assert [len(batch.records) for batch in content.batches] == [1]


def test_a_request_that_is_repeated_on_the_next_connection_is_answered_there_once(peers: SocketPeers) -> None:
    first = peers.connect()
    peers.say(first, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    peers.clients.closed(first)
    second = peers.connect()
    peers.say(second, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    maker = peers.connect(OTHER)
    peers.say(maker, enqueue(), QUEUE)
    peers.turn()
    peers.turn()
    answers = [got for got in peers.got(second) if got.request == 7]
    assert len(answers) == 1
    assert isinstance(answers[0].content, Delivered)
    assert len(answers[0].content.batches) == 1


def test_a_request_that_is_repeated_through_the_router_is_answered_there(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    peers.say_by_router(SECRET, Receive(1, 60_000), QUEUE, 7)
    maker = peers.connect(OTHER)
    peers.say(maker, enqueue(), QUEUE)
    routed = [*peers.turn(), *peers.turn()]
    assert [(got.opcode, got.request) for got in routed] == [(Receive.opcode, 7)]
    assert peers.got(connection) == []


def test_a_request_whose_connection_is_gone_is_answered_on_the_way_on_which_it_comes_again(peers: SocketPeers) -> None:
    """The client has lost its connection, and asks again through the router before it comes back."""
    connection = peers.connect()
    peers.say(connection, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    peers.clients.closed(connection)
    peers.say_by_router(SECRET, Receive(1, 60_000), QUEUE, 7)
    peers.say_by_router(OTHER, enqueue(), QUEUE, 1)
    routed = [*peers.turn(), *peers.turn()]
    assert (Receive.opcode, 7) in [(got.opcode, got.request) for got in routed]


def test_nothing_is_leased_by_a_connection_that_is_gone_until_its_client_asks_again(peers: SocketPeers) -> None:
    gone, other = peers.connect(), peers.connect(OTHER)
    peers.say(gone, Subscribe(1, 10), QUEUE)
    peers.say(gone, Receive(1, 60_000), QUEUE, request=7)
    peers.turn()
    peers.clients.closed(gone)
    peers.turn()
    assert len(peers.clients._in_flight) == 0
    assert isinstance(peers.ask(other, enqueue()), Enqueued)
    received = peers.ask(other, Receive(10))
    assert isinstance(received, Delivered)
    assert [len(batch.records) for batch in received.batches] == [1]
    again = peers.connect()
    peers.say(again, Subscribe(1, 10), QUEUE)
    peers.say(other, enqueue(), QUEUE)
    peers.turn()
    peers.turn()
    assert [got.opcode for got in peers.got(again)] == [Subscribe.opcode, DELIVERY], "its heartbeat continues it"


def test_who_comes_back_before_its_connection_is_seen_to_be_gone_gets_no_early_answer(peers: SocketPeers) -> None:
    """Again and again, with a receive that still waits."""
    first = peers.connect()
    peers.say(first, Receive(1, 60_000), QUEUE, request=7)
    for _ in range(2 * REPEATS_MAX):
        connection = peers.connect()
        peers.say(connection, Receive(1, 60_000), QUEUE, request=7)
        peers.turn()
        assert peers.got(connection) == []
    maker = peers.connect(OTHER)
    peers.say(maker, enqueue(), QUEUE)
    peers.turn()
    peers.turn()
    assert [(got.opcode, got.request) for got in peers.got(connection)] == [(Receive.opcode, 7)]


def test_what_goes_through_the_router_outlives_a_connection(peers: SocketPeers) -> None:
    connection, maker = peers.connect(), peers.connect(OTHER)
    peers.say_by_router(SECRET, Subscribe(1, 1), QUEUE, 7)
    peers.say_by_router(SECRET, Receive(1, 60_000), QUEUE, 8)
    peers.turn()
    peers.clients.closed(connection)
    peers.turn()
    peers.say(maker, enqueue(), QUEUE)
    peers.say(maker, enqueue(), QUEUE)
    routed = [*peers.turn(), *peers.turn()]
    assert sorted(got.opcode for got in routed) == sorted([Receive.opcode, DELIVERY])


def test_nothing_is_pushed_through_a_router_that_does_not_reach_the_client(peers: SocketPeers) -> None:
    maker = peers.connect(OTHER)
    peers.say_by_router(SECRET, Subscribe(1, 10), QUEUE, 7)
    peers.turn()
    client = client_of(SECRET)
    peers.clients.lose(client, 1, peers.now_ms)
    peers.say(maker, enqueue(), QUEUE)
    assert [got.opcode for got in [*peers.turn(), *peers.turn()]] == [DELIVERY], "it was another router"
    peers.clients.lose(client, 0, peers.now_ms)
    peers.say(maker, enqueue(), QUEUE)
    assert [*peers.turn(), *peers.turn()] == []
    peers.say_by_router(SECRET, Subscribe(1, 10), QUEUE, 8)
    assert [got.opcode for got in [*peers.turn(), *peers.turn()]] == [Subscribe.opcode, DELIVERY]


def test_an_answer_whose_connection_is_gone_is_dropped(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, enqueue(), QUEUE)
    peers.clients.closed(connection)
    assert peers.turn() == []
    assert not peers.clients.busy


def test_answers_of_the_router_s_requests_go_through_the_router(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say_by_router(SECRET, enqueue(), QUEUE, 9)
    assert [(got.opcode, got.request) for got in peers.turn()] == [(enqueue().opcode, 9)]
    assert peers.got(connection) == []


# --- pushes -------------------------------------------------------------------------------------------------------------


def pushes(frames: list[Got]) -> int:
    return sum(got.opcode == DELIVERY for got in frames)


def test_pushes_follow_the_last_subscribe_of_their_shard(peers: SocketPeers) -> None:
    peers.create(NAMES[2])
    connection, maker = peers.connect(), peers.connect(OTHER)

    def pushed(queue: str) -> tuple[int, int]:
        """How many pushes come directly, and through the router."""
        peers.say(maker, enqueue(), queue)
        routed = pushes([*peers.turn(), *peers.turn()])
        return pushes(peers.got(connection)), routed

    peers.say(connection, Subscribe(1, 10), QUEUE)
    peers.say_by_router(SECRET, Subscribe(2, 10), NAMES[2], 1050)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(1, 0), (0, 1)]
    peers.say_by_router(SECRET, Subscribe(1, 10), QUEUE, 1051)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 1)]
    peers.say(connection, Subscribe(2, 10), NAMES[2], request=1052)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (1, 0)]
    peers.clients.closed(connection)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 0)]
    peers.say_by_router(SECRET, Subscribe(2, 10), NAMES[2], 2052)
    assert pushed(NAMES[2]) == (0, 1)
    connection = peers.connect()
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 1)], "a new connection gets pushes after a Subscribe"


def test_a_subscribe_with_a_name_that_is_none_changes_no_way(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, Subscribe(1, 10), QUEUE)
    header = peers.frame(Subscribe(1, 10), QUEUE)[0]
    for key in (b"", b"\xff", b"a b", NAMES[1].encode()):
        peers.clients.came_by_router([client_of(SECRET), header, key, b""])
    assert connection.pushing == {0}


# --- bounds -------------------------------------------------------------------------------------------------------------


def refused_after(peers: SocketPeers, command: Command, count: int) -> FilaError:
    """Ask the same so often without a turn; the only answer is the last one's."""
    connection = peers.connect()
    for _ in range(count):
        peers.say(connection, command, QUEUE)
        assert not connection.outgoing
    peers.say(connection, command, QUEUE)
    ((_, _, refusal),) = peers.got(connection)
    assert isinstance(refusal, FilaError)
    return refusal


@pytest.mark.parametrize(
    ("limits", "command", "count"),
    [
        (ClientSocketLimits(calls_max=4), delayed(), 2),
        (ClientSocketLimits(relieving_calls_max=4), Heartbeat(), 2),
        (ClientSocketLimits(waits_max=4), Receive(1, 60_000), 2),
        (ClientSocketLimits(client_waits_max=3), Receive(1, 60_000), 3),
        (ClientSocketLimits(client_pages_max=2), Browse(1), 2),
        (ClientSocketLimits(in_flight_bytes_max=1200), delayed(), 4),
    ],
    ids=["calls", "relief", "waits", "waits of a client", "pages of a client", "bytes"],
)
def test_each_room_is_bounded(limits: ClientSocketLimits, command: Command, count: int) -> None:
    peers = SocketPeers(limits)
    peers.create()
    refusal = refused_after(peers, command, count)
    assert isinstance(refusal, OverloadedError)
    assert refusal.details["refused"] is True
    assert refusal.retry_after is not None


def test_a_full_room_has_room_for_another_client_and_after_the_turn() -> None:
    peers = SocketPeers(ClientSocketLimits(calls_max=4))
    peers.create()
    refused_after(peers, delayed(), 2)
    assert isinstance(peers.ask(peers.connect(OTHER), enqueue()), Enqueued)
    assert isinstance(peers.ask(peers.connect(), enqueue()), Enqueued)


def test_settling_is_taken_in_however_full_the_rest_is() -> None:
    peers = SocketPeers(ClientSocketLimits(calls_max=4))
    peers.create()
    connection = peers.connect()
    for _ in range(3):
        peers.say(connection, enqueue(), QUEUE)
    peers.got(connection)
    peers.say(connection, Heartbeat(), QUEUE)
    peers.turn()
    assert Done() in [got.content for got in peers.got(connection)]


def test_a_request_that_is_never_answered_gives_its_place_back(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.clients._in_flight.open(connection.client, pack_header(20, 7), b"q", 0, b"", connection.name, peers.now_ms)
    peers.advance(CALL_MS_MAX - SWEEP_MS)
    assert peers.clients._in_flight.at_work
    peers.advance(2 * SWEEP_MS)
    assert not peers.clients._in_flight.at_work


def test_a_leaving_client_s_requests_end_with_their_answers(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, Goodbye(), QUEUE)
    peers.turn()
    assert [got.opcode for got in peers.got(connection)] == [Goodbye.opcode]
    peers.clients.closed(connection)
    assert not peers.clients.busy


# --- failures of a shard ------------------------------------------------------------------------------------------------


def test_the_requests_of_a_failed_shard_are_answered(peers: SocketPeers) -> None:
    peers.create(NAMES[2])
    connection, gone = peers.connect(), peers.connect(OTHER)
    waiting = peers.say(connection, Receive(1, 60_000), QUEUE)
    peers.say(gone, Receive(1, 60_000), QUEUE)
    elsewhere = peers.say(connection, Receive(1, 60_000), NAMES[2])
    peers.turn()
    peers.clients.closed(gone)
    break_shard(peers)
    working = peers.say(connection, enqueue(), QUEUE)
    peers.turn()
    answers = {got.request: got.content for got in peers.got(connection)}
    assert set(answers) == {waiting, working}
    assert elsewhere not in answers
    for error in answers.values():
        assert isinstance(error, ShardUnavailableError)
        assert "refused" not in error.details, "the work may have been done"


def test_what_was_committed_before_a_failure_is_answered_with_its_result(peers: SocketPeers) -> None:
    connection = peers.connect()
    request = peers.say(connection, enqueue(), QUEUE)
    slot = peers.host.slots[0]
    peers.host.end_turn(slot, peers.now_ms, peers.host.held.answers)  # as before the turn of a suspect
    break_shard(peers)
    peers.turn()
    ((_, answered, content),) = peers.got(connection)
    assert (answered, type(content)) == (request, Enqueued)


def test_a_shard_that_has_failed_is_not_served_directly_until_the_router_knows_its_new_epoch(peers: SocketPeers) -> None:
    connection = peers.connect()
    earlier = epoch_tag(peers.host.shards[0].epoch)
    break_shard(peers)
    peers.turn()
    refusal = peers.ask(connection, enqueue(), epoch=earlier)
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details.get("refused") is True
    while 0 not in peers.host.shards:
        peers.now_ms += 1000
        peers.clients.trust(peers.now_ms)
        peers.turn()
    for epoch in (earlier, epoch_tag(peers.host.shards[0].epoch)):
        refusal = peers.ask(connection, enqueue(), epoch=epoch)
        assert isinstance(refusal, ShardUnavailableError)
        assert refusal.details.get("moved") is True


# --- trust --------------------------------------------------------------------------------------------------------------


def test_trust_ends_and_never_goes_back(peers: SocketPeers) -> None:
    now_ms = peers.now_ms
    assert peers.clients.trusted(now_ms + TRUST_MS - 1)
    assert not peers.clients.trusted(now_ms + TRUST_MS)
    peers.clients.trust(now_ms - 500)
    assert peers.clients.trusted(now_ms + TRUST_MS - 1)


# --- idle, silent, and too many -----------------------------------------------------------------------------------------


def test_a_connection_that_does_not_greet_is_closed() -> None:
    peers = SocketPeers(ClientSocketLimits(greeting_ms=1000, idle_ms=10_000))
    silent, greeted = peers.connect(None), peers.connect()
    peers.advance(999)
    assert peers.clients.take_to_close() == []
    peers.advance(1)
    assert peers.clients.take_to_close() == [silent]
    assert greeted.open


def test_a_connection_that_is_idle_is_closed_and_one_that_is_used_is_not() -> None:
    peers = SocketPeers(ClientSocketLimits(greeting_ms=1000, idle_ms=10_000))
    peers.create()
    idle, used = peers.connect(), peers.connect(OTHER)
    for _ in range(3):
        peers.advance(3333)
        peers.ask(used, Heartbeat())
    peers.advance(1)
    assert peers.clients.take_to_close() == [idle]
    assert used.open
    peers.advance(10_000)
    assert peers.clients.take_to_close() == [used]


def test_at_the_limit_the_idlest_makes_room_if_it_is_idle_for_long() -> None:
    peers = SocketPeers(ClientSocketLimits(connections_max=2, spared_ms=1000))
    peers.create()
    first, second = peers.connect(), peers.connect(OTHER)
    assert peers.clients.connected(peers.now_ms) is None
    peers.advance(999)
    peers.ask(first, Heartbeat())
    assert peers.clients.connected(peers.now_ms) is None
    peers.advance(1)
    third = peers.clients.connected(peers.now_ms)
    assert third is not None
    assert peers.clients.take_to_close() == [second]
    assert first.open


def test_a_process_without_descriptors_to_spare_takes_no_connection() -> None:
    assert limits_here(0).connections_max == 0
    assert limits_here(1 << 20).connections_max == ClientSocketLimits().connections_max
    assert SocketPeers(limits_here(0)).clients.connected(0) is None


# --- retiring -----------------------------------------------------------------------------------------------------------


def test_a_retired_door_tells_its_clients_and_answers_them(peers: SocketPeers) -> None:
    connection, silent = peers.connect(), peers.connect(None)
    peers.got(silent)
    request = peers.say(connection, enqueue(), QUEUE)
    peers.clients.retire(peers.now_ms)
    peers.turn()
    assert [(got.opcode, got.request) for got in peers.got(connection)] == [(WORKER_BANNER, 0), (enqueue().opcode, request)]
    assert peers.got(silent) == [Got(WORKER_BANNER, 0, WorkerBanner(b""))]


def quiet(peers: SocketPeers, *connections: DirectConnection) -> bool:
    for connection in connections:
        peers.got(connection)
    return peers.clients.quiet(peers.now_ms)


def test_a_retired_door_is_quiet_once_nothing_has_come_for_a_while(peers: SocketPeers) -> None:
    connection = peers.connect()
    assert not quiet(peers, connection), "it was not retired"
    peers.say(connection, Receive(1, 60_000), QUEUE)
    peers.turn()
    peers.clients.retire(peers.now_ms)
    peers.advance(QUIET_MS - 1)
    assert not quiet(peers, connection)
    peers.ask(connection, Heartbeat())
    peers.advance(QUIET_MS - 1)
    assert not quiet(peers, connection)
    peers.advance(1)
    assert quiet(peers, connection), "a receive that waits is asked again elsewhere"


def test_a_retired_door_is_not_quiet_while_it_owes_something_or_does_not_read(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.clients.retire(peers.now_ms)
    peers.advance(QUIET_MS)
    assert not peers.clients.quiet(peers.now_ms), "the banner was not sent"
    peers.got(connection)
    connection.unread = 1
    assert not peers.clients.quiet(peers.now_ms)
    connection.unread = 0
    assert peers.clients.quiet(peers.now_ms)
    peers.now_ms += TRUST_MS
    assert not peers.clients.quiet(peers.now_ms), "what has come is not read meanwhile"
    peers.advance(0)
    peers.say(connection, Redrive(1), QUEUE)
    peers.now_ms += QUIET_MS
    assert not peers.clients.quiet(peers.now_ms), "a request is open"


def test_an_ended_client_s_connection_is_closed_and_it_may_come_anew(peers: SocketPeers) -> None:
    connection, client = peers.connect(), client_of(SECRET)
    peers.advance(100)
    assert peers.host.last_frame_ms(client) == peers.now_ms - 100
    peers.clients.end(b"stranger")
    peers.clients.end(client)
    assert peers.clients.take_to_close() == [connection]
    assert not connection.open
    assert peers.host.last_frame_ms(client) == 0
    assert isinstance(peers.ask(peers.connect(), enqueue()), Enqueued)


# --- administrative acts ------------------------------------------------------------------------------------------------


def acts(peers: SocketPeers) -> list[tuple[str, str, str]]:
    """What the next pulse says; the log has the same."""
    taken = [(act.verb, act.target, act.result) for act in peers.clients.audit.take()]
    assert [(note.verb, note.target, note.result) for note in peers.host.notes if isinstance(note, AdminActed)] == taken
    peers.host.notes.clear()
    return taken


def test_acts_are_noted_with_their_results(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.ask(connection, Pause())
    peers.ask(connection, enqueue())
    peers.ask(connection, PurgeQueue())
    peers.ask(connection, CreateQueue(QueueOptions()))
    assert acts(peers) == [
        ("queue.pause", QUEUE, "ok"),
        ("queue.purge", QUEUE, "ok"),
        ("queue.create", QUEUE, "QUEUE_EXISTS"),
    ]
    peers.ask(connection, Pause(), "no such name")
    assert acts(peers) == [("queue.pause", "no such name", "INVALID_ARGUMENT")]
    peers.say(connection, Pause(), QUEUE)
    peers.clients.closed(connection)  # its answer comes too late
    peers.turn()
    assert acts(peers) == [("queue.pause", QUEUE, "ok")]
    assert len(peers.clients.audit) == 0


def test_an_act_that_goes_on_through_the_router_is_noted_there(peers: SocketPeers) -> None:
    connection = peers.connect()
    request = peers.say(connection, Pause(), QUEUE)
    peers.say_by_router(SECRET, Pause(), QUEUE, request)
    peers.turn()
    assert acts(peers) == []


def test_an_act_that_fails_with_its_shard(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.say(connection, Pause(), QUEUE)
    break_shard(peers, peers.host.slots.find_direct(QUEUE).index)
    peers.turn()
    assert acts(peers) == [("queue.pause", QUEUE, "SHARD_UNAVAILABLE")]


def test_the_keys_of_the_latest_version_count_from_all_routers_that_have_it() -> None:
    host = SocketPeers().host
    clients = DirectClients(host, DOOR, 15_000, 1 << 24, 4, auth=True)

    def key(name: str, secret: str) -> ApiKey:
        return ApiKey(name, ALGORITHM, digest_of(secret), ["consume:*"], 0)

    def valid() -> set[str]:
        assert clients._keys is not None
        return {secret for secret in ("user", "ended", "one", "two", "three") if secret_is_valid(clients._keys, secret)}

    def secret_is_valid(ring: KeyRing, secret: str) -> bool:
        with suppress(FilaError):
            return ring.find(secret, 0) is not None
        return False

    shared = [key("u", "user"), key("e", "ended")]
    clients.put_keys(PutKeys(shared, 70, [key("internal", "one")], 4), 0)
    assert valid() == {"user", "ended", "one"}
    clients.put_keys(PutKeys(shared, 30, [key("internal", "two")], 4), 1)
    assert valid() == {"user", "ended", "one", "two"}, "each host has keys of its own"
    clients.put_keys(PutKeys(shared[:1], 20, [key("internal", "two")], 5), 1)
    assert valid() == {"user", "one", "two"}, "which keys are the latest does not depend on the random numbers"
    assert (clients.keys_version(0), clients.keys_version(1), clients.keys_version(2)) == (70, 20, 0)
    clients.put_keys(PutKeys(shared[:1], 90, [key("internal", "three")], 5), 0)
    assert valid() == {"user", "two", "three"}, "a host that was started again has others"
