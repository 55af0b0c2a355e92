"""Commands on queues with several partitions: the whole call has one deadline, whatever partitions do not answer."""

from typing import Any

import pytest

from fila_cluster import Request
from fila_cluster.errors import FilaError, MessageNotFoundError, RequestTimeoutError
from fila_proto_zmq import commands
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Command,
    DescribeQueue,
    Explain,
    Explained,
    GetQueueStats,
    Hello,
    KeyStats,
    Pause,
    PurgeQueue,
    QueueStats,
)
from fila_proto_zmq.errors import PartitionedError
from tests.unit.client.peer import Peer, Sent, broker, usual_answer

PARTITIONS = 4
TIMEOUT_S = 0.5
REFUSAL = PartitionedError("partitions", details={"partitions": PARTITIONS, "spread": "key"})


class Told:
    """Calls of a client, and a broker with a queue ``q`` of four partitions, some of which hang."""

    def __init__(self, connect: Any, hung: set[str], answers: dict[type[Command], Any]) -> None:
        self.hung = hung
        self.answers = answers
        self.calls: list[Any] = []
        self.connect = connect

    def answer(self, sent: Sent) -> Any:
        if isinstance(sent.command, Hello):
            return usual_answer(sent)
        if sent.key in self.hung:
            return None
        if sent.key == "q":
            return REFUSAL
        answer = self.answers.get(type(sent.command))
        return answer(sent) if callable(answer) else answer or usual_answer(sent)

    def ask(self, question: Command) -> tuple[Any, list[str]]:
        """What comes of it, and which queues were asked for it."""
        with broker(self.answer) as peer, self.connect(peer.endpoint, timeout=TIMEOUT_S) as client:
            session, outcome = client._session, None
            starts = session._start

            def start(*args: Any, **options: Any) -> Any:
                self.calls.append(call := starts(*args, **options))
                return call

            session._start = start
            try:
                outcome = client.request(Request("q", question))
            except FilaError as error:
                outcome = error
            return outcome, [call.key for call in self.calls]

    @property
    def is_in_time(self) -> bool:
        began = min(call.deadline - call.timeout for call in self.calls)
        return max(call.deadline for call in self.calls) <= began + TIMEOUT_S + 1e-6


@pytest.fixture
def told(connect: Any) -> Any:
    def made(*hung: str, **answers: Any) -> Told:
        return Told(connect, set(hung), {getattr(commands, name): answer for name, answer in answers.items()})

    return made


def of(sent: Sent, following: int = 0) -> QueueStats:
    start = sent.command.start
    info = commands.QueueInfo(sent.key, 1, 0, 0, 0, False, False, 0)
    return QueueStats(info, 0, 1, 1, 0, 0, 0, 0, 0, [KeyStats(f"{sent.key}/{start}", 1, 1, 0, 0, 0, 0, False)], [], following)


@pytest.mark.parametrize("command", [Pause(), PurgeQueue(), DescribeQueue(), GetQueueStats(), Explain()])
def test_all_are_asked_at_once(told: Any, command: Command):
    told = told("q@0", "q@1", "q@2", "q@3")
    error, asked = told.ask(command)
    assert isinstance(error, RequestTimeoutError)
    assert asked == ["q", "q@0", "q@1", "q@2", "q@3"]
    assert len({call.deadline for call in told.calls}) == 1
    assert told.is_in_time


def test_what_answers_is_the_answer_to_a_question(told: Any):
    told = told("q@0", "q@2", GetQueueStats=of)
    stats, _ = told.ask(GetQueueStats())
    assert (stats.info.name, stats.info.pending) == ("q", 2)
    assert told.is_in_time


def test_each_page_of_keys_has_its_own_time(told: Any):
    told = told(GetQueueStats=lambda sent: of(sent, 0 if sent.command.start else 7))
    stats, asked = told.ask(GetQueueStats())
    assert stats.info.pending == PARTITIONS
    assert sorted(key.fairness_key for key in stats.keys) == sorted(
        f"q@{each}/{start}" for each in range(4) for start in (0, 7)
    )
    assert len(asked) == 1 + 2 * PARTITIONS
    assert not told.is_in_time


@pytest.mark.parametrize("command", [Browse(10), Cancel(1, 2)])
def test_what_depends_on_the_others_leaves_time_for_them(told: Any, command: Command):
    told = told("q@0", "q@2", Browse=Browsed([], False), Cancel=MessageNotFoundError("none"))
    told.ask(command)
    _, first, *_ = told.calls
    assert first.timeout <= TIMEOUT_S / 2
    assert told.is_in_time


def test_who_knows_the_partitions_asks_the_others_in_time(told: Any):
    told = told(Explain=Explained("empty", [], -1, 0))
    told.hung |= {"q@0"}
    with broker(told.answer) as peer, told.connect(peer.endpoint, timeout=TIMEOUT_S) as client:
        client.request(Request("q", Explain()))
        told.hung |= {"q"}  # the shard of the first partition is that of the queue's name
        assert client.request(Request("q", Explain())).state == "empty"


def test_a_call_that_is_not_the_last_takes_half_of_the_time():
    peer = Peer(timeout_s=4.0)
    first = peer.session.call("q", Pause(), peer.now, is_last=False)
    second = peer.session.call("q", Pause(), peer.now, ends_at=peer.now + 1, is_last=False)
    last = peer.session.call("q", Pause(), peer.now, ends_at=peer.now + 1)
    late = peer.session.call("q", Pause(), peer.now, ends_at=peer.now - 1)
    assert [call.deadline - peer.now for call in (first, second, last, late)] == [2, 0.5, 1, 0]
