"""API keys of two routers that share them by the log of shard 0."""

from random import Random

import pytest

from fila_admission.keys import ALGORITHM, digest_of
from fila_proto_zmq.commands import (
    ApiKey,
    Command,
    CreateKey,
    Done,
    FetchKeys,
    GetClusterStatus,
    Hello,
    KeyList,
    KeyMade,
    ListKeys,
    Pulse,
    PutKeys,
    Reply,
    RevokeKey,
    StoredKeys,
    StoreKeys,
    Welcome,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    OverloadedError,
    RequestTimeoutError,
    ShardUnavailableError,
    UnauthenticatedError,
)
from fila_proto_zmq.events import ApiKeyRevoked
from fila_router.core.keys import key_replication
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import Desk

ADMIN = ["admin:*", "consume:*", "produce:*"]
LEADER = "a/worker-0"
HERE, SHOP = b"\0here", b"\0shop"


def stored(name: str, *allow: str, used_ms: int = 0) -> ApiKey:
    return ApiKey(name, ALGORITHM, digest_of(f"fila_{name}"), sorted(allow), 1, 0, used_ms)


KEYS = [stored("admin", *ADMIN), stored("shop", "produce:orders")]


class Hall:
    """Two routers with the same keys in their files, and the leader of shard 0, which has a link to both."""

    def __init__(self, *keys: list[ApiKey]) -> None:
        self.version = 0
        self.keys: list[ApiKey] = []
        """What the log of shard 0 has."""
        self.confirms = True
        self.desks = [
            Desk(
                2, several=True, access=Access(records, [stored("internal", *ADMIN)], Random(seed).randbytes, RouterLimits())
            )
            for seed, records in enumerate(keys or (KEYS, KEYS))
        ]
        for desk in self.desks:
            desk.register(LEADER)
            desk.router.outgoing.take()

    def access(self, router: int) -> Access:
        access = self.desks[router].router.access
        assert access is not None
        return access

    def names(self) -> list[tuple[int, list[str]]]:
        """The version and the keys as each router has them."""
        return [(self.access(router).version, sorted(key.name for key in self.access(router)._ring)) for router in (0, 1)]

    def pulse(self, router: int) -> None:
        self.desks[router].say(LEADER, Pulse(1, 1, stored_keys=self.version))

    def settle(self) -> None:
        """Let pulses, requests and answers go to and fro until there are none."""
        for _ in range(3):
            for router, desk in enumerate(self.desks):
                desk.now_ms += 1000
                self.pulse(router)
                self.answer(desk)

    def answer(self, desk: Desk) -> None:
        """Have the leader answer what a router asked."""
        for name, command, request in desk.said():
            if isinstance(command, (StoreKeys, FetchKeys)) and self.confirms:
                assert name == LEADER
                desk.confirm(name, command, request, self._carry_out(command))

    def _carry_out(self, command: StoreKeys | FetchKeys) -> Reply | FilaError:
        if isinstance(command, FetchKeys):
            return StoredKeys(self.version, self.keys)
        if command.version != self.version + 1:
            return InvalidArgumentError("not the next")
        self.version, self.keys = command.version, command.keys
        return Done()


def greet(desk: Desk, name: str, connection: bytes = HERE) -> Reply | FilaError:
    desk.ask(Hello([1], api_key=f"fila_{name}"), b"", connection)
    return desk.answers()[-1].content


def ask(desk: Desk, command: Command, connection: bytes = HERE) -> list[Reply | FilaError]:
    desk.ask(command, b"", connection)
    return [answer.content for answer in desk.answers()]


@pytest.fixture
def hall() -> Hall:
    """After the first keys were stored."""
    hall = Hall()
    hall.settle()
    assert hall.version == 1
    for desk in hall.desks:
        assert isinstance(greet(desk, "admin"), Welcome)
    return hall


def test_the_first_router_stores_the_keys_of_its_file_and_the_others_follow():
    hall = Hall(KEYS, [stored("admin", *ADMIN)])
    hall.settle()
    assert hall.names() == [(1, ["admin", "shop"])] * 2
    assert hall.keys == KEYS
    assert all(hall.access(router).unsaved for router in (0, 1)), "each router's file is a copy"


def test_a_router_without_keys_stores_nothing():
    hall = Hall([], KEYS)
    hall.pulse(0)
    hall.answer(hall.desks[0])
    assert hall.version == 0
    hall.settle()
    assert hall.names() == [(1, ["admin", "shop"])] * 2


def test_a_router_whose_file_is_of_another_log_follows_the_log(hall: Hall):
    hall.access(0).version = 7
    hall.settle()
    assert hall.names() == [(1, ["admin", "shop"])] * 2


def test_a_log_without_keys_gets_those_of_a_router_that_has_some(hall: Hall):
    hall.version, hall.keys = 0, []
    hall.settle()
    assert (hall.version, [key.name for key in hall.keys]) == (1, ["admin", "shop"])


