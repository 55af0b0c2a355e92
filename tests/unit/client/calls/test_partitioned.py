"""Commands on queues with several partitions: who is asked, and what the answers are together."""

from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import replace

from fila_cluster import Request
from fila_cluster.client.calls.partitioned import ask_partitions, info_of, joined_infos
from fila_cluster.errors import (
    DeadLetterQueueNotEmptyError,
    FilaError,
    InvalidArgumentError,
    MessageNotFoundError,
    NotADeadLetterQueueError,
    PermissionDeniedError,
    QueueNotFoundError,
    ShardUnavailableError,
)
from fila_proto_zmq import commands
from fila_proto_zmq.commands import (
    Browse,
    Browsed,
    Cancel,
    Cancelled,
    ConfigChange,
    ConsumerView,
    DeleteQueue,
    DescribeQueue,
    Done,
    Enqueue,
    Explain,
    Explained,
    GetQueueStats,
    Hello,
    KeyStats,
    MessageView,
    MoveMessages,
    OpenBatch,
    PartitionLeft,
    Pause,
    Purged,
    PurgeQueue,
    QueueDescription,
    QueueInfo,
    QueueMove,
    QueueOptions,
    QueueStats,
    Reason,
    Redrive,
    Redriven,
    UpdateQueue,
)
from fila_proto_zmq.errors import PartitionedError
from fila_proto_zmq.partitions import Plan, partition_of
from tests.unit.client.peer import Sent, broker, usual_answer

PLAN = Plan(3, "key")
DOWN = ShardUnavailableError("shard 1 of 'q@1' has no live worker", details={"queue": "q@1"})
MISSING = MessageNotFoundError("no message in 'q@2'")


def ask(command: commands.Command, answers: Any, *, queue: str = "q", plan: Plan = PLAN) -> tuple[Any, list[Any]]:
    """Carry a command out. ``answers`` by queue: a reply, an error, a list of them, or a function of the command."""
    fan = ask_partitions(queue, plan, command)
    seen = []
    while (request := fan.next_request()) is not None:
        seen.append(tuple(request))
        answer = answers[request.queue]
        answer = answer.pop(0) if isinstance(answer, list) else answer(request.command) if callable(answer) else answer
        if not isinstance(answer, FilaError):
            fan.answered(answer)
        else:
            fan.refused(answer)
    return fan.result, seen


def names(seen: list[Any]) -> list[str]:
    return [queue for queue, _ in seen]


def same(answer: Any, count: int = 3, queue: str = "q") -> dict[str, Any]:
    return {f"{queue}@{number}": answer for number in range(count)}


# --- all partitions ---------------------------------------------------------------------------------------------------


def test_a_command_about_a_key_goes_to_its_partition_alone():
    _, seen = ask(Pause(paused=True, fairness_key="k"), same(Done()))
    assert names(seen) == [f"q@{partition_of('k', 3)}"]
    _, seen = ask(Pause(paused=True, fairness_key="k"), same(Done()), plan=Plan(3, "message"))
    assert names(seen) == ["q@0", "q@1", "q@2"]


def test_one_that_is_down_does_not_keep_the_others_from_being_asked_and_is_an_error_in_the_end():
    fan = ask_partitions("q", PLAN, Pause(paused=True))
    asked = []
    while (request := fan.next_request()) is not None:
        asked.append(request.queue)
        if request.queue == "q@1":
            fan.refused(ShardUnavailableError("shard of 'q@1' is down", details={"queue": "q@1"}))
        else:
            fan.answered(Done())
    assert asked == ["q@0", "q@1", "q@2"]
    with pytest.raises(ShardUnavailableError, match=r"^shard of 'q' is down$") as caught:
        _ = fan.result
    assert caught.value.details["queue"] == "q"


