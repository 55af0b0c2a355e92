"""The list of connections, and how one is closed."""

import pytest

from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    CLOSED,
    MARK,
    ClientsDescribed,
    ClientWork,
    CloseConnection,
    ConnectionList,
    ConnectionView,
    DescribeClients,
    Done,
    EndClient,
    Enqueue,
    Hello,
    ListConnections,
    Subscribe,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.frames import REPLY, pack_header, unpack_header
from fila_proto_zmq.ids import client_name
from tests.unit.router.desk import Desk

OPERATOR = b"\0operator"


def greet(desk: Desk, connection: bytes, software: str = "test", address: str = "10.0.0.1") -> bytes:
    hello = encode_body(Hello([1], software))
    desk.router.from_client(connection, pack_header(Hello.opcode, 1), b"", hello, desk.now_ms, address)
    desk.answers()
    desk.router.outgoing.take()
    return desk.client_on(connection)


def listed(desk: Desk, asked: ListConnections, *work: list[ClientWork]) -> ConnectionList | FilaError:
    """The list, when workers answer with this."""
    desk.ask(asked, b"", OPERATOR)
    marks = desk.router.outgoing.to_clients
    desk.router.outgoing.to_clients = [frame for frame in marks if frame[1][3] != MARK]
    questions = desk.questions(DescribeClients.opcode) if work else {}
    for (worker, number), of_worker in zip(questions.items(), work, strict=True):
        desk.confirm(worker, DescribeClients([]), number, ClientsDescribed(of_worker))
    content = desk.answers()[-1].content
    assert isinstance(content, ConnectionList | FilaError)
    return content


def test_a_list_joins_what_router_and_workers_know(desk: Desk) -> None:
    desk.router.dated(1000)
    first, second = greet(desk, b"\0a", "rust/1\x1b"), greet(desk, b"\0b", address="")
    operator = greet(desk, OPERATOR)
    desk.now_ms += 50
    work = [ClientWork(first, 5000, ["q2"], 1, 3)], [ClientWork(first, 4000, ["q1"], 2, 4), ClientWork(b"gone", 1, [], 0, 0)]
    content = listed(desk, ListConnections(), *work)
    assert isinstance(content, ConnectionList)
    shown = {each.client: each for each in content.connections}
    assert sorted(shown) == [each.client for each in content.connections]
    assert shown == {
        client_name(first): ConnectionView(client_name(first), "", "10.0.0.1", "rust/1\\x1b", 1000, 5000, ["q1", "q2"], 3, 7),
        client_name(second): ConnectionView(client_name(second), "", "", "test", 1000, 1000),
        client_name(operator): ConnectionView(client_name(operator), "", "10.0.0.1", "test", 1000, 1050),
    }
    assert not content.more


def test_pages(desk: Desk) -> None:
    names = sorted(client_name(greet(desk, b"\0%d" % number)) for number in range(5))
    greet(desk, OPERATOR)
    names = sorted([*names, client_name(desk.client_on(OPERATOR))])
    seen: list[str] = []
    for expected in ([True] * 2, [False]):
        for more in expected:
            content = listed(desk, ListConnections(seen[-1] if seen else "", 2), [], [])
            assert isinstance(content, ConnectionList)
            assert content.more is more
            seen += [each.client for each in content.connections]
    assert seen == names
    for limit in (0, 501):
        desk.ask(ListConnections("", limit), b"", OPERATOR)
        assert isinstance(desk.error(), InvalidArgumentError)


