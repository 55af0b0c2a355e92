"""The runtime config: a change reaches every worker before its client is answered, and a returning worker before its frames."""

from random import Random

import pytest

from fila_admission.limits import TRUST_MS
from fila_proto_zmq import runtime_config
from fila_proto_zmq.codec import encode_body
from fila_proto_zmq.commands import (
    Command,
    ConfigChange,
    ConfigValues,
    DeleteTemplate,
    Enqueue,
    GetConfig,
    GetTemplate,
    ListConfig,
    ListConfigHistory,
    ListTemplates,
    Pulse,
    PutConfig,
    PutTemplate,
    QueueOptions,
    Register,
    Registered,
    SetConfig,
    Tokens,
    TokenWant,
    UndoConfig,
)
from fila_proto_zmq.errors import (
    InvalidConfigError,
    InvalidFrameError,
    OverloadedError,
    RequestTimeoutError,
    ShardUnavailableError,
    StorageError,
)
from fila_proto_zmq.events import ConfigNotTaken
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from fila_router.core.membership import START_MS_MAX
from tests.unit.router.desk import CLIENT, QUEUE, Desk

SET = SetConfig("color", "blue")
RATE = "throttle:api:rate"


@pytest.fixture
def desk() -> Desk:
    desk = Desk(shards=3)
    desk.register("worker-0", shards=(0,))
    desk.register("worker-1", shards=(1,))
    desk.register("worker-2", shards=(2,))
    return desk


def proposed(desk: Desk) -> int:
    """Only the owner of shard 0 was asked; the number to answer with."""
    ((identity, _, header, _, _),) = desk.router.outgoing.to_workers
    desk.router.outgoing.to_workers.clear()
    assert identity == b"worker-0"
    assert unpack_header(header).opcode == SetConfig.opcode
    return unpack_header(header).request


def judge(desk: Desk, number: int, version: int, worker: str = "worker-0", **changes: str | None) -> ConfigChange:
    """The owner's answer: the change's keys have underlines for colons."""
    made = ConfigChange(version, {key.replace("__", ":"): value for key, value in changes.items()}, False)
    desk.confirm(worker, SET, number, made)
    return made


def change(desk: Desk, version: int, **changes: str | None) -> list[tuple[str, PutConfig]]:
    """A client's change up to where it is sent to the workers."""
    desk.ask(SET, key=b"")
    judge(desk, proposed(desk), version, **changes)
    return desk.told()  # type: ignore[return-value]


def confirm(desk: Desk, version: int, *workers: str) -> None:
    for worker in workers:
        desk.confirm(worker, PutConfig(0, {}), version)


# --- a change ---------------------------------------------------------------------------------------------------------


def test_a_change_is_judged_by_the_owner_of_shard_0_then_sent_to_all_then_answered(desk: Desk):
    desk.ask(SET, key=b"")
    number = proposed(desk)
    assert desk.answers() == []
    made = judge(desk, number, 1, color="blue")
    assert desk.answers() == []
    assert desk.told() == [(f"worker-{index}", PutConfig(1, {"color": "blue"})) for index in range(3)]
    confirm(desk, 1, "worker-2", "worker-0")
    assert desk.answers() == []
    confirm(desk, 1, "worker-1")
    (answer,) = desk.answers()
    assert (answer.client, answer.request, answer.key, answer.content) == (CLIENT, 1, b"", made)


@pytest.mark.parametrize("command", [UndoConfig(1), PutTemplate("t-*", QueueOptions(max_attempts=2)), DeleteTemplate("t-*")])
def test_every_kind_of_change_goes_the_same_way(desk: Desk, command: Command):
    desk.ask(command, key=b"")
    ((identity, _, header, _, body),) = desk.router.outgoing.to_workers
    desk.router.outgoing.to_workers.clear()
    assert (identity, unpack_header(header).opcode, bytes(body)) == (b"worker-0", command.opcode, encode_body(command))
    made = ConfigChange(1, {"fila:template:t-*": "{}"}, True)
    desk.confirm("worker-0", command, unpack_header(header).request, made)
    assert desk.answers() == []
    assert desk.told() == [(f"worker-{index}", PutConfig(1, made.changes)) for index in range(3)]
    confirm(desk, 1, "worker-0", "worker-1", "worker-2")
    (answer,) = desk.answers()
    assert answer.content == made


