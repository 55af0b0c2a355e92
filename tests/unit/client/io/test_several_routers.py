"""Both clients with several endpoints: routers that die, that fall silent, and that are not there."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
import zmq

import fila_cluster.client.blocking.client
from fila_cluster import AsyncClient, Client
from fila_cluster.client.io import link, links
from fila_cluster.client.requests import endpoints
from fila_cluster.client.requests.endpoints import EndpointRounds, parse_endpoints
from fila_cluster.errors import FilaError, RequestTimeoutError, UnauthenticatedError
from fila_proto_zmq.commands import Enqueue, Hello, ListQueues, Pause, QueueList, Subscribe, Welcome
from tests.support.cluster.cluster import PATIENCE_S, eventually
from tests.support.cluster.forwarder import Forwarder
from tests.unit.client.conftest import stray_threads
from tests.unit.client.interrupts import interrupted_at
from tests.unit.client.io.test_pump import CLIENT
from tests.unit.client.peer import Broker, answering, broker, free_port

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind")

Connect = Callable[..., Any]
SECRET = bytes(range(32))
ANSWER = answering(ListQueues=QueueList([]), Hello=Welcome(1, "0.0", 4, 15_000, 1 << 24, SECRET))


@pytest.fixture
def peers() -> Iterator[list[Broker]]:
    with broker(ANSWER) as one, broker(ANSWER) as two:
        yield [one, two]


def listed(*peers: Any) -> str:
    return ",".join(peer.endpoint for peer in peers)


def used_and_other(peers: list[Broker]) -> list[Broker]:
    """The peers, the one with the client first."""
    return sorted(peers, key=lambda peer: not peer.seen_of(Hello))


def link_of(client: Client) -> link.RouterLink:
    router = client._io._links.router
    assert router is not None
    return router


def test_the_only_endpoint_may_have_other_routers_behind_it(
    connect: Connect, peers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine vanishes behind the address of a load balancer, which would lead the next connection elsewhere."""
    monkeypatch.setattr(endpoints, "is_local", lambda endpoint: False)
    monkeypatch.setattr(endpoints, "ALONE_SILENCE_S", 0.3)
    with Forwarder(peers[0].endpoint) as between, connect(between.endpoint) as client:
        assert client.list_queues() == []
        between.freeze()
        assert select.select([between.listening], [], [], PATIENCE_S)[0], "another connection waits to be accepted"


def test_a_client_uses_one_router(connect: Connect, peers: list[Broker]) -> None:
    with connect(listed(*peers)) as client:
        for _ in range(3):
            assert client.list_queues() == []
    assert sorted(len(peer.seen_of(Hello)) for peer in peers) == [0, 1]


def test_when_its_router_dies_it_goes_on_at_the_next_one_with_its_session(connect: Connect, peers: list[Broker]) -> None:
    with connect(listed(*peers), timeout=PATIENCE_S) as client:
        client.list_queues()
        used, other = used_and_other(peers)
        used.close()
        assert client.list_queues() == []
        (hello,) = other.seen_of(Hello)
        assert hello.command.session == SECRET


def test_calls_under_way_are_sent_again(connect: Connect) -> None:
    """An enqueue with a dedup id, which is recognized; and one without, which may have been done, fails."""
    silent = answering(Enqueue=None)
    with broker(silent) as one, broker(silent) as two, connect(listed(one, two), timeout=PATIENCE_S) as client:
        results: list[Any] = []

        def enqueue(**options: Any) -> None:
            try:
                results.append(client.enqueue("q", b"x", **options))
            except FilaError as error:
                results.append(error)

        threads = [threading.Thread(target=partial(enqueue, **options)) for options in ({"dedup_id": "a"}, {})]
        for number, thread in enumerate(threads):
            thread.start()
            eventually(
                lambda wanted=number + 1: sum(len(peer.seen_of(Enqueue)) for peer in (one, two)) == wanted, "it is sent"
            )
        used, other = used_and_other([one, two])
        other.answer = ANSWER
        used.close()
        for thread in threads:
            thread.join()
        errors = [each for each in results if isinstance(each, FilaError)]
        assert [(each.code, each.retryable) for each in errors] == [("SHARD_UNAVAILABLE", True)]
        assert [each.command.dedup_id for each in other.seen_of(Enqueue)] == ["a"]


def test_a_call_that_must_not_come_twice_is_not_sent_to_a_router_that_is_gone(peers: list[Broker]) -> None:
    """The loss is read before the call is sent, also if no thread has waited for it."""
    with Client(listed(*peers), timeout=PATIENCE_S) as client:
        client.list_queues()
        used, other = used_and_other(peers)
        used.close()
        eventually(lambda: link_of(client)._monitor.poll(0), "its socket has noticed")
        time.sleep(link._LOOK_S)
        client.pause("q")
        assert len(other.seen_of(Pause)) == 1


