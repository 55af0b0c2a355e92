"""The features of a process: a turn calls those whose time has come, in order, and a command goes to the first that has it."""

import pytest

from fila_proto_zmq.codec import encode_command
from fila_proto_zmq.commands import BeginBackup, Command, GetHosts, HostList, Park, PrepareShard, Reply
from fila_worker.core.due_time import NEVER
from fila_worker.core.effects import ClientCall, Post
from fila_worker.process.feature import IN_PASSING, ProcessFeature
from fila_worker.process.shard_process import ShardProcess
from tests.support.shard.shard_process import HostHarness

NOW_MS = 1_000_000


class Counted(ProcessFeature):
    """Writes its calls down. ``next_ms``: what its turns return."""

    def __init__(self, name: str, calls: list[str], next_ms: int | None = None) -> None:
        super().__init__()
        self.commands = {GetHosts: self._carry_out}
        self.name, self.calls, self.next_ms = name, calls, next_ms

    def _carry_out(self, call: ClientCall, command: Command) -> Reply:
        self.calls.append(f"{self.name} {type(command).__name__}")
        return HostList([])

    def turn(self, now_ms: int) -> int | None:
        self.calls.append(self.name)
        return self.next_ms

    def on_post(self, post: Post) -> bool:
        self.calls.append(f"{self.name} posts")
        return self.name == "keeps"

    def retire(self) -> None:
        self.calls.append(f"{self.name} retires")

    def close(self) -> None:
        self.calls.append(f"{self.name} closes")


def test_a_feature_is_called_when_it_is_due() -> None:
    calls: list[str] = []
    feature = Counted("one", calls, NOW_MS + 50)
    host = ShardProcess([], 1, NOW_MS, features=[feature])
    assert host.turn(NOW_MS) == []
    assert (calls, host.next_due(NOW_MS)) == ([], None)
    feature.timer.by(NOW_MS + 10)
    assert host.next_due(NOW_MS) == 10
    host.turn(NOW_MS + 9)
    assert calls == []
    host.turn(NOW_MS + 10)
    assert (calls, host.next_due(NOW_MS + 10)) == (["one"], 40)
    feature.next_ms = None
    host.turn(NOW_MS + 50)
    assert (calls, host.next_due(NOW_MS + 50)) == (["one", "one"], None)


def test_work_in_passing_is_looked_at_in_each_turn_and_causes_none() -> None:
    calls: list[str] = []
    feature = Counted("one", calls, IN_PASSING)
    host = ShardProcess([], 1, NOW_MS, features=[feature])
    feature.timer.by(IN_PASSING)
    for _ in range(3):
        assert host.next_due(NOW_MS) is None
        host.turn(NOW_MS)
    assert calls == ["one"] * 3


def test_a_clock_that_was_set_back_leaves_nothing_undone() -> None:
    calls: list[str] = []
    feature = Counted("one", calls)
    host = ShardProcess([], 1, NOW_MS, features=[feature])
    feature.timer.due_ms = NOW_MS + 10
    host.begin_turn(NOW_MS - 1000)
    host.turn(NOW_MS - 1000)
    assert (calls, feature.timer.due_ms) == (["one"], NEVER)


def test_features_are_called_in_the_order_of_the_list() -> None:
    calls: list[str] = []
    features = [Counted("one", calls), Counted("two", calls)]
    host = ShardProcess([], 1, NOW_MS, features=features)
    for feature in reversed(features):
        feature.timer.by(NOW_MS)
    host.turn(NOW_MS)
    host.retire()
    host.close()
    assert calls == ["one", "two", "one retires", "two retires", "one closes", "two closes"]


def test_a_command_goes_to_the_first_feature_that_has_it() -> None:
    calls: list[str] = []
    host = ShardProcess([], 1, NOW_MS, features=[Counted("one", calls), Counted("two", calls)])
    host.accept([b"", *encode_command(GetHosts(), 7)], NOW_MS)
    (answer,) = host.turn(NOW_MS)
    assert (calls, answer.client) == (["one GetHosts"], b"")


def test_what_a_feature_keeps_does_not_leave_the_process() -> None:
    calls: list[str] = []
    harness = HostHarness(0)
    for name in ("sees", "keeps"):
        harness.host.add(Counted(name, calls), harness.now_ms)
    harness.host.shards[0].effects.append(Post(Park({"api": harness.now_ms + 1})))
    assert harness.host.turn(harness.now_ms) == []
    assert calls == ["sees posts", "keeps posts"]


@pytest.mark.parametrize(("command", "why"), [(PrepareShard(0), b"cannot move"), (BeginBackup("backup-1"), b"no backups")])
def test_a_process_without_a_feature_says_so(command: PrepareShard | BeginBackup, why: bytes) -> None:
    ((_, _, _, body),) = HostHarness(0).exchange([b"", *encode_command(command, 7)])
    assert why in body
