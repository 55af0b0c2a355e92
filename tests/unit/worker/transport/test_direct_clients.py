"""Which client is on which connection, what is taken in, and the way of each answer: sans I/O, on a virtual clock."""

from contextlib import suppress

import pytest

from fila_admission.in_flight import CALL_MS_MAX, TRUST_MS
from fila_admission.keys import ALGORITHM, KeyRing, digest_of
from fila_proto_zmq.commands import (
    DELIVERY,
    PLATE,
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
    Plate,
    Pulse,
    PurgeQueue,
    PutKeys,
    QueueOptions,
    Receive,
    Redrive,
    SetConfig,
    Subscribe,
    Welcome,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidFrameError,
    OverloadedError,
    QueueNotFoundError,
    ShardUnavailableError,
    StorageError,
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
from tests.unit.worker.transport.socket_peers import DOOR, OTHER, QUEUE, SECRET, Got, Porch, enqueue


@pytest.fixture
def porch() -> Porch:
    porch = Porch()
    porch.create()
    return porch


def break_shard(porch: Porch, index: int = 0) -> None:
    """Make a shard fail in its next turn."""

    def turn(now_ms: int) -> None:
        raise StorageError("the disk refuses")

    porch.host.shards[index].turn = turn  # type: ignore[method-assign, assignment]


# --- greetings ----------------------------------------------------------------------------------------------------------


def test_a_connection_begins_with_the_plate_and_a_greeting(porch: Porch) -> None:
    connection = porch.connect(None)
    assert porch.got(connection) == [Got(PLATE, 0, Plate(DOOR))]
    request = porch.say(connection, Hello([7, 1], "test", SECRET))
    ((opcode, answered, welcome),) = porch.got(connection)
    assert (opcode, answered) == (Hello.opcode, request)
    assert isinstance(welcome, Welcome)
    assert (welcome.version, welcome.shards, welcome.consumer_timeout_ms, welcome.max_payload_bytes) == (
        1,
        4,
        15_000,
        1 << 24,
    )
    assert (welcome.session, welcome.doors) == (b"", None)
    assert porch.clients.clients == 1


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
    porch: Porch, command: Command, error: type[FilaError], *, greeted: bool
) -> None:
    if greeted and not isinstance(command, Hello):
        return
    connection = porch.connect(SECRET if greeted else None)
    porch.got(connection)
    request = porch.say(connection, command)
    ((_, answered, content),) = porch.got(connection)
    assert (answered, type(content)) == (request, error)
    assert not connection.open
    assert porch.clients.take_to_close() == [connection]
    assert (porch.clients.clients, porch.clients.connections) == (0, {})


def test_many_greetings_on_one_connection_are_one_client(porch: Porch) -> None:
    """A client that invents sessions leaves nothing behind."""
    connection = porch.connect(None)
    for number in range(1000):
        porch.say(connection, Hello([1], "test", number.to_bytes(32, "big")))
    assert porch.clients.clients == 1
    porch.clients.closed(connection)
    assert porch.clients.clients == 0
    assert not porch.clients.busy


def test_a_connection_that_greets_for_another_session_gets_nothing_of_the_first(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, Subscribe(1, 10), QUEUE)
    porch.turn()
    porch.say(connection, Hello([1], "test", OTHER))
    porch.got(connection)
    maker = porch.connect(bytes([2]) * 32)
    assert isinstance(porch.ask(maker, enqueue()), Enqueued)
    assert porch.got(connection) == []


def test_a_second_connection_of_a_client_ends_the_first(porch: Porch) -> None:
    first = porch.connect()
    second = porch.connect()
    assert porch.clients.take_to_close() == [first]
    assert not first.open
    assert second.open
    assert isinstance(porch.ask(second, enqueue()), Enqueued)


def test_a_greeting_may_be_repeated_as_a_probe(porch: Porch) -> None:
    connection = porch.connect()
    assert isinstance(porch.ask(connection, Hello([1], "", SECRET), ""), Welcome)
    assert isinstance(porch.ask(connection, enqueue()), Enqueued)


