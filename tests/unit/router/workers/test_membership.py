"""Workers come, fall silent, vanish, leave and return; what that means for those who wait for them."""

import pytest

from fila_proto_zmq.codec import decode_body, from_fault
from fila_proto_zmq.commands import DELIVERY, Done, Enqueue, Fault, ListQueues, Park, Pulsed, Register, Registered
from fila_proto_zmq.errors import InvalidArgumentError, InvalidFrameError, ShardUnavailableError, UnsupportedVersionError
from fila_proto_zmq.events import WorkerJoined, WorkerLeft, WorkerLost, WorkerRefused
from fila_proto_zmq.frames import ERROR, REPLY, pack_header, unpack_header
from tests.unit.router.desk import PID, QUEUE, Desk


def states(desk: Desk) -> dict[str, str]:
    return {worker.name: worker.state for worker in desk.router._table.status()}


def pushed(desk: Desk, worker: str, key: bytes = QUEUE) -> bool:
    desk.frame(b"")  # the client is there
    return (
        desk.router.from_worker(worker.encode(), desk.client_on(), pack_header(DELIVERY), key, b"", desk.now_ms) is not None
    )


def assert_interrupted(desk: Desk, *requests: int) -> None:
    answers = desk.answers()
    assert [answer.request for answer in answers] == list(requests)
    for answer in answers:
        assert isinstance(answer.content, ShardUnavailableError)
        assert "refused" not in answer.content.details


def test_registration_and_pulses_are_answered():
    desk = Desk()
    assert desk.register() == Registered()
    assert desk.pulse() == Pulsed(desk.now_ms, 1)


def test_a_pulse_of_a_stranger_asks_it_to_register():
    desk = Desk()
    assert isinstance(desk.pulse(), ShardUnavailableError)
    assert isinstance(desk.leave(), ShardUnavailableError)


def test_a_refused_registration_is_answered_and_noted():
    desk = Desk()
    desk.register(epoch=2)
    assert isinstance(desk.register("ghost", epoch=1), InvalidArgumentError)
    (refused,) = desk.notes(WorkerRefused)
    assert (refused.worker, refused.error) == ("ghost", "INVALID_ARGUMENT")
    assert "epoch 1 is outdated" in refused.reason
    assert desk.enqueue() == b"worker-0"


def test_a_worker_that_pulses_stays():
    desk = Desk()
    desk.register()
    desk.pass_ms(60_000, "worker-0")
    assert states(desk) == {"worker-0": "up"}
    assert desk.notes() == [WorkerJoined("worker-0", PID, "9.9", [0])]


def test_any_frame_is_a_sign_of_life():
    desk = Desk()
    desk.register()
    for _ in range(10):
        desk.pass_ms(2000)
        pushed(desk, "worker-0")
    assert states(desk) == {"worker-0": "up"}


def test_silence_loses_a_worker_and_answers_for_it():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.pass_ms(3000)
    assert desk.answers() == []
    desk.pass_ms(500)
    assert_interrupted(desk, 1)
    assert states(desk) == {"worker-0": "down"}
    assert desk.notes(WorkerLost) == [WorkerLost("worker-0", PID, [0], "silent for 3.2 s")]
    assert desk.enqueue() is None
    assert desk.error().details["refused"] is True


def test_every_tick_knocks_where_a_worker_is_expected():
    desk = Desk(shards=3)
    for shard in range(3):
        desk.register(f"worker-{shard}", shards=(shard,))
    desk.unreachable("worker-1")
    desk.leave("worker-2")
    desk.pass_ms(250)
    assert desk.knocked == {"worker-0"}


def test_a_leaving_worker_is_knocked_at_while_it_owes_answers():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.leave()
    desk.pass_ms(250)
    assert desk.knocked == {"worker-0"}
    desk.reply(1)
    desk.pass_ms(250)
    assert desk.knocked == set()


def test_a_silent_worker_returns_by_any_frame():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.pass_ms(5000)
    desk.answers()
    assert not desk.reply(1)  # too late: the client was told otherwise
    assert states(desk) == {"worker-0": "up"}
    assert desk.enqueue() == b"worker-0"


def test_a_pause_of_the_router_itself_counts_as_no_worker_s_silence():
    desk = Desk()
    desk.register()
    desk.pass_ms(1000, "worker-0")
    desk.now_ms += 60_000
    desk.router.tick(desk.now_ms)
    assert states(desk) == {"worker-0": "up"}
    desk.pass_ms(3500)
    assert states(desk) == {"worker-0": "down"}


def test_a_vanished_connection_answers_at_once():
    desk = Desk()
    desk.register()
    desk.enqueue()
    assert desk.enqueue() == b"worker-0"
    desk.router.unsent(b"worker-0", desk.client_on(), pack_header(Enqueue.opcode, 2), QUEUE, desk.now_ms)
    refused, interrupted = desk.answers()
    assert (refused.request, interrupted.request) == (2, 1)
    assert refused.content.details["refused"] is True
    assert "refused" not in interrupted.content.details
    assert desk.enqueue() is None


