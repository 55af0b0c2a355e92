"""A router with authentication: who is let in, and what follows when a key ends."""

from random import Random

import pytest

from fila_admission.keys import ALGORITHM, digest_of
from fila_proto_zmq.codec import decode_body, encode_body
from fila_proto_zmq.commands import (
    DELIVERY,
    ApiKey,
    Command,
    CreateKey,
    Done,
    EndClient,
    Enqueue,
    GetClusterStatus,
    GetOwnKey,
    GrantKey,
    Hello,
    KeyList,
    KeyMade,
    ListKeys,
    ListQueues,
    OwnKey,
    Pulse,
    PutKeys,
    Register,
    Reply,
    RevokeKey,
    Welcome,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    ShardUnavailableError,
    UnauthenticatedError,
)
from fila_proto_zmq.events import ApiKeyCreated, ApiKeyGranted, ApiKeyRevoked
from fila_proto_zmq.frames import pack_header, unpack_header
from fila_proto_zmq.ids import client_of
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import QUEUE, Desk

HERE, THERE = b"\0here", b"\0there"
ADMIN = ["admin:*", "consume:*", "produce:*"]
LIMITS = RouterLimits(keys_max=5, failures_max=2, failure_ms=100, addresses_max=3)


def stored(name: str, *allow: str, expires_ms: int = 0) -> ApiKey:
    return ApiKey(name, ALGORITHM, digest_of(f"fila_{name}"), sorted(allow), 1, expires_ms)


@pytest.fixture
def desk() -> Desk:
    access = Access(
        [stored("admin", *ADMIN), stored("shop", "produce:orders", expires_ms=5000)],
        [stored("internal", *ADMIN)],
        Random(1).randbytes,
        LIMITS,
    )
    desk = Desk(access=access)
    desk.register()
    desk.router.outgoing.take()
    return desk


def greet(desk: Desk, name: str, connection: bytes = HERE, session: bytes = b"") -> Reply | FilaError:
    desk.ask(Hello([1], session=session, api_key=f"fila_{name}"), b"", connection)
    return desk.answers()[-1].content


def ask(desk: Desk, command: Command, connection: bytes = HERE) -> Reply | FilaError:
    desk.ask(command, b"", connection)
    return desk.answers()[-1].content


def test_nothing_goes_before_a_greeting_with_a_key(desk: Desk) -> None:
    for command, key in ((Enqueue([b"\0\0\0\0"]), QUEUE), (GetClusterStatus(), b""), (ListQueues(), b"")):
        assert desk.ask(command, key, HERE) is None
        assert isinstance(desk.answers()[-1].content, UnauthenticatedError)
    assert isinstance(greet(desk, "nobody"), UnauthenticatedError)
    assert desk.enqueue(client=HERE) is None
    assert isinstance(desk.answers()[-1].content, UnauthenticatedError)
    assert isinstance(greet(desk, "shop"), Welcome)
    assert desk.enqueue(client=HERE) == b"worker-0"
    assert desk.enqueue(b"other", client=HERE) is None
    assert isinstance(desk.answers()[-1].content, PermissionDeniedError)


def test_a_greeting_that_fails_ends_what_was_there(desk: Desk) -> None:
    assert isinstance(greet(desk, "shop"), Welcome)
    assert isinstance(greet(desk, "nobody"), UnauthenticatedError)
    assert desk.enqueue(client=HERE) is None
    assert isinstance(desk.answers()[-1].content, UnauthenticatedError)


def test_a_session_belongs_to_its_key(desk: Desk) -> None:
    welcome = greet(desk, "shop")
    assert isinstance(welcome, Welcome)
    of_shop = desk.client_on(HERE)
    greet(desk, "admin", THERE, welcome.session)
    assert desk.client_on(THERE) not in {of_shop, client_of(welcome.session)}
    assert desk.client_on(HERE) == of_shop


def test_a_key_that_ends_takes_its_sessions_along(desk: Desk) -> None:
    greet(desk, "admin", THERE)
    for end in (lambda: ask(desk, RevokeKey("shop2"), THERE), lambda: desk.router.tick(desk.now_ms)):
        made = ask(desk, CreateKey("shop2", ["produce:orders"], desk.now_ms + 1000), THERE)
        assert isinstance(made, KeyMade)
        desk.ask(Hello([1], api_key=made.secret), b"", HERE)
        assert isinstance(desk.answers()[-1].content, Welcome)
        client = desk.client_on(HERE)
        desk.now_ms += 999
        desk.router.tick(desk.now_ms)
        assert desk.router.from_worker(b"worker-0", client, pack_header(DELIVERY), QUEUE, b"", desk.now_ms)
        desk.now_ms += 1
        desk.router.outgoing.take()
        end()
        assert ended_at_workers(desk) == [(b"worker-0", client)], "after it has the keys"
        assert desk.router.from_worker(b"worker-0", client, pack_header(DELIVERY), QUEUE, b"", desk.now_ms) is None
        assert desk.enqueue(client=HERE) is None
        error = desk.answers()[-1].content
        assert isinstance(error, UnauthenticatedError | ShardUnavailableError)
        ask(desk, RevokeKey("shop2"), THERE)