# --- what is taken in ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [GetPlacement(), ListQueues(""), GetClusterStatus(), GetMetrics(), SetConfig("a", "b"), GetConfig("a"), ListConfig("")],
)
def test_what_concerns_all_shards_is_for_the_router(porch: Porch, command: Command) -> None:
    assert isinstance(porch.ask(porch.connect(), command, ""), InvalidFrameError)


@pytest.mark.parametrize("command", [Pulse(1, 1), Grants(0, 1, 1, {})])
def test_what_passes_between_processes_is_refused(porch: Porch, command: Command) -> None:
    assert isinstance(porch.ask(porch.connect(), command), InvalidFrameError)


@pytest.mark.parametrize(
    "header",
    [b"X" * 18, pack_header(20, 1, REPLY), pack_header(20, 1, version=2), pack_header(255, 1)],
)  # fmt: skip
def test_a_header_that_is_none_is_refused(porch: Porch, header: bytes) -> None:
    connection = porch.connect()
    porch.clients.arrived(connection, header, QUEUE.encode(), b"\x90", porch.now_ms)
    ((_, _, content),) = porch.got(connection)
    assert isinstance(content, InvalidFrameError)
    assert connection.open


def test_names_and_bodies_that_are_none_are_refused(porch: Porch) -> None:
    connection = porch.connect()
    header = porch.frame(enqueue(), QUEUE)[0]
    for key, body, error in (
        (b"\xff\xfe", b"\x90", InvalidFrameError),
        (b"", b"\x90", InvalidArgumentError),
        (b"a b", b"\x90", InvalidArgumentError),
        (QUEUE.encode(), b"", InvalidFrameError),
        (QUEUE.encode(), b"\xc1", InvalidFrameError),
    ):
        porch.clients.arrived(connection, header, key, body, porch.now_ms)
        porch.turn()
        ((_, _, content),) = porch.got(connection)
        assert isinstance(content, error), content


def test_errors_of_the_core_are_those_of_the_other_way(porch: Porch) -> None:
    assert isinstance(porch.ask(porch.connect(), GetQueueStats(), NAMES[2]), QueueNotFoundError)


def test_a_shard_that_is_not_here_is_refused_before_any_work(porch: Porch) -> None:
    refusal = porch.ask(porch.connect(), enqueue(), NAMES[1])
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details["refused"] is True


@pytest.mark.parametrize("off", [-1, 1, 1 << 31])
def test_another_epoch_is_refused_and_the_client_is_to_ask_for_the_placement(porch: Porch, off: int) -> None:
    connection = porch.connect()
    epoch = (epoch_tag(porch.host.shards[0].epoch) + off) & 0xFFFF_FFFF
    refusal = porch.ask(connection, enqueue(), epoch=epoch)
    assert isinstance(refusal, ShardUnavailableError)
    assert (refusal.details["refused"], refusal.details["moved"]) == (True, True)
    stats = porch.ask(connection, GetQueueStats())
    assert not isinstance(stats, FilaError)


# --- answers ------------------------------------------------------------------------------------------------------------


def test_a_request_that_is_repeated_on_its_connection_is_done_once(porch: Porch) -> None:
    connection = porch.connect()
    for _ in range(3):
        porch.say(connection, Receive(1, 60_000), QUEUE, request=7)
    porch.turn()
    assert porch.got(connection) == []
    maker = porch.connect(OTHER)
    porch.say(maker, enqueue(3), QUEUE)
    porch.turn()
    porch.turn()
    ((_, answered, content),) = porch.got(connection)
    assert answered == 7
    assert isinstance(content, Delivered)
    assert [len(batch.records) for batch in content.batches] == [1]


def test_a_request_that_is_repeated_on_the_next_connection_is_answered_there_once(porch: Porch) -> None:
    first = porch.connect()
    porch.say(first, Receive(1, 60_000), QUEUE, request=7)
    porch.turn()
    porch.clients.closed(first)
    second = porch.connect()
    porch.say(second, Receive(1, 60_000), QUEUE, request=7)
    porch.turn()
    maker = porch.connect(OTHER)
    porch.say(maker, enqueue(), QUEUE)
    porch.turn()
    porch.turn()
    answers = [got for got in porch.got(second) if got.request == 7]
    assert len(answers) == 1
    assert isinstance(answers[0].content, Delivered)
    assert len(answers[0].content.batches) == 1


