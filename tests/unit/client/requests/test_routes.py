"""Ways that open, turn, retire and are lost: which way each call takes, in which order, and what its caller hears."""

import pytest

from fila_admission.in_flight import interrupted, moved, unavailable
from fila_cluster.client.protocol.session import GREETING_LOOK_S
from fila_cluster.client.requests.connection import PLACEMENT_S
from fila_cluster.client.requests.open_calls import SWEEP_S_MIN
from fila_cluster.client.requests.routes import (
    LEAVING_S,
    NAMES_MAX,
    OPENING_S,
    RETRY_S_MAX,
    RETRY_S_MIN,
    STAY_S,
    TURNING_S,
    DirectWay,
    WayState,
)
from fila_proto_zmq.commands import (
    CancelReceive,
    ClusterStatus,
    Delivered,
    Done,
    GetClusterStatus,
    GetPlacement,
    Goodbye,
    Heartbeat,
    Hello,
    ListQueues,
    Pause,
    Placement,
    QueueList,
    Receive,
    Subscribe,
    Subscribed,
    Welcome,
)
from fila_proto_zmq.errors import FilaError, ShardUnavailableError, UnsupportedVersionError
from fila_proto_zmq.frames import epoch_tag
from tests.unit.client.peer import batch, give_up
from tests.unit.client.requests.ways import SECRET, SHARDS, Q, Town, view

ONE, TWO = view("one"), view("two")


# --- which way ----------------------------------------------------------------------------------------------------------


def test_what_concerns_one_shard_goes_straight_and_the_rest_through_the_router() -> None:
    town = Town(ONE, TWO)
    one, two = town.open(Q[0]), town.open(Q[2])
    town.ask(Q[1])
    town.ask(Q[3])
    town.ask("", ListQueues(""))
    assert [sent.key for sent in town.by(one)] == [Q[1]]
    assert [sent.key for sent in town.by(two)] == [Q[3]]
    assert [type(sent.command) for sent in town.by_router()] == [ListQueues]


def test_a_direct_frame_names_the_epoch_of_its_shard_and_a_routed_one_the_session() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    town.ask(Q[1])
    town.ask(Q[2])
    assert [sent.header.epoch for sent in town.by(way)] == [epoch_tag((1 << 40) + 7)]
    assert [sent.header.epoch for sent in town.by_router()] == [int.from_bytes(SECRET[:4], "big")]


def test_without_a_placement_everything_goes_through_the_router() -> None:
    town = Town()
    town.ask(Q[0])
    assert town.wanted() == []
    assert len(town.by_router()) == 1


def test_calls_from_before_the_welcome_find_their_way_with_it() -> None:
    town = Town(ONE, greeted=False)
    hello = town.sent(Hello)
    town.ask(Q[0])
    town.ask(Q[2])
    town.reply(hello[0], Welcome(1, "0.0", SHARDS, 15_000, 1 << 20, SECRET, town.doors))
    (way,) = town.wanted()
    assert [sent.key for sent in town.by_router()] == [Q[2]]
    town.let_in(way)
    assert [sent.key for sent in town.by(way)] == [Q[0]]


def test_names_are_remembered_up_to_a_bound() -> None:
    town = Town(ONE)
    routes = town.session.routes
    for number in range(NAMES_MAX + 1):
        routes.shard(f"n{number}")
    assert len(routes._names) == 1


# --- opening ------------------------------------------------------------------------------------------------------------


def test_calls_wait_for_a_way_that_opens_and_leave_in_order() -> None:
    town = Town(ONE)
    calls = [town.ask(queue) for queue in (Q[0], Q[1], Q[0])]
    (way,) = town.wanted()
    assert town.by(way) == town.by_router() == []
    town.let_in(way)
    sent = town.by(way)
    assert [each.header.request for each in sent] == [call.request for call in calls]
    assert town.wanted() == []


@pytest.mark.parametrize("stage", ["connecting", "greeting"])
def test_a_door_that_does_not_answer_is_given_up_soon_and_its_calls_go_through_the_router(stage: str) -> None:
    town = Town(ONE)
    calls = [town.ask(Q[0]) for _ in range(3)]
    (way,) = town.wanted()
    if stage == "greeting":
        town.plate(way)
        assert [type(sent.command) for sent in town.by(way)] == [Hello]
    town.advance(OPENING_S - 0.01)
    assert town.by_router() == []
    assert town.session.next_deadline() <= town.now + 0.011
    town.advance(0.02)
    assert [sent.header.request for sent in town.by_router()] == [call.request for call in calls]
    assert town.unwanted() == [way]
    assert way.state == WayState.CLOSED


