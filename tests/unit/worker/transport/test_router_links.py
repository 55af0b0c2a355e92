"""The links to several routers: which way each frame takes, and what one router that is away changes."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from fila_admission.acts import DONE
from fila_proto_zmq.codec import decode_body, encode_command, encode_error, encode_reply
from fila_proto_zmq.commands import (
    ConfigChange,
    Delivered,
    Done,
    Leave,
    ListQueues,
    MessagesTransferred,
    Park,
    Pulse,
    Pulsed,
    PurgeQueue,
    Receive,
    Register,
    Registered,
    SetConfig,
    Tokens,
)
from fila_proto_zmq.errors import InvalidConfigError, ShardUnavailableError
from fila_proto_zmq.frames import ERROR, pack_header, unpack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.effects import ANY_LINK, Answer, ClientCall, Effect, Post, Push
from fila_worker.transport.link import DRAIN_FRAMES_MAX, SILENT_MS
from fila_worker.transport.router_links import APART_MS, PULSE_MS
from tests.support.cluster.cluster import eventually
from tests.support.cluster.forwarder import Forwarder
from tests.unit.worker.transport.wire import Wire, Worker

CLIENT = b"\x01client"
QUEUE = next(name for name in map("q{}".format, range(99)) if shard_of(name, 4) == 2)
TRANSFER = Post(MessagesTransferred(3, 2, 1, [], b""))
TOKENS = Post(Tokens(2, 1, []))


class Cluster:
    """A worker at two routers, both of which know it."""

    def __init__(self, routers: int = 2, *, replicated: bool = False) -> None:
        self.wires = [Wire() for _ in range(routers)]
        self.one, self.two = self.wires[0], self.wires[-1]
        self.worker = Worker(self.wires, replicated=replicated)
        self.links, self.host, self.clients = self.worker.links, self.worker.host, self.worker.clients
        self.links.register(0)
        for wire in self.wires:
            wire.admit()

    def hear(self, now_ms: int, *wires: Wire, bank: int = 0) -> None:
        """Let routers be heard, and say whether they hold the token bank."""
        for wire in wires:
            wire.send(b"", *encode_reply(Pulse.opcode, wire.pulse(now_ms), Pulsed(now_ms, bank)))
            assert wire.receive(now_ms) == []
            wire.frames()
        self.links.tend(now_ms)
        for wire in self.wires:
            wire.frames()

    def sent(self, effect: Effect, now_ms: int = 0) -> list[int]:
        """Which links an effect takes."""
        self.links.send([effect], now_ms)
        return [number for number, wire in enumerate(self.wires) for _ in wire.frames()]

    def take_in(self, now_ms: int = 0) -> list[int]:
        """Carry out a turn's frames; return the links that they came by."""
        came = []
        self.links.look_at_all()
        for link in self.links.in_line():
            for frame in link.receive(now_ms, self.links.intake):
                came.append(link.number)
                self.host.accept(frame, now_ms, link.number)
        return came

    def close(self) -> None:
        self.links.close()
        for wire in self.wires:
            wire.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()


def test_it_registers_and_pulses_at_each_router(cluster: Cluster) -> None:
    cluster.links.tend(1_000_000)
    assert [[type(said) for said in wire.said()] for wire in cluster.wires] == [[Pulse], [Pulse]]
    cluster.host.offers += 1
    cluster.links.tend(1_000_001)
    assert [[type(said) for said in wire.said()] for wire in cluster.wires] == [[Register], [Register]]


