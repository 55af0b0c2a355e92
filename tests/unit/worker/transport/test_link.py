"""The worker's side of the wire to its router, over a real socket inside this process."""

import select
from collections.abc import Iterator

import pytest

from fila_admission.limits import TRUST_MS
from fila_proto_zmq.codec import encode_error, encode_reply
from fila_proto_zmq.commands import Done, GetQueueStats, Leave, ListQueues, Park, Pulse, PutConfig, Register, Registered
from fila_proto_zmq.errors import InvalidArgumentError, ShardUnavailableError
from fila_proto_zmq.frames import pack_header
from fila_proto_zmq.names import shard_of
from fila_worker.core.effects import Post
from fila_worker.transport.link import DRAIN_FRAMES_MAX, LIFE_BITS
from fila_worker.transport.router_links import PULSE_MS
from tests.unit.worker.transport.wire import RouterSide


@pytest.fixture
def router() -> Iterator[RouterSide]:
    side = RouterSide()
    side.link.register(0)
    (offer,) = side.said()
    assert isinstance(offer, Register)
    side.send(b"", *encode_reply(Register.opcode, 1, Registered()))
    assert side.receive(0) == []
    yield side
    side.close()


def test_a_worker_offers_its_shards_with_their_epochs() -> None:
    side = RouterSide()
    side.link.register(0)
    (offer,) = side.said()
    assert isinstance(offer, Register)
    assert (offer.worker, offer.shards, offer.pid > 0) == ("worker-7", [(2, 1)], True)
    side.close()


def test_a_worker_brings_what_it_knows_of_the_cluster() -> None:
    side = RouterSide()
    shard = side.link._host.shards[2]
    shard.put_config(PutConfig(7, {"color": "blue"}, whole=True), 0)
    shard.park({"api": 60_000}, 0)
    side.link.register(0)
    (offer,) = side.said()
    assert isinstance(offer, Register)
    assert (offer.config_version, offer.config, offer.parks) == (7, {"color": "blue"}, {"api": 60_000})
    side.close()


def test_clients_frames_that_were_meant_for_an_earlier_life_are_dropped() -> None:
    """It may lack config that the earlier life had; the router answers for them when it reads the registration."""
    side = RouterSide()
    side.link.register(0)
    side.said()
    early, late = (pack_header(12, request) for request in (8, 9))
    side.send(b"\x01client", early, b"q", b"\x90")
    side.send(b"", pack_header(ListQueues.opcode, 3), b"", b"\x90")
    assert [frame[0] for frame in side.receive(0)] == [b""]
    side.send(b"", *encode_reply(Register.opcode, 1, Registered(3, {"color": "blue"}, {"api": 60_000})))
    side.send(b"\x01client", late, b"q", b"\x90")
    assert [frame[1] for frame in side.receive(0)] == [late]
    shard = side.link._host.shards[2]
    assert (shard.config_version, shard.config, shard.parks()) == (3, {"color": "blue"}, {"api": 60_000})
    side.close()


def test_answers_to_a_process_that_was_killed_are_not_for_this_one() -> None:
    """A router that was paused answers what the killed one had sent when this one has connected."""
    side = RouterSide()
    side.link.register(0)
    killed = 7 << LIFE_BITS
    side.send(b"", *encode_error(Register.opcode, killed + 1, InvalidArgumentError("epoch 1 is outdated: stop this worker")))
    side.send(b"", *encode_reply(Register.opcode, killed + 2, Registered()))
    side.pulse(0)
    assert [type(command) for command in side.said()] == [Register, Pulse]
    side.send(b"\x01client", pack_header(12, 9), b"q", b"\x90")
    side.send(b"", *encode_reply(Pulse.opcode, 2, Done()))
    assert side.receive(0) == []
    assert [type(command) for command in side.said()] == [Register], "this one's was lost"
    side.close()


def test_a_registration_starts_a_new_session_of_tokens(router: RouterSide) -> None:
    shard = router.link._host.shards[2]
    before = shard.token_client.session
    router.link.register(0)
    assert shard.token_client.session != before


def test_what_a_turn_posts_goes_to_the_router_itself(router: RouterSide) -> None:
    router.link.send([Post(Park({"api": 60_000}))])
    assert router.said() == [Park({"api": 60_000})]


def test_a_worker_pulses_in_its_rhythm(router: RouterSide) -> None:
    for now_ms in (0, 1, PULSE_MS - 1, PULSE_MS, PULSE_MS + 1, 2 * PULSE_MS):
        router.links.tend(1_000_000 + now_ms)
    pulses = router.said()
    assert len(pulses) == 3
    assert all(isinstance(pulse, Pulse) and pulse.rss_bytes > 0 and pulse.bank is None for pulse in pulses)