def test_a_request_that_is_repeated_through_the_router_is_answered_there(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, Receive(1, 60_000), QUEUE, request=7)
    porch.turn()
    porch.say_by_router(SECRET, Receive(1, 60_000), QUEUE, 7)
    maker = porch.connect(OTHER)
    porch.say(maker, enqueue(), QUEUE)
    routed = [*porch.turn(), *porch.turn()]
    assert [(got.opcode, got.request) for got in routed] == [(Receive.opcode, 7)]
    assert porch.got(connection) == []


def test_a_request_whose_connection_is_gone_is_answered_on_the_way_on_which_it_comes_again(porch: Porch) -> None:
    """The client has lost its connection, and asks again through the router before it comes back."""
    connection = porch.connect()
    porch.say(connection, Receive(1, 60_000), QUEUE, request=7)
    porch.turn()
    porch.clients.closed(connection)
    porch.say_by_router(SECRET, Receive(1, 60_000), QUEUE, 7)
    porch.say_by_router(OTHER, enqueue(), QUEUE, 1)
    routed = [*porch.turn(), *porch.turn()]
    assert (Receive.opcode, 7) in [(got.opcode, got.request) for got in routed]


def test_an_answer_whose_connection_is_gone_is_dropped(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, enqueue(), QUEUE)
    porch.clients.closed(connection)
    assert porch.turn() == []
    assert not porch.clients.busy


def test_answers_of_the_router_s_requests_go_through_the_router(porch: Porch) -> None:
    connection = porch.connect()
    porch.say_by_router(SECRET, enqueue(), QUEUE, 9)
    assert [(got.opcode, got.request) for got in porch.turn()] == [(enqueue().opcode, 9)]
    assert porch.got(connection) == []


# --- pushes -------------------------------------------------------------------------------------------------------------


def pushes(frames: list[Got]) -> int:
    return sum(got.opcode == DELIVERY for got in frames)


def test_pushes_follow_the_last_subscribe_of_their_shard(porch: Porch) -> None:
    porch.create(NAMES[2])
    connection, maker = porch.connect(), porch.connect(OTHER)

    def pushed(queue: str) -> tuple[int, int]:
        """How many pushes come directly, and through the router."""
        porch.say(maker, enqueue(), queue)
        routed = pushes([*porch.turn(), *porch.turn()])
        return pushes(porch.got(connection)), routed

    porch.say(connection, Subscribe(1, 10), QUEUE)
    porch.say_by_router(SECRET, Subscribe(2, 10), NAMES[2], 50)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(1, 0), (0, 1)]
    porch.say_by_router(SECRET, Subscribe(1, 10), QUEUE, 51)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 1)]
    porch.say(connection, Subscribe(2, 10), NAMES[2])
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (1, 0)]
    porch.clients.closed(connection)
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 1)]
    connection = porch.connect()
    assert [pushed(QUEUE), pushed(NAMES[2])] == [(0, 1), (0, 1)], "a new connection gets pushes after a Subscribe"


def test_a_subscribe_with_a_name_that_is_none_changes_no_way(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, Subscribe(1, 10), QUEUE)
    header = porch.frame(Subscribe(1, 10), QUEUE)[0]
    for key in (b"", b"\xff", b"a b", NAMES[1].encode()):
        porch.clients.came_by_router([client_of(SECRET), header, key, b""])
    assert connection.pushing == {0}


# --- bounds -------------------------------------------------------------------------------------------------------------


def refused_after(porch: Porch, command: Command, count: int) -> FilaError:
    """Ask the same so often without a turn; the only answer is the last one's."""
    connection = porch.connect()
    for _ in range(count):
        porch.say(connection, command, QUEUE)
        assert not connection.outgoing
    porch.say(connection, command, QUEUE)
    ((_, _, refusal),) = porch.got(connection)
    assert isinstance(refusal, FilaError)
    return refusal