def test_a_change_is_answered_when_it_is_stored_and_holds_everywhere(hall: Hall):
    first, second = hall.desks
    assert isinstance(greet(second, "shop", SHOP), Welcome)
    assert ask(first, RevokeKey("shop")) == []
    assert hall.names()[0] == (1, ["admin", "shop"]), "nothing holds before it is stored"
    hall.access(0).unsaved = False
    hall.answer(first)
    assert [answer.content for answer in first.answers()] == [Done()]
    assert hall.access(0).unsaved, "the file is written before the answer goes out"
    assert first.notes(ApiKeyRevoked) == [ApiKeyRevoked("shop", "admin")]
    assert isinstance(ask(second, GetClusterStatus(), SHOP)[-1], FilaError) is False
    hall.settle()
    assert hall.names() == [(2, ["admin"])] * 2
    assert isinstance(ask(second, GetClusterStatus(), SHOP)[-1], FilaError), "its session has ended"
    assert isinstance(greet(second, "shop", SHOP), UnauthenticatedError)


def test_workers_get_the_keys_when_a_router_follows(hall: Hall):
    ask(hall.desks[0], CreateKey("new", ["produce:a"]))
    hall.answer(hall.desks[0])
    (made,) = [answer.content for answer in hall.desks[0].answers()]
    assert isinstance(made, KeyMade)
    assert [key.name for key in hall.keys] == ["admin", "shop", "new"]
    hall.desks[1].now_ms += 1000
    hall.pulse(1)
    ((_, _, request),) = [each for each in hall.desks[1].said() if isinstance(each[1], FetchKeys)]
    hall.desks[1].confirm(LEADER, FetchKeys(), request, StoredKeys(hall.version, hall.keys))
    ((_, put),) = hall.desks[1].told()
    assert isinstance(put, PutKeys)
    assert [key.name for key in put.keys] == ["admin", "shop", "new"]
    assert ([key.name for key in put.own], put.stored) == (["internal"], hall.version)
    hall.desks[1].ask(Hello([1], api_key=made.secret), b"", SHOP)
    assert isinstance(hall.desks[1].answers()[-1].content, Welcome)


def test_who_revokes_its_own_key_gets_the_answer(hall: Hall):
    desk = hall.desks[0]
    client = desk.client_on(HERE)
    assert ask(desk, RevokeKey("admin")) == []
    hall.answer(desk)
    assert [answer.content for answer in desk.answers()] == [Done()]
    assert desk.router.connection_of(client, 0, desk.now_ms), "the answer reaches the client"
    desk.router.tick(desk.now_ms)
    assert desk.router.connection_of(client, 0, desk.now_ms) is None


def test_of_two_routers_that_change_keys_at_the_same_time_one_tries_again(hall: Hall):
    first, second = hall.desks
    ask(first, CreateKey("one", []))
    ask(second, CreateKey("two", []))
    hall.answer(first)
    hall.answer(second)
    assert isinstance(first.answers()[0].content, KeyMade)
    error = second.error()
    assert isinstance(error, ShardUnavailableError)
    assert error.details == {"refused": True}
    hall.settle()
    ask(second, CreateKey("two", []))
    hall.answer(second)
    assert isinstance(second.answers()[0].content, KeyMade)
    hall.settle()
    assert hall.names() == [(3, ["admin", "one", "shop", "two"])] * 2


def test_one_change_at_a_time(hall: Hall):
    ask(hall.desks[0], CreateKey("one", []))
    (error,) = ask(hall.desks[0], CreateKey("two", []))
    assert isinstance(error, OverloadedError)
    hall.answer(hall.desks[0])
    assert isinstance(hall.desks[0].answers()[0].content, KeyMade)


def test_what_cannot_be_is_refused_at_once(hall: Hall):
    (error,) = ask(hall.desks[0], CreateKey("shop", []))
    assert isinstance(error, InvalidArgumentError)
    (listed,) = ask(hall.desks[0], ListKeys())
    assert isinstance(listed, KeyList)
    assert hall.desks[0].told() == []