def test_a_new_life_with_a_higher_epoch_ends_the_old_one_s_requests():
    desk = Desk()
    desk.register(epoch=1)
    desk.enqueue()
    desk.register(epoch=2)
    assert_interrupted(desk, 1)
    assert not desk.reply(1)
    assert desk.enqueue() == b"worker-0"
    assert desk.reply(2)


def test_registering_again_in_the_same_life_ends_nothing():
    desk = Desk()
    desk.register(epoch=1)
    desk.enqueue()
    desk.register(epoch=1)
    assert desk.answers() == []
    assert desk.reply(1)


def test_a_shard_that_moves_takes_only_its_own_requests_along():
    desk = Desk(shards=2)
    desk.register("worker-0", shards=(0, 1))
    keys = {desk.router._table.shard_of(key): key for key in (b"orders", b"a", b"b", b"c", b"d")}
    desk.enqueue(keys[0])
    desk.enqueue(keys[1])
    desk.register("worker-1", shards=(1,), epoch=2)
    assert_interrupted(desk, 2)
    assert desk.reply(1)
    assert desk.enqueue(keys[1]) == b"worker-1"


def test_only_a_shard_s_owner_may_push():
    desk = Desk(shards=2)
    desk.register("worker-0", shards=(0, 1))
    key = next(key for key in (b"orders", b"a", b"b", b"c") if desk.router._table.shard_of(key) == 1)
    assert pushed(desk, "worker-0", key)
    desk.register("worker-1", shards=(1,), epoch=2)
    assert not pushed(desk, "worker-0", key)
    assert pushed(desk, "worker-1", key)
    assert not pushed(desk, "stranger", key)
    assert not pushed(desk, "worker-1", b"no queue's name")


def test_a_leaving_worker_gets_nothing_new_and_answers_what_it_has():
    desk = Desk()
    desk.register()
    desk.enqueue()
    assert desk.leave() == Done()
    assert desk.enqueue() is None
    assert desk.error().details["refused"] is True
    assert desk.reply(1)
    assert pushed(desk, "worker-0")
    assert desk.enqueue() is None  # nothing but a registration brings it back
    desk.answers()
    assert states(desk) == {"worker-0": "down"}
    desk.register(epoch=2)
    assert desk.enqueue() == b"worker-0"


def test_what_a_leaving_worker_leaves_behind_is_answered_for_it():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.leave()
    desk.pass_ms(3500)
    assert_interrupted(desk, 1)
    assert desk.notes(WorkerLost) == []  # it went as it should
    assert desk.notes(WorkerLeft) == [WorkerLeft("worker-0", PID, [0])]


def test_the_last_answer_to_a_worker_that_left_is_no_news():
    desk = Desk()
    desk.register()
    desk.leave()
    desk.unreachable("worker-0")
    desk.unreachable("stranger")
    assert desk.notes(WorkerLost) == []


@pytest.mark.parametrize("command", [Enqueue([]), ListQueues()])
def test_a_worker_is_no_client(command):
    desk = Desk()
    desk.register()
    assert isinstance(desk.say("worker-0", command), InvalidFrameError)


def test_a_worker_that_registers_in_another_version_gets_the_error():
    desk = Desk()
    header = pack_header(Register.opcode, 7, version=2)
    assert desk.router.from_worker(b"worker-0", b"", header, b"", b"", 0) is None
    ((identity, client, answer, _, body),) = desk.router.outgoing.to_workers
    assert (identity, client, unpack_header(answer)[:4]) == (b"worker-0", b"", (Register.opcode, REPLY | ERROR, 0, 7))
    error = from_fault(decode_body(Fault, body))
    assert isinstance(error, UnsupportedVersionError)
    assert "speaks protocol version 2" in str(error)
    assert not desk.router._table.workers


def test_a_worker_of_another_version_is_not_heard():
    desk = Desk()
    desk.register()
    desk.enqueue()
    header = pack_header(Enqueue.opcode, 1, REPLY, version=2)
    assert not desk.router.from_worker(b"worker-0", desk.client_on(), header, QUEUE, b"", 0)


def test_requests_that_are_never_answered_are_forgotten_at_last():
    desk = Desk()
    desk.register()
    desk.enqueue()
    desk.pass_ms(80_000, "worker-0")
    assert desk.answers() == []
    assert not desk.reply(1)
    assert len(desk.router._table.workers[b"worker-0"].in_flight) == 0


def test_parks_end_by_the_workers_time_and_not_by_the_router_s():
    """The wall clock was set back by an hour since the router was started; its own time was not."""
    desk = Desk(2)
    desk.register()
    desk.register("worker-1", shards=(1,))
    desk.now_ms += 3_600_000
    desk.router.dated(-3_600_000)
    desk.mention("worker-0", Park({"api": 30_000}))
    assert [command for _, command in desk.told()][-1:] == [Park({"api": 30_000})]


def test_a_worker_that_registers_again_with_the_same_is_noted_once():
    desk = Desk(2)
    for _ in range(3):
        desk.register()
    for _ in range(2):
        desk.register(shards=(0, 1))
    desk.leave()
    desk.register(epoch=2, shards=(0, 1))
    whole = WorkerJoined("worker-0", PID, "9.9", [0, 1])
    assert desk.notes() == [WorkerJoined("worker-0", PID, "9.9", [0]), whole, WorkerLeft("worker-0", PID, [0, 1]), whole]