@pytest.mark.parametrize(
    ("limits", "command", "count"),
    [
        (ClientSocketLimits(calls_max=4), enqueue(), 2),
        (ClientSocketLimits(relieving_calls_max=4), Heartbeat(), 2),
        (ClientSocketLimits(waits_max=4), Receive(1, 60_000), 2),
        (ClientSocketLimits(client_waits_max=3), Receive(1, 60_000), 3),
        (ClientSocketLimits(client_pages_max=2), Browse(1), 2),
        (ClientSocketLimits(in_flight_bytes_max=1200), enqueue(), 4),
    ],
    ids=["calls", "relief", "waits", "waits of a client", "pages of a client", "bytes"],
)
def test_each_room_is_bounded(limits: ClientSocketLimits, command: Command, count: int) -> None:
    porch = Porch(limits)
    porch.create()
    refusal = refused_after(porch, command, count)
    assert isinstance(refusal, OverloadedError)
    assert refusal.details["refused"] is True
    assert refusal.retry_after is not None


def test_a_full_room_has_room_for_another_client_and_after_the_turn() -> None:
    porch = Porch(ClientSocketLimits(calls_max=4))
    porch.create()
    refused_after(porch, enqueue(), 2)
    assert isinstance(porch.ask(porch.connect(OTHER), enqueue()), Enqueued)
    assert isinstance(porch.ask(porch.connect(), enqueue()), Enqueued)


def test_settling_is_taken_in_however_full_the_rest_is() -> None:
    porch = Porch(ClientSocketLimits(calls_max=4))
    porch.create()
    connection = porch.connect()
    for _ in range(3):
        porch.say(connection, enqueue(), QUEUE)
    porch.got(connection)
    porch.say(connection, Heartbeat(), QUEUE)
    porch.turn()
    assert Done() in [got.content for got in porch.got(connection)]


def test_a_request_that_is_never_answered_gives_its_place_back(porch: Porch) -> None:
    connection = porch.connect()
    porch.clients._in_flight.open(connection.client, pack_header(20, 7), b"q", 0, b"", connection.name, porch.now_ms)
    porch.advance(CALL_MS_MAX - SWEEP_MS)
    assert porch.clients._in_flight.at_work
    porch.advance(2 * SWEEP_MS)
    assert not porch.clients._in_flight.at_work


def test_a_leaving_client_s_requests_end_with_their_answers(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, Goodbye(), QUEUE)
    porch.turn()
    assert [got.opcode for got in porch.got(connection)] == [Goodbye.opcode]
    porch.clients.closed(connection)
    assert not porch.clients.busy


# --- failures of a shard ------------------------------------------------------------------------------------------------


def test_the_requests_of_a_failed_shard_are_answered(porch: Porch) -> None:
    porch.create(NAMES[2])
    connection, gone = porch.connect(), porch.connect(OTHER)
    waiting = porch.say(connection, Receive(1, 60_000), QUEUE)
    porch.say(gone, Receive(1, 60_000), QUEUE)
    elsewhere = porch.say(connection, Receive(1, 60_000), NAMES[2])
    porch.turn()
    porch.clients.closed(gone)
    break_shard(porch)
    working = porch.say(connection, enqueue(), QUEUE)
    porch.turn()
    answers = {got.request: got.content for got in porch.got(connection)}
    assert set(answers) == {waiting, working}
    assert elsewhere not in answers
    for error in answers.values():
        assert isinstance(error, ShardUnavailableError)
        assert "refused" not in error.details, "the work may have been done"


def test_what_was_committed_before_a_failure_is_answered_with_its_result(porch: Porch) -> None:
    connection = porch.connect()
    request = porch.say(connection, enqueue(), QUEUE)
    slot = porch.host.slots[0]
    porch.host.end_turn(slot, porch.now_ms, porch.host.held.answers)  # as before the turn of a suspect
    break_shard(porch)
    porch.turn()
    ((_, answered, content),) = porch.got(connection)
    assert (answered, type(content)) == (request, Enqueued)