def test_answers_to_the_worker_itself_are_not_for_its_shards(router: RouterSide) -> None:
    router.send(b"", *encode_reply(Register.opcode, 1, Registered()))
    assert router.receive(0) == []
    router.send(b"", *encode_reply(Pulse.opcode, 2, Done()))
    assert router.receive(0) == []
    assert router.said() == []


def test_a_worker_that_its_router_does_not_know_registers_again(router: RouterSide) -> None:
    router.send(b"", *encode_error(Pulse.opcode, 2, ShardUnavailableError("register first")))
    assert router.receive(0) == []
    assert [type(command) for command in router.said()] == [Register]


def test_it_registers_once_for_all_pulses_that_waited_for_a_new_router(router: RouterSide) -> None:
    for request in (2, 3, 4):
        router.pulse(request * PULSE_MS)
    assert len(router.said()) == 3
    for request in (2, 3, 4):
        router.send(b"", *encode_error(Pulse.opcode, request, ShardUnavailableError("register first")))
    assert router.receive(0) == []
    assert [type(command) for command in router.said()] == [Register]


def test_a_router_that_asks_for_a_registration_gets_one_beside_another(router: RouterSide) -> None:
    """It has learnt something that an offer which is on its way does not have."""
    router.link.register(0)
    router.send(b"", *encode_error(Pulse.opcode, 0, ShardUnavailableError("register again")))
    assert router.receive(0) == []
    assert [type(command) for command in router.said()] == [Register, Register]


def test_a_registration_whose_answer_was_lost_is_repeated() -> None:
    """The router answers a pulse that was sent after it: it knows the worker, perhaps from an earlier life."""
    side = RouterSide()
    side.link.register(0)
    side.pulse(0)
    assert [type(command) for command in side.said()] == [Register, Pulse]
    side.send(b"", *encode_reply(Pulse.opcode, 2, Done()))
    assert side.receive(0) == []
    assert [type(command) for command in side.said()] == [Register]
    side.send(b"", *encode_reply(Register.opcode, 3, Registered()))
    side.send(b"\x01client", pack_header(12, 9), b"q", b"\x90")
    assert len(side.receive(0)) == 1
    side.close()


