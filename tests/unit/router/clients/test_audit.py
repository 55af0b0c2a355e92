"""The router's trail of administrative acts: one entry for each, whoever carries it out."""

from random import Random

import pytest

from fila_admission.keys import ALGORITHM, digest_of
from fila_proto_zmq.codec import encode_body, encode_error
from fila_proto_zmq.commands import (
    Act,
    ActList,
    ApiKey,
    BackupParts,
    BeginBackup,
    Command,
    ConfigChange,
    CreateKey,
    CreateQueue,
    DeleteQueue,
    Hello,
    KeyMade,
    ListActs,
    Pulse,
    PutConfig,
    QueueOptions,
    SetConfig,
)
from fila_proto_zmq.errors import (
    FilaError,
    InvalidArgumentError,
    InvalidConfigError,
    PermissionDeniedError,
    QueueExistsError,
    ShardUnavailableError,
)
from fila_proto_zmq.events import AdminActed
from fila_proto_zmq.frames import pack_header
from fila_router.core.keys.access import Access
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import CLIENT, QUEUE, Desk

ADMIN = ["admin:*", "consume:*", "produce:*"]


@pytest.fixture
def desk() -> Desk:
    stored = [ApiKey(name, ALGORITHM, digest_of(f"fila_{name}"), allow, 1) for name, allow in (("root", ADMIN), ("shop", []))]
    desk = Desk(access=Access(stored, [], Random(1).randbytes, RouterLimits()))
    desk.register()
    greet(desk, "root")
    return desk


def greet(desk: Desk, name: str, connection: bytes = CLIENT) -> None:
    hello = encode_body(Hello([1], "test", api_key=f"fila_{name}"))
    desk.router.from_client(connection, pack_header(Hello.opcode, 1), b"", hello, desk.now_ms, "10.0.0.1")
    desk.answers()
    desk.router.outgoing.take()


def shown(desk: Desk) -> list[tuple[str, ...]]:
    """What was noted, the latest first; the log has the same."""
    desk.ask(ListActs(1000), b"")
    listed = desk.answers()[-1].content
    assert isinstance(listed, ActList)
    acts = [(act.by, act.address, act.verb, act.target, act.details, act.result) for act in listed.acts]
    told = [(note.by, note.address, note.verb, note.target, note.details, note.result) for note in desk.notes(AdminActed)]  # type: ignore[attr-defined]
    assert sorted(told) == sorted(acts)
    return acts


def carry_out(desk: Desk, command: Command, refusal: FilaError | None = None) -> None:
    """Have the worker carry out a request for a queue, or refuse it."""
    assert desk.ask(command) == b"worker-0"
    if refusal is None:
        assert desk.reply(desk.last_request, opcode=command.opcode)
    else:
        header, key, body = encode_error(command.opcode, desk.last_request, refusal)
        assert desk.router.from_worker(b"worker-0", desk.client_on(), header, key, body, desk.now_ms)


def test_what_a_worker_does_or_refuses(desk: Desk) -> None:
    carry_out(desk, CreateQueue(QueueOptions(max_attempts=3)))
    assert shown(desk) == [("root", "10.0.0.1", "queue.create", "orders", "max_attempts", "ok")]
    desk.now_ms += 1
    carry_out(desk, CreateQueue(QueueOptions()), QueueExistsError("it exists"))
    assert shown(desk)[0] == ("root", "10.0.0.1", "queue.create", "orders", "", "QUEUE_EXISTS")
    assert len(desk.router.outgoing.audit) == 0


def test_what_a_lost_worker_leaves_open(desk: Desk) -> None:
    assert desk.ask(DeleteQueue()) == b"worker-0"
    assert shown(desk) == []
    desk.unreachable("worker-0")
    assert shown(desk) == [("root", "10.0.0.1", "queue.delete", "orders", "", "SHARD_UNAVAILABLE")]
    desk.ask(DeleteQueue())
    assert isinstance(desk.answers()[-1].content, ShardUnavailableError)
    assert len(shown(desk)) == 1


def test_a_change_of_the_config_is_one_act_and_is_noted_when_it_is_confirmed(desk: Desk) -> None:
    desk.register("worker-0")
    desk.router.outgoing.take()
    desk.ask(SetConfig("color", "canary"), b"")
    (request,) = desk.questions(SetConfig.opcode).values()
    desk.confirm("worker-0", SetConfig("color", "x"), request, ConfigChange(1, {"color": "canary"}, False))
    assert shown(desk) == []
    desk.confirm("worker-0", PutConfig(1, {}), 1)
    assert shown(desk) == [("root", "10.0.0.1", "config.set", "color", "", "ok")]
    desk.router.outgoing.take()
    desk.ask(SetConfig("throttle.x", "y"), b"")
    (request,) = desk.questions(SetConfig.opcode).values()
    desk.confirm("worker-0", SetConfig("color", "x"), request, InvalidConfigError("no number"))
    (event,) = desk.notes(AdminActed)
    assert isinstance(event, AdminActed)
    assert (event.target, event.result) == ("throttle.x", "INVALID_CONFIG")


def test_keys_and_backups(desk: Desk) -> None:
    desk.ask(CreateKey("eu", ["produce:eu"]), b"")
    made = desk.answers()[-1].content
    assert isinstance(made, KeyMade)
    for _ in range(2):
        desk.ask(BeginBackup("20261123"), b"")
    assert sorted(shown(desk)) == [
        ("root", "10.0.0.1", "backup.begin", "20261123", "", "ok"),
        ("root", "10.0.0.1", "key.create", "eu", "produce:eu", "ok"),
    ]
    (question, _) = [frame for frame in desk.router.outgoing.to_workers if frame[2][3] == BeginBackup.opcode]
    answer = pack_header(BeginBackup.opcode, int.from_bytes(question[2][10:], "big"), 1)
    desk.router.from_worker(b"worker-0", b"", answer, b"", encode_body(BackupParts([], [])), desk.now_ms)
    assert made.secret not in str(desk.notes(AdminActed))


def test_who_may_not_is_noted_and_leaves_one_line(desk: Desk) -> None:
    greet(desk, "shop", b"\0shop")
    for number in range(50):
        desk.ask(DeleteQueue(), f"q{number}".encode(), b"\0shop")
        assert isinstance(desk.answers()[-1].content, PermissionDeniedError)
    desk.ask(DeleteQueue(), QUEUE, b"\0stranger")
    assert [(note.by, note.target, note.result) for note in desk.notes(AdminActed)] == [  # type: ignore[attr-defined]
        ("shop", "q0", "PERMISSION_DENIED"),
        ("", "orders", "UNAUTHENTICATED"),
    ]
    desk.ask(ListActs(), b"", b"\0shop")
    assert isinstance(desk.answers()[-1].content, PermissionDeniedError)
    desk.ask(ListActs(), b"")
    listed = desk.answers()[-1].content
    assert isinstance(listed, ActList)
    assert {(act.target, act.times) for act in listed.acts} == {("q49", 50), ("orders", 1)}


def test_acts_at_a_worker_s_own_door_come_with_its_pulse(desk: Desk) -> None:
    act = Act(5, "root", "c", "", "queue.purge", "orders", "", "ok")
    desk.say("worker-0", Pulse(1, 1, acts=[act]))
    desk.ask(ListActs(), b"")
    assert desk.answers()[-1].content == ActList([act])
    assert desk.notes(AdminActed) == []  # the worker has logged it


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_limit_out_of_bounds(desk: Desk, limit: int) -> None:
    desk.ask(ListActs(limit), b"")
    assert isinstance(desk.answers()[-1].content, InvalidArgumentError)
