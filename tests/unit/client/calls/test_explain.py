"""``why`` of both clients: what is asked, where, and what is made of the answers."""

from datetime import UTC, datetime, timedelta

import pytest

from fila_cluster import Client, Explanation, Reason
from fila_cluster.errors import InvalidArgumentError, MessageNotFoundError, QueueNotFoundError, ShardUnavailableError
from fila_proto_zmq import commands
from fila_proto_zmq.commands import (
    ClusterStatus,
    Explain,
    Explained,
    GetClusterStatus,
    GetHosts,
    HostCopy,
    HostList,
    HostWorker,
    WorkerStatus,
)
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, answering, broker

PARTS = high_half(BORN_MS, 3), low_half(9)
ID = format_id(*PARTS)
BORN = datetime.fromtimestamp(BORN_MS / 1000, UTC)
THROTTLED = commands.Reason("throttled", "throttled by t", BORN_MS + 200, {"tokens": 0.5})
BEHIND = commands.Reason("behind", "4 messages go before it", 0, {"ahead": 4})
DOWN = ShardUnavailableError("no live worker", retry_after=0.2, details={"refused": True, "shard": 2})
ELSEWHERE = MessageNotFoundError("not in 'q'", details={"queue": "q", "dead_letters": "morgue"})
EMPTY = Explained("empty", [])


@pytest.fixture
def ask(connect):
    """Ask why of a broker that gives these answers: what came of it, and the commands it saw."""

    def ask(queue="q", raises=None, wanted=None, **answers):
        with broker(answering(**answers)) as peer:
            with connect(peer.endpoint) as client:
                if raises:
                    with pytest.raises(raises) as result:
                        client.why(queue, **(wanted or {}))
                else:
                    result = client.why(queue, **(wanted or {}))
            return result, [(sent.key, sent.command) for sent in peer.seen[1:]]

    return ask


@pytest.mark.parametrize(
    ("wanted", "command"),
    [({}, Explain()), ({"message_id": ID}, Explain(PARTS)), ({"fairness_key": "acme"}, Explain(None, "acme"))],
)
def test_what_is_asked(ask, wanted, command):
    _, seen = ask(wanted=wanted, Explain=EMPTY)
    assert seen == [("q", command)]


def test_what_is_made_of_the_answer(ask):
    told, _ = ask(Explain=Explained("pending", [THROTTLED, BEHIND], 4, BORN_MS + 1000))
    reasons = [
        Reason("throttled", "throttled by t", BORN + timedelta(seconds=0.2), {"tokens": 0.5}),
        Reason("behind", "4 messages go before it", None, {"ahead": 4}),
    ]
    assert told == Explanation("pending", reasons, 4, BORN + timedelta(seconds=1))
    told, _ = ask(Explain=EMPTY)
    assert told == Explanation("empty", [], None, None)


@pytest.mark.parametrize(
    "arguments",
    [("q", {"message_id": "nonsense"}), ("q", {"fairness_key": ""}), ("bad name", {}), (3, {})],
)
def test_what_can_not_be_asked(arguments):
    queue, wanted = arguments
    with Client("tcp://127.0.0.1:1") as client, pytest.raises(InvalidArgumentError):
        client.why(queue, **wanted)


def test_a_message_and_a_key_at_once():
    with Client("tcp://127.0.0.1:1") as client, pytest.raises(InvalidArgumentError, match="pass one of them"):
        client.why("q", message_id=ID, fairness_key="acme")


@pytest.mark.parametrize("error", [QueueNotFoundError("no queue"), MessageNotFoundError("no message")])
def test_errors_are_the_brokers(ask, error):
    result, seen = ask(raises=type(error), Explain=error)
    assert str(result.value) == str(error)
    assert len(seen) == 1


# --- a shard that is down ---------------------------------------------------------------------------------------------


def test_a_shard_that_is_down_is_an_answer_and_comes_at_once(ask):
    workers = [WorkerStatus("worker-0", 7, "up", [0, 1], 0, 0), WorkerStatus("worker-1", 8, "down", [2], 0, 0)]
    told, seen = ask(Explain=DOWN, GetClusterStatus=ClusterStatus("1", 3, workers))
    assert seen == [("q", Explain()), ("", GetClusterStatus())], "it is not asked again until the timeout"
    (reason,) = told.reasons
    assert (told.state, told.position, told.estimated_delivery_at) == ("unknown", None, None)
    assert (reason.code, reason.until) == ("shard_down", None)
    assert reason.details == {"queue": "q", "shard": 2, "worker": "worker-1", "worker_state": "down"}
    assert "shard 2 of queue 'q' had no live worker: worker 'worker-1' (pid 8) is down" in reason.text


