"""Moves of shards, and drains, as the router sees them."""

from collections.abc import Sequence

import pytest

from fila_proto_zmq.commands import (
    AdoptShards,
    ClusterStatus,
    Command,
    ConfigChange,
    Done,
    DrainWorker,
    GetClusterStatus,
    MoveShard,
    PrepareShard,
    PutDraining,
    Register,
    ReleaseShard,
    SetConfig,
    ShardOutage,
    WorkerStatus,
)
from fila_proto_zmq.errors import FilaError, InvalidArgumentError, ShardUnavailableError, StorageError
from fila_proto_zmq.events import ShardMoved, ShardNotMoved, WorkerDraining
from fila_proto_zmq.outages import OPENING, QUARANTINED
from fila_router.core.moves import MOVE_MS_MAX, PAUSE_MS, REPEAT_MS
from fila_router.core.worker_state import SILENCE_MS_MAX
from tests.unit.router.desk import PID, Desk

SOURCE, TARGET = "worker-0", "worker-1"


@pytest.fixture
def desk() -> Desk:
    """Two workers of one directory, and one that is elsewhere."""
    desk = Desk(shards=1)
    register(desk, SOURCE, [(0, 1)])
    register(desk, TARGET)
    register(desk, "worker-2", home="there")
    desk.told()
    return desk


def register(
    desk: Desk, worker: str, shards: Sequence[tuple[int, int]] = (), home: str = "here", outages: Sequence[ShardOutage] = (), *, draining: bool = False
) -> None:  # fmt: skip
    desk.say(worker, Register(worker, PID, "9.9", list(shards), outages=list(outages), home=home, draining=draining))


def move(desk: Desk, worker: str = TARGET, shard: int = 0) -> None:
    desk.ask(MoveShard(shard, worker), b"")


def refused(desk: Desk, command: Command) -> str:
    desk.ask(command, b"")
    error = desk.error()
    assert isinstance(error, InvalidArgumentError)
    assert desk.told() == []
    return str(error)


def prepared(desk: Desk) -> None:
    """Begin a move, up to its release."""
    move(desk)
    assert desk.told() == [(SOURCE, PrepareShard(0))]
    desk.confirm(SOURCE, PrepareShard(0), 1)
    assert desk.told() == [(SOURCE, ReleaseShard(0, TARGET))]


def outcome(desk: Desk) -> Done | FilaError:
    (answer,) = desk.answers()
    assert isinstance(answer.content, (Done, FilaError))
    return answer.content


def workers(desk: Desk) -> dict[str, WorkerStatus]:
    desk.ask(GetClusterStatus(), b"")
    (answer,) = desk.answers()
    assert isinstance(answer.content, ClusterStatus)
    return {worker.name: worker for worker in answer.content.workers}


def test_a_shard_goes_step_by_step(desk: Desk) -> None:
    move(desk)
    assert desk.told() == [(SOURCE, PrepareShard(0))]
    assert desk.enqueue() == SOURCE.encode(), "it serves while it is prepared"
    assert desk.reply(desk.last_request)
    desk.confirm(SOURCE, PrepareShard(0), 1)
    assert desk.told() == [(SOURCE, ReleaseShard(0, TARGET))]
    assert workers(desk)[SOURCE].shards == [0]
    assert desk.enqueue() is None
    assert desk.error().details["refused"] is True
    assert desk.answers() == []
    desk.confirm(SOURCE, ReleaseShard(0, TARGET), 1)
    assert desk.told() == [(TARGET, AdoptShards())]
    assert workers(desk)[TARGET].outages == [ShardOutage(0, OPENING, "it comes from worker-0")]
    register(desk, SOURCE)
    register(desk, TARGET, outages=[ShardOutage(0, OPENING, "it is being opened")])
    desk.now_ms = 70
    register(desk, TARGET, [(0, 2)])
    assert outcome(desk) == Done()
    assert desk.notes(ShardMoved) == [ShardMoved(0, SOURCE, TARGET, 70)]
    assert desk.enqueue() == TARGET.encode()
    move(desk)
    assert outcome(desk) == Done(), "it is there"


def test_what_the_old_owner_still_says_goes_to_the_clients(desk: Desk) -> None:
    move(desk)
    desk.told()
    desk.enqueue()
    request = desk.last_request
    desk.ask(SetConfig("a", "b"), b"")
    ((_, proposed),) = desk.told()
    assert proposed == SetConfig("a", "b")
    desk.confirm(SOURCE, PrepareShard(0), 1)
    register(desk, SOURCE, [(0, 1)])  # it had yet to read that it is to release the shard
    assert desk.enqueue() is None
    desk.error()
    assert desk.reply(request)
    desk.confirm(SOURCE, SetConfig("a", "b"), 1, ConfigChange(1, {"a": "b"}, existed=False))
    assert [type(command) for _, command in desk.told()].count(ReleaseShard) == 2, "it is asked again when it registers"


