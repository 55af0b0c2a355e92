"""The features of a router: each command has one, and a feature is called when it is due."""

import pytest

from fila_admission.requests import OF_A_QUEUE, OF_WORKERS
from fila_proto_zmq.commands import BY_OPCODE, DrainWorker, GetMetrics, Hello, MoveShard, SetConfig
from fila_router.core.config_replication import CHANGE_MS_MAX, ConfigReplication
from fila_router.core.fan_in import METRICS_MS_MAX, FanIns
from fila_router.core.feature import NEVER, RouterFeature
from fila_router.core.moves import REPEAT_MS, Moves
from tests.unit.router.desk import Desk


def test_each_command_that_is_for_no_queue_has_one_feature(desk: Desk):
    features = desk.router._state.features
    handled = [command for feature in features for command in feature.commands]
    of_queues = {start[3] for start in OF_A_QUEUE}
    wanted = {command for opcode, command in BY_OPCODE.items() if opcode < OF_WORKERS and opcode not in of_queues}
    assert set(handled) == wanted - {Hello}
    assert len(handled) == len(set(handled))


def test_each_frame_of_workers_has_one_feature(desk: Desk):
    for kind in ("messages", "answers"):
        handled = [command for feature in desk.router._state.features for command in getattr(feature, kind)]
        assert len(handled) == len(set(handled))


@pytest.mark.parametrize("kind", [ConfigReplication, FanIns, Moves])
def test_a_feature_without_work_is_not_called(desk: Desk, kind: type[RouterFeature], monkeypatch: pytest.MonkeyPatch):
    desk.pass_ms(250)
    feature = desk.feature(kind)
    assert feature.due_ms == NEVER
    monkeypatch.setattr(feature, "tick", pytest.fail)
    desk.pass_ms(2000, "worker-0", "worker-1")


def test_a_question_is_due_at_its_deadline(desk: Desk):
    desk.pass_ms(250)
    desk.ask(GetMetrics(), key=b"")
    assert desk.feature(FanIns).due_ms == desk.now_ms + METRICS_MS_MAX
    desk.pass_ms(METRICS_MS_MAX, "worker-0", "worker-1")
    assert len(desk.answers()) == 1
    assert desk.feature(FanIns).due_ms == NEVER


def test_a_change_of_the_config_is_looked_at_until_it_is_answered(desk: Desk):
    desk.pass_ms(250)
    desk.ask(SetConfig("color", "blue"), key=b"")
    assert desk.feature(ConfigReplication).due_ms < desk.now_ms
    desk.pass_ms(CHANGE_MS_MAX, "worker-0", "worker-1")
    assert desk.feature(ConfigReplication).due_ms == NEVER


def test_a_drain_is_continued_at_each_tick_until_it_is_undone(desk: Desk):
    for number in (2, 3):
        desk.register(f"worker-{number}", shards=(), home="d")
    desk.pass_ms(250)
    assert desk.feature(Moves).due_ms == NEVER
    for undo in (False, True):
        desk.ask(DrainWorker("worker-2", undo), key=b"")
        desk.pass_ms(500, "worker-2", "worker-3")
        assert (desk.feature(Moves).due_ms == NEVER) is undo


def test_a_drained_worker_that_registers_makes_moves_due(desk: Desk):
    desk.pass_ms(250)
    desk.register("worker-2", shards=(), home="d", draining=True)
    assert desk.feature(Moves).due_ms < desk.now_ms


def test_a_move_is_due_when_its_step_is_to_be_asked_for_again():
    desk = Desk(shards=1)
    desk.register("worker-0", home="d")
    desk.register("worker-1", shards=(), home="d")
    desk.pass_ms(250)
    desk.ask(MoveShard(0, "worker-1"), key=b"")
    assert desk.feature(Moves).due_ms == desk.now_ms + REPEAT_MS
