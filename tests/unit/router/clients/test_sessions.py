"""Who a client is: never what it chose, always who has the secret."""

from fila_proto_zmq.commands import DELIVERY, EndClient, Enqueue, GetClusterStatus, Hello, Welcome
from fila_proto_zmq.errors import ShardUnavailableError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.ids import SESSION_BYTES, client_name, client_of
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import QUEUE, Desk

HERE, THERE = b"\0here", b"\0there"
SECRET = bytes(range(SESSION_BYTES))


def greeted(desk: Desk, connection: bytes = HERE, session: bytes = b"") -> bytes:
    """The session that a connection gets."""
    desk.ask(Hello([1], session=session), b"", connection)
    answer = desk.answers()[-1]
    assert answer.client == connection
    assert isinstance(answer.content, Welcome)
    return answer.content.session


def tagged(
    desk: Desk, session: bytes, connection: bytes = HERE, opcode: int = Enqueue.opcode, request: int = 99
) -> bytes | None:
    header = pack_header(opcode, request, epoch=int.from_bytes(session[:4], "big"))
    return desk.frame(header, QUEUE if opcode == Enqueue.opcode else b"", b"\x90", client=connection)


def pushed_to(desk: Desk, client: bytes) -> bytes | None:
    connection = desk.router.from_worker(b"worker-0", client, pack_header(DELIVERY), QUEUE, b"", desk.now_ms)
    return None if connection is None else connection.name


def test_each_greeting_without_a_secret_gets_another_one():
    desk = Desk()
    secrets = [greeted(desk, HERE), greeted(desk, THERE), greeted(desk, HERE)]
    assert len(set(secrets)) == 3
    assert {len(secret) for secret in secrets} == {SESSION_BYTES}
    assert desk.client_on(HERE) == client_of(secrets[2])


def test_workers_see_the_hash_of_the_secret_and_neither_secret_nor_connection():
    desk = Desk()
    desk.register()
    session = greeted(desk)
    assert desk.router.from_client(HERE, pack_header(Enqueue.opcode, 1), QUEUE, b"", 0) == (b"worker-0", client_of(session))


def test_who_knows_a_client_s_id_or_name_is_not_that_client():
    desk = Desk()
    desk.register()
    client = client_of(greeted(desk))
    for guess in (client, client + client, client_name(client).encode(), client + bytes(16)):
        greeted(desk, THERE, guess)
        assert desk.client_on(THERE) != client
        desk.enqueue(client=client)
        assert desk.client_on(client) != client
    assert pushed_to(desk, client) == HERE


def test_who_has_the_secret_is_the_client_and_the_later_connection_counts():
    desk = Desk()
    desk.register()
    session = greeted(desk)
    desk.enqueue(client=HERE)
    assert greeted(desk, THERE, session) == session
    assert pushed_to(desk, client_of(session)) == THERE
    assert desk.reply(desk.last_request - 1, client=THERE)
    desk.enqueue(client=HERE)
    assert desk.client_on(HERE) != client_of(session)


def test_a_router_that_never_saw_a_secret_resumes_its_session():
    desk = Desk()
    assert greeted(desk, HERE, SECRET) == SECRET
    assert desk.client_on(HERE) == client_of(SECRET)


def test_a_connection_that_never_greets_has_a_session_of_its_own():
    desk = Desk()
    desk.register()
    assert desk.enqueue(client=HERE)
    assert desk.enqueue(client=THERE)
    assert desk.client_on(HERE) != desk.client_on(THERE)
    assert pushed_to(desk, desk.client_on(HERE)) == HERE


def test_what_waited_in_a_socket_is_not_taken_for_another_s():
    """Requests that come before the greeting on a new connection were written on an earlier one."""
    desk = Desk()
    desk.register()
    assert tagged(desk, SECRET) is None
    error = desk.error()
    assert isinstance(error, ShardUnavailableError)
    assert error.details == {"refused": True, "greet": True}
    assert tagged(desk, SECRET, opcode=GetClusterStatus.opcode) is None
    assert desk.error().details["greet"] is True
    greeted(desk, HERE, SECRET)
    assert tagged(desk, SECRET) == b"worker-0"
    assert tagged(desk, bytes([9, 9, 9, 9])) is None


def test_requests_without_a_tag_are_those_of_their_connection():
    desk = Desk()
    desk.register()
    greeted(desk)
    assert desk.enqueue(client=HERE) == b"worker-0"


def test_silent_sessions_are_forgotten_and_asked_to_greet():
    desk = Desk(limits=RouterLimits(session_silence_ms=200_000))
    desk.register()
    session = greeted(desk)
    desk.pass_ms(195_000, "worker-0")
    assert tagged(desk, session) == b"worker-0"
    desk.pass_ms(215_000, "worker-0")
    assert len(desk.router._sessions) == 0
    assert pushed_to(desk, client_of(session)) is None
    assert tagged(desk, session) is None
    assert desk.error().details["greet"] is True
    assert greeted(desk, HERE, session) == session


def test_no_session_is_forgotten_while_its_leases_could_live():
    desk = Desk(limits=RouterLimits(session_silence_ms=1))
    greeted(desk)
    desk.pass_ms(10 * 15_000)
    assert len(desk.router._sessions) == 1


def test_clients_that_come_and_go_leave_nothing_behind():
    desk = Desk(limits=RouterLimits(sessions_max=100))
    desk.register()
    steady = greeted(desk)
    for number in range(2000):
        desk.now_ms += 1
        assert desk.enqueue(client=b"\0%d" % number)
        assert tagged(desk, steady, request=number) == b"worker-0"
        assert len(desk.router._sessions) <= 100
    assert pushed_to(desk, client_of(steady)) == HERE


def test_a_connection_that_ended_takes_its_session_with_it():
    desk = Desk()
    desk.register()
    client = client_of(greeted(desk))
    connection = desk.router.connection_of(client, 10, 0)
    assert connection is not None
    desk.told()
    desk.router.ended(connection)
    desk.router.ended(connection)
    assert desk.told() == [("worker-0", EndClient(client, unreached=True))], "so nothing more is pushed to it"
    assert len(desk.router._sessions) == 0
    assert pushed_to(desk, client) is None