def test_what_is_never_answered_is_interrupted_when_the_shard_is_closed(desk: Desk) -> None:
    move(desk)
    desk.enqueue()
    desk.confirm(SOURCE, PrepareShard(0), 1)
    assert desk.answers() == []
    desk.confirm(SOURCE, ReleaseShard(0, TARGET), 1)
    assert isinstance(desk.error(), ShardUnavailableError)


def test_what_cannot_be_moved_is_refused(desk: Desk) -> None:
    assert "no shard 1: this cluster has shards 0 to 0" in refused(desk, MoveShard(1, TARGET))
    assert "no worker 'x': the workers are worker-0, worker-1, worker-2" in refused(desk, MoveShard(0, "x"))
    assert "worker-2 uses another one: a shard moves only between workers of one data directory" in refused(
        desk, MoveShard(0, "worker-2")
    )
    register(desk, TARGET, draining=True)
    desk.told()
    assert "`fila-cluster drain worker-1 --undo`" in refused(desk, MoveShard(0, TARGET))
    register(desk, TARGET)
    desk.leave(TARGET)
    desk.told()
    assert "worker-1 is down" in refused(desk, MoveShard(0, TARGET))


def test_a_shard_that_does_not_serve_stays(desk: Desk) -> None:
    register(desk, SOURCE, outages=[ShardOutage(0, OPENING, "why")])
    move(desk)
    assert isinstance(desk.error(), ShardUnavailableError), "which the client asks again"
    register(desk, SOURCE, outages=[ShardOutage(0, QUARANTINED, "it is damaged")])
    desk.told()
    assert "only be moved while it serves: shard 0 is quarantined: it is damaged" in refused(desk, MoveShard(0, TARGET))


def test_two_that_want_the_same_wait_for_one_move(desk: Desk) -> None:
    register(desk, "worker-3")
    desk.told()
    move(desk)
    desk.told()
    assert "on its way to worker-1" in refused(desk, MoveShard(0, "worker-3"))
    move(desk)
    assert desk.told() == []
    register(desk, TARGET, [(0, 2)])
    assert [answer.content for answer in desk.answers()] == [Done(), Done()]


def test_a_source_that_cannot_keeps_the_shard(desk: Desk) -> None:
    prepared(desk)
    desk.confirm(SOURCE, ReleaseShard(0, TARGET), 1, StorageError("no space"))
    error = outcome(desk)
    assert isinstance(error, ShardUnavailableError)
    assert "was not moved from worker-0 to worker-1: no space" in str(error)
    assert desk.enqueue() == SOURCE.encode()


@pytest.mark.parametrize("released", [False, True])
def test_a_source_that_is_killed_before_it_names_the_next_host_keeps_the_shard(desk: Desk, released: bool) -> None:
    prepared(desk) if released else move(desk)
    register(desk, SOURCE, outages=[ShardOutage(0, OPENING, "it is being opened")])
    assert isinstance(outcome(desk), ShardUnavailableError)
    register(desk, SOURCE, [(0, 2)])
    assert desk.enqueue() == SOURCE.encode()
    assert len(desk.notes(ShardNotMoved)) == 1


def test_a_source_that_is_killed_after_that_does_not(desk: Desk) -> None:
    prepared(desk)
    register(desk, SOURCE)
    assert (TARGET, AdoptShards()) in desk.told()
    register(desk, TARGET, [(0, 2)])
    assert outcome(desk) == Done()


def test_a_source_that_registers_again_is_asked_again(desk: Desk) -> None:
    """The request may be lost with its connection: without another one its queues are away for a minute."""
    move(desk)
    for asked in (PrepareShard(0), ReleaseShard(0, TARGET)):
        assert desk.told() == [(SOURCE, asked)]
        register(desk, TARGET)
        assert desk.told() == []
        register(desk, SOURCE, [(0, 1)])
        assert desk.told() == [(SOURCE, asked)]
        desk.confirm(SOURCE, asked, 1)
    assert desk.told() == [(TARGET, AdoptShards())]
    desk.confirm(SOURCE, ReleaseShard(0, TARGET), 1, InvalidArgumentError("there is no shard 0 here"))
    register(desk, TARGET, [(0, 2)])
    assert isinstance(desk.answers()[-1].content, Done), "the second answer is none to the move"


def test_a_source_that_does_not_answer_is_asked_again_after_a_second(desk: Desk) -> None:
    move(desk)
    for asked in (PrepareShard(0), ReleaseShard(0, TARGET)):
        assert desk.told() == [(SOURCE, asked)]
        desk.pass_ms(REPEAT_MS + 250, SOURCE, TARGET)
        assert (SOURCE, asked) in desk.told()
        desk.confirm(SOURCE, asked, 1)
    assert desk.told() == [(TARGET, AdoptShards())]