def ended_at_workers(desk: Desk) -> list[tuple[bytes, bytes]]:
    """The workers and clients of the frames that end a client. New keys are sent before them."""
    frames = [(frame[0], unpack_header(frame[2]).opcode, frame[4]) for frame in desk.router.outgoing.take()[0]]
    opcodes = [opcode for _, opcode, _ in frames if opcode in {PutKeys.opcode, EndClient.opcode}]
    assert opcodes == sorted(opcodes, key=[PutKeys.opcode, EndClient.opcode].index)
    return [(worker, decode_body(EndClient, body).client) for worker, opcode, body in frames if opcode == EndClient.opcode]


def test_many_sessions_of_a_key_are_ended_at_the_workers_a_few_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fila_router.core.keys.key_commands.ENDED_AT_ONCE", 2)
    greet(desk, "admin", THERE)
    made = ask(desk, CreateKey("shop2", ["produce:orders"]), THERE)
    assert isinstance(made, KeyMade)
    places = [b"place-%d" % number for number in range(5)]
    for place in places:
        desk.ask(Hello([1], api_key=made.secret), b"", place)
    clients = {desk.client_on(place) for place in places}
    desk.router.outgoing.take()
    ask(desk, RevokeKey("shop2"), THERE)
    ended = [ended_at_workers(desk)]
    for _ in range(3):
        desk.router.tick(desk.now_ms)
        ended.append(ended_at_workers(desk))
    assert [len(each) for each in ended] == [2, 2, 1, 0]
    assert {client for each in ended for _, client in each} == clients


def test_who_revokes_its_own_key_gets_the_answer_and_nothing_after_it(desk: Desk) -> None:
    greet(desk, "admin")
    client = desk.client_on(HERE)
    assert ask(desk, RevokeKey("admin")) == Done()
    assert desk.router.connection_of(client, 0, desk.now_ms), "the answer reaches the client"
    assert isinstance(ask(desk, GetClusterStatus()), UnauthenticatedError)
    desk.router.tick(desk.now_ms)
    assert desk.router.connection_of(client, 0, desk.now_ms) is None


def test_keys_are_stored_and_told_to_workers_before_the_answer(desk: Desk) -> None:
    access = desk.router.access
    assert access
    greet(desk, "admin")
    desk.router.outgoing.take()
    made = ask(desk, CreateKey("new", ["consume:orders*"]))
    assert isinstance(made, KeyMade)
    assert access.unsaved
    assert "new" in {key.name for key in access.records()}
    assert not access.unsaved
    workers, _, notes = desk.router.outgoing.take()
    (frame,) = [frame for frame in workers if unpack_header(frame[2]).opcode == PutKeys.opcode]
    assert frame[0] == b"worker-0"
    assert [type(note) for note in notes if note.event.startswith("api_key")] == [ApiKeyCreated]
    assert ask(desk, GrantKey("new", ["produce:orders"])) == Done()
    assert ask(desk, RevokeKey("new")) == Done()
    assert {type(note) for note in desk.router.outgoing.notes} >= {ApiKeyGranted, ApiKeyRevoked}
    access.check()


def test_a_worker_gets_the_keys_before_it_is_admitted(desk: Desk) -> None:
    offer = Register("worker-1", 1, "9.9", [(0, 2)])
    desk.router.from_worker(b"worker-1", b"", pack_header(Register.opcode, 7), b"", encode_body(offer), desk.now_ms)
    opcodes = [unpack_header(frame[2]).opcode for frame in desk.router.outgoing.to_workers if frame[0] == b"worker-1"]
    assert [opcode for opcode in opcodes if opcode in {PutKeys.opcode, Register.opcode}] == [PutKeys.opcode, Register.opcode]