def test_a_refused_change_is_answered_at_once(desk: Desk):
    desk.ask(SetConfig(RATE, "nan"), key=b"")
    desk.confirm("worker-0", SET, proposed(desk), InvalidConfigError("nan is no number"))
    error = desk.error()
    assert isinstance(error, InvalidConfigError)
    assert error.message == "nan is no number"
    assert desk.told() == []


def test_a_body_that_does_not_fit_goes_no_further(desk: Desk):
    desk.frame(pack_header(SetConfig.opcode, 1), b"", b"\x91\x01")
    assert isinstance(desk.error(), InvalidFrameError)
    assert desk.told() == []


def test_a_change_that_changes_nothing_is_answered_when_all_have_what_is_there(desk: Desk):
    change(desk, 1, color="blue")
    desk.ask(SET, key=b"")
    judge(desk, proposed(desk), 1, color="blue")
    assert desk.told() == []
    confirm(desk, 1, "worker-0", "worker-1")
    assert desk.answers() == []
    confirm(desk, 1, "worker-2")
    assert [answer.request for answer in desk.answers()] == [1, 2]
    desk.ask(SET, key=b"")
    judge(desk, proposed(desk), 1, color="blue")
    assert [answer.request for answer in desk.answers()] == [3]


def test_several_changes_stay_in_order(desk: Desk):
    change(desk, 1, a="1")
    change(desk, 2, b="2")
    assert [told for _, told in change(desk, 3, a=None)] == [PutConfig(3, {"a": None})] * 3
    confirm(desk, 1, "worker-0", "worker-1", "worker-2")
    confirm(desk, 3, "worker-0", "worker-1")
    assert [answer.request for answer in desk.answers()] == [1]
    confirm(desk, 3, "worker-2")
    assert [answer.request for answer in desk.answers()] == [2, 3]


def test_who_is_lost_meanwhile_is_not_waited_for(desk: Desk):
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0", "worker-1")
    desk.unreachable("worker-2")
    (answer,) = desk.answers()
    assert isinstance(answer.content, ConfigChange)


def test_who_leaves_meanwhile_is_not_waited_for(desk: Desk):
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0", "worker-1")
    desk.leave("worker-2")
    assert len(desk.answers()) == 1


def test_the_loss_of_the_owner_before_its_answer_is_an_error(desk: Desk):
    desk.ask(SET, key=b"")
    proposed(desk)
    desk.unreachable("worker-0")
    error = desk.error()
    assert isinstance(error, ShardUnavailableError)
    assert "refused" not in error.details


def test_the_loss_of_the_owner_after_its_word_does_not_matter(desk: Desk):
    change(desk, 1, color="blue")
    desk.unreachable("worker-0")
    confirm(desk, 1, "worker-1", "worker-2")
    assert len(desk.answers()) == 1


def test_without_the_owner_of_shard_0_nothing_is_set(desk: Desk):
    desk.unreachable("worker-0")
    desk.ask(SET, key=b"")
    assert desk.error().details == {"refused": True, "shard": 0}


def test_a_silent_owner_is_waited_for_no_longer_than_a_client(desk: Desk):
    desk.ask(SET, key=b"")
    number = proposed(desk)
    desk.pass_ms(4000, "worker-0", "worker-1", "worker-2")
    error = desk.error()
    assert isinstance(error, RequestTimeoutError)
    assert "the owner of shard 0" in error.message
    judge(desk, number, 1, color="blue")  # late, but true
    assert len(desk.told()) == 3


def test_workers_that_do_not_confirm_are_named(desk: Desk):
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0", "worker-2")
    desk.pass_ms(4000, "worker-0", "worker-1", "worker-2")
    error = desk.error()
    assert isinstance(error, RequestTimeoutError)
    assert "but worker-1 did not" in error.message


