"""The plain questions, of both clients: what is asked, and what is made of the answers."""

import pytest
from msgspec.structs import replace

from fila_cluster import QueueInfo, ThrottleStats
from fila_cluster.errors import (
    InvalidArgumentError,
    InvalidConfigError,
    MessageNotFoundError,
    QueueExistsError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq import commands
from fila_proto_zmq.commands import (
    Browsed,
    Cancel,
    Cancelled,
    ConfigChange,
    ConfigValues,
    CreateQueue,
    GetConfig,
    ListConfig,
    ListQueues,
    Pause,
    Purged,
    PurgeQueue,
    QueueList,
    QueueOptions,
    SetConfig,
    UpdateQueue,
)
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.ids import format_id, high_half, low_half
from tests.unit.client.peer import BORN_MS, answering, broker, record, usual_answer

INFO = commands.QueueInfo("q", 1, 2, 3, 4, True, False, 0)
ID = format_id(high_half(BORN_MS, 3), low_half(9))


@pytest.fixture
def ask(connect):
    """Ask one thing of a broker that gives these answers: what came of it, and the commands it saw."""

    def ask(question, **answers):
        with broker(answering(**answers)) as peer:
            with connect(peer.endpoint) as client:
                result = question(client)
            return result, [(sent.key, sent.command) for sent in peer.seen[1:]]

    return ask


def test_creating(ask):
    _, seen = ask(lambda client: client.create_queue("q", on_failure="x = 1", max_in_flight_per_key=1, idle_expiry=60))
    options = QueueOptions(
        on_failure="x = 1",
        dead_letter="dlq",
        delivery="at_least_once",
        max_in_flight_per_key=1,
        idle_expiry_ms=60_000,
        partitions=1,
        spread="key",
    )
    assert seen == [("q", CreateQueue(options))]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_new_queue_goes_only_if_others_have_made_one_without_partitions(connect, number):
    described = []

    def answer(sent):
        if not isinstance(sent.command, commands.DescribeQueue):
            return ConfigChange(1, {}, existed=False) if sent.key == "" and described else usual_answer(sent)
        described.append(sent.key)
        if len(described) == 1:
            return QueueNotFoundError("none")
        if sent.key == "q" and number:
            return PartitionedError("partitions", details={"partitions": number, "spread": "key"})
        info = replace(INFO, name=sent.key)
        options = QueueOptions(partitions=number or None)
        return commands.QueueDescription(info, options, 1, 0, redrivable=False, consumers=[], consumers_left_out=0)

    with broker(answer) as peer, connect(peer.endpoint) as client:
        if number:
            client.create_queue("q", partitions=2)
        else:
            with pytest.raises(QueueExistsError):
                client.create_queue("q", partitions=2)
    gone = [sent.command.queue for sent in peer.seen if isinstance(sent.command, commands.DeletePartitioned)]
    assert gone == ([] if number else ["q"])
    assert described == ["q", "q", *(f"q@{each}" for each in range(number)), "q"]


def test_updating_changes_what_is_given_and_nothing_else(ask):
    _, seen = ask(lambda client: client.update_queue("q", max_attempts=None, visibility_timeout=5))
    assert seen == [("q", UpdateQueue(QueueOptions(visibility_timeout_ms=5000), ["max_attempts", "visibility_timeout_ms"]))]


def test_an_option_that_does_not_exist(ask):
    with pytest.raises(TypeError, match="visibility"):
        ask(lambda client: client.update_queue("q", visibility=5))


def test_active_queues(ask):
    listed, seen = ask(lambda client: client.active_queues("ns/"), ListQueues=QueueList([INFO]))
    assert listed == [QueueInfo("q", 1, 2, 3, 6, 4, True, False, 0)]
    assert seen == [("", ListQueues("ns/", True))]


def test_a_queue_s_throttles(ask):
    reply = commands.QueueStats(INFO, 0, 1000, *[0] * 6, [], [commands.ThrottleStats("p", 5.0, 10.0, 2.5)])
    stats, _ = ask(lambda client: client.queue_stats("q"), GetQueueStats=reply)
    assert stats.throttles == [ThrottleStats("p", 5.0, 10.0, 2.5)]
    assert stats.paused


@pytest.mark.parametrize("key", [None, "tenant"])
def test_pausing_and_resuming(ask, key):
    assert ask(lambda client: client.pause("q", fairness_key=key))[1] == [("q", Pause(True, key))]
    assert ask(lambda client: client.resume("q", fairness_key=key))[1] == [("q", Pause(False, key))]


def test_purging(ask):
    steps = [Purged(3, 2), Purged(2, 0)]
    removed, seen = ask(lambda client: client.purge_queue("q", fairness_key="k"), PurgeQueue=lambda _: steps.pop(0))
    assert removed == 5
    assert seen == [("q", PurgeQueue("k"))] * 2


def test_browsing(ask):
    view = commands.MessageView("delayed", "k", 1, [], BORN_MS, 0, 0, "", record(b"x", 9))
    (message,), _ = ask(lambda client: client.browse("q", state="delayed"), Browse=Browsed([view], False))
    assert (message.id, message.queue, message.state) == (ID, "q", "delayed")


@pytest.mark.parametrize("removed", [True, False])
def test_cancelling(ask, removed):
    answer, seen = ask(lambda client: client.cancel("q", ID), Cancel=Cancelled(removed))
    assert answer is removed
    assert seen == [("q", Cancel(high_half(BORN_MS, 3), low_half(9)))]


def test_cancelling_what_is_not_there(ask):
    with pytest.raises(MessageNotFoundError):
        ask(lambda client: client.cancel("q", ID), Cancel=MessageNotFoundError("gone"))


def test_the_runtime_config(ask):
    _, seen = ask(lambda client: client.set_config("throttle:p:rate", "5"), SetConfig=ConfigChange(1, {}, False))
    assert seen == [("", SetConfig("throttle:p:rate", "5"))]
    value, seen = ask(lambda client: client.get_config("k"), GetConfig=ConfigValues({"k": "v"}))
    assert (value, seen) == ("v", [("", GetConfig("k"))])
    assert ask(lambda client: client.get_config("k"), GetConfig=ConfigValues({}))[0] is None
    values, seen = ask(lambda client: client.list_config("t"), ListConfig=ConfigValues({"tb": "2", "ta": "1"}))
    assert (list(values.items()), seen) == ([("ta", "1"), ("tb", "2")], [("", ListConfig("t"))])
    for existed in (True, False):
        answer, seen = ask(lambda client: client.delete_config("k"), SetConfig=ConfigChange(2, {"k": None}, existed))
        assert (answer, seen) == (existed, [("", SetConfig("k", None))])


def test_setting_a_throttle_sets_the_given_limits(ask):
    _, seen = ask(
        lambda client: client.set_throttle("p", rate=0.5, burst=2, rate_min=None), SetConfig=ConfigChange(1, {}, False)
    )
    assert [command for _, command in seen] == [
        SetConfig("throttle:p:burst", "2"),
        SetConfig("throttle:p:rate", "0.5"),
        SetConfig("throttle:p:rate_min", None),
    ]


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"burst": 5, "rate": -1}, InvalidConfigError),
        ({"rate": float("nan")}, InvalidConfigError),
        ({"concurrency": 1.5}, InvalidConfigError),
        ({}, InvalidArgumentError),
    ],
)
def test_a_throttle_that_will_not_do_is_not_sent_in_part(ask, limits, error):
    def question(client):
        with pytest.raises(error):
            client.set_throttle("p", **limits)

    assert ask(question)[1] == []


