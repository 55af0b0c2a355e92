"""Usual requests at a worker's client socket: their short way, and where it ends."""

import pytest

from fila_admission.keys import ALGORITHM, digest_of
from fila_proto_zmq.commands import ApiKey, Enqueued, Hello, PutKeys
from fila_proto_zmq.errors import ShardUnavailableError, UnauthenticatedError
from fila_proto_zmq.events import ShardFailed
from fila_proto_zmq.frames import epoch_tag
from fila_proto_zmq.names import shard_of
from fila_worker.core.shard import Shard
from fila_worker.transport.direct_clients import ROUTES_MAX, DirectClients
from tests.unit.worker.transport.socket_peers import DOOR, OTHER, QUEUE, SECRET, SocketPeers, break_shard, enqueue


@pytest.fixture
def peers() -> SocketPeers:
    peers = SocketPeers()
    peers.create()
    return peers


def test_usual_requests_of_a_failed_shard_are_answered_where_their_connections_are_left(peers: SocketPeers) -> None:
    connection, gone = peers.connect(), peers.connect(OTHER)
    for each in (connection, gone):
        assert isinstance(peers.ask(each, enqueue()), Enqueued)
    break_shard(peers)
    request = peers.say(connection, enqueue(), QUEUE)
    peers.say(gone, enqueue(), QUEUE)
    assert not peers.clients._in_flight.at_work, "they took the short way"
    peers.clients.closed(gone)
    peers.turn()
    ((_, answered, error),) = peers.got(connection)
    assert answered == request
    assert isinstance(error, ShardUnavailableError)
    assert "refused" not in error.details, "the work may have been done"
    assert peers.got(gone) == []
    assert peers.host.unanswered == []


def test_a_usual_request_that_breaks_its_shard_is_answered_and_to_blame(
    peers: SocketPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = peers.connect()
    peers.ask(connection, enqueue())

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(peers.host.shards[0], "take_in_usual", fail)
    request = peers.say(connection, enqueue(), QUEUE)
    peers.turn()
    ((_, answered, error),) = peers.got(connection)
    assert (answered, type(error)) == (request, ShardUnavailableError)
    assert [type(note) for note in peers.host.notes if isinstance(note, ShardFailed)] == [ShardFailed]


def test_a_usual_reply_whose_connection_is_gone_is_dropped(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.ask(connection, enqueue())
    peers.say(connection, enqueue(), QUEUE)
    peers.clients.closed(connection)
    assert peers.turn() == []
    assert peers.host.shards[0].queues[QUEUE].depth == 2, "it is stored all the same"


def test_usual_requests_take_the_general_way_once_the_shard_was_opened_again(peers: SocketPeers) -> None:
    connection = peers.connect()
    peers.ask(connection, enqueue())
    epoch = epoch_tag(peers.host.shards[0].epoch)
    break_shard(peers)
    peers.say(connection, enqueue(), QUEUE)
    peers.turn()
    while 0 not in peers.host.shards:
        peers.advance(1000)
        peers.turn()
    peers.got(connection)
    refusal = peers.ask(connection, enqueue(), epoch=epoch)
    assert isinstance(refusal, ShardUnavailableError)
    assert refusal.details["moved"] is True


def test_a_route_refers_to_no_shard(peers: SocketPeers) -> None:
    """It would keep the memory of a failed shard, whose iterators keep the lock on the store."""
    connection = peers.connect()
    peers.ask(connection, enqueue())
    (route,) = connection.routes.values()
    assert not [each for each in route if isinstance(each, Shard)]


def test_a_connection_keeps_few_routes(peers: SocketPeers) -> None:
    connection = peers.connect()
    queues = [name for name in map("many-{}".format, range(1000)) if shard_of(name, 4) == 0][: ROUTES_MAX + 3]
    peers.create(*queues)
    for queue in queues:
        assert isinstance(peers.ask(connection, enqueue(), queue), Enqueued)
        assert isinstance(peers.ask(connection, enqueue(), queue), Enqueued)
    assert 0 < len(connection.routes) <= ROUTES_MAX


def test_new_api_keys_end_the_routes(peers: SocketPeers) -> None:
    clients = DirectClients(peers.host, DOOR, 15_000, 1 << 24, 4, auth=True)
    peers.clients = clients
    key = ApiKey("u", ALGORITHM, digest_of("user"), ["produce:*"], 0)
    clients.put_keys(PutKeys([key], 1, [], 1), 0)
    clients.trust(peers.now_ms)
    connection = peers.connect(None)
    peers.got(connection)
    peers.say(connection, Hello([1], "test", SECRET, api_key="user"))
    peers.got(connection)
    for _ in range(2):
        assert isinstance(peers.ask(connection, enqueue()), Enqueued)
    assert connection.routes
    peers.say(connection, enqueue(), QUEUE)
    clients.put_keys(PutKeys([], 2, [], 2), 0)
    assert not connection.routes
    peers.turn()
    assert [type(got.content) for got in peers.got(connection)] == [UnauthenticatedError], "though it is stored"
    assert isinstance(peers.ask(connection, enqueue()), UnauthenticatedError)