def test_a_silent_source_has_its_shard_again_when_it_is_back(desk: Desk) -> None:
    prepared(desk)
    desk.pass_ms(SILENCE_MS_MAX + 500, TARGET)
    assert isinstance(outcome(desk), ShardUnavailableError)
    assert workers(desk)[SOURCE].shards == [0]
    desk.pulse(SOURCE)
    assert desk.enqueue() == SOURCE.encode()


def test_a_move_that_never_ends_is_given_up_and_ends_all_the_same(desk: Desk) -> None:
    prepared(desk)
    desk.confirm(SOURCE, ReleaseShard(0, TARGET), 1)
    desk.pass_ms(MOVE_MS_MAX, SOURCE, TARGET)
    assert "it opens there when that worker can" in str(outcome(desk))
    register(desk, TARGET, [(0, 2)])
    assert desk.enqueue() == TARGET.encode()


def drained(desk: Desk, worker: str = SOURCE, *, undo: bool = False) -> None:
    desk.ask(DrainWorker(worker, undo), b"")
    assert outcome(desk) == Done()


def test_a_drained_worker_gives_all_its_shards_to_those_with_the_fewest() -> None:
    desk = Desk(shards=3)
    register(desk, SOURCE, [(0, 1), (1, 1)])
    register(desk, TARGET, [(2, 1)])
    register(desk, "worker-3")
    desk.told()
    drained(desk)
    assert desk.told() == [(SOURCE, PutDraining(draining=True))]
    assert desk.notes(WorkerDraining) == [WorkerDraining(SOURCE, [0, 1])]
    held = {0, 1}
    for number, target in ((1, "worker-3"), (2, TARGET)):
        desk.router.tick(desk.now_ms)
        ((_, asked),) = [(each, command) for each, command in desk.told() if isinstance(command, PrepareShard)]
        assert isinstance(asked, PrepareShard)
        held.remove(asked.shard)
        desk.confirm(SOURCE, asked, number)
        assert (SOURCE, ReleaseShard(asked.shard, target)) in desk.told()
        desk.confirm(SOURCE, ReleaseShard(asked.shard, target), number)
        register(desk, SOURCE, [(shard, 1) for shard in held], draining=True)
        register(desk, target, [(asked.shard, 2), *((shard, 1) for shard in (2,) if target == TARGET)])
    desk.router.tick(desk.now_ms)
    assert not [command for _, command in desk.told() if isinstance(command, PrepareShard)]
    assert workers(desk)[SOURCE] == WorkerStatus(SOURCE, PID, "up", [], 0, 0, [], draining=True)
    drained(desk, undo=True)
    assert desk.told() == [(SOURCE, PutDraining(draining=False))]


def test_the_last_worker_is_not_drained(desk: Desk) -> None:
    drained(desk, TARGET)
    desk.told()
    assert "worker-0 is the last worker that takes shards" in refused(desk, DrainWorker(SOURCE))
    drained(desk, TARGET, undo=True)
    drained(desk, SOURCE)


def test_a_worker_of_a_replicated_log_leaves_its_shards_to_other_hosts_by_itself() -> None:
    desk = Desk(shards=1)
    register(desk, SOURCE, [(0, 1)], home="")
    desk.told()
    drained(desk, SOURCE)
    assert desk.told() == [(SOURCE, PutDraining(draining=True))]
    desk.router.tick(desk.now_ms)
    assert not [command for _, command in desk.told() if isinstance(command, PrepareShard)]


def test_a_new_router_goes_on_with_a_drain(desk: Desk) -> None:
    another = Desk(shards=1)
    register(another, SOURCE, [(0, 1)], draining=True)
    register(another, TARGET)
    another.told()
    another.router.tick(another.now_ms)
    assert (SOURCE, PrepareShard(0)) in another.told()


def test_a_drain_pauses_after_a_move_that_failed(desk: Desk) -> None:
    drained(desk)
    desk.router.tick(desk.now_ms)
    assert (SOURCE, PrepareShard(0)) in desk.told()
    desk.confirm(SOURCE, PrepareShard(0), 1, StorageError("no space"))
    desk.router.tick(desk.now_ms)
    assert (SOURCE, PrepareShard(0)) not in desk.told()
    desk.pass_ms(PAUSE_MS, SOURCE, TARGET)
    assert (SOURCE, PrepareShard(0)) in desk.told()


def test_an_idle_worker_that_is_gone_is_forgotten(desk: Desk) -> None:
    desk.leave(TARGET)
    register(desk, "worker-2", home="there")
    assert TARGET not in workers(desk)