def test_a_worker_whose_keys_were_lost_on_the_way_gets_them_again(desk: Desk) -> None:
    def told() -> list[int]:
        workers, _, _ = desk.router.outgoing.take()
        return [
            decode_body(PutKeys, frame[4]).version for frame in workers if unpack_header(frame[2]).opcode == PutKeys.opcode
        ]

    greet(desk, "admin")
    ask(desk, CreateKey("new", ["consume:orders*"]))
    (first,) = told()
    ask(desk, RevokeKey("new"))
    (second,) = told()
    assert first != second
    for known, expected in ((first, [second]), (0, [second]), (second, [])):
        desk.say("worker-0", Pulse(1, 1, keys_version=known))
        assert told() == expected


def test_internal_keys_are_in_no_list_and_can_t_be_revoked(desk: Desk) -> None:
    assert isinstance(greet(desk, "internal"), Welcome)
    listed = ask(desk, ListKeys())
    assert isinstance(listed, KeyList)
    assert [key.name for key in listed.keys] == ["admin", "shop"]
    assert isinstance(ask(desk, RevokeKey("internal")), InvalidArgumentError)


def test_a_key_of_any_kind_learns_what_it_may_do(desk: Desk) -> None:
    assert isinstance(ask(desk, GetOwnKey()), UnauthenticatedError)
    greet(desk, "shop")
    own = ask(desk, GetOwnKey())
    assert isinstance(own, OwnKey)
    assert own.key is not None
    assert (own.key.name, own.key.allow) == ("shop", ["produce:orders"])


def test_there_are_so_many_keys_and_no_more(desk: Desk) -> None:
    greet(desk, "admin")
    for number in range(3):
        assert isinstance(ask(desk, CreateKey(f"k{number}", [])), KeyMade)
    assert isinstance(ask(desk, CreateKey("more", [])), OverloadedError)
    for name in ("", "a b", "a" * 101, "k0"):
        assert isinstance(ask(desk, CreateKey(name, [])), InvalidArgumentError | OverloadedError)


def test_many_wrong_keys_from_one_address_get_no_answer_and_the_right_one_does(desk: Desk) -> None:
    def answered(name: str, address: str) -> bool:
        header = pack_header(Hello.opcode, 1)
        desk.router.from_client(HERE, header, b"", encode_body(Hello([1], api_key=f"fila_{name}")), desk.now_ms, address)
        return bool(desk.answers())

    assert [answered("nobody", "10.0.0.1") for _ in range(4)] == [True, True, False, False]
    assert answered("shop", "10.0.0.1")
    assert answered("nobody", "10.0.0.2")
    desk.now_ms += 150  # the two that got no answer took nothing from it
    assert [answered("nobody", "10.0.0.1") for _ in range(2)] == [True, False]
    for number in range(10):
        answered("nobody", f"10.1.0.{number}")
    assert desk.router.access
    assert len(desk.router.access.attempts) == LIMITS.addresses_max


# --- ends ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary() -> Desk:
    """A desk with a key that may do everything until its end, and one that has no end."""
    records = [stored("brief", *ADMIN, expires_ms=5000), stored("lasting", "consume:orders")]
    desk = Desk(access=Access(records, [], Random(1).randbytes, LIMITS))
    desk.register()
    desk.router.outgoing.take()
    greet(desk, "brief")
    return desk


@pytest.mark.parametrize(("wanted", "expected"), [(0, 5000), (4000, 4000), (5000, 5000)])
def test_a_key_ends_no_later_than_its_maker(temporary: Desk, wanted: int, expected: int) -> None:
    made = ask(temporary, CreateKey("child", ["consume:orders"], wanted))
    assert isinstance(made, KeyMade)
    assert made.key.expires_ms == expected


def test_a_key_that_would_outlive_its_maker_is_not_made(temporary: Desk) -> None:
    error = ask(temporary, CreateKey("child", ["consume:orders"], 5001))
    assert isinstance(error, InvalidArgumentError)
    assert "outlive 'brief'" in error.message
    listed = ask(temporary, ListKeys())
    assert isinstance(listed, KeyList)
    assert [key.name for key in listed.keys] == ["brief", "lasting"]


def test_a_key_with_an_end_gives_nothing_to_one_that_outlives_it(temporary: Desk) -> None:
    error = ask(temporary, GrantKey("lasting", ["admin:*"]))
    assert isinstance(error, InvalidArgumentError)
    assert "outlives 'brief'" in error.message
    assert isinstance(ask(temporary, GrantKey("lasting", ["consume:orders"])), Done)  # it has that already
    assert isinstance(ask(temporary, CreateKey("child", ["consume:orders"])), KeyMade)
    assert isinstance(ask(temporary, GrantKey("child", ["admin:orders"])), Done)