def test_a_worker_that_cannot_take_a_change_is_reported_and_gets_the_whole_next_time(desk: Desk):
    change(desk, 1, a="1")
    confirm(desk, 1, "worker-0", "worker-2")
    desk.confirm("worker-1", PutConfig(1, {}), 1, StorageError("disk full"))
    error = desk.error()
    assert isinstance(error, StorageError)
    assert desk.notes(ConfigNotTaken) == [ConfigNotTaken("worker-1", 1, "STORAGE")]
    told = dict(change(desk, 2, b="2"))
    assert told["worker-0"] == PutConfig(2, {"b": "2"})
    assert told["worker-1"] == PutConfig(2, {"a": "1", "b": "2"}, whole=True)
    confirm(desk, 2, "worker-0", "worker-1", "worker-2")
    assert len(desk.answers()) == 1


def test_changes_under_way_are_bounded_and_shared_by_clients():
    desk = Desk(limits=RouterLimits(questions_max=4))
    desk.register()
    for _ in range(3):
        desk.ask(SET, key=b"")
    assert isinstance(desk.error(), OverloadedError)
    desk.ask(SET, key=b"", client=b"\1other")
    assert desk.answers() == []


def test_only_the_owner_of_shard_0_has_a_say(desk: Desk):
    desk.ask(SET, key=b"")
    number = proposed(desk)
    judge(desk, number, 1, worker="worker-1", color="red")
    desk.router.from_worker(b"stranger", b"", pack_header(SetConfig.opcode, number, REPLY), b"", b"\x90", desk.now_ms)
    assert desk.told() == []
    assert desk.answers() == []


def test_an_answer_that_cannot_be_read_is_an_error(desk: Desk):
    desk.ask(SET, key=b"")
    desk.router.from_worker(b"worker-0", b"", pack_header(SetConfig.opcode, proposed(desk), REPLY), b"", b"\xc1", desk.now_ms)
    assert isinstance(desk.error(), InvalidFrameError)


def test_a_worker_can_confirm_no_more_than_it_was_sent(desk: Desk):
    confirm(desk, 99, "worker-1")
    change(desk, 1, a="1")
    confirm(desk, 1, "worker-0", "worker-2")
    assert desk.answers() == []


# --- coming and coming back -------------------------------------------------------------------------------------------


def test_a_worker_that_comes_back_catches_up_with_its_registration(desk: Desk):
    change(desk, 1, a="1")
    change(desk, 2, b="2", a=None)
    assert desk.register("worker-1", shards=(1,), epoch=2, config_version=1, config={"a": "1"}) == Registered(2, {"b": "2"})
    assert desk.told() == []
    confirm(desk, 2, "worker-0", "worker-2")
    assert len(desk.answers()) == 2
    assert [told for _, told in change(desk, 3, c="3")] == [PutConfig(3, {"c": "3"})] * 3