def test_an_error_that_lasts_ends_it_at_once_under_the_name_of_the_queue():
    answers = {"q@0": PermissionDeniedError("not 'ns/q@0' nor 'q@0'")}
    with pytest.raises(PermissionDeniedError, match=r"nor 'q'"):
        ask(Pause(paused=True), answers)


def test_what_can_not_be_asked_of_a_whole_queue_says_so():
    with pytest.raises(InvalidArgumentError, match="3 partitions"):
        ask_partitions("q", PLAN, commands.Receive(1))


def test_a_batch_is_opened_in_the_first_partition():
    fan = ask_partitions("q", PLAN, OpenBatch(bytes(16), Enqueue([b""])))
    assert fan.names == ["q@0"]


# --- counts -----------------------------------------------------------------------------------------------------------


def test_removed_and_remaining_messages_add_up():
    answers = {"q@0": Purged(3, 5), "q@1": Purged(0, 0), "q@2": Purged(2, 1)}
    assert ask(PurgeQueue(), answers)[0] == Purged(5, 6)


def test_a_count_is_what_is_left_of_it_for_the_next_ones():
    answers = {"q@0": commands.Moved(3, 0), "q@1": commands.Moved(4, 9)}
    result, seen = ask(MoveMessages("other", 7), answers)
    assert [command.count for _, command in seen] == [7, 4]
    assert result == commands.Moved(7, 9)


def test_partitions_without_dead_letters_count_nothing():
    none = NotADeadLetterQueueError("none")
    dlq = same(none, queue="q.dlq") | {"q.dlq@1": Redriven(2, 0)}
    assert ask(Redrive(10), dlq, queue="q.dlq")[0] == Redriven(2, 0)
    with pytest.raises(NotADeadLetterQueueError):
        ask(Redrive(10), same(none, queue="q.dlq"), queue="q.dlq")
    with pytest.raises(ShardUnavailableError):
        ask(Redrive(10), same(none, queue="q.dlq") | {"q.dlq@0": DOWN}, queue="q.dlq")


def test_picked_dead_letters_are_dealt_with_as_far_as_all_partitions_got():
    ids = [(1, number) for number in range(50)]
    dlq = {"q.dlq@0": Redriven(3, 0, 50), "q.dlq@1": Redriven(1, 2, 20), "q.dlq@2": Redriven(0, 0, 50)}
    result, seen = ask(Redrive(0, ids=ids), dlq, queue="q.dlq")
    assert result == Redriven(4, 2, 20)
    assert [command.ids for _, command in seen] == [ids] * 3


# --- messages ---------------------------------------------------------------------------------------------------------


def views(*records: bytes) -> list[MessageView]:
    return [MessageView("pending", "k", 1, [], 0, 0, 0, "", record) for record in records]


def test_browsing_goes_on_in_the_next_partition_until_the_limit():
    answers = {"q@0": Browsed(views(b"1", b"2"), more=False), "q@1": Browsed(views(b"3"), more=False)}
    result, seen = ask(Browse(3), answers)
    assert [each.record for each in result.messages] == [b"1", b"2", b"3"]
    assert result.more
    assert [command.limit for _, command in seen] == [3, 1]


def test_a_partition_with_more_ends_the_page():
    result, seen = ask(Browse(10), {"q@0": Browsed(views(b"1"), more=True)})
    assert (len(result.messages), result.more, names(seen)) == (1, True, ["q@0"])


def test_the_last_page_says_so():
    answers = {"q@0": Browsed([], more=False), "q@1": Browsed(views(b"1"), more=False), "q@2": Browsed([], more=False)}
    assert not ask(Browse(10), answers)[0].more


def test_the_next_page_begins_in_the_partition_of_the_last_message():
    answers = {"q@0": MISSING, "q@1": Browsed(views(b"4"), more=False), "q@2": Browsed(views(b"5"), more=False)}
    result, seen = ask(Browse(10, after=(1, 2)), answers)
    assert [each.record for each in result.messages] == [b"4", b"5"]
    assert [command.after for _, command in seen] == [(1, 2), (1, 2), None]


