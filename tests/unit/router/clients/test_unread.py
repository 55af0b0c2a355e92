"""What a client was sent and has not taken: bounded for each, and for all."""

from collections import deque

import pytest

from fila_proto_zmq.commands import Browse, Enqueue, Settle
from fila_proto_zmq.errors import OverloadedError
from fila_proto_zmq.frames import REPLY, pack_header
from fila_router.core.limits import RouterLimits
from fila_router.core.unread import FRAME_BYTES, PAUSE_MS_MAX, ClientConnection, Unread
from tests.unit.router.desk import CLIENT, QUEUE, Desk

KIB = 1024
LIMITS = RouterLimits(
    pipe_frames=10,
    unread_little=4 * KIB,
    unread_probed=16 * KIB,
    client_unread_refused=32 * KIB,
    client_unread_max=64 * KIB,
    page_bytes=8 * KIB,
    client_pages_max=8,
    unread_max=1024 * KIB,
    sessions_max=500,
)


class Pipes:
    """Connections with pipes of so many frames, as libzmq has them, and a loop that sends."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.unread = Unread(LIMITS)
        self.pipes: dict[ClientConnection, deque[int]] = {}

    def connect(self, name: bytes = b"a") -> ClientConnection:
        connection = ClientConnection(name)
        self.pipes[connection] = deque()
        return connection

    def send(self, connection: ClientConnection, size: int = 1000) -> bool:
        """Whether a frame was sent or held back; else it was dropped."""
        if not self.unread.take(connection, size, self.now_ms):
            return False
        if connection.held or not self._takes(connection, size):
            self.unread.hold(connection, [bytes(size)], self.now_ms)
        self.check()
        return True

    def _takes(self, connection: ClientConnection, size: int) -> bool:
        pipe = self.pipes[connection]
        if len(pipe) < LIMITS.pipe_frames:
            pipe.append(size)
            return True
        return False

    def read(self, connection: ClientConnection, frames: int) -> None:
        for _ in range(min(frames, len(self.pipes[connection]))):
            self.pipes[connection].popleft()

    def attend(self, span_ms: int = PAUSE_MS_MAX) -> int:
        """Let time pass, and the loop try again what is due; how often it tried."""
        self.now_ms += span_ms
        due = self.unread.due(self.now_ms)
        for connection in due:
            if self._is_full(connection):
                self.unread.full(connection, self.now_ms)
            else:
                self.unread.done(connection)
        self.check()
        return len(due)

    def _is_full(self, connection: ClientConnection) -> bool:
        while connection.held or connection.in_debt:
            if not self._takes(connection, len(connection.held[0][0]) if connection.held else 0):
                return True
            if connection.held:
                self.unread.released(connection)
            else:
                self.unread.marked(connection)
        return False

    def inside(self, connection: ClientConnection) -> int:
        """The bytes that are in this process for a connection."""
        return sum(self.pipes[connection]) + sum(len(frame[0]) for frame in connection.held)

    def check(self) -> None:
        assert self.unread.total == sum(connection.unread for connection in self.pipes)
        for connection in self.pipes:
            assert self.inside(connection) <= connection.unread
            assert (connection in self.unread.debtors) == connection.in_debt
            assert not connection.held or connection in self.unread.waiting


def test_who_reads_may_have_as_much_as_there_is():
    pipes = Pipes()
    one = pipes.connect()
    for _ in range(1000):
        assert pipes.send(one, 2000)
        pipes.read(one, 10)
        pipes.attend(1)
    assert one.unread < LIMITS.client_unread_refused


def test_who_does_not_read_is_sent_no_more_than_its_bound():
    pipes = Pipes()
    stuck = pipes.connect()
    sent = sum(pipes.send(stuck, 8000) for _ in range(100))
    assert sent == LIMITS.client_unread_max // (8000 + FRAME_BYTES)
    assert pipes.inside(stuck) <= LIMITS.client_unread_max
    for _ in range(100):
        pipes.attend()
    assert not pipes.send(stuck, 8000)
    assert not pipes.unread.may_ask(stuck)


def test_small_frames_that_are_not_read_are_bounded_too():
    pipes = Pipes()
    stuck = pipes.connect()
    assert sum(pipes.send(stuck, 0) for _ in range(2000)) == LIMITS.client_unread_max // FRAME_BYTES


def test_who_reads_at_last_gets_all_that_was_held_back_in_order():
    pipes = Pipes()
    slow = pipes.connect()
    for size in range(1000, 1030):
        assert pipes.send(slow, size)
    got: list[int] = []
    while pipes.pipes[slow]:
        got += [size for size in pipes.pipes[slow] if size]
        pipes.read(slow, 10)
        pipes.attend()
    assert got == list(range(1000, 1030))
    assert slow.unread <= LIMITS.unread_little
    assert not pipes.unread.waiting


def test_much_that_was_sent_at_once_is_forgotten_as_soon_as_it_was_read():
    pipes = Pipes()
    one = pipes.connect()
    for _ in range(5):
        pipes.send(one, 8000)
    assert not pipes.unread.may_ask(one)
    pipes.attend(0)
    pipes.read(one, 10)
    pipes.attend()
    pipes.read(one, 10)
    pipes.attend()
    assert pipes.unread.may_ask(one)
    assert not one.in_debt


def test_a_pipe_that_stays_full_is_tried_less_and_less_often():
    pipes = Pipes()
    stuck = pipes.connect()
    for _ in range(20):
        pipes.send(stuck, 1000)
    assert sum(pipes.attend(1) for _ in range(10_000)) < 10_000 / PAUSE_MS_MAX + 20


def test_one_frame_that_is_larger_than_all_bounds_is_sent_to_who_has_read():
    pipes = Pipes()
    one = pipes.connect()
    assert pipes.send(one, LIMITS.client_unread_max + 1)
    assert not pipes.send(one, 8000)


def fill(pipes: Pipes, stuck: ClientConnection, size: int) -> int:
    """Send to a client that reads nothing until that is seen and no more is sent; how many frames were."""
    sent = 0
    for _ in range(100):
        sent += pipes.send(stuck, size)
        pipes.attend()
    return sent


def test_all_who_do_not_read_are_bounded_together_and_others_are_served():
    pipes = Pipes()
    for number in range(20):
        fill(pipes, pipes.connect(b"%d" % number), 2000)
    assert pipes.unread.total <= 2 * LIMITS.unread_max
    reader = pipes.connect(b"reader")
    for _ in range(100):
        assert pipes.send(reader, 4000)
        assert pipes.unread.may_ask(reader)
        pipes.read(reader, 10)
        pipes.unread.probe_debtors(pipes.now_ms)
        pipes.attend(1)


def test_as_many_as_can_be_that_do_not_read_are_bounded():
    pipes = Pipes()
    for number in range(LIMITS.sessions_max):
        stuck = pipes.connect(b"%d" % number)
        while pipes.send(stuck, 500):
            pass
    assert pipes.unread.total <= 3 * LIMITS.unread_max
    reader = pipes.connect(b"reader")
    sent = 0
    for _ in range(30):
        sent += pipes.send(reader, 1000)
        pipes.read(reader, 10)
        pipes.attend()
    assert sent >= 10


def test_those_with_the_most_are_squeezed_first():
    pipes = Pipes()
    greedy = [pipes.connect(b"%d" % number) for number in range(5)]
    taken = [fill(pipes, stuck, 2000) for stuck in greedy]
    assert taken == sorted(taken, reverse=True)
    assert not any(pipes.send(stuck, 2000) or pipes.unread.may_ask(stuck) for stuck in greedy)
    modest = pipes.connect(b"modest")
    for _ in range(5):
        assert pipes.send(modest, 2000)


def test_a_connection_that_ends_gives_its_bytes_back():
    pipes = Pipes()
    stuck = pipes.connect()
    while pipes.send(stuck, 2000):
        pass
    del pipes.pipes[stuck]
    pipes.unread.clear(stuck)
    assert (pipes.unread.total, pipes.unread.debtors, pipes.unread.waiting) == (0, {}, {})
    assert pipes.attend() == 0


# --- pages ------------------------------------------------------------------------------------------------------------


def pages_asked(pipes: Pipes, connection: ClientConnection, others: int = 0) -> int:
    """How many pages a client may ask for at once, while so many of others are open."""
    own = 0
    while pipes.unread.may_ask_page(connection, own, own + others, pipes.now_ms):
        own += 1
    return own


def test_pages_count_as_unread_from_when_they_are_asked_for():
    pipes = Pipes()
    one = pipes.connect()
    assert pages_asked(pipes, one) == LIMITS.client_pages_max
    pipes.send(one, 8000)
    pipes.send(one, 8000)
    assert pages_asked(pipes, one) == LIMITS.client_pages_max - 3, "two answers and their frames are not read yet"


def test_who_reads_page_after_page_is_never_refused_one():
    pipes = Pipes()
    reader = pipes.connect()
    for _ in range(100):
        assert pipes.unread.may_ask_page(reader, 0, 0, pipes.now_ms)
        pipes.send(reader, 8000)
        for _ in range(3):
            pipes.read(reader, 10)
            pipes.attend(2)


def test_who_has_pages_to_read_and_is_refused_one_is_probed():
    pipes = Pipes()
    one = pipes.connect()
    pipes.send(one, 5000)
    assert not pipes.unread.waiting
    assert not pipes.unread.may_ask_page(one, 7, 7, pipes.now_ms)
    for _ in range(3):
        pipes.read(one, 10)
        pipes.attend()
    assert pipes.unread.may_ask_page(one, 7, 7, pipes.now_ms)


def test_many_who_do_not_read_cost_a_page_each_and_half_of_the_bytes():
    pipes = Pipes()
    deaf = [pipes.connect(b"%d" % number) for number in range(50)]
    for stuck in deaf:
        assert pages_asked(pipes, stuck) >= 1
    asked = 0
    for _ in range(20):
        for stuck in deaf:
            if pipes.unread.may_ask_page(stuck, 0, 0, pipes.now_ms):
                asked += 1
                pipes.send(stuck, 8000)
    assert asked <= LIMITS.unread_max // 2 // 8000
    modest = pipes.connect(b"modest")
    assert pipes.unread.may_ask_page(modest, 0, 1000, pipes.now_ms), "who has nothing to read may have one page"


def test_where_pages_are_scarce_each_that_is_sent_is_probed():
    pipes = Pipes()
    for number in range(6):
        fill(pipes, pipes.connect(b"%d" % number), 2000)
    assert pipes.unread.total > LIMITS.unread_max // 4
    reader = pipes.connect(b"reader")
    assert pipes.send(reader, 8000)
    pipes.unread.page_sent(reader, pipes.now_ms)
    assert reader in pipes.unread.waiting
    for _ in range(3):
        pipes.read(reader, 10)
        pipes.attend(4)
    assert pages_asked(pipes, reader) >= 1


def test_a_client_that_reads_is_probed_no_more_often_because_others_do_not():
    pipes = Pipes()
    for number in range(10):
        fill(pipes, pipes.connect(b"%d" % number), 2000)
    assert pipes.unread.total > LIMITS.unread_max // 2
    reader = pipes.connect(b"reader")
    pipes.send(reader, 5000)
    assert reader.in_debt
    assert reader not in pipes.unread.waiting


# --- the router around it ---------------------------------------------------------------------------------------------


@pytest.fixture
def desk() -> Desk:
    desk = Desk(limits=LIMITS)
    desk.register()
    return desk


def answered(desk: Desk, body_bytes: int) -> bool:
    """Whether the answer to a Browse is sent."""
    desk.ask(Browse(1))
    header = pack_header(Browse.opcode, desk.last_request, REPLY)
    client = desk.client_on()
    return desk.router.from_worker(b"worker-0", client, header, QUEUE, bytes(body_bytes), desk.now_ms) is not None


def test_who_has_much_to_read_is_refused_but_may_settle(desk: Desk):
    for _ in range(4):
        assert answered(desk, 8000)
    assert desk.ask(Browse(1)) is None
    error = desk.error()
    assert isinstance(error, OverloadedError)
    assert "read" in error.message
    assert (error.details["refused"], error.retry_after) == (True, 0.2)
    assert desk.ask(Settle(1, [])) == b"worker-0"
    assert desk.enqueue(client=b"\0other") == b"worker-0"


def test_frames_that_are_not_read_are_dropped_beyond_the_bound(desk: Desk):
    desk.frame(pack_header(Browse.opcode, 1))
    requests = [desk.last_request for _ in range(20) if desk.ask(Browse(1))]
    client, sent = desk.client_on(), 0
    for request in requests:
        header = pack_header(Browse.opcode, request, REPLY)
        sent += desk.router.from_worker(b"worker-0", client, header, QUEUE, bytes(8000), desk.now_ms) is not None
    assert sent == LIMITS.client_unread_max // (8000 + FRAME_BYTES)


def test_a_page_beyond_a_client_s_bound_is_refused_before_a_worker_sees_it(desk: Desk):
    for _ in range(LIMITS.client_pages_max):
        assert desk.ask(Browse(1)) == b"worker-0"
    assert desk.ask(Browse(1)) is None
    error = desk.error()
    assert isinstance(error, OverloadedError)
    assert (error.details["refused"], error.retry_after) == (True, 0.2)
    assert desk.enqueue() == b"worker-0"
    assert desk.ask(Browse(1), client=b"\0other") == b"worker-0"
    for request in (1, 2):
        assert desk.reply(request, opcode=Browse.opcode)
    assert desk.ask(Browse(1)) == b"worker-0"


def test_pages_at_all_workers_count_together():
    desk = Desk(2, limits=LIMITS)
    for shard in (0, 1):
        desk.register(f"worker-{shard}", shards=(shard,))
    asked = [worker for number in range(20) if (worker := desk.ask(Browse(1), b"q%d" % number))]
    assert len(asked) == LIMITS.client_pages_max
    assert set(asked) == {b"worker-0", b"worker-1"}


def test_a_new_session_on_the_same_connection_has_read_no_more(desk: Desk):
    for _ in range(5):
        answered(desk, 8000)
    desk.answers()
    desk.router._sessions.forget(desk.router._sessions.on(CLIENT, 0))
    assert desk.ask(Enqueue([])) is None
    assert isinstance(desk.error(), OverloadedError)
    assert desk.router.unread.total > LIMITS.client_unread_refused