def test_a_shard_that_has_failed_is_not_served_directly_until_the_router_knows_its_new_epoch(porch: Porch) -> None:
    connection = porch.connect()
    earlier = epoch_tag(porch.host.shards[0].epoch)
    break_shard(porch)
    porch.turn()
    refusal = porch.ask(connection, enqueue(), epoch=earlier)
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details.get("refused") is True
    while 0 not in porch.host.shards:
        porch.now_ms += 1000
        porch.clients.trust(porch.now_ms)
        porch.turn()
    for epoch in (earlier, epoch_tag(porch.host.shards[0].epoch)):
        refusal = porch.ask(connection, enqueue(), epoch=epoch)
        assert isinstance(refusal, ShardUnavailableError)
        assert refusal.details.get("moved") is True


# --- trust --------------------------------------------------------------------------------------------------------------


def test_trust_ends_and_never_goes_back(porch: Porch) -> None:
    now_ms = porch.now_ms
    assert porch.clients.trusted(now_ms + TRUST_MS - 1)
    assert not porch.clients.trusted(now_ms + TRUST_MS)
    porch.clients.trust(now_ms - 500)
    assert porch.clients.trusted(now_ms + TRUST_MS - 1)


# --- idle, silent, and too many -----------------------------------------------------------------------------------------


def test_a_connection_that_does_not_greet_is_closed() -> None:
    porch = Porch(ClientSocketLimits(greeting_ms=1000, idle_ms=10_000))
    silent, greeted = porch.connect(None), porch.connect()
    porch.advance(999)
    assert porch.clients.take_to_close() == []
    porch.advance(1)
    assert porch.clients.take_to_close() == [silent]
    assert greeted.open


def test_a_connection_that_is_idle_is_closed_and_one_that_is_used_is_not() -> None:
    porch = Porch(ClientSocketLimits(greeting_ms=1000, idle_ms=10_000))
    porch.create()
    idle, used = porch.connect(), porch.connect(OTHER)
    for _ in range(3):
        porch.advance(3333)
        porch.ask(used, Heartbeat())
    porch.advance(1)
    assert porch.clients.take_to_close() == [idle]
    assert used.open
    porch.advance(10_000)
    assert porch.clients.take_to_close() == [used]


def test_at_the_limit_the_idlest_makes_room_if_it_is_idle_for_long() -> None:
    porch = Porch(ClientSocketLimits(connections_max=2, spared_ms=1000))
    porch.create()
    first, second = porch.connect(), porch.connect(OTHER)
    assert porch.clients.connected(porch.now_ms) is None
    porch.advance(999)
    porch.ask(first, Heartbeat())
    assert porch.clients.connected(porch.now_ms) is None
    porch.advance(1)
    third = porch.clients.connected(porch.now_ms)
    assert third is not None
    assert porch.clients.take_to_close() == [second]
    assert first.open


def test_a_process_without_descriptors_to_spare_takes_no_connection() -> None:
    assert limits_here(0).connections_max == 0
    assert limits_here(1 << 20).connections_max == ClientSocketLimits().connections_max
    assert Porch(limits_here(0)).clients.connected(0) is None


# --- retiring -----------------------------------------------------------------------------------------------------------


def test_a_retired_door_tells_its_clients_and_answers_them(porch: Porch) -> None:
    connection, silent = porch.connect(), porch.connect(None)
    porch.got(silent)
    request = porch.say(connection, enqueue(), QUEUE)
    porch.clients.retire(porch.now_ms)
    porch.turn()
    assert [(got.opcode, got.request) for got in porch.got(connection)] == [(PLATE, 0), (enqueue().opcode, request)]
    assert porch.got(silent) == [Got(PLATE, 0, Plate(b""))]


def quiet(porch: Porch, *connections: DirectConnection) -> bool:
    for connection in connections:
        porch.got(connection)
    return porch.clients.quiet(porch.now_ms)