@pytest.mark.parametrize("command", [Browse(10, after=(1, 2)), Cancel(1, 2), Explain((1, 2))])
def test_a_message_that_is_nowhere_is_an_error_unless_it_may_be_where_nobody_answers(command):
    def missing():
        return {f"q@{number}": MessageNotFoundError(f"no message in 'q@{number}'") for number in range(3)}

    with pytest.raises(MessageNotFoundError, match=r"'q'$"):
        ask(command, missing())
    for number in range(3):
        with pytest.raises(ShardUnavailableError):
            ask(command, missing() | {f"q@{number}": ShardUnavailableError("down")})


def test_a_partition_that_is_down_is_left_out_of_pages():
    answers = {"q@0": Browsed(views(b"1"), more=False), "q@1": DOWN, "q@2": Browsed(views(b"2"), more=False)}
    assert [each.record for each in ask(Browse(10), answers)[0].messages] == [b"1", b"2"]
    with pytest.raises(ShardUnavailableError):
        ask(Browse(10), same(ShardUnavailableError("down")))


def test_a_message_is_cancelled_where_it_is():
    answers = {"q@0": MessageNotFoundError("no"), "q@1": Cancelled(removed=True)}
    result, seen = ask(Cancel(1, 2), answers)
    assert (result, names(seen)) == (Cancelled(removed=True), ["q@0", "q@1"])


def test_it_is_cancelled_also_if_another_partition_is_down():
    assert ask(Cancel(1, 2), {"q@0": DOWN, "q@1": Cancelled(removed=True)})[0].removed


# --- explanations -----------------------------------------------------------------------------------------------------


def reason(code: str, text: str = "", until_ms: int = 0) -> Reason:
    return Reason(code, text, until_ms, {})


def test_why_a_queue_waits_is_said_by_the_partitions_with_messages():
    answers = {
        "q@0": Explained("empty", [reason("empty", "'q@0' is empty")]),
        "q@1": Explained("pending", [reason("paused", "'q@1' is paused")], estimated_ms=9),
        "q@2": Explained(
            "pending", [reason("paused", "'q@2' is paused"), reason("throttled", "by a, of 'q@2'")], estimated_ms=7
        ),
    }
    result, _ = ask(Explain(), answers)
    assert result.state == "pending"
    assert [(each.code, each.text) for each in result.reasons] == [("paused", "'q' is paused"), ("throttled", "by a, of 'q'")]
    assert result.estimated_ms == 7


def test_keys_of_all_partitions_that_wait_for_the_same_reason_are_one_group():
    def throttled(keys: int, messages: int, name: str = "api") -> Reason:
        text = f"{keys} fairness keys with {messages} messages: for example 'a': throttled by {name}"
        details = {"keys": keys, "messages": messages, "fairness_key": "a", "throttle_key": name}
        return Reason("throttled", text, 0, details)

    def limited(**messages: int) -> Reason:
        limits = [{"throttle_key": name, "messages": count, "rate": 5.0} for name, count in messages.items()]
        return Reason("limited", "only so fast", 0, {"messages": sum(messages.values()), "limits": limits})

    answers = {
        "q@0": Explained("pending", [throttled(2, 6), limited(api=3)]),
        "q@1": Explained("pending", [throttled(3, 1000), throttled(4, 4, "mail")]),
        "q@2": Explained("pending", [limited(api=4, mail=1)]),
    }
    api, limits, mail = ask(Explain(), answers)[0].reasons
    assert api.text == "5 fairness keys with 1,006 messages: for example 'a': throttled by api"
    assert (api.details["keys"], api.details["messages"], mail.details["messages"]) == (5, 1006, 4)
    assert limits.details["messages"] == 8
    assert [(each["throttle_key"], each["messages"]) for each in limits.details["limits"]] == [("api", 7), ("mail", 1)]