def test_listing_throttles_in_pages(ask):
    pages = [
        commands.ThrottleList([commands.ThrottleStats("a", 1.0, 2.0, 0.5, 3, 2, 4, 0.1)], "a"),
        commands.ThrottleList([], "aa"),
        commands.ThrottleList([commands.ThrottleStats("b", concurrency=0)]),
    ]
    listed, seen = ask(lambda client: client.list_throttles("x"), ListThrottles=lambda _: pages.pop(0))
    assert listed == [ThrottleStats("a", 1.0, 2.0, 0.5, 3, 2, 4, 0.1), ThrottleStats("b", None, None, None, 0)]
    assert [command for _, command in seen] == [
        commands.ListThrottles("x"),
        commands.ListThrottles("x", "a"),
        commands.ListThrottles("x", "aa"),
    ]


def test_deleting_a_throttle_deletes_all_its_limits(ask):
    changes = [ConfigChange(1, {}, existed) for existed in (False, True, False, False)]
    existed, seen = ask(lambda client: client.delete_throttle("p"), SetConfig=lambda _: changes.pop(0))
    limits = ("rate", "burst", "concurrency", "rate_min")
    assert (existed, [command for _, command in seen]) == (True, [SetConfig(f"throttle:p:{limit}", None) for limit in limits])


def test_a_config_value_that_will_not_do(ask):
    with pytest.raises(InvalidConfigError, match="rate"):
        ask(lambda client: client.set_config("throttle:p:rate", "-1"), SetConfig=InvalidConfigError("a rate is above 0"))


@pytest.mark.parametrize(
    "question",
    [
        lambda client: client.pause("bad name"),
        lambda client: client.pause("q", fairness_key=""),
        lambda client: client.purge_queue("q", fairness_key=3),
        lambda client: client.cancel("q", "nonsense"),
        lambda client: client.browse("q", state="dead"),
        lambda client: client.update_queue("q", delivery="exactly_once"),
        lambda client: client.active_queues(None),
        lambda client: client.set_config("k", 5),
        lambda client: client.set_config(3, "v"),
        lambda client: client.set_config("k", None),
        lambda client: client.get_config(b"k"),
        lambda client: client.list_config(None),
    ],
)
def test_bad_arguments_cost_no_round_trip(ask, question):
    with pytest.raises(InvalidArgumentError):
        ask(question, **dict.fromkeys(["Pause", "PurgeQueue", "Cancel", "Browse", "UpdateQueue", "ListQueues", "SetConfig"]))


@pytest.mark.parametrize(
    ("question", "name", "reply"),
    [
        (lambda client: client.get_config("k"), "GetConfig", ConfigValues({})),
        (lambda client: client.browse("q"), "Browse", Browsed([], False)),
    ],
)
def test_what_does_no_harm_twice_is_asked_again_when_a_worker_dies(ask, question, name, reply):
    answers = [ShardUnavailableError("died: it may or may not have been done"), reply]
    _, seen = ask(question, **{name: lambda _: answers.pop(0)})
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("question", "name"),
    [
        (lambda client: client.purge_queue("q"), "PurgeQueue"),
        (lambda client: client.cancel("q", ID), "Cancel"),
        (lambda client: client.delete_config("k"), "SetConfig"),
        (lambda client: client.create_queue("q"), "CreateQueue"),
        (lambda client: client.pause("q"), "Pause"),
        (lambda client: client.update_queue("q", max_attempts=1), "UpdateQueue"),
        (lambda client: client.set_config("k", "v"), "SetConfig"),
    ],
)
def test_what_would_answer_differently_or_undo_another_s_change_is_not(ask, question, name):
    with pytest.raises(ShardUnavailableError):
        ask(question, **{name: ShardUnavailableError("died: it may or may not have been done")})