def test_a_large_config_is_sent_in_pages_before_anything_else(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime_config, "PAGE_KEYS_MAX", 2)
    whole = {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
    change(desk, 1, **whole)
    pages = [
        PutConfig(1, {"a": "1", "b": "2"}, True, 0, True),
        PutConfig(1, {"c": "3", "d": "4"}, True, 1, True),
        PutConfig(1, {"e": "5"}, True, 2),
    ]
    assert desk.register("worker-1", shards=(1,), epoch=2) == Registered(1, None)
    requests = [unpack_header(header).request for _, _, header, _, _ in desk.router.outgoing.to_workers]
    assert requests == [0, 0, 1], "the last one is answered"
    assert desk.told() == [("worker-1", page) for page in pages]
    desk.unreachable("worker-2")
    desk.pulse("worker-2")
    assert desk.told() == [("worker-2", page) for page in pages]


def test_a_worker_that_is_up_to_date_is_sent_nothing(desk: Desk):
    change(desk, 1, a="1")
    assert desk.register("worker-1", shards=(1,), epoch=2, config_version=1, config={"a": "1"}) == Registered(1, None)


def test_a_lost_worker_that_comes_back_gets_the_whole_before_anything_else(desk: Desk):
    change(desk, 1, a="1")
    desk.unreachable("worker-1")
    change(desk, 2, b="2")
    desk.pulse("worker-1")  # its answer is taken from behind
    assert desk.told() == [("worker-1", PutConfig(2, {"a": "1", "b": "2"}, whole=True))]
    confirm(desk, 2, "worker-0", "worker-2")
    assert len(desk.answers()) == 2


def test_a_higher_version_than_the_router_s_is_taken_and_sent_to_the_others():
    desk = Desk(shards=2, started=False)
    desk.register("worker-1", shards=(1,), config_version=4, config={"a": "1", "old": "x"})
    assert desk.register("worker-0", shards=(0,), config_version=6, config={"a": "2"}) == Registered(6, None)
    assert desk.told() == [("worker-1", PutConfig(6, {"a": "2"}, whole=True))]
    assert change(desk, 7, b="3")[0] == ("worker-1", PutConfig(7, {"b": "3"}))


def test_a_new_router_learns_the_config_and_waits_for_shard_0(desk: Desk):
    desk = Desk(shards=2, started=False)
    desk.router.tick(desk.now_ms)
    desk.register("worker-1", shards=(1,))
    for command, key in ((SET, b""), (GetConfig("x"), b""), (Enqueue([]), QUEUE)):
        assert desk.ask(command, key) is None
        assert desk.error().details["refused"] is True
    desk.register("worker-0", shards=(0,))
    assert desk.enqueue() is not None


@pytest.mark.parametrize("with_keys", [False, True])
def test_on_a_replicated_log_a_new_router_waits_for_shard_0_only_because_of_api_keys(*, with_keys: bool):
    access = Access([], [], Random(1).randbytes, RouterLimits()) if with_keys else None
    desk = Desk(shards=2, started=False, several=True, access=access)
    desk.router.tick(desk.now_ms)
    desk.register("worker-1", shards=(1,))
    assert desk.router._state.started is not with_keys
    if not with_keys:
        assert desk.enqueue(_key_on(desk, 1)) == b"worker-1"
        assert desk.enqueue(_key_on(desk, 0)) is None
        assert desk.error().details["refused"] is True


def _key_on(desk: Desk, shard: int) -> bytes:
    return next(key for key in (b"a", b"b", b"c", b"d") if desk.router._table.shard_of(key) == shard)


def test_a_new_router_does_not_wait_for_ever(desk: Desk):
    desk = Desk(shards=2, started=False)
    desk.router.tick(desk.now_ms)
    desk.register("worker-1", shards=(1,))
    key = _key_on(desk, 1)
    desk.pass_ms(START_MS_MAX - 250, "worker-1")
    assert desk.enqueue(key) is None
    desk.pass_ms(250, "worker-1")
    assert desk.enqueue(key) == b"worker-1"


def test_after_a_lost_word_of_the_owner_it_registers_again(desk: Desk):
    change(desk, 1, a="1")
    desk.ask(SET, key=b"")
    judge(desk, proposed(desk), 3, c="3")
    ((identity, _, header, _, _),) = desk.router.outgoing.to_workers
    assert identity == b"worker-0"
    assert unpack_header(header)[:2] == (Pulse.opcode, REPLY | ERROR)
    desk.router.outgoing.to_workers.clear()
    desk.register("worker-0", config_version=3, config={"a": "1", "b": "2", "c": "3"})
    whole = PutConfig(3, {"a": "1", "b": "2", "c": "3"}, whole=True)
    assert desk.told() == [("worker-1", whole), ("worker-2", whole)]
    confirm(desk, 3, "worker-1", "worker-2")
    assert [answer.request for answer in desk.answers()] == [1, 2]


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [GetConfig("a"), ListConfig("a"), GetTemplate("a*"), ListTemplates("a")])
def test_questions_go_to_the_owner_of_shard_0_else_to_anybody_who_lives(desk: Desk, command: Command):
    assert desk.ask(command, b"") == b"worker-0"
    assert desk.reply(1, "worker-0", opcode=command.opcode)
    desk.unreachable("worker-0")
    assert desk.ask(command, b"") == b"worker-1"
    desk.unreachable("worker-1")
    assert isinstance(desk.error(), ShardUnavailableError)
    assert desk.ask(command, b"") == b"worker-2"
    desk.leave("worker-2")
    assert desk.ask(command, b"") is None
    assert desk.error().details["refused"] is True