def test_an_empty_queue_is_empty():
    result, _ = ask(Explain(), {f"q@{n}": Explained("empty", [reason("empty", f"'q@{n}' is empty")]) for n in range(3)})
    assert (result.state, [each.text for each in result.reasons]) == ("empty", ["'q' is empty"])


def test_texts_show_the_name_of_the_dead_letter_queue_and_leave_other_queues():
    text = "from 'q.dlq@2' to 'q@1', not 'other@1'"
    answers = {f"q.dlq@{n}": Explained("pending", [reason("paused", text)]) for n in range(3)}
    result, _ = ask(Explain(), answers, queue="q.dlq")
    assert result.reasons[0].text == "from 'q.dlq' to 'q', not 'other@1'"


MOVING = Reason("moving", "earlier ones may come", 0, {"waits_for": [1, 0], "shards": [4, 5], "fairness_key": "k"})


def leaving(partition: int) -> Reason:
    return Reason("leaving", f"'q@{partition}' sends on", 0, {"partition": partition})


def test_a_message_that_waits_for_other_partitions_has_their_reasons():
    answers = {
        "q@0": Explained("empty", [leaving(0), reason("empty")]),
        "q@1": Explained("pending", [leaving(1), reason("no_consumers")]),
        "q@2": Explained("pending", [deepcopy(MOVING), reason("behind")], 4, 9),
    }
    missing_first = answers | {"q@0": [MISSING, answers["q@0"]], "q@1": [MISSING, answers["q@1"]]}
    result, seen = ask(Explain((1, 2)), missing_first)
    assert seen == [
        *((f"q@{number}", Explain((1, 2))) for number in range(3)),
        ("q@1", Explain(None, "k")),
        ("q@0", Explain(None, "k")),
    ]
    assert [each.code for each in result.reasons] == ["moving", "leaving", "leaving", "behind"]
    assert (result.state, result.position, result.estimated_ms) == ("pending", 4, 9)


def test_a_queue_has_the_reasons_of_all_partitions_that_send_on():
    answers = {
        "q@0": Explained("empty", [leaving(0), reason("empty")]),
        "q@1": Explained("pending", [leaving(1), reason("busy")]),
        "q@2": Explained("pending", [deepcopy(MOVING)]),
    }
    result, _ = ask(Explain(), answers)
    assert [(each.code, each.text) for each in result.reasons] == [
        ("leaving", "'q' sends on"), ("leaving", "'q' sends on"), ("busy", ""), ("moving", "earlier ones may come"),
    ]  # fmt: skip


def test_the_shard_that_is_waited_for_may_be_away():
    down = ShardUnavailableError("shard 4 of 'q@1' has no live worker", details={"shard": 4})
    for command in Explain((1, 2)), Explain():
        found = Explained("pending", [deepcopy(MOVING)])
        answers = {"q@0": [found, Explained("empty", [reason("empty")])], "q@1": down, "q@2": found}
        result, _ = ask(command, answers)
        assert result.reasons[0].details["down"] == 4
        assert result.reasons[0].text.endswith("may come; shard 4 of 'q' has no live worker")


# --- statistics -------------------------------------------------------------------------------------------------------


def info(name: str, pending: int = 1, consumers: int = 2, *, paused: bool = False) -> QueueInfo:
    return QueueInfo(name, pending, 2, 3, consumers, paused, False, 5)


def key_stats(name: str, pending: int = 1) -> KeyStats:
    return KeyStats(name, 1, pending, 0, 0, 0.0, 4, False)


def stats(name: str, *keys: KeyStats, following: int = 0) -> QueueStats:
    return QueueStats(info(name), 7, 1, 10, 9, 8, 7, 6, 5, list(keys), next=following)