def test_a_door_that_cannot_be_reached_is_tried_again_ever_later() -> None:
    town = Town(ONE)
    pauses: list[float] = []
    for _ in range(9):
        town.ask(Q[0])
        (way,) = town.wanted()
        town.lose(way)
        lost_at = town.now
        while True:
            for sent in town.by_router():
                town.answer(town.session.routes.router, sent, Done())
            town.ask(Q[0])
            if way.state == WayState.OPENING:
                break
            town.advance(0.5)
        pauses.append(town.now - lost_at)
        town.session.routes.wanted.clear()
        town.lose(way)
        way.failures -= 1
        town.advance(RETRY_S_MAX)
        for sent in town.by_router():
            town.answer(town.session.routes.router, sent, Done())
    assert pauses[:4] == [RETRY_S_MIN, 2 * RETRY_S_MIN, 4 * RETRY_S_MIN, 8 * RETRY_S_MIN]
    assert pauses[-1] == RETRY_S_MAX


def test_a_welcome_that_comes_late_opens_nothing() -> None:
    town = Town(ONE)
    town.ask(Q[0])
    (way,) = town.wanted()
    town.plate(way)
    (hello,) = town.by(way)
    town.advance(OPENING_S + 0.01)
    assert len(town.by_router()) == 1
    town.answer(way, hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    assert way.state == WayState.CLOSED
    town.ask(Q[0])
    assert len(town.by_router()) == 1


def test_the_plate_of_another_door_ends_the_connection() -> None:
    """Another process has the port by now."""
    town = Town(ONE)
    town.ask(Q[0])
    (way,) = town.wanted()
    town.plate(way, b"another")
    assert way.state == WayState.CLOSED
    assert town.unwanted() == [way]
    assert len(town.by_router()) == 1
    assert town.by(way) == [], "no secret for another door"


def test_a_door_that_refuses_the_greeting_is_left() -> None:
    town = Town(ONE)
    town.ask(Q[0])
    (way,) = town.wanted()
    town.plate(way)
    (hello,) = town.by(way)
    town.answer(way, hello, UnsupportedVersionError("no"))
    assert way.state == WayState.CLOSED
    assert len(town.by_router()) == 1


def test_a_session_whose_way_opens_looks_for_it_also_if_no_caller_waits() -> None:
    """The heartbeat thread of a blocking client."""
    town = Town(ONE)
    town.ask(Q[0])
    assert town.session.heartbeat_at == town.now + GREETING_LOOK_S
    (way,) = town.wanted()
    town.let_in(way)
    assert town.session.heartbeat_at > town.now + GREETING_LOOK_S


# --- retired ------------------------------------------------------------------------------------------------------------


def test_a_worker_that_leaves_gets_nothing_more_and_answers_what_it_has() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    before = town.ask(Q[0])
    (sent,) = town.by(way)
    town.plate(way, b"")
    after = town.ask(Q[0])
    assert town.by(way) == []
    assert [each.header.request for each in town.by_router()] == [after.request]
    assert town.unwanted() == []
    town.answer(way, sent, Done())
    assert before.done
    assert before.error is None
    assert town.unwanted() == [way]


def test_a_retired_way_without_calls_is_closed_at_once() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    town.plate(way, b"")
    assert town.unwanted() == [way]
    assert way.pipe_bytes == 0


def test_a_way_that_is_retired_while_it_opens_is_not_opened_by_the_welcome() -> None:
    """The worker leaves between the plate and its answer to the greeting."""
    town = Town(ONE)
    call = town.ask(Q[0])
    (way,) = town.wanted()
    town.plate(way)
    (hello,) = town.by(way)
    town.plate(way, b"")
    assert [sent.header.request for sent in town.by_router()] == [call.request]
    town.answer(way, hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    assert way.state == WayState.RETIRED
    assert not way.open
    town.ask(Q[0])
    assert town.by(way) == []
    assert len(town.by_router()) == 1
    assert way in town.unwanted()


@pytest.mark.parametrize("repeatable", [True, False])
def test_calls_that_a_leaving_worker_never_answers_end_after_a_while(*, repeatable: bool) -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    call = town.ask(Q[0], Heartbeat() if repeatable else Pause())
    town.by(way)
    town.plate(way, b"")
    town.advance(LEAVING_S - 0.01)
    assert town.by_router() == []
    town.advance(0.02)
    assert len(town.by_router()) == repeatable
    assert call.done is not repeatable
    assert town.session.routes.leaving == []


# --- lost ---------------------------------------------------------------------------------------------------------------


def test_what_was_under_way_on_a_lost_connection_is_repeated_where_that_is_safe() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    safe, unsafe = town.ask(Q[0]), town.ask(Q[0], Pause())
    assert len(town.by(way)) == 2
    town.lose(way)
    assert [sent.header.request for sent in town.by_router()] == [safe.request]
    assert isinstance(unsafe.error, ShardUnavailableError)
    assert "refused" not in unsafe.error.details


def test_what_had_not_left_goes_another_way_whatever_it_is() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    calls = [town.ask(Q[0], Pause()) for _ in range(3)]
    town.lose(way)
    assert [sent.header.request for sent in town.by_router()] == [call.request for call in calls]


def test_what_is_sent_again_keeps_its_order_with_what_waited_behind_it() -> None:
    town = Town(ONE, pipe_bytes_max=1500)
    way = town.open(Q[0])
    calls = [town.ask(Q[0]) for _ in range(6)]
    assert way.held
    town.by(way)
    town.lose(way)
    order = []
    while sent := town.by_router():
        for each in sent:
            if isinstance(each.command, GetClusterStatus):
                town.answer(town.session.routes.router, each, ClusterStatus("0", SHARDS, []))
            else:
                order.append(each.header.request)
                town.answer(town.session.routes.router, each, Done())
    assert order == [call.request for call in calls]
    assert all(call.done and call.error is None for call in calls)


def test_an_answer_of_the_way_that_a_call_has_left_is_ignored() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    call = town.ask(Q[0])
    (sent,) = town.by(way)
    town.lose(way)
    (again,) = town.by_router()
    town.answer(way, sent, Done())
    assert not call.done
    town.answer(town.session.routes.router, again, Done())
    assert call.done


def test_a_lost_connection_is_made_again_after_a_pause() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    town.lose(way)
    town.ask(Q[0])
    (sent,) = town.by_router()
    town.answer(town.session.routes.router, sent, Done())
    assert town.wanted() == []
    town.advance(RETRY_S_MIN)
    town.open(Q[0])
    assert way.state == WayState.OPEN


def test_the_loss_of_the_router_does_not_disturb_a_direct_way() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    call = town.ask(Q[0])
    (sent,) = town.by(way)
    town.lose_router()
    town.answer(way, sent, Done())
    assert call.done
    town.ask(Q[0])
    assert len(town.by(way)) == 1


def test_a_router_that_knows_no_worker_yet_retires_the_ways_and_their_calls_are_answered() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    call = town.ask(Q[0])
    (sent,) = town.by(way)
    town.lose_router()
    town.doors = []
    town.greet()
    assert way.state == WayState.RETIRED
    town.answer(way, sent, Done())
    assert call.error is None
    town.place(ONE)
    again = town.open(Q[0])
    assert again is not way


def test_a_door_that_is_placed_again_while_its_earlier_way_still_leaves() -> None:
    """The router took the worker for lost, and it came back: both ways count until the first is gone."""
    town = Town(ONE)
    first = town.open(Q[0])
    town.ask(Q[0])
    (sent,) = town.by(first)
    town.place()
    town.place(ONE)
    second = town.open(Q[0])
    assert second is not first
    assert town.session.kept_bytes > 0
    town.answer(first, sent, Done())
    town.advance(LEAVING_S)
    town.by_router()
    assert town.session.routes.leaving == []
    assert town.session.kept_bytes == 0


def test_an_end_of_all_calls_leaves_no_shard_waiting_for_them() -> None:
    town = Town()
    town.ask(Q[0])
    town.by_router()
    town.session.fail_all(FilaError("the end"))
    town.check()
    town.place(ONE)
    town.open(Q[0])


# --- turning ------------------------------------------------------------------------------------------------------------


def turning() -> tuple[Town, DirectWay, list[object]]:
    """A call under way through the router when a door appears."""
    town = Town()
    town.ask(Q[0])
    routed = town.by_router()
    town.place(ONE)
    town.ask(Q[1])
    (way,) = town.wanted()
    town.let_in(way)
    for sent in town.by(way):
        town.answer(way, sent, Done())
    return town, way, routed


def test_a_shard_turns_when_its_calls_on_the_other_way_are_answered() -> None:
    town, way, (routed,) = turning()
    calls = [town.ask(Q[0]) for _ in range(3)]
    assert town.by(way) == town.by_router() == []
    town.answer(town.session.routes.router, routed, Done())
    assert [sent.header.request for sent in town.by(way)] == [call.request for call in calls]


def test_another_shard_of_that_worker_need_not_turn() -> None:
    town, way, _ = turning()
    town.ask(Q[1])
    assert [sent.key for sent in town.by(way)] == [Q[1]]


def test_a_call_that_waits_by_design_does_not_keep_its_shard_from_turning() -> None:
    town = Town()
    town.ask(Q[0], Receive(1, 60_000))
    town.by_router()
    town.place(ONE)
    town.open(Q[0])


def test_a_shard_that_cannot_turn_stays_on_its_way_for_a_while() -> None:
    town, way, (routed,) = turning()
    calls = [town.ask(Q[0]) for _ in range(2)]
    town.advance(TURNING_S - 0.01)
    assert town.by_router() == []
    town.advance(0.02)
    assert [sent.header.request for sent in town.by_router()] == [call.request for call in calls]
    third = town.ask(Q[0])
    stay = town.by_router()
    assert [sent.header.request for sent in stay] == [third.request]
    for call, sent in ((third, stay[0]), *((None, each) for each in ())):
        town.answer(town.session.routes.router, sent, Done())
        assert call is not None
        assert call.done
    town.advance(STAY_S)
    for request in (routed, *()):
        town.answer(town.session.routes.router, request, Done())
    town.ask(Q[0])
    assert town.by_router() == []
    assert town.by(way) == [], "its calls are under way there still"


@pytest.mark.parametrize("end", ["unplaced", "given up"])
def test_a_turn_that_comes_to_nothing_costs_nothing_afterwards(end: str) -> None:
    """No tick every few milliseconds for a shard that has no calls any more, or no door."""
    town, way, (routed,) = turning()
    call = town.ask(Q[0])
    if end == "unplaced":
        town.place()
        town.by_router()
    else:
        town.session._calls.forget(call)
    town.advance(TURNING_S + SWEEP_S_MIN)
    town.by_router()
    town.advance(SWEEP_S_MIN)
    town.by_router()
    assert town.session.next_deadline() > town.now + 10 * SWEEP_S_MIN
    assert way.held == {}
    town.answer(town.session.routes.router, routed, Done())


# --- moved --------------------------------------------------------------------------------------------------------------


def test_a_refusal_of_an_old_epoch_sends_the_call_through_the_router_and_asks_for_the_placement_once() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    calls = [town.ask(Q[0], Pause()) for _ in range(2)]
    for sent in town.by(way):
        town.answer(way, sent, moved(0))
    sent = town.sent()
    town.check()
    assert [type(each.command) for each in sent] == [Pause, GetPlacement, Pause] or [type(each.command) for each in sent] == [
        GetPlacement,
        Pause,
        Pause,
    ]
    assert [each.header.request for each in sent if isinstance(each.command, Pause)] == [call.request for call in calls]
    assert way.state == WayState.OPEN, "its other shards are there"
    (question,) = [each for each in sent if isinstance(each.command, GetPlacement)]
    for each in sent:
        if each is not question:
            town.answer(town.session.routes.router, each, Done())
    town.answer(town.session.routes.router, question, Placement([view("one", epoch=9, door=ONE.door)]))
    town.ask(Q[0])
    assert [each.header.epoch for each in town.by(way)] == [epoch_tag((1 << 40) + 9)]


def test_a_placement_that_is_never_named_is_asked_for_again() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    for _ in range(2):
        town.session.routes.placed([ONE], SHARDS)
        town.ask(Q[0])
        (sent,) = town.by(way)
        town.answer(way, sent, moved(0))
        assert len(town.sent(GetPlacement)) == 1
        town.advance(PLACEMENT_S + 0.1)
        town.sent()


def test_a_shard_that_is_refused_for_another_reason_is_tried_again_where_it_is() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    call = town.ask(Q[0], Pause())
    (sent,) = town.by(way)
    town.answer(way, sent, unavailable(0))
    town.advance(0.3)
    (again,) = town.by(way)
    assert again.header.request == call.request


def test_an_interrupted_call_that_may_not_be_repeated_is_surfaced_on_both_ways_alike() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    direct, routed = town.ask(Q[0], Pause()), town.ask(Q[2], Pause())
    (sent,), (other,) = town.by(way), town.by_router()
    town.answer(way, sent, interrupted(0))
    town.answer(town.session.routes.router, other, interrupted(2))
    for call in (direct, routed):
        assert isinstance(call.error, ShardUnavailableError)


def test_a_cluster_with_another_number_of_shards_is_another_cluster() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    town.ask(Q[1])
    (sent,) = town.by(way)
    town.session._connection._place([], 1)
    town.check()
    town.answer(way, sent, moved(1))
    assert [each.header.request for each in town.by_router()] == [sent.header.request]


# --- consuming ----------------------------------------------------------------------------------------------------------


def test_a_cancellation_follows_its_receive() -> None:
    town = Town()
    receiving = town.session.receive({Q[0]: 1, Q[2]: 1}, 60_000, town.now)
    for sent in town.by_router():
        town.answer(town.session.routes.router, sent, Delivered(0, []))
    waiting = {sent.key: sent for sent in town.by_router(Receive)}
    assert waiting.keys() == {Q[0], Q[2]}
    town.place(ONE)
    town.answer(town.session.routes.router, waiting[Q[2]], Delivered(0, [batch(1)]))
    assert town.wanted() == []
    (cancel,) = town.by_router(CancelReceive)
    assert cancel.key == Q[0]
    assert cancel.command.request == waiting[Q[0]].header.request
    town.answer(town.session.routes.router, waiting[Q[0]], Delivered(0, []))
    give_up(*receiving.outcome())


def test_a_receive_that_waits_on_a_lost_way_waits_on_the_next_one() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    receiving = town.session.receive({Q[0]: 1}, 10_000, town.now)
    (sent,) = town.by(way, Receive)
    town.advance(4.0)
    town.lose(way)
    (again,) = town.by_router(Receive)
    assert again.header.request == sent.header.request
    assert again.command.wait_ms == 6000
    town.answer(town.session.routes.router, again, Delivered(0, [batch(1)]))
    give_up(*receiving.outcome())


def test_a_subscription_whose_way_changes_begins_a_new_incarnation() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    subscription = town.session.subscribe(Q[0], 10, town.now, auto_extend=True)
    (beat,) = town.by(way, Subscribe)
    town.answer(way, beat, Subscribed(3, 0, []))
    assert subscription.incarnation == 3
    town.lose(way)
    assert subscription.incarnation == 0
    (again,) = town.by_router(Subscribe)
    assert again.command.incarnation == 0
    town.answer(town.session.routes.router, again, Subscribed(4, 0, []))
    assert subscription.incarnation == 4
    town.lose_router()
    assert subscription.incarnation == 0


def test_the_loss_of_the_router_leaves_direct_subscriptions_alone() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    subscription = town.session.subscribe(Q[0], 10, town.now, auto_extend=True)
    (beat,) = town.by(way, Subscribe)
    town.answer(way, beat, Subscribed(3, 0, []))
    town.lose_router()
    assert subscription.incarnation == 3


# --- ends and bounds ----------------------------------------------------------------------------------------------------


def test_a_farewell_goes_the_way_of_what_it_ends() -> None:
    town = Town(ONE)
    way = town.open(Q[0])
    town.session.subscribe(Q[0], 10, town.now, auto_extend=True)
    (beat,) = town.by(way, Subscribe)
    town.answer(way, beat, Subscribed(3, 0, []))
    calls = town.session.goodbye(town.now, FilaError("closed"))
    (sent,) = town.by(way, Goodbye)
    town.answer(way, sent, Done())
    assert [call.done for call in calls] == [True]


def test_the_pipe_of_a_direct_way_is_bounded_and_probed() -> None:
    town = Town(ONE, pipe_bytes_max=1500)
    way = town.open(Q[0])
    calls = [town.ask(Q[0], Receive(1, 60_000)) for _ in range(4)]
    *first, probe = town.by(way)
    assert len(first) < 4
    assert isinstance(probe.command, Hello)
    assert way.pipe_bytes <= 1500 + probe.header.request * 0 + 1000
    town.answer(way, probe, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20))
    rest = [sent for sent in town.by(way) if not isinstance(sent.command, Hello)]
    assert rest
    assert [each.header.request for each in (*first, *rest)] == [call.request for call in calls][: len(first) + len(rest)]


def test_a_client_that_wants_no_direct_way_has_none() -> None:
    town = Town(ONE, greeted=False)
    town.session._connection._direct = False
    (hello,) = town.sent(Hello)
    town.reply(hello, Welcome(1, "0.0", SHARDS, 15_000, 1 << 20, SECRET, town.doors))
    town.place(ONE, TWO)
    town.ask(Q[0])
    assert town.wanted() == []
    assert len(town.by_router()) == 1
    assert QueueList is not None


def test_a_way_has_its_time_to_open_however_long_the_client_was_idle() -> None:
    town = Town(ONE)
    town.advance(3600)
    town.ask(Q[0])
    (way,) = town.wanted()
    town.advance(OPENING_S - 0.01)
    assert town.by_router() == []
    town.let_in(way)
    assert len(town.by(way)) == 1