def test_a_question_that_cannot_be_sent_is_refused(desk: Desk):
    header = pack_header(GetConfig.opcode, 5)
    assert desk.frame(header, b"", encode_body(GetConfig("a"))) == b"worker-0"
    desk.router.unsent(b"worker-0", desk.client_on(), header, b"", desk.now_ms)
    assert desk.error().details == {"refused": True, "shard": 0}


def test_values_travel_unopened(desk: Desk):
    desk.ask(GetConfig("a"), b"")
    header = pack_header(GetConfig.opcode, 1, REPLY)
    assert desk.router.from_worker(
        b"worker-0", desk.client_on(), header, b"", encode_body(ConfigValues({"a": "1"})), desk.now_ms
    )


# --- limits -----------------------------------------------------------------------------------------------------------


def wanted(desk: Desk, worker: str, shard: int, keys: list[str]) -> int:
    """How many tokens a shard gets at once that asks for a hundred."""
    desk.mention(worker, Tokens(shard, 1, [TokenWant(keys, 1_000_000, 100_000_000, 0, 0)]))
    desk.router.serve(desk.now_ms)
    return sum(grant.granted for _, grants in desk.told() for grant in grants.grants) // 1_000_000  # type: ignore[attr-defined]


def test_a_limit_that_is_set_starts_with_a_full_bucket(desk: Desk):
    change(desk, 1, **{RATE: "10", "throttle:api:burst": "20"})
    assert wanted(desk, "worker-1", 1, ["api"]) == 20


def test_a_limit_that_a_worker_brings_starts_with_an_empty_bucket():
    desk = Desk(started=False)
    desk.register(config_version=1, config={RATE: "10"})
    assert wanted(desk, "worker-0", 0, ["api"]) == 0
    desk.now_ms += 300
    assert wanted(desk, "worker-0", 0, ["api"]) == 3


def test_buckets_of_a_config_that_a_worker_brings_are_made_when_they_are_wanted_as_of_when_it_came():
    desk = Desk(started=False)
    desk.register(config_version=1, config={RATE: "10", "throttle:other:rate": "10", "throttle:third:rate": "10"})
    bank = desk.router._bank
    assert bank.buckets == {}
    desk.now_ms += 300
    assert wanted(desk, "worker-0", 0, ["api"]) == 3
    assert set(bank.buckets) == {"api"}
    change(desk, 2, **{"throttle:other:rate": "20"})
    assert wanted(desk, "worker-0", 0, ["other"]) == 3, "it was not full"
    change(desk, 3, **{"throttle:third:rate": None})
    change(desk, 4, **{"throttle:third:rate": "10"})
    assert wanted(desk, "worker-0", 0, ["third"]) == 10, "it is new, and full"


def test_tokens_that_are_out_count_for_a_limit_that_a_worker_brings(desk: Desk):
    assert wanted(desk, "worker-0", 0, ["api"]) == 100
    bank = desk.router._bank
    desk.register("worker-1", shards=(1,), epoch=2, config_version=5, config={RATE: "10"})
    assert (bank.buckets["api"].outstanding, bank.buckets["api"].level) == (100_000_000, -90_000_000)
    desk.register("worker-1", shards=(1,), epoch=3, config_version=6, config={})
    assert bank.buckets == {}


def test_quotas_of_namespaces_have_buckets_too(desk: Desk):
    change(desk, 1, **{"namespace:acme:max_enqueues_per_minute": "7"})
    assert wanted(desk, "worker-1", 1, ["\0acme"]) == 7


def test_a_limit_that_is_deleted_lets_those_go_who_wait(desk: Desk):
    change(desk, 1, **{RATE: "0"})
    assert wanted(desk, "worker-1", 1, ["api"]) == 1
    desk.mention("worker-1", Tokens(1, 1, [TokenWant(["api"], 1_000_000, 100_000_000, 1_000_000, 0)]))
    desk.ask(SET, key=b"")
    judge(desk, proposed(desk), 2, **{RATE: None})
    desk.told()
    desk.router.serve(desk.now_ms)
    ((_, grants),) = desk.told()
    assert grants.grants[0].granted == 101_000_000  # type: ignore[attr-defined]