def test_statistics_add_up_over_all_pages_of_all_partitions():
    answers = {
        "q@0": [stats("q@0", key_stats("a"), following=1), stats("q@0", key_stats("b"))],
        "q@1": stats("q@1", key_stats("c")),
        "q@2": stats("q@2"),
    }
    result, seen = ask(GetQueueStats(), answers)
    assert names(seen) == ["q@0", "q@0", "q@1", "q@2"]
    assert [command.start for _, command in seen] == [0, 1, 0, 0]
    assert (result.info.name, result.info.pending, result.info.consumers, result.enqueued) == ("q", 3, 2, 30)
    assert [key.fairness_key for key in result.keys] == ["a", "b", "c"]
    assert result.next == 0


def test_a_change_of_the_number_is_told_by_who_knows_most():
    def told(name: str, move: QueueMove | None) -> QueueStats:
        return replace(stats(name), move=move)

    left = [PartitionLeft(0, 5, 7, 0), PartitionLeft(1, 6, 3, 1)]
    answers = {
        "q@0": told("q@0", QueueMove(2, 3, 50, [], [0, 1], left[:1], 9)),
        "q@1": told("q@1", QueueMove(2, 3, 50, [0], [1], left[1:], 8)),
        "q@2": told("q@2", QueueMove(1, 2, 40, [], [0], [PartitionLeft(1, 6, 3, 1)], 7)),
    }
    assert ask(GetQueueStats(), answers)[0].move == QueueMove(2, 3, 50, [0], [1], left[1:], 7)
    assert ask(GetQueueStats(), {f"q@{number}": told(f"q@{number}", None) for number in range(3)})[0].move is None


def test_a_key_in_all_partitions_is_one():
    answers = {f"q@{number}": stats(f"q@{number}", key_stats("a", number)) for number in range(3)}
    result, _ = ask(GetQueueStats(), answers, plan=Plan(3, "message"))
    assert [(key.fairness_key, key.pending, key.delivered) for key in result.keys] == [("a", 3, 12)]


def test_statistics_of_those_that_answer():
    result, _ = ask(GetQueueStats(), {"q@0": stats("q@0"), "q@1": DOWN, "q@2": stats("q@2")})
    assert result.info.pending == 2


def test_a_partition_that_goes_down_between_its_pages_is_left_with_the_first():
    answers = {"q@0": [stats("q@0", key_stats("a"), following=1), DOWN], "q@1": stats("q@1"), "q@2": stats("q@2")}
    result, seen = ask(GetQueueStats(), answers)
    assert names(seen) == ["q@0", "q@0", "q@1", "q@2"]
    assert result.info.pending == 3


def test_lists_have_a_row_for_each_queue():
    rows = [info("a"), info("q@0", 1), info("q@1", 2, paused=True), info("q.dlq@0"), info("z")]
    joined = joined_infos(rows)
    assert [(row.name, row.pending) for row in joined] == [("a", 1), ("q", 3), ("q.dlq", 1), ("z", 1)]
    assert not joined[1].paused
    assert info_of([info("q@0", paused=True)]).paused


def test_descriptions_have_each_consumer_once():
    view = ConsumerView("c1", "subscription", 0, 0, 2, 100, 0)
    one = QueueDescription(info("q@0"), QueueOptions(), 1, 10, redrivable=False, consumers=[view], consumers_left_out=1)
    fan = ask_partitions("q", PLAN, DescribeQueue())
    fan.answered(one)
    fan.answered(replace(one, consumers=[replace(view, in_flight=3, heard_ms=50)]))
    described = fan.merged(fan.replies)
    assert [(each.consumer, each.in_flight, each.heard_ms) for each in described.consumers] == [("c1", 5, 100)]
    assert described.size_bytes == 20


# --- the queue itself -------------------------------------------------------------------------------------------------


def test_options_are_changed_for_all():
    options = QueueOptions(max_attempts=3)
    _, seen = ask(UpdateQueue(options, ["max_attempts"]), {"": ConfigChange(1, {}, existed=True)})
    assert seen == [("", commands.UpdatePartitioned("q", options, ["max_attempts"]))]
    with pytest.raises(InvalidArgumentError):
        ask(UpdateQueue(options, ["max_attempts"]), {}, queue="q.dlq")