def test_keys_that_take_too_much_room_are_refused(hall: Hall, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(key_replication, "API_KEYS_BYTES_MAX", 100)
    (error,) = ask(hall.desks[0], CreateKey("one", []))
    assert isinstance(error, OverloadedError)
    assert hall.names()[0] == (1, ["admin", "shop"])


@pytest.mark.parametrize("command", [RevokeKey("shop"), RevokeKey("made elsewhere"), CreateKey("shop", [])])
def test_without_a_leader_of_shard_0_keys_cannot_be_changed(hall: Hall, command: CreateKey | RevokeKey):
    hall.desks[0].unreachable(LEADER)
    (error,) = ask(hall.desks[0], command)
    assert isinstance(error, ShardUnavailableError)
    assert error.details["refused"]


def test_a_lost_leader_leaves_a_change_open_to_doubt_and_its_successor_clears_it(hall: Hall):
    first = hall.desks[0]
    ask(first, RevokeKey("shop"))
    ((_, store, request),) = first.said()
    assert isinstance(store, StoreKeys)
    hall.version, hall.keys = store.version, store.keys
    first.register("b/worker-0", epoch=2)
    first.router.tick(first.now_ms)
    error = first.error()
    assert isinstance(error, ShardUnavailableError)
    assert "refused" not in error.details
    first.confirm(LEADER, StoreKeys(0, []), request)
    assert first.answers() == []
    first.said()
    first.now_ms += 1000
    first.say("b/worker-0", Pulse(1, 1, stored_keys=2))
    ((_, _, request),) = [each for each in first.said() if isinstance(each[1], FetchKeys)]
    first.confirm("b/worker-0", FetchKeys(), request, StoredKeys(2, hall.keys))
    assert hall.names()[0] == (2, ["admin"])


def test_a_leader_that_does_not_answer_is_not_waited_for_for_ever(hall: Hall):
    first = hall.desks[0]
    ask(first, RevokeKey("shop"))
    hall.confirms = False
    first.pass_ms(4000, LEADER)
    error = first.error()
    assert isinstance(error, RequestTimeoutError)
    assert "may be made" in error.message


def test_a_frame_that_is_lost_is_sent_again(hall: Hall):
    hall.version, hall.keys = 2, KEYS[:1]
    first = hall.desks[0]
    hall.confirms = False
    hall.settle()
    assert hall.names()[0] == (1, ["admin", "shop"])
    hall.confirms = True
    hall.settle()
    assert hall.names()[0] == (2, ["admin"])
    assert isinstance(greet(first, "shop", SHOP), UnauthenticatedError)


def test_only_the_leader_of_shard_0_has_a_say(hall: Hall):
    first = hall.desks[0]
    first.register("b/worker-0", shards=(1,))
    first.said()
    first.now_ms += 1000
    first.say("b/worker-0", Pulse(1, 1, stored_keys=9))
    assert [command for _, command in first.told() if not isinstance(command, PutKeys)] == []
    first.confirm("b/worker-0", FetchKeys(), 0, StoredKeys(9, []))
    assert hall.names()[0] == (1, ["admin", "shop"])


def test_each_router_knows_when_it_has_last_seen_a_key(hall: Hall):
    first = hall.desks[0]
    first.router.dated(1_000_000)
    greet(first, "shop", SHOP)
    hall.version, hall.keys = 2, [stored("admin", *ADMIN), stored("shop", "produce:orders", used_ms=5)]
    hall.settle()
    used = {key.name: key.record.used_ms for key in hall.access(0)._ring}
    assert used["shop"] > 1_000_000


# --- the first word -----------------------------------------------------------------------------------------------------


@pytest.fixture
def restarted() -> Desk:
    """A router that has just started with a file from before ``shop`` was revoked."""
    desk = Desk(
        2, several=True, started=False, access=Access(KEYS, [stored("internal", *ADMIN)], Random(1).randbytes, RouterLimits())
    )
    desk.router.tick(desk.now_ms)
    desk.register(LEADER)
    for name, connection in (("shop", SHOP), ("internal", HERE)):
        desk.ask(Hello([1], api_key=f"fila_{name}"), b"", connection)
    desk.answers()
    return desk


def refused(desk: Desk, connection: bytes = SHOP) -> FilaError | None:
    desk.ask(GetClusterStatus(), b"", connection)
    (answer,) = desk.answers()
    return answer.content if isinstance(answer.content, FilaError) else None


def test_nobody_is_served_before_the_first_word_about_keys(restarted: Desk) -> None:
    error = refused(restarted)
    assert isinstance(error, ShardUnavailableError)
    assert error.details["refused"]
    assert restarted.enqueue(client=SHOP) is None
    assert isinstance(restarted.answers()[0].content, ShardUnavailableError)
    assert refused(restarted, HERE) is None  # the cluster's own processes
    assert not [command for _, command in restarted.told() if isinstance(command, PutKeys)]


def test_who_was_revoked_meanwhile_is_never_served(restarted: Desk) -> None:
    restarted.say(LEADER, Pulse(1, 1, stored_keys=2))
    assert isinstance(refused(restarted), ShardUnavailableError)
    [(name, command, request)] = [said for said in restarted.said() if isinstance(said[1], FetchKeys)]
    restarted.confirm(name, command, request, StoredKeys(2, KEYS[:1]))
    assert isinstance(refused(restarted), UnauthenticatedError)


def test_the_first_word_lets_the_others_in_and_opens_the_doors(restarted: Desk) -> None:
    restarted.told()
    restarted.say(LEADER, Pulse(1, 1, stored_keys=0))
    assert refused(restarted) is None
    assert [command for _, command in restarted.told() if isinstance(command, PutKeys)]


def test_the_wait_for_the_first_word_has_a_bound(restarted: Desk) -> None:
    restarted.now_ms += key_replication.FIRST_WORD_MS_MAX - 1
    restarted.router.tick(restarted.now_ms)
    assert isinstance(refused(restarted), ShardUnavailableError)
    restarted.now_ms += 1
    restarted.router.tick(restarted.now_ms)
    assert refused(restarted) is None