def test_a_limit_that_the_whole_config_lacks_is_gone(desk: Desk):
    change(desk, 1, **{RATE: "0"})
    desk.register("worker-0", config_version=5, config={"b": "1"})
    desk.told()
    assert wanted(desk, "worker-1", 1, ["api"]) == 100


# --- two histories ----------------------------------------------------------------------------------------------------


def test_of_two_configs_with_one_version_that_of_shard_0_holds(desk: Desk):
    """A restored copy may have numbered other changes alike."""
    change(desk, 1, a="1")
    assert desk.register("worker-1", shards=(1,), epoch=2, config_version=1, config={"a": "2"}) == Registered(1, {"a": "1"})
    assert desk.told() == []
    assert desk.register("worker-0", shards=(0,), epoch=2, config_version=1, config={"a": "3"}) == Registered(1, None)
    assert desk.told() == [(worker, PutConfig(1, {"a": "3"}, whole=True)) for worker in ("worker-1", "worker-2")]


# --- workers with doors of their own, which the router goes on without --------------------------------------------------


def with_doors() -> Desk:
    desk = Desk(shards=2)
    for number in range(2):
        worker = f"worker-{number}"
        desk.say(worker, Register(worker, 1, "9.9", [(number, 1)], door=bytes(16), endpoints=["tcp://*:1"]))
    return desk


def test_a_change_waits_until_a_lost_worker_serves_no_client_at_its_own_door() -> None:
    desk = with_doors()
    desk.unreachable("worker-1")  # its connection is gone, and it may live
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0")
    assert desk.answers() == []
    desk.pass_ms(TRUST_MS - 500, "worker-0")
    assert desk.answers() == []
    desk.pass_ms(1000, "worker-0")
    (answer,) = desk.answers()
    assert isinstance(answer.content, ConfigChange)


def test_a_change_does_not_wait_for_a_worker_without_a_door() -> None:
    desk = Desk(shards=2)
    desk.register("worker-0", shards=(0,))
    desk.register("worker-1", shards=(1,))
    desk.unreachable("worker-1")
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0")
    assert len(desk.answers()) == 1


def test_a_new_router_waits_for_workers_that_it_does_not_know() -> None:
    desk = Desk(shards=2, started=False)
    desk.router.tick(desk.now_ms)
    desk.say("worker-0", Register("worker-0", 1, "9.9", [(0, 1)], door=bytes(16), endpoints=["tcp://*:1"]))
    change(desk, 1, color="blue")
    confirm(desk, 1, "worker-0")
    assert desk.answers() == []
    desk.pass_ms(TRUST_MS + 250, "worker-0")
    assert len(desk.answers()) == 1


def test_who_asks_for_a_change_or_takes_one_back_is_told_to_the_owner(desk: Desk):
    change(desk, 1, a="1")
    confirm(desk, 1, "worker-0", "worker-1", "worker-2")
    desk.answers()
    desk.ask(UndoConfig(1, by="somebody else"), b"")
    ((worker, asked),) = desk.told()
    assert (worker, asked) == ("worker-0", UndoConfig(1, False, ""))  # there is no authentication: it has no name
    desk.confirm("worker-0", UndoConfig(1), 2, ConfigChange(2, {"a": None}, True))
    assert dict(desk.told()) == {worker: PutConfig(2, {"a": None}) for worker in ("worker-0", "worker-1", "worker-2")}
    confirm(desk, 2, "worker-0", "worker-1", "worker-2")
    (answer,) = desk.answers()
    assert answer.content == ConfigChange(2, {"a": None}, True)


def test_only_the_owner_of_shard_0_is_asked_for_the_history(desk: Desk):
    assert desk.ask(ListConfigHistory(), b"") == b"worker-0"
    desk.unreachable("worker-0")
    desk.answers()
    desk.ask(ListConfigHistory(), b"")
    assert isinstance(desk.error(), ShardUnavailableError)