def test_who_has_gone_is_left_out_and_who_never_greeted(desk: Desk) -> None:
    greet(desk, b"\0a")
    greet(desk, OPERATOR)
    desk.enqueue(client=b"\0nobody")
    desk.ask(ListConnections(), b"", OPERATOR)
    marked = [frame[0] for frame in desk.router.outgoing.to_clients if frame[1][3] == MARK]
    assert sorted(marked) == sorted([desk.client_on(b"\0a"), desk.client_on(OPERATOR)])
    asked = desk.questions(DescribeClients.opcode)
    desk.router.ended(desk.router._sessions.by_name[b"\0a"])  # the mark does not reach it
    desk.router.outgoing.to_clients.clear()
    for worker, number in asked.items():
        desk.confirm(worker, DescribeClients([]), number, ClientsDescribed([]))
    content = desk.answers()[-1].content
    assert isinstance(content, ConnectionList)
    assert [each.client for each in content.connections] == [client_name(desk.client_on(OPERATOR))]


def test_workers_that_do_not_answer_are_left_out(desk: Desk) -> None:
    greet(desk, OPERATOR)
    desk.ask(ListConnections(), b"", OPERATOR)
    desk.router.outgoing.to_clients.clear()
    desk.router.outgoing.to_workers.clear()
    desk.pass_ms(1250, "worker-0", "worker-1")
    (answer,) = desk.answers()
    assert isinstance(answer.content, ConnectionList)
    desk.unreachable("worker-0")
    desk.unreachable("worker-1")
    desk.router.outgoing.to_workers.clear()
    content = listed(desk, ListConnections())
    assert isinstance(content, ConnectionList)
    assert len(content.connections) == 1


def test_closing_ends_the_session_everywhere_and_tells_the_client(desk: Desk) -> None:
    client = greet(desk, b"\0a")
    greet(desk, OPERATOR)
    assert desk.ask(Enqueue([b""]), client=b"\0a") == b"worker-0"
    desk.ask(CloseConnection(client_name(client)), b"", OPERATOR)
    told, *desk.router.outgoing.to_clients = desk.router.outgoing.to_clients
    assert (unpack_header(told[1]).opcode, unpack_header(told[1]).flags, told[3]) == (CLOSED, 0, b"\x90")
    assert desk.router.connection_of(told[0], 0, desk.now_ms) is desk.router._sessions.by_name[b"\0a"]
    questions = {bytes(frame[0]): unpack_header(frame[2]).request for frame in desk.router.outgoing.to_workers}
    assert desk.told() == [("worker-0", EndClient(client)), ("worker-1", EndClient(client))]
    for worker, request in questions.items():
        assert desk.answers() == [], "it is done when it holds everywhere"
        desk.router.from_worker(worker, b"", pack_header(EndClient.opcode, request, REPLY), b"", b"\x90", desk.now_ms)
    (answer,) = desk.answers()
    assert answer.content == Done()
    header = pack_header(Enqueue.opcode, desk.last_request, REPLY)
    assert desk.router.from_worker(b"worker-0", client, header, b"orders", b"\x90", desk.now_ms) is None
    assert desk.frame(pack_header(Subscribe.opcode, 99, epoch=7), client=b"\0a") is None
    assert isinstance(desk.error(), ShardUnavailableError)
    again = greet(desk, b"\0a")
    assert again != client
    assert desk.enqueue(client=b"\0a") == b"worker-0"


@pytest.mark.parametrize("name", ["", "0a1b2c3d", "x" * 1000])
def test_closing_nobody(desk: Desk, name: str) -> None:
    greet(desk, OPERATOR)
    desk.enqueue(client=b"\0nobody")
    desk.ask(CloseConnection(name), b"", OPERATOR)
    assert isinstance(desk.error(), InvalidArgumentError)


def test_who_closes_itself_is_told_better(desk: Desk) -> None:
    name = client_name(greet(desk, OPERATOR))
    desk.ask(CloseConnection(name), b"", OPERATOR)
    assert "end its program" in desk.error().message


def test_names_that_are_equal_by_chance(desk: Desk) -> None:
    greet(desk, b"\0a")
    greet(desk, b"\0b")
    greet(desk, OPERATOR)
    for each in (b"\0a", b"\0b"):
        session = desk.router._sessions.by_name[each].session
        assert session is not None
        session.name = "same"
    desk.ask(CloseConnection("same"), b"", OPERATOR)
    assert "by chance" in desk.error().message