def test_it_is_apart_when_no_router_of_another_host_was_heard_for_long(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    links, steady = cluster.links, [0]
    monkeypatch.setattr(links, "_steady_ms", lambda: steady[0])

    def is_apart(now_ms: int) -> bool:
        steady[0] = now_ms
        return links.apart(now_ms)

    cluster.hear(0, *cluster.wires)
    assert not is_apart(SILENT_MS - 1)
    cluster.hear(SILENT_MS, cluster.one)
    assert not is_apart(SILENT_MS), "silent, and not for long"
    assert is_apart(SILENT_MS + APART_MS)
    cluster.hear(SILENT_MS + APART_MS + 1, cluster.two)
    assert not is_apart(SILENT_MS + APART_MS + 1)


def test_a_step_of_the_clock_makes_no_worker_be_apart(cluster: Cluster) -> None:
    cluster.hear(0, *cluster.wires)
    assert not cluster.links.apart(3_600_000), "the clock that is never set stands still"


def test_a_worker_without_routers_of_other_hosts_is_not_apart() -> None:
    alone = Cluster(1, replicated=True)
    assert not alone.links.apart(3_600_000)
    alone.close()


def test_all_routers_hear_at_once_of_a_change_of_the_api_keys(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def heard(now_ms: int) -> list[list[int]]:
        cluster.links.tend(now_ms)
        return [[command.stored_keys for command in wire.said() if isinstance(command, Pulse)] for wire in cluster.wires]

    assert heard(1_000_000) == [[0], [0]]
    monkeypatch.setattr(type(cluster.host.config), "keys_version", 1)
    assert heard(1_000_001) == [[1], [1]]
    assert heard(1_000_002) == [[], []]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("client", [CLIENT, b""])
def test_an_answer_goes_by_the_link_of_its_request(cluster: Cluster, client: bytes, number: int) -> None:
    """Also to the routers themselves, whose requests have the same numbers."""
    cluster.wires[number].send(client, *encode_command(ListQueues() if not client else Receive(1), 5, QUEUE))
    assert cluster.take_in() == [number]
    cluster.links.send(cluster.host.turn(0), 0)
    (header,) = [unpack_header(frame[1]) for frame in cluster.wires[number].frames()]
    assert header.request == 5
    assert cluster.wires[1 - number].frames() == []


def test_a_delivery_goes_by_the_link_of_its_subscription(cluster: Cluster) -> None:
    assert cluster.sent(Push(CLIENT, QUEUE, Delivered(1, []), 1)) == [1]


def test_what_came_directly_and_cannot_go_back_so_goes_to_all_routers(cluster: Cluster) -> None:
    """The routers drop what is for a client that they do not know."""
    assert cluster.sent(Push(CLIENT, QUEUE, Delivered(1, []), ANY_LINK)) == [0, 1]
    assert cluster.sent(Answer(ClientCall(CLIENT, 1, QUEUE, 0, ANY_LINK), Receive.opcode, Done())) == [0, 1]


def test_what_shards_say_to_each_other_goes_by_the_first_router_that_lives(cluster: Cluster) -> None:
    assert cluster.sent(TRANSFER) == [0]
    cluster.hear(SILENT_MS, cluster.two)
    assert cluster.sent(TRANSFER, SILENT_MS) == [1]
    cluster.hear(SILENT_MS + 1, cluster.one)
    assert cluster.sent(TRANSFER, SILENT_MS + 1) == [0]
    assert cluster.sent(TRANSFER, 10 * SILENT_MS) == [0], "nobody lives"


# --- the token bank ---------------------------------------------------------------------------------------------------


def test_tokens_are_asked_from_the_router_that_holds_the_bank(cluster: Cluster) -> None:
    assert cluster.sent(TOKENS) == [], "no router is known to hold it"
    cluster.hear(0, cluster.two, bank=3)
    assert cluster.sent(TOKENS) == [1]
    cluster.hear(0, cluster.one, bank=4)
    assert cluster.sent(TOKENS) == [0], "the higher epoch holds"
    cluster.hear(SILENT_MS, cluster.two, bank=3)
    assert cluster.sent(TOKENS, SILENT_MS) == [1], "the other one is silent"
    cluster.hear(SILENT_MS, cluster.two)
    assert cluster.sent(TOKENS, SILENT_MS) == []


def test_on_a_replicated_log_a_router_that_is_alone_holds_the_bank_only_while_it_says_so() -> None:
    cluster = Cluster(1, replicated=True)
    assert cluster.sent(TOKENS) == []
    before = cluster.worker.shard.token_client.session
    cluster.hear(0, cluster.one, bank=3)
    assert cluster.sent(TOKENS) == [0]
    assert cluster.worker.shard.token_client.session != before
    cluster.close()


def test_another_holder_of_the_bank_means_a_new_session(cluster: Cluster) -> None:
    """What the one granted must not be spent when the other one grants."""
    sessions = [cluster.worker.shard.token_client.session]

    def session_is_new() -> bool:
        sessions.append(cluster.worker.shard.token_client.session)
        return sessions[-1] != sessions[-2]

    for bank, is_new in ((3, True), (3, False), (4, True), (0, True), (0, False)):
        cluster.hear(0, cluster.two, bank=bank)
        assert session_is_new() is is_new, bank
    cluster.hear(0, cluster.two, bank=5)
    cluster.links.tend(SILENT_MS)
    assert session_is_new(), "its router is silent"


def test_only_a_registration_at_the_router_with_the_bank_means_a_new_session(cluster: Cluster) -> None:
    cluster.hear(0, cluster.two, bank=3)
    before = cluster.worker.shard.token_client.session
    cluster.one.link.register(0)
    assert cluster.worker.shard.token_client.session == before
    cluster.two.link.register(0)
    assert cluster.worker.shard.token_client.session != before


def test_a_registration_forgets_a_time_that_may_be_of_an_earlier_life_of_the_router(cluster: Cluster) -> None:
    cluster.hear(1000, cluster.one, bank=3)
    assert cluster.one.link.pulsed == Pulsed(1000, 3)
    cluster.one.link.register(1000)
    assert cluster.one.link.pulsed == Pulsed(0, 3)


# --- config, parks, leaving -------------------------------------------------------------------------------------------


def test_a_change_of_the_config_is_told_to_all_routers(cluster: Cluster) -> None:
    change = ConfigChange(3, {"color": "blue"}, False)
    cluster.links.send([Answer(ClientCall(b"", 9, "", 0, 1), SetConfig.opcode, change)], 0)
    told = [
        [(unpack_header(raw), decode_body(ConfigChange, body)) for _, raw, _, body in wire.frames()] for wire in cluster.wires
    ]
    assert [[(header.opcode, header.request, made) for header, made in each] for each in told] == [
        [(SetConfig.opcode, 0, change)],
        [(SetConfig.opcode, 9, change)],
    ]


def test_a_change_that_is_refused_is_told_to_the_one_that_asked(cluster: Cluster) -> None:
    cluster.links.send([Answer(ClientCall(b"", 9, "", 0, 1), SetConfig.opcode, InvalidConfigError("no"))], 0)
    assert cluster.one.frames() == []
    ((_, raw, *_),) = cluster.two.frames()
    assert (unpack_header(raw).request, unpack_header(raw).flags & ERROR) == (9, ERROR)


def test_keys_are_parked_when_all_routers_that_live_have_confirmed(cluster: Cluster) -> None:
    asked = cluster.links.park({"api": 60_000}, 0)
    assert [wire.said() for wire in cluster.wires] == [[Park({"api": 60_000})]] * 2
    assert asked == {(number, wire.link._requests) for number, wire in enumerate(cluster.wires)}
    cluster.two.send(b"", *encode_reply(Park.opcode, cluster.two.link._requests, Done()))
    cluster.two.receive(0)
    assert cluster.links.take_confirmed() == [(1, cluster.two.link._requests)]
    assert cluster.links.take_confirmed() == []


def test_a_silent_router_is_asked_to_park_and_not_waited_for(cluster: Cluster) -> None:
    cluster.hear(SILENT_MS, cluster.two)
    assert {number for number, _ in cluster.links.park({"api": 60_000}, SILENT_MS)} == {1}
    assert [wire.said() for wire in cluster.wires] == [[Park({"api": 60_000})]] * 2
    assert {number for number, _ in cluster.links.park({"api": 60_000}, 9 * SILENT_MS)} == {0, 1}


def test_it_has_left_when_all_routers_that_live_have_confirmed(cluster: Cluster) -> None:
    cluster.links.leave()
    assert [[type(said) for said in wire.said()] for wire in cluster.wires] == [[Leave], [Leave]]
    cluster.one.send(b"", *encode_reply(Leave.opcode, cluster.one.link._requests, Done()))
    cluster.one.receive(0)
    assert not cluster.links.left(0)
    assert cluster.links.left(SILENT_MS), "the other one is silent"


# --- routers that are away --------------------------------------------------------------------------------------------


def test_nothing_is_kept_for_a_router_that_is_away_and_it_is_registered_at_when_it_is_back(tmp_path: Path) -> None:
    # Not one that was bound and closed: it leaves a moment later, and removes the file.
    one, two = Wire(), Wire(f"ipc://{tmp_path}/two", away=True)
    worker = Worker([one, two])
    worker.links.register(0)
    for now_ms in range(0, 10 * PULSE_MS, PULSE_MS):
        worker.links.tend(now_ms)
    two.open()
    assert two.link.socket.poll(10_000, zmq.POLLOUT), "the connection is there"
    worker.links.tend(9 * PULSE_MS + 1)
    assert two.socket.poll(10_000)
    (offer,) = two.said()
    assert isinstance(offer, Register)
    assert offer.shards == [(2, 1)]
    worker.links.tend(9 * PULSE_MS + 2)
    assert two.said() == [], "once"
    worker.links.close()
    one.close()
    two.close()


def test_a_connection_whose_network_was_cut_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_worker.transport.link.HEARTBEAT_MS", 50)
    monkeypatch.setattr("fila_worker.transport.link.HEARTBEAT_TIMEOUT_MS", 200)
    one, two = Wire(), Wire("tcp://127.0.0.1:*")
    with Forwarder(two.socket.last_endpoint.decode()) as between:
        two.endpoint = between.endpoint
        worker = Worker([one, two])
        assert two.link.socket.poll(10_000, zmq.POLLOUT)
        between.freeze()
        eventually(lambda: not two.link.socket.poll(0, zmq.POLLOUT), "the connection is given up")
        worker.links.close()
    one.close()
    two.close()


def test_frames_for_an_earlier_life_of_a_shard_are_dropped_until_their_router_knows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.host.shards[2], "turn", lambda now_ms: cluster.host.shards["no such shard"])  # type: ignore[index]
    for _ in range(20):
        cluster.host.turn(0)
        cluster.links.tend(0)
    assert list(cluster.host.shards) == [2]

    def answers(request: int) -> list[int]:
        for wire in cluster.wires:
            wire.send(CLIENT, pack_header(Receive.opcode, request), QUEUE.encode(), b"\x92\x01\x00")
        cluster.take_in()
        return sorted(effect.call.link for effect in cluster.host.turn(0) if isinstance(effect, Answer))

    assert answers(7) == []
    cluster.two.admit()
    assert answers(8) == [1]
    cluster.one.admit()
    assert answers(9) == [0, 1]


def test_the_door_is_open_on_the_word_of_any_router(cluster: Cluster) -> None:
    cluster.hear(0, cluster.one, cluster.two)
    cluster.hear(1500, cluster.two)
    assert cluster.clients.trusted(3000)
    assert not cluster.clients.trusted(3500)


def test_a_turn_takes_a_bounded_number_of_frames_from_all_links_and_passes_none_over(cluster: Cluster) -> None:
    for wire in cluster.wires:
        for number in range(3 * DRAIN_FRAMES_MAX):
            wire.send(CLIENT, pack_header(12, number), QUEUE.encode(), b"\x90")
    turns = [Counter(cluster.take_in()) for _ in range(4)]
    assert [turn.total() for turn in turns] == [DRAIN_FRAMES_MAX] * 4
    assert sum(turns, Counter()) == {0: 2 * DRAIN_FRAMES_MAX, 1: 2 * DRAIN_FRAMES_MAX}
    assert not cluster.links.drained
    assert cluster.links.has_more


def test_all_links_are_asked_for_what_their_descriptors_do_not_show(cluster: Cluster) -> None:
    for wire in cluster.wires:
        assert wire.receive(0) == []
        wire.send(CLIENT, pack_header(12, 1), QUEUE.encode(), b"\x90")
        wire.pulse(0)  # from now on the descriptor is silent about the frame
    assert cluster.links.has_more
    cluster.links.woken([])
    assert sorted(link.number for link in cluster.links.in_line()) == [0, 1]


def test_an_outdated_registration_at_any_router_ends_the_worker(cluster: Cluster) -> None:
    cluster.two.link.register(0)
    cluster.two.frames()
    refusal = encode_error(Register.opcode, cluster.two.link._requests, ShardUnavailableError("epoch 1 is outdated"))
    cluster.two.send(b"", *refusal)
    with pytest.raises(ShardUnavailableError, match="outdated"):
        cluster.two.receive(0)


def test_only_the_first_router_that_lives_hears_of_administrative_acts(cluster: Cluster) -> None:
    cluster.hear(SILENT_MS, cluster.two)
    header = pack_header(PurgeQueue.opcode, 1)
    cluster.clients.audit.begin(CLIENT, header, QUEUE.encode(), ("", "", ""), 0)
    cluster.clients.audit.end(CLIENT, header, DONE)
    cluster.links.tend(SILENT_MS + PULSE_MS)
    acts = [[len(said.acts) for said in wire.said() if isinstance(said, Pulse)] for wire in cluster.wires]
    assert acts == [[0], [1]]


def test_registered_configs_and_parks_of_each_router_are_taken_over(cluster: Cluster) -> None:
    for version, wire in enumerate(cluster.wires, 1):
        wire.link.register(0)
        wire.frames()
        reply = Registered(version, {"color": str(version)}, {f"api-{version}": 60_000})
        wire.send(b"", *encode_reply(Register.opcode, wire.link._requests, reply))
        wire.receive(0)
    assert cluster.worker.shard.config == {"color": "2"}
    assert cluster.worker.shard.parks() == {"api-1": 60_000, "api-2": 60_000}
