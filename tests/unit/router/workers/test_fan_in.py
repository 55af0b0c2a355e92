"""One question to all workers, one joined answer."""

from fila_proto_zmq.codec import encode_body, to_fault
from fila_proto_zmq.commands import BackupParts, CutBackup, ListQueues, QueueInfo, QueueList, ShardCut
from fila_proto_zmq.errors import InvalidFrameError, OverloadedError, RequestTimeoutError, ShardUnavailableError
from fila_proto_zmq.frames import ERROR, REPLY, pack_header
from fila_router.core.fan_in import LIST_MS_MAX
from fila_router.core.limits import RouterLimits
from tests.unit.router.desk import CLIENT, Desk


def info(name: str) -> QueueInfo:
    return QueueInfo(name, 1, 2, 3, 0, False, False, 0)


def answer(desk: Desk, worker: str, request: int, *names: str) -> None:
    body = encode_body(QueueList([info(name) for name in names]))
    header = pack_header(ListQueues.opcode, request, REPLY)
    assert not desk.router.from_worker(worker.encode(), b"", header, b"", body, desk.now_ms)


def test_every_worker_is_asked_once_and_the_answers_are_joined_by_name(desk: Desk):
    desk.ask(ListQueues("o"), key=b"")
    asked = desk.questions(ListQueues.opcode)
    assert list(asked) == ["worker-0", "worker-1"]
    answer(desk, "worker-1", asked["worker-1"], "b", "d")
    assert desk.answers() == []
    answer(desk, "worker-0", asked["worker-0"], "c", "a")
    (joined,) = desk.answers()
    assert (joined.client, joined.request) == (CLIENT, 1)
    assert joined.content == QueueList([info(name) for name in "abcd"])


def test_the_prefix_travels_unopened(desk: Desk):
    desk.ask(ListQueues("orders/"), key=b"")
    assert {frame[4] for frame in desk.router.outgoing.to_workers} == {encode_body(ListQueues("orders/"))}


def test_a_missing_shard_refuses_the_whole(desk: Desk):
    desk.leave("worker-1")
    desk.ask(ListQueues(), key=b"")
    assert desk.questions(ListQueues.opcode) == {}
    error = desk.error()
    assert isinstance(error, ShardUnavailableError)
    assert error.details == {"refused": True, "shard": 1}


def test_a_worker_lost_meanwhile_fails_the_whole(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    asked = desk.questions(ListQueues.opcode)
    answer(desk, "worker-0", asked["worker-0"], "a")
    desk.unreachable("worker-1")
    assert isinstance(desk.error(), ShardUnavailableError)
    answer(desk, "worker-1", asked["worker-1"], "b")
    assert desk.answers() == []


def test_a_worker_restarted_meanwhile_fails_the_whole(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    desk.questions(ListQueues.opcode)
    desk.register("worker-1", shards=(1,), epoch=2)
    assert isinstance(desk.error(), ShardUnavailableError)


def test_a_worker_s_error_is_the_answer(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    asked = desk.questions(ListQueues.opcode)
    fault = encode_body(to_fault(InvalidFrameError("no such prefix")))
    header = pack_header(ListQueues.opcode, asked["worker-1"], REPLY | ERROR)
    desk.router.from_worker(b"worker-1", b"", header, b"", fault, 0)
    error = desk.error()
    assert isinstance(error, InvalidFrameError)
    assert error.message == "no such prefix"


def test_a_garbled_answer_is_an_error_too(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    asked = desk.questions(ListQueues.opcode)
    desk.router.from_worker(b"worker-1", b"", pack_header(ListQueues.opcode, asked["worker-1"], REPLY), b"", b"\xc1", 0)
    assert isinstance(desk.error(), InvalidFrameError)


def test_a_worker_that_does_not_answer_in_time_is_named(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    asked = desk.questions(ListQueues.opcode)
    answer(desk, "worker-0", asked["worker-0"], "a")
    desk.pass_ms(LIST_MS_MAX, "worker-0", "worker-1")
    error = desk.error()
    assert isinstance(error, RequestTimeoutError)
    assert "worker-1" in error.message
    assert "worker-0" not in error.message


def test_answers_that_come_twice_or_unasked_do_not_count(desk: Desk):
    desk.ask(ListQueues(), key=b"")
    asked = desk.questions(ListQueues.opcode)
    answer(desk, "worker-0", asked["worker-0"], "a")
    answer(desk, "worker-0", asked["worker-0"], "a")
    answer(desk, "stranger", asked["worker-1"], "b")
    assert desk.answers() == []
    answer(desk, "worker-1", asked["worker-1"], "b")
    (joined,) = desk.answers()
    assert joined.content == QueueList([info("a"), info("b")])


def test_questions_under_way_are_bounded_and_shared_by_clients():
    desk = Desk(limits=RouterLimits(questions_max=4))
    desk.register()
    for _ in range(2):
        desk.ask(ListQueues(), key=b"")
    desk.ask(ListQueues(), key=b"", client=b"\1other")
    assert desk.answers() == []
    desk.ask(ListQueues(), key=b"")
    error = desk.error()
    assert isinstance(error, OverloadedError)
    assert error.details["refused"] is True


def test_the_parts_of_a_backup_are_joined_by_shard(desk: Desk):
    desk.ask(CutBackup("backup-1"), key=b"")
    parts = {"worker-0": BackupParts([ShardCut(2, 1, True, True), ShardCut(0, 1, True, True)], ["b"])}
    parts["worker-1"] = BackupParts([ShardCut(1, 4, True, False, "/d/c/x/shard-0001", 9)], ["a"])
    for worker, request in desk.questions(CutBackup.opcode).items():
        header = pack_header(CutBackup.opcode, request, REPLY)
        desk.router.from_worker(worker.encode(), b"", header, b"", encode_body(parts[worker]), desk.now_ms)
    (joined,) = desk.answers()
    first, last = parts["worker-0"].shards[::-1]
    assert joined.content == BackupParts([first, *parts["worker-1"].shards, last], ["a", "b"])


def test_a_partial_list_has_the_queues_of_the_shards_that_answer(desk: Desk):
    desk.leave("worker-1")
    desk.ask(ListQueues(partial=True), key=b"")
    asked = desk.questions(ListQueues.opcode)
    assert list(asked) == ["worker-0"]
    body = encode_body(QueueList([info("a")], shards=[0]))
    header = pack_header(ListQueues.opcode, asked["worker-0"], REPLY)
    desk.router.from_worker(b"worker-0", b"", header, b"", body, desk.now_ms)
    (joined,) = desk.answers()
    assert joined.content == QueueList([info("a")], shards=[0])


def test_a_partial_list_does_without_a_worker_that_is_late(desk: Desk):
    desk.ask(ListQueues(partial=True), key=b"")
    asked = desk.questions(ListQueues.opcode)
    answer(desk, "worker-0", asked["worker-0"], "a")
    desk.router.tick(desk.now_ms + LIST_MS_MAX)
    (joined,) = desk.answers()
    assert joined.content == QueueList([info("a")])