def test_nor_does_it_matter_if_the_shard_has_no_owner(ask):
    told, _ = ask(Explain=DOWN, GetClusterStatus=QueueNotFoundError("whatever"))
    assert told.reasons[0].details == {"queue": "q", "shard": 2, "worker": None, "worker_state": None}


@pytest.mark.parametrize(
    ("copies", "state", "said"),
    [
        ([HostCopy(2, "follows", behind=0)], "no_leader", "a standby takes over"),
        ([HostCopy(2, "follows", behind=7_000)], "catching_up", "a copy has to catch up first, 7,000 records behind"),
        ([HostCopy(2, "begins")], "catching_up", "a copy has to catch up first"),
        ([], "no_copy", "no host that answers has a copy"),
        ([HostCopy(2, "follows", problem="the log's partition has not answered")], "no_quorum", "waits for the log"),
        ([HostCopy(2, "recovers", epoch=4)], "recovering", "takes over shard 2"),
    ],
)
def test_on_several_hosts_the_copies_say_what_the_shard_waits_for(ask, copies, state, said):
    followed = ShardUnavailableError(
        "no host leads shard 2 now",
        retry_after=0.2,
        details={"refused": True, "shard": 2, "state": "following", "reason": "r"},
    )
    hosts = HostList([HostWorker("b", "b/worker-0", "", copies)], 3)
    told, seen = ask(Explain=followed, GetHosts=hosts)
    assert seen == [("q", Explain()), ("", GetHosts())]
    (reason,) = told.reasons
    assert (told.state, reason.code, reason.details["shard_state"]) == ("unknown", "shard_down", state)
    assert said in reason.text


@pytest.mark.parametrize("answer", [HostList([], 3, [], [2]), HostList([]), QueueNotFoundError("whatever")])
def test_without_a_word_of_the_hosts_the_routers_reason_stands(ask, answer):
    followed = ShardUnavailableError(
        "no host leads it", details={"refused": True, "shard": 2, "state": "following", "reason": "r"}
    )
    told, _ = ask(Explain=followed, GetHosts=answer)
    assert told.reasons[0].text == "queue 'q' can't be served: no host leads it"
    assert told.reasons[0].details["shard_state"] == "following"


def test_a_lost_connection_is_no_shard_that_is_down(ask):
    lost = ShardUnavailableError("the connection was lost", details={"endpoint": "x"})
    answers = iter([lost, EMPTY])
    told, seen = ask(Explain=lambda _: next(answers))
    assert (told.state, len(seen)) == ("empty", 2), "asked again, as every question"


# --- dead letters of another shard ------------------------------------------------------------------------------------


def test_a_dead_letter_of_another_shard_is_looked_up_there(ask):
    dead = Explained("dead_lettered", [commands.Reason("dead_lettered", "it failed", 0, {})], 0)
    told, seen = ask(wanted={"message_id": ID}, Explain=lambda sent: dead if sent.key == "morgue" else ELSEWHERE)
    assert seen == [("q", Explain(PARTS)), ("morgue", Explain(PARTS))]
    assert (told.state, told.reasons[0].code) == ("dead_lettered", "dead_lettered")


def test_what_is_not_there_either_was_not_found_where_it_was_asked_for(ask):
    missing = MessageNotFoundError("not in 'morgue'", details={"dead_letters": "further"})
    result, seen = ask(
        raises=MessageNotFoundError,
        wanted={"message_id": ID},
        Explain=lambda sent: missing if sent.key == "morgue" else ELSEWHERE,
    )
    assert str(result.value) == "not in 'q'"
    assert len(seen) == 2


# --- for people -------------------------------------------------------------------------------------------------------


def at(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_it_reads_well():
    until, expected = at(0.5), at(3600)
    told = Explanation(
        "pending", [Reason("throttled", "no tokens", until, {}), Reason("behind", "4 before", None, {})], 4, expected
    )
    headline, *rest = str(told).splitlines()
    assert headline.startswith(f"pending, behind 4 of its key, delivery expected at {expected:%H:%M:%S} UTC, in 3,")
    assert rest == [f"  throttled: no tokens (until {until:%H:%M:%S} UTC)", "  behind: 4 before"]


def test_what_is_not_known_is_left_out():
    assert str(Explanation("empty", [], None, None)) == "empty"
    assert str(Explanation("pending", [], 0, None)) == "pending, next of its key"


def test_a_time_that_has_come_and_a_day_that_is_far():
    assert Explanation("pending", [], None, at(-5)).headline.endswith("UTC, any moment")
    far = at(86_400 * 30)
    assert str(Reason("delayed", "later", far, {})) == f"delayed: later (until {far:%Y-%m-%d %H:%M:%S} UTC)"