def test_a_shard_that_opened_is_registered_until_the_router_answers(
    router: RouterSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost with the registration of what has changed; the router knows the worker as it was before."""
    host = router.link._host
    monkeypatch.setattr(host.shards[2], "turn", lambda now_ms: host.shards["no such shard"])  # type: ignore[index]
    for _ in range(20):
        host.turn(0)
        router.link.register_changes(0)
    router.pulse(0)
    assert [type(command) for command in router.said()] == [Register, Register, Pulse]
    router.send(b"", *encode_reply(Pulse.opcode, 4, Done()))
    assert router.receive(0) == []
    (again,) = router.said()
    assert isinstance(again, Register)
    assert again.shards == [(2, 2)]


def test_a_registration_is_not_repeated_for_an_answer_that_is_older(router: RouterSide) -> None:
    router.pulse(0)
    router.link.register(0)
    assert [type(command) for command in router.said()] == [Pulse, Register]
    router.send(b"", *encode_reply(Pulse.opcode, 2, Done()))
    router.send(b"", *encode_reply(Register.opcode, 3, Registered()))
    router.pulse(PULSE_MS)
    router.send(b"", *encode_reply(Pulse.opcode, 4, Done()))
    assert router.receive(0) == []
    assert [type(command) for command in router.said()] == [Pulse]


def test_a_refused_registration_ends_the_worker(router: RouterSide) -> None:
    """Somebody has opened its shards after it; and repeating it would be an endless talk as fast as they can."""
    router.send(b"", *encode_error(Register.opcode, 1, InvalidArgumentError("epoch 1 is outdated: stop this worker")))
    with pytest.raises(InvalidArgumentError, match="outdated"):
        router.receive(0)
    assert router.said() == []


def test_a_worker_knows_when_its_leaving_is_confirmed(router: RouterSide) -> None:
    router.link.leave()
    assert [type(command) for command in router.said()] == [Leave]
    assert not router.link.left
    router.send(b"", *encode_reply(Leave.opcode, 2, Done()))
    assert router.receive(0) == []
    assert router.link.left


@pytest.mark.parametrize("size", [0, 16 * 1024 - 1, 16 * 1024, 2 * 1024 * 1024])
def test_bodies_of_any_size_arrive_whole(router: RouterSide, size: int) -> None:
    router.send(b"\x01client", pack_header(20, 9), b"q", b"\xa5" * size)
    ((*_, body),) = router.receive(0)
    assert bytes(body) == b"\xa5" * size


@pytest.mark.parametrize("client", [b"\x01client", b""])
def test_requests_of_clients_and_of_the_router_are_for_the_shards(router: RouterSide, client: bytes) -> None:
    command = ListQueues() if not client else GetQueueStats()
    router.send(client, pack_header(command.opcode, 9), b"", b"\x90")
    assert router.receive(0) == [[client, pack_header(command.opcode, 9), b"", b"\x90"]]


def test_a_turn_takes_a_bounded_number_of_frames(router: RouterSide) -> None:
    for number in range(DRAIN_FRAMES_MAX + 10):
        router.send(b"\x01client", pack_header(12, number), b"q", b"\x90")
    assert len(router.receive(0)) == DRAIN_FRAMES_MAX
    assert len(router.receive(0)) == 10
    assert router.receive(0) == []


@pytest.mark.parametrize("frame", [[], [b"\xff"], [b"", b""], [b"x" * 18, b"", b"", b""]])
def test_nonsense_from_the_router_does_no_harm(router: RouterSide, frame: list[bytes]) -> None:
    router.send(b"", *frame)
    for received in router.receive(0):
        assert len(received) != 4 or received[0] == b""


def test_a_shard_that_fails_is_registered_without_and_again_when_it_is_open(
    router: RouterSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = router.link._host
    monkeypatch.setattr(host.shards[2], "turn", lambda now_ms: host.shards["no such shard"])  # type: ignore[index]
    offers: list[Register] = []
    for _ in range(20):
        host.turn(0)
        router.link.register_changes(0)
    offers += [command for command in router.said() if isinstance(command, Register)]
    assert [offer.shards for offer in offers] == [[], [(2, 2)]]
    assert [[outage.state for outage in offer.outages] for offer in offers] == [["opening"], []]


def test_frames_for_an_earlier_life_of_a_shard_are_dropped_until_the_router_knows(
    router: RouterSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registrations after the failure are the second and third thing that the worker says."""
    host = router.link._host
    monkeypatch.setattr(host.shards[2], "turn", lambda now_ms: host.shards["no such shard"])  # type: ignore[index]

    def answers() -> int:
        for frame in router.receive(0):
            host.accept(frame, 0)
        return len(host.turn(0))

    for _ in range(20):
        host.turn(0)
        router.link.register_changes(0)
    name = next(name for name in map("q{}".format, range(99)) if shard_of(name, 4) == 2).encode()
    router.send(b"\x01client", pack_header(12, 8), name, b"\x90")
    assert answers() == 0
    router.send(b"", *encode_reply(Register.opcode, 2, Registered()))
    router.send(b"\x01client", pack_header(12, 9), name, b"\x90")
    assert answers() == 1


def test_a_worker_with_a_door_names_it() -> None:
    for doors in ([], ["ipc:///here", "tcp://*:1234"]):
        side = RouterSide(doors)
        side.link.register(0)
        (offer,) = side.said()
        assert isinstance(offer, Register)
        assert (offer.door, offer.endpoints) == ((bytes(16), doors) if doors else (b"", []))
        side.close()


def test_a_worker_trusts_its_router_from_the_sending_of_a_pulse_that_was_answered(router: RouterSide) -> None:
    router.pulse(10_000)
    assert not router.clients.trusted(10_000)
    router.send(b"", *encode_reply(Pulse.opcode, router.link._requests, Done()))
    assert router.receive(11_900) == []
    assert router.clients.trusted(10_000 + TRUST_MS - 1)
    assert not router.clients.trusted(10_000 + TRUST_MS)


def test_neither_a_knock_nor_a_refusal_nor_an_answer_to_an_earlier_pulse_extends_the_trust(router: RouterSide) -> None:
    router.pulse(10_000)
    first = router.link._requests
    router.pulse(11_000)
    for answer in (
        encode_reply(Pulse.opcode, 0, Done()),
        encode_error(Pulse.opcode, 0, ShardUnavailableError("register first")),
        encode_error(Pulse.opcode, first, ShardUnavailableError("register first")),
        encode_reply(Pulse.opcode, first, Done()),  # it is forgotten with its refusal
    ):
        router.send(b"", *answer)
        assert router.receive(11_000) == []
        assert not router.clients.trusted(11_000)


def test_a_worker_that_was_not_admitted_trusts_nothing() -> None:
    side = RouterSide(["ipc:///here"])
    side.link.register(0)
    side.pulse(0)
    side.send(b"", *encode_reply(Pulse.opcode, side.link._requests, Done()))
    assert side.receive(1) == []
    assert not side.clients.trusted(1)
    side.close()


def test_a_frame_that_came_before_the_worker_sent_something_is_found(router: RouterSide) -> None:
    """The descriptor shows an arrival only until the socket is used."""
    assert [router.link.has_more] == [False]
    router.send(b"\x01client", pack_header(12, 8), b"q", b"\x90")
    assert not select.select([router.link.descriptor], [], [], 0)[0]
    router.pulse(0)
    assert [router.link.has_more] == [True]
    assert [frame[0] for frame in router.receive(0)] == [b"\x01client"]
    assert not router.link.has_more