def test_a_queue_with_dead_letters_is_not_deleted():
    answers = {f"q.dlq@{number}": stats(f"q.dlq@{number}") for number in range(3)}
    with pytest.raises(DeadLetterQueueNotEmptyError) as caught:
        ask(DeleteQueue(), answers)
    assert caught.value.details["messages"] == 18


def test_it_is_if_that_is_forced_and_then_nobody_counts():
    _, seen = ask(DeleteQueue(force=True), {"": ConfigChange(1, {}, existed=True)})
    assert seen == [("", commands.DeletePartitioned("q"))]


def test_partitions_without_a_dead_letter_queue_have_none():
    answers = same(QueueNotFoundError("no"), queue="q.dlq") | {"": ConfigChange(1, {}, existed=True)}
    _, seen = ask(DeleteQueue(), answers)
    assert names(seen) == ["q.dlq@0", "q.dlq@1", "q.dlq@2", ""]


def test_what_can_not_be_counted_is_not_deleted():
    answers = same(QueueNotFoundError("no"), queue="q.dlq") | {"q.dlq@1": ShardUnavailableError("down")}
    with pytest.raises(ShardUnavailableError):
        ask(DeleteQueue(), answers)


def test_a_queue_that_is_not_there_any_longer_is_an_error():
    answers = same(QueueNotFoundError("no"), queue="q.dlq") | {"": QueueNotFoundError("no queue 'q'")}
    with pytest.raises(QueueNotFoundError):
        ask(DeleteQueue(), answers)


def test_a_dead_letter_queue_is_not_deleted_by_itself():
    with pytest.raises(InvalidArgumentError, match="source queue"):
        ask_partitions("q.dlq", PLAN, DeleteQueue())


# --- another number of partitions meanwhile ---------------------------------------------------------------------------


def refusal(partitions: int) -> PartitionedError:
    return PartitionedError("other ones", details={"partitions": partitions, "spread": "key"})


def changing(connect: Any, question: commands.Command, partitions: int, answer: Any) -> tuple[Any, list[str]]:
    """Ask a broker whose queue had 3 partitions when the first one was asked. ``answer`` is of those that there are."""
    asked = []

    def at(sent: Sent) -> Any:
        if isinstance(sent.command, Hello):
            return usual_answer(sent)
        if sent.key == "q":
            return refusal(partitions if asked else 3)
        asked.append(sent.key)
        return refusal(partitions) if int(sent.key[2:]) >= partitions else answer

    with broker(at) as peer, connect(peer.endpoint) as client:
        return client.request(Request("q", question)), asked


def test_all_partitions_are_asked_again_if_they_are_other_ones_by_now(connect):
    told, asked = changing(connect, GetQueueStats(), 2, stats("q@0", key_stats("a")))
    assert asked[-2:] == ["q@0", "q@1"]
    assert told.info.name == "q"


def test_what_was_done_in_those_before_counts(connect):
    done, asked = changing(connect, MoveMessages("other", count=3), 1, commands.Moved(1, 4))
    assert (done, asked) == (commands.Moved(2, 4), ["q@0", "q@1", "q@0"])


def test_nothing_more_is_asked_if_all_was_done_before(connect):
    done, asked = changing(connect, MoveMessages("other", count=1), 1, commands.Moved(1, 4))
    assert (done, asked) == (commands.Moved(1, 4), ["q@0"])


def test_partitions_that_are_never_those_that_the_queue_names_are_an_error(connect):
    def at(sent: Sent) -> Any:
        return usual_answer(sent) if isinstance(sent.command, Hello) else refusal(2)

    with (
        broker(at) as peer,
        connect(peer.endpoint) as client,
        pytest.raises(PartitionedError, match="other ones"),
    ):
        client.request(Request("q", Pause(paused=True)))