def test_a_router_that_falls_silent_is_left(connect: Connect, peers: list[Broker]) -> None:
    one, two = peers
    with Forwarder(one.endpoint) as first, Forwarder(two.endpoint) as second:
        with connect(listed(first, second), timeout=PATIENCE_S) as client:
            client.list_queues()
            used, other = used_and_other(peers)
            (first if used is one else second).freeze()
            assert client.list_queues() == []
            assert len(other.seen_of(ListQueues)) == 1


def test_a_silent_router_is_noticed_while_only_a_consumer_waits(connect: Connect, peers: list[Broker]) -> None:
    one, two = peers
    with Forwarder(one.endpoint) as first, Forwarder(two.endpoint) as second:
        with connect(listed(first, second), timeout=PATIENCE_S) as client:
            consumer = client.consume("q")
            thread = threading.Thread(target=lambda: list(consumer))
            thread.start()
            eventually(lambda: any(peer.seen_of(Subscribe) for peer in peers), "a subscription")
            used, other = used_and_other(peers)
            (first if used is one else second).freeze()
            eventually(lambda: other.seen_of(Subscribe), "a subscription at the other router")
            consumer.close()
            thread.join()


def test_one_endpoint_gets_no_heartbeats_of_zeromq(
    connect: Connect, peers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is won by leaving a router where there is no other."""
    options: list[int] = []
    monkeypatch.setattr(
        zmq.Socket,
        "set",
        lambda self, option, value, plain=zmq.Socket.set: (options.append(option), plain(self, option, value)),
    )
    with connect(peers[0].endpoint) as client:
        client.list_queues()
    assert zmq.HEARTBEAT_IVL not in options
    with connect(listed(*peers)) as client:
        client.list_queues()
    assert zmq.HEARTBEAT_IVL in options


@contextmanager
def silent_listener() -> Iterator[str]:
    """A program that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def test_endpoints_that_do_not_answer_are_passed_over(connect: Connect) -> None:
    """A port where nothing listens, a socket that is not there, a program that never greets, and one that closes."""
    with broker(ANSWER) as peer, silent_listener() as silent, Forwarder(f"tcp://127.0.0.1:{free_port()}") as closing:
        dead = [f"tcp://127.0.0.1:{free_port()}", "ipc:///nonexistent/fila.sock", silent, closing.endpoint]
        for _ in range(3):
            with connect(",".join([*dead, peer.endpoint]), timeout=PATIENCE_S) as client:
                assert client.list_queues() == []


def test_while_no_router_is_there_calls_end_in_time_and_a_later_one_is_found(connect: Connect) -> None:
    ports = free_port(), free_port()
    text = ",".join(f"tcp://127.0.0.1:{port}" for port in ports)
    with connect(text, timeout=0.5) as client:
        with pytest.raises(RequestTimeoutError, match=r"no broker answers at tcp://127.*,tcp://127"):
            client.list_queues()
        with broker(ANSWER, ports[1]):
            eventually(lambda: _answers(client), "it finds the router")


def _answers(client: Any) -> bool:
    try:
        return bool(client.list_queues() == [])
    except RequestTimeoutError:
        return False


def test_back_and_forth(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each router is restarted while the other one serves, again and again. An attempt gets no more time than the first one."""
    monkeypatch.setattr(endpoints, "LASTING_S", 0.0)
    with broker(ANSWER) as first, broker(ANSWER) as second:
        ports = {peer: int(peer.endpoint.rpartition(":")[2]) for peer in (first, second)}
        with connect(listed(first, second), timeout=PATIENCE_S) as client:
            alive = [first, second]
            for _ in range(6):
                assert client.list_queues() == []
                (used,) = (peer for peer in alive if peer.seen_of(ListQueues))
                (other,) = (peer for peer in alive if peer is not used)
                used.close()
                assert client.list_queues() == []
                other.seen.clear()
                alive = [other, Broker(ANSWER, ports[used])]
                ports[alive[1]] = ports[used]
                assert client.list_queues() == []
            assert client._io._links._rounds.attempt_s == endpoints.ATTEMPT_S_MIN
            for peer in alive:
                peer.close()


def test_libzmq_does_not_give_up_a_connection_that_the_client_reads_from(peers: list[Broker]) -> None:
    """It takes the messages away, and its check for a whole message ends the process."""
    with Client(listed(*peers)) as client:
        client.list_queues()
        assert link_of(client)._socket.get(zmq.RECONNECT_IVL) > 60_000


def test_nothing_is_sent_on_a_link_that_is_lost(peers: list[Broker]) -> None:
    """It would count as sent."""
    with Client(listed(*peers), timeout=PATIENCE_S) as client:
        client.list_queues()
        lost = link_of(client)
        lost.lost = True
        session = client._session
        session.call("q", Pause(), time.monotonic())
        lost.exchange(session, time.monotonic(), arrived=False)
        assert len(session.outgoing) == 1
        client.list_queues()
    assert sum(len(peer.seen_of(Pause)) for peer in peers) == 1


def test_a_wrong_server_key_is_an_error_wherever_the_client_goes(connect: Connect, peers: list[Broker]) -> None:
    public, _ = zmq.curve_keypair()
    with connect(listed(*peers), server_key=public.decode(), timeout=PATIENCE_S) as client:
        with pytest.raises(UnauthenticatedError, match="server_key="):
            client.list_queues()


@pytest.mark.parametrize("first", range(3))
def test_an_interrupt_at_any_line_of_a_switch_leaves_the_client_usable(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fila_cluster.client.blocking.client, "Random", partial(Random, 0))
    with broker(ANSWER) as peer:
        dead = f"tcp://127.0.0.1:{free_port()}"
        text = f"{dead},{peer.endpoint}"
        assert EndpointRounds(parse_endpoints(text), Random(0)).next(0.0) == dead
        step = first
        while True:
            with Client(text, timeout=PATIENCE_S) as client:
                was_interrupted = interrupted_at(step, client.list_queues, CLIENT)
                assert client.list_queues() == []
                client._session._calls.check()
            if not was_interrupted:
                break
            step += 3


# --- names ------------------------------------------------------------------------------------------------------------


class Names:
    """A name server. ``addresses``: what it knows. It answers when ``answers`` is set."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.answers.set()

    def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        self.answers.wait(PATIENCE_S)
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.addresses
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    names = Names()
    monkeypatch.setattr(links.socket, "getaddrinfo", names.getaddrinfo)
    yield names
    names.answers.set()


def named(peer: Broker) -> str:
    return peer.endpoint.replace("127.0.0.1", "routers.example")


def test_each_address_of_a_name_is_an_endpoint(connect: Connect, names: Names) -> None:
    names.addresses = ["127.0.0.9", "127.0.0.1", "127.0.0.8"]  # a router listens on one of them
    with broker(ANSWER) as peer:
        for _ in range(3):
            with connect(named(peer), timeout=PATIENCE_S) as client:
                assert client.list_queues() == []


def test_a_name_is_looked_up_again_until_it_leads_to_a_router(
    connect: Connect, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LOOKUPS_S", 0.02)
    with broker(ANSWER) as peer, connect(named(peer), timeout=PATIENCE_S) as client:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(client.list_queues()))
        thread.start()
        for addresses in ([], ["127.0.0.9"], ["127.0.0.1"]):  # unknown, without a router, right
            asked = len(names.asked)
            names.addresses = addresses
            eventually(lambda asked=asked: len(names.asked) > asked + 1 or results, "it is looked up again")
        thread.join(PATIENCE_S)
        assert results == [[]]


def test_what_a_name_stood_for_counts_while_the_name_server_is_away(
    connect: Connect, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LOOKUPS_S", 0.02)
    names.addresses = ["127.0.0.1"]
    with broker(ANSWER) as first:
        port = int(first.endpoint.rpartition(":")[2])
        with connect(named(first), timeout=PATIENCE_S) as client:
            client.list_queues()
            names.addresses = []
            asked = len(names.asked)
            first.close()
            results: list[Any] = []
            thread = threading.Thread(target=lambda: results.append(client.list_queues()))
            thread.start()
            eventually(lambda: len(names.asked) > asked + 1, "the name server has said that it knows nothing")
            with broker(ANSWER, port):
                thread.join(PATIENCE_S)
                assert results == [[]]


def test_a_slow_name_server_holds_up_no_other_endpoint_and_no_closing(
    connect: Connect, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LOOKUP_S", 0.05)
    names.answers.clear()
    with broker(ANSWER) as peer:
        with connect(f"tcp://routers.example:1,{peer.endpoint}", timeout=PATIENCE_S) as client:
            assert client.list_queues() == []
        with connect("tcp://routers.example:1", timeout=0.1) as client:
            with pytest.raises(RequestTimeoutError):
                client.list_queues()
    names.answers.set()


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (["10.0.0.1", "::1", "10.0.0.2", "10.0.0.1"], ["tcp://10.0.0.1:5", "tcp://10.0.0.2:5"]),
        (["2001:db8::1", "fe80::1%eth0"], ["tcp://[2001:db8::1]:5", "tcp://[fe80::1%eth0]:5"]),
        ([], []),
    ],
)
def test_addresses_of_version_6_count_where_there_are_no_others(names: Names, known: list[str], found: list[str]) -> None:
    names.addresses = known
    (endpoint,) = parse_endpoints("tcp://routers.example:5")
    question = links.Lookup(endpoint)
    results: list[Any] = []

    def answered() -> bool:
        results.append(question.take())
        return results[-1] is not None

    eventually(answered, "an answer")
    assert results[-1] == found
    question.close()
    for each in found:
        parse_endpoints(each)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_nothing_is_connected_for_a_list_with_a_part_that_is_wrong(kind: Any) -> None:
    with pytest.raises(ValueError, match="number 2 of"):
        kind("tcp://127.0.0.1:1,nowhere")
    assert stray_threads() == []