def test_a_retired_door_is_quiet_once_nothing_has_come_for_a_while(porch: Porch) -> None:
    connection = porch.connect()
    assert not quiet(porch, connection), "it was not retired"
    porch.say(connection, Receive(1, 60_000), QUEUE)
    porch.turn()
    porch.clients.retire(porch.now_ms)
    porch.advance(QUIET_MS - 1)
    assert not quiet(porch, connection)
    porch.ask(connection, Heartbeat())
    porch.advance(QUIET_MS - 1)
    assert not quiet(porch, connection)
    porch.advance(1)
    assert quiet(porch, connection), "a receive that waits is asked again elsewhere"


def test_a_retired_door_is_not_quiet_while_it_owes_something_or_does_not_read(porch: Porch) -> None:
    connection = porch.connect()
    porch.clients.retire(porch.now_ms)
    porch.advance(QUIET_MS)
    assert not porch.clients.quiet(porch.now_ms), "the plate was not sent"
    porch.got(connection)
    connection.unread = 1
    assert not porch.clients.quiet(porch.now_ms)
    connection.unread = 0
    assert porch.clients.quiet(porch.now_ms)
    porch.now_ms += TRUST_MS
    assert not porch.clients.quiet(porch.now_ms), "what has come is not read meanwhile"
    porch.advance(0)
    porch.say(connection, Redrive(1), QUEUE)
    porch.now_ms += QUIET_MS
    assert not porch.clients.quiet(porch.now_ms), "a request is open"


def test_an_ended_client_s_connection_is_closed_and_it_may_come_anew(porch: Porch) -> None:
    connection, client = porch.connect(), client_of(SECRET)
    porch.advance(100)
    assert porch.host.last_frame_ms(client) == porch.now_ms - 100
    porch.clients.end(b"stranger")
    porch.clients.end(client)
    assert porch.clients.take_to_close() == [connection]
    assert not connection.open
    assert porch.host.last_frame_ms(client) == 0
    assert isinstance(porch.ask(porch.connect(), enqueue()), Enqueued)


# --- administrative acts ------------------------------------------------------------------------------------------------


def acts(porch: Porch) -> list[tuple[str, str, str]]:
    """What the next pulse says; the log has the same."""
    taken = [(act.verb, act.target, act.result) for act in porch.clients.audit.take()]
    assert [(note.verb, note.target, note.result) for note in porch.host.notes if isinstance(note, AdminActed)] == taken
    porch.host.notes.clear()
    return taken


def test_acts_are_noted_with_their_results(porch: Porch) -> None:
    connection = porch.connect()
    porch.ask(connection, Pause())
    porch.ask(connection, enqueue())
    porch.ask(connection, PurgeQueue())
    porch.ask(connection, CreateQueue(QueueOptions()))
    assert acts(porch) == [
        ("queue.pause", QUEUE, "ok"),
        ("queue.purge", QUEUE, "ok"),
        ("queue.create", QUEUE, "QUEUE_EXISTS"),
    ]
    porch.ask(connection, Pause(), "no such name")
    assert acts(porch) == [("queue.pause", "no such name", "INVALID_ARGUMENT")]
    porch.say(connection, Pause(), QUEUE)
    porch.clients.closed(connection)  # its answer comes too late
    porch.turn()
    assert acts(porch) == [("queue.pause", QUEUE, "ok")]
    assert len(porch.clients.audit) == 0


def test_an_act_that_goes_on_through_the_router_is_noted_there(porch: Porch) -> None:
    connection = porch.connect()
    request = porch.say(connection, Pause(), QUEUE)
    porch.say_by_router(SECRET, Pause(), QUEUE, request)
    porch.turn()
    assert acts(porch) == []


def test_an_act_that_fails_with_its_shard(porch: Porch) -> None:
    connection = porch.connect()
    porch.say(connection, Pause(), QUEUE)
    break_shard(porch, porch.host.slots.find_direct(QUEUE).index)
    porch.turn()
    assert acts(porch) == [("queue.pause", QUEUE, "SHARD_UNAVAILABLE")]


def test_the_keys_of_the_latest_version_count_from_all_routers_that_have_it() -> None:
    host = Porch().host
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
