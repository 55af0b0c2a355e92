"""What is noted of administrative acts, and how much of it is kept."""

import pytest

from fila_admission.acts import ACT_OPCODES, ACTS, TOGETHER_MS, UNANSWERED, Audit, Trail
from fila_admission.in_flight import CALL_MS_MAX
from fila_admission.permissions import kind_of
from fila_proto_zmq.codec import encode_body, encode_error
from fila_proto_zmq.commands import (
    COMMANDS,
    Act,
    BeginBackup,
    Cancel,
    CloseConnection,
    Command,
    CreateKey,
    CreateQueue,
    DeleteQueue,
    DeleteSchedule,
    DeleteTemplate,
    Enqueue,
    GetSchedule,
    GrantKey,
    MoveMessages,
    Pause,
    PurgeQueue,
    PutSchedule,
    PutTemplate,
    QueueOptions,
    Redrive,
    RevokeKey,
    SetConfig,
    UndoConfig,
    UpdateQueue,
)
from fila_proto_zmq.errors import QueueNotFoundError
from fila_proto_zmq.frames import pack_header

CLIENT, HEADER = b"c" * 16, pack_header(PurgeQueue.opcode, 7)
CALLER = ("shop", "0a1b2c3d", "10.0.0.1")
SECRET = "canary"


def test_every_request_that_needs_admin_and_changes_something_is_an_act() -> None:
    reads = {GetSchedule.opcode}
    assert {each.opcode for each in COMMANDS if kind_of(each.opcode) == "admin"} - reads < ACT_OPCODES
    assert len(ACTS) == len(ACT_OPCODES)


def noted(command: Command, queue: str = "q") -> Act:
    """The entry of an act that was carried out."""
    audit, header = Audit(9), pack_header(command.opcode, 7)
    audit.begin(CLIENT, header, queue.encode(), CALLER, 5)
    audit.read(CLIENT, header, encode_body(command))
    event = audit.end(CLIENT, header)
    (act,) = audit.latest(9)
    assert event is not None
    assert event.fields() == {name: getattr(act, name) for name in event.__struct_fields__}
    assert (act.at_ms, act.by, act.client, act.address, act.result, act.times, len(audit)) == (5, *CALLER, "ok", 1, 0)
    assert SECRET not in str(event)
    return act


@pytest.mark.parametrize(
    ("command", "verb", "target", "details"),
    [
        (CreateQueue(QueueOptions(on_enqueue=SECRET, max_attempts=3)), "queue.create", "q", "max_attempts, on_enqueue"),
        (UpdateQueue(QueueOptions(on_failure=SECRET), ["on_failure", SECRET]), "queue.update", "q", "on_failure"),
        (DeleteQueue(True), "queue.delete", "q", "force"),
        (PurgeQueue("acme"), "queue.purge", "q", "key acme"),
        (Pause(), "queue.pause", "q", ""),
        (Pause(False, "acme"), "queue.resume", "q", "key acme"),
        (Redrive(0), "queue.redrive", "q", ""),
        (MoveMessages("aside", 0), "queue.move", "q", "to aside"),
        (MoveMessages("aside", 9, "acme"), "queue.move", "q", "to aside, key acme"),
        (Cancel(0x0192_CC09_1400_7003, 0x8000_0000_0000_0005), "message.cancel", "q", "message 0192cc09-1400-7003-8000-000000000005"),
        (Cancel(-1, 2**63), "message.cancel", "q", "message ffffffff-ffff-ffff-8000-000000000000"),
        (PutSchedule("orders", Enqueue([SECRET.encode()]), "0 3 * * *"), "schedule.put", "q", "queue orders, 0 3 * * *"),
        (PutSchedule("orders", Enqueue([SECRET.encode()]), every_ms=5000), "schedule.put", "q", "queue orders, every 5000 ms"),
        (DeleteSchedule(), "schedule.delete", "q", ""),
        (SetConfig("color", SECRET), "config.set", "color", ""),
        (SetConfig("color", None), "config.delete", "color", ""),
        (UndoConfig(8, True), "config.undo", "version 8", "force"),
        (PutTemplate("t-*", QueueOptions(on_enqueue=SECRET, max_attempts=3)), "template.put", "t-*", "max_attempts, on_enqueue"),
        (DeleteTemplate("t-*"), "template.delete", "t-*", ""),
        (CreateKey("shop", ["produce:a", "consume:b"]), "key.create", "shop", "produce:a consume:b"),
        (GrantKey("shop", ["produce:a"]), "key.grant", "shop", "produce:a"),
        (RevokeKey("shop"), "key.revoke", "shop", ""),
        (BeginBackup("2026"), "backup.begin", "2026", ""),
        (CloseConnection("0a1b2c3d"), "connection.close", "0a1b2c3d", ""),
        (RevokeKey("x" * 400 + "\x1b"), "key.revoke", "x" * 300 + "…", ""),
        (RevokeKey("\x1b[2J"), "key.revoke", "\\x1b[2J", ""),
    ],
)  # fmt: skip
def test_what_is_noted(command: Command, verb: str, target: str, details: str) -> None:
    act = noted(command)
    assert (act.verb, act.target, act.details) == (verb, target, details)


def test_an_error_is_the_result_and_what_can_t_be_read_has_no_details() -> None:
    audit = Audit(9)
    audit.begin(CLIENT, HEADER, b"\xff", CALLER, 5)
    audit.read(CLIENT, HEADER, b"nonsense")
    error, _, body = encode_error(PurgeQueue.opcode, 7, QueueNotFoundError("no such queue"))
    event = audit.answered(CLIENT, error, body)
    assert event is not None
    assert (event.target, event.details, event.result) == ("�", "", "QUEUE_NOT_FOUND")
    assert audit.end(CLIENT, HEADER) is None


def test_an_act_without_an_answer_ends_some_time() -> None:
    audit = Audit(9)
    audit.begin(CLIENT, HEADER, b"q", CALLER, 5)
    assert audit.forget_overdue(5 + CALL_MS_MAX) == []
    assert [event.result for event in audit.forget_overdue(6 + CALL_MS_MAX)] == [UNANSWERED]
    audit.begin(CLIENT, HEADER, b"q", CALLER, 5)
    audit.forget(CLIENT, HEADER)
    assert len(audit) == 0


def act(
    at_ms: int, verb: str = "config.set", result: str = "ok", by: str = "shop", target: str = "t", client: str = "c"
) -> Act:
    return Act(at_ms, by, client, "", verb, target, "", result)


def test_the_latest_stay() -> None:
    trail = Trail(3)
    assert all(trail.add(act(at_ms)) for at_ms in range(5))
    assert [each.at_ms for each in trail.latest(9)] == [4, 3, 2]
    assert [each.at_ms for each in trail.latest(1)] == [4]


def test_steps_are_one_act() -> None:
    trail = Trail(9)
    assert [trail.add(act(at_ms, "queue.purge")) for at_ms in (0, 1, TOGETHER_MS - 1, TOGETHER_MS)] == [
        True,
        False,
        False,
        True,
    ]
    assert not trail.add(act(TOGETHER_MS + 1, "queue.purge"))
    assert trail.add(act(TOGETHER_MS + 1, "queue.purge", target="other"))
    assert [(each.at_ms, each.times) for each in trail.latest(9)] == [(TOGETHER_MS + 1, 1), (TOGETHER_MS, 2), (0, 3)]


def test_a_million_refusals_are_a_few_entries_and_push_nothing_out() -> None:
    trail = Trail(3)
    trail.add(act(0))
    lines = sum(
        trail.add(act(number // 1000, "queue.delete", "PERMISSION_DENIED", target=f"q{number}")) for number in range(10_000)
    )
    lines += sum(trail.add(act(number, "queue.delete", "UNAUTHENTICATED", "", client=f"c{number}")) for number in range(9000))
    assert lines == 2
    assert {(each.target, each.times, each.result) for each in trail.latest(9)} == {
        ("q9999", 10_000, "PERMISSION_DENIED"),
        ("t", 9000, "UNAUTHENTICATED"),
        ("t", 1, "ok"),
    }
    for number in range(100):  # different ones, as of clients that can choose who they are
        trail.add(act(1, "queue.delete", "QUEUE_NOT_FOUND", "", client=f"c{number}"))
    assert len(trail.latest(99)) == 4
    assert len(trail._groups) == 3


def test_what_was_taken_is_told_again_when_it_goes_on() -> None:
    trail = Trail(9)
    trail.add(act(0, "queue.purge"))
    trail.add(act(1, "queue.purge"))
    assert [each.times for each in trail.take()] == [2]
    assert trail.take() == []
    assert not trail.add(act(2, "queue.purge"))
    assert [(each.at_ms, each.times) for each in trail.take()] == [(2, 1)]
